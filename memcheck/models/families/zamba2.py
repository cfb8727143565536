"""Zamba 2 (modeling_zamba2.py): Mamba-2 in every layer, in front of some a transformer block that they share."""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    decoder,
    gated_mlp,
    grouped_attention,
    linear,
    read_sizes,
    rms_norm,
)
from memcheck.models.reader import ConfigReader
from memcheck.models.recurrent import StateSpace, mamba2
from memcheck.models.types import Architecture, Block, ParameterTensor, SharedTransformerBlock, SharedWith, SparePairs

HARMLESS = (
    "attention_hidden_size", "attention_head_dim", "head_dim", "mamba_headdim", "kv_channels", "num_query_groups",
    "time_step_min", "time_step_max", "time_step_floor", "use_mamba_kernels", "use_conv_bias", "use_mem_eff_path",
    "num_logits_to_keep", "use_long_context", "mamba_dt_rank", "ffn_hidden_size", "layer_types",
    "use_shared_mlp_adapter", "use_shared_block_adapter", "mamba_chunk_size",
)  # fmt: skip
"""Derived sizes, which the class overwrites, and what decides none."""
OLDER = {"mamba": "linear_attention", "m": "linear_attention", "g": "hybrid"}


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: zamba2``."""
    size = read_sizes(config, head_dim_key=False)
    hidden = size.hidden
    types = _types(config, size.layers)
    config.ignore(*HARMLESS)
    bias = config.flag("add_bias_linear")
    inner = int(config.number("mamba_expand", default=2.0) * hidden)
    heads = config.integer("n_mamba_heads", default=8)
    dimensions = StateSpace(
        heads=heads,
        head_dim=inner // heads,
        state=config.integer("mamba_d_state", default=64),
        groups=config.integer("mamba_ngroups", default=1),
        kernel=config.integer("mamba_d_conv", default=4),
        chunk=config.integer("chunk_size", default=256),
        bias=bias,
    )
    plain = Block(
        mixer=mamba2(hidden, dimensions), mlp=None, input_norm=rms_norm(hidden, "input_layernorm"), mlp_norm=None
    )
    hybrid = _hybrid(config, size, bias=bias)._replace(
        second_mixer=mamba2(hidden, dimensions, "mamba_decoder.mamba"),
        mixer_output_norm=rms_norm(hidden, "mamba_decoder.input_layernorm"),
    )
    number = config.integer("num_mem_blocks", default=1)
    blocks = layers_with_shared_blocks(types, plain, hybrid, number, _named(config, types))
    rotary_dim = 2 * hidden // size.heads if config.flag("use_mem_rope") else 0
    return assemble(config, size, blocks, rotary_dim=rotary_dim)


def layers_with_shared_blocks(
    types: tuple[str, ...], plain: Block, hybrid: Block, shared_blocks: int, adapted_layers: int
) -> tuple[tuple[Block, int], ...]:
    """Return the layers as runs of (layer, how many), where hybrid layers share a few transformer blocks.

    ``types``: kind of every layer. ``plain``, ``hybrid``: the two layers. ``shared_blocks``: number of transformer
    blocks: the first hybrid layer uses the first block, the second the second, and so on in a circle. The last layer
    that uses a block holds its tensors. ``adapted_layers``: hybrid layers for which the class makes low-rank adapters,
    which may be more than the model has.
    """
    hybrid_layers, hybrid_index = types.count("hybrid"), 0
    blocks: list[tuple[Block, int]] = []
    for kind in types:
        block = plain
        if kind == "hybrid":
            block_index = hybrid_index % shared_blocks
            uses = len(range(block_index, hybrid_layers, shared_blocks))  # hybrid layers with this shared block
            is_used_later = hybrid_index + shared_blocks < hybrid_layers
            block = hybrid._replace(
                shared_with=SharedWith(later=is_used_later, earlier=hybrid_index >= shared_blocks),
                extension=SparePairs(uses - 1),
            )
            if not is_used_later:
                adapter_pairs = len(range(block_index, adapted_layers, shared_blocks))
                block = block._replace(extra_tensors=_with_idle(block, adapter_pairs - uses))
            hybrid_index += 1
        if blocks and blocks[-1][0] == block:
            blocks[-1] = (block, blocks[-1][1] + 1)
        else:
            blocks.append((block, 1))
    return tuple(blocks)


def assemble(
    config: ConfigReader, size: StackDimensions, blocks: tuple[tuple[Block, int], ...], *, rotary_dim: int
) -> Architecture:
    """Build the model from its ``blocks``, as (layer, how many).

    Where a layer reads the embedding, a copy of it accompanies the residual stream. ``rotary_dim``: rotated elements of
    each head.
    """
    final_norm = rms_norm(size.hidden, "model.final_layernorm")
    return decoder(config, size, blocks, tied=True, final_norm=final_norm, rotary_dim=rotary_dim)


def _types(config: ConfigReader, layers: int) -> tuple[str, ...]:
    """Read the kind of every layer from ``layers_block_type``.

    By default every sixth layer is a hybrid, and three more are, as in the class.
    """
    hybrids = [*range(6, 43, 6), 47, 51]
    default_kinds = ["hybrid" if i in hybrids else "linear_attention" for i in range(54)]
    return kinds_of(config, layers, tuple(default_kinds))


def kinds_of(config: ConfigReader, layers: int, default_kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return each layer's kind, from ``layers_block_type`` or the default ``default_kinds``.

    Raises:
        ArchitectureError: an unknown kind, or another number of layers than the model has.
    """
    stated = config.texts("layers_block_type") or default_kinds
    kinds = tuple(OLDER.get(kind, kind) for kind in stated)
    unknown = next((kind for kind in kinds if kind not in ("linear_attention", "hybrid")), None)
    if unknown is not None or len(kinds) != layers:
        config.fail("layers_block_type", f"{len(kinds)} layers, the model has {layers}", "known: mamba, hybrid")
    return kinds


def _named(config: ConfigReader, types: tuple[str, ...]) -> int:
    """Count the layers that ``hybrid_layer_ids`` names.

    Each shared block makes low-rank adapters for those of them that use it. ``types``: kind of every layer.
    """
    stated = config.integers("hybrid_layer_ids")
    hybrids = [i for i, kind in enumerate(types) if kind == "hybrid"]
    if stated is None:
        return len(hybrids)
    missing = next((i for i in hybrids if i not in stated), None)
    if missing is not None:
        config.fail("hybrid_layer_ids", f"layer {missing} is a hybrid, and is not named")
    return len(stated)


def _with_idle(block: Block, number: int) -> tuple[ParameterTensor, ...]:
    """List the layer's own tensors, and ``number`` low-rank pairs for layers that the model does not have.

    The class creates these pairs, but nothing reads them, so that no gradient reaches them.
    """
    pairs = [t for t in block.extra_tensors if "_adapter." in t.name]
    return block.extra_tensors + tuple(
        t._replace(name=f"shared_transformer.idle_{i}.{t.name}", fixed=True) for i in range(number) for t in pairs
    )


def _hybrid(config: ConfigReader, size: StackDimensions, *, bias: bool) -> Block:
    """Return a hybrid layer: the shared transformer block with this layer's own adapters.

    The block reads hidden states and embeddings side by side, 2 * hidden channels.
    """
    hidden, module, rank = size.hidden, "shared_transformer", config.integer("adapter_rank", default=128)
    doubled_size = size._replace(hidden=2 * hidden, head_dim=2 * hidden // size.heads)
    rotates = config.flag("use_mem_rope")
    attention = grouped_attention(
        doubled_size,
        Projections(module=f"{module}.self_attn"),
        rotary_dim=doubled_size.head_dim if rotates else 0,
        dropout=config.dropout("attention_dropout"),
    )
    (output,) = linear(
        f"{module}.self_attn.o_proj", hidden, doubled_size.heads * doubled_size.head_dim, "attention", "row"
    )
    attention = attention._replace(tensors=(*attention.tensors[:3], output))
    width = config.integer("intermediate_size", default=4 * hidden, null=4 * hidden)
    activation = config.activation(default="gelu")
    mlp = gated_mlp(hidden, width, activation, bias=bias, fused=True, module=f"{module}.feed_forward")
    layer_tensors: tuple[ParameterTensor, ...] = linear("linear", hidden, hidden, "mlp", "none")
    if config.flag("use_shared_attention_adapter"):
        for letter in "qkv":
            layer_tensors += _pair(f"linear_{letter}_adapter", 2 * hidden, rank, 2 * hidden, "attention")
    layer_tensors += _pair("gate_up_proj_adapter", hidden, rank, 2 * width, "mlp")
    return SharedTransformerBlock(
        mixer=attention,
        mlp=mlp,
        input_norm=rms_norm(2 * hidden, f"{module}.input_layernorm"),
        mlp_norm=rms_norm(hidden, f"{module}.pre_ff_layernorm"),
        extra_tensors=layer_tensors,
    )


def _pair(name: str, inputs: int, rank: int, outputs: int, group: str) -> tuple[ParameterTensor, ...]:
    """Two matrices, one after the other."""
    return (*linear(f"{name}.0", rank, inputs, group, "none"), *linear(f"{name}.1", outputs, rank, group, "none"))
