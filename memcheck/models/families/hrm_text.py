"""HRM-Text (modeling_hrm_text.py): a slow and a fast stack of layers, which run in turn on the sum of both states."""

from __future__ import annotations

from memcheck.models.encoder import MAX_LAYERS
from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.parts.stack import stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Cycle, Norm, ParameterTensor, Paths
from memcheck.record import Record

NOTE = "prefix_lm: a step without token_type_ids, so that every mask is causal"


class _Run(Record):
    """One run of a layer: hashable."""

    slow: bool
    layer: int
    graph: bool
    cycle: int


def read(config: ConfigReader) -> Architecture:
    """``model_type: hrm_text``: ``L_cycles`` runs of the fast stack and one of the slow stack, ``H_cycles`` times."""
    cycles, inner = config.integer("H_cycles", default=2), config.integer("L_cycles", default=3)
    layers = _layers(config, cycles * (inner + 1))
    size = read_sizes(config, kv_heads="none", head_dim=128, layers=layers)
    h, bias = size.hidden, config.flag("attention_bias")
    config.ignore("embedding_scale", "num_key_value_heads")
    if config.flag("prefix_lm", default=True):
        config.note(NOTE)
    if layers * cycles * (inner + 1) > MAX_LAYERS:
        config.fail("H_cycles", f"layers run more often than {MAX_LAYERS:,} times")
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        dropout=config.dropout("attention_dropout"),
        gate_matrix=True,
        tensors=linear("self_attn.gate_proj", size.heads * size.head_dim, h, "attention", "column", bias=bias),
    )
    if bias:
        config.fail("attention_bias", "memcheck has no model of gates with biases here")
    mlp = gated_mlp(h, config.integer("intermediate_size"), config.activation(), bias=config.flag("mlp_bias"))
    runs = _runs(config, cycles, inner, layers)
    last = {(run.slow, run.layer): i for i, run in enumerate(runs)}
    first = {(run.slow, run.layer): i for i, run in reversed(list(enumerate(runs))) if run.graph}
    unseen = {(run.slow, run.layer) for i, run in enumerate(runs) if not run.graph and i < first[run.slow, run.layer]}

    def make(kind: tuple[Cycle, bool, bool]) -> Block:
        return Block(
            mixer=attention,
            mlp=mlp,
            input_norm=Norm("l2", h, weight=False, name="input_layernorm"),
            mlp_norm=Norm("l2", h, weight=False, name="post_attention_layernorm"),
            cycle=kind[0],
            borrows=kind[1],
            reused=kind[2],
        )

    def kind_of(i: int, run: _Run) -> tuple[Cycle, bool, bool]:
        which = run.slow, run.layer
        cycle = Cycle(
            joins=run.layer == 0,
            ends=run.layer == layers - 1,
            slow=run.slow,
            graph=run.graph,
            cast_before=i == first[which] and which in unseen,
            final=run.cycle == cycles - 1,
        )
        return cycle, i < last[which], run.graph and i > first[which]

    kinds = [kind_of(i, run) for i, run in enumerate(runs)]
    state = ParameterTensor("model.z_L_init", (h,), "position", fixed=True)
    found = decoder(
        config, size, stack(kinds, make), tied=False, embedding_scale=True, scales_outside=True, extra_tensors=(state,)
    )
    return found._replace(final_norm=None, paths=Paths(layers="model.L_module.layers"))


def _layers(config: ConfigReader, runs: int) -> int:
    """Layers of a stack: transformers' files state them and the total of all runs, other files state them alone."""
    each = config.optional_integer("num_layers_per_stack")
    stated = config.integer("num_hidden_layers")
    if each is not None and each * runs != stated:
        said = f"{stated} runs of layers are not {runs} runs of {each}"
        config.fail("num_hidden_layers", said, "write num_hidden_layers: layers of a stack, without the other key")
    return stated if each is None else each


def _runs(config: ConfigReader, cycles: int, inner: int, layers: int) -> list[_Run]:
    """Every run of every layer. ``L_bp_cycles``: how many of each cycle's last fast runs have a graph."""
    stated = list(config.integers("L_bp_cycles") or (2,))
    if any(n < 1 for n in stated):
        config.fail("L_bp_cycles", "a cycle whose fast runs have no graph has no memory model", "write 1 or more")
    graphs = [1] * max(0, cycles - len(stated)) + stated
    found = []
    for cycle in range(cycles):
        threshold = inner - (graphs[cycle] if cycle < len(graphs) else 1)
        for run in range(inner + 1):
            slow = run == inner
            graph = slow or run >= threshold
            found += [_Run(slow=slow, layer=layer, graph=graph, cycle=cycle) for layer in range(layers)]
    return found
