"""Megatron-LM's own GPT, described by its arguments with underscores.

Source: ``megatron/training/arguments.py`` and ``core/models/gpt/gpt_layer_specs.py`` at commit d98e8a64dd.

No class of transformers has all of its shapes (biases with rotary embedding, experts with biases, grouped heads with
learned positions), so it is a family of its own. Only Megatron runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from memcheck.edge.screen import whole_number
from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    check_groups,
    decoder,
    gated_mlp,
    grouped_attention,
    linear,
    plain_mlp,
    split_heads,
    stack,
    stacked_experts,
)
from memcheck.models.families.deepseek import LatentNames, latent_tensors
from memcheck.models.module_types import SharedExperts
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.recurrent import FREQUENCY, delta_net, has_delta_nets
from memcheck.models.types import (
    Architecture,
    Attention,
    Block,
    LatentAttention,
    Mixer,
    Mlp,
    Moe,
    Norm,
    ParameterTensor,
)

MODEL_TYPE = "megatron-lm"
PROJECTIONS = Projections(("linear_qkv",), "linear_proj", "self_attention")
GATED = PROJECTIONS._replace(output_gate=True)
LATENT_DEFAULTS = {
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
}
"""``MLATransformerConfig``; ``q_lora_rank`` has none."""
LATENT_NAMES = LatentNames(
    query="self_attention.linear_q_proj",
    query_down="self_attention.linear_q_down_proj",
    query_norm="self_attention.q_layernorm",
    query_up="self_attention.linear_q_up_proj",
    kv_down="self_attention.linear_kv_down_proj",
    kv_norm="self_attention.kv_layernorm",
    kv_up="self_attention.linear_kv_up_proj",
    output="self_attention.linear_proj",
)
DROPOUT = 0.1
"""``--hidden-dropout`` and ``--attention-dropout`` of arguments.py."""


def read(config: ConfigReader) -> Architecture:
    """Read a GPT model as ``pretrain_gpt.py`` builds it, from Megatron-LM's own arguments."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_layers", maximum=MAX_LAYERS)
    dropout = config.dropout("hidden_dropout", default=DROPOUT)
    is_latent = config.flag("multi_latent_attention")
    mixer: Attention | LatentAttention = _latent_attention(config, hidden) if is_latent else _attention(config, hidden)
    dense = _mlp(config, hidden)
    input_norm, pre_mlp_norm = _norm(config, hidden, "input_layernorm"), _norm(config, hidden, "pre_mlp_layernorm")
    experts = _experts(config, hidden) if config.has("num_experts") else None
    moe_layers = [False] * layers if experts is None else _layer_pattern(config, "moe_layer_freq", layers, _every)
    linear_attention = delta_net(config, hidden, biased=input_norm.bias) if has_delta_nets(config) else None
    linear_layers = [False] * layers
    if linear_attention is not None:
        linear_layers = _layer_pattern(config, FREQUENCY, layers, _all_but_every)

    def build_layer(kind: tuple[bool, bool]) -> Block:
        """Build one layer. ``kind``: whether its attention is linear, and whether it has experts."""
        is_linear, has_experts = kind
        layer_mixer: Attention | LatentAttention | Mixer = mixer
        if is_linear and linear_attention is not None:
            layer_mixer = linear_attention
        feed_forward: Mlp | Moe = experts if has_experts and experts is not None else dense
        return Block(mixer=layer_mixer, mlp=feed_forward, input_norm=input_norm, mlp_norm=pre_mlp_norm, dropout=dropout)

    blocks = stack(zip(linear_layers, moe_layers, strict=True), build_layer)
    positions = config.integer("max_position_embeddings", default=0)
    learned_positions = positions if _has_learned_positions(config) else 0
    heads = config.integer("num_attention_heads")
    size = StackDimensions(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=0,
        vocab=config.integer("vocab_size"),
        positions=positions,
    )
    return decoder(
        config,
        size,
        blocks,
        tied=not config.flag("untie_embeddings_and_output_weights"),
        final_norm=_norm(config, hidden, "decoder.final_layernorm"),
        rotary_dim=0 if isinstance(mixer, LatentAttention) else mixer.rotary_dim,
        learned_positions=learned_positions,
        embedding_dropout=dropout,
    )


def _has_learned_positions(config: ConfigReader) -> bool:
    """Say whether the model has a table of learned positions, whose size the configuration must state."""
    learned = config.text("position_embedding_type", default="learned_absolute") == "learned_absolute"
    if learned and not config.integer("max_position_embeddings", default=0):
        config.fail("max_position_embeddings", "the table of learned positions has no size", "state it")
    return learned


def _norm(config: ConfigReader, size: int, name: str) -> Norm:
    """Build the norm of ``--normalization``: an RMSNorm or a LayerNorm over ``size`` elements."""
    kind = config.text("normalization", default="LayerNorm")
    if kind not in ("LayerNorm", "RMSNorm"):
        config.fail("normalization", f"{kind} is neither LayerNorm nor RMSNorm")
    return Norm("rmsnorm", size, name=name) if kind == "RMSNorm" else Norm("layernorm", size, bias=True, name=name)


def _ffn_hidden_size(config: ConfigReader, hidden: int) -> int:
    """Read ``--ffn-hidden-size``, the MLP's inner width.

    If it is absent, Megatron takes 4 * hidden, or with ``--swiglu`` two thirds of that in multiples of 64.
    """
    default = int(hidden * 8 / 3 / 64) * 64 if config.flag("swiglu") else 4 * hidden
    return config.integer("ffn_hidden_size", default=default)


def _activation(config: ConfigReader) -> tuple[str, bool]:
    """Return the activation's name and whether the MLP is gated (``--swiglu`` or ``--quick-geglu``)."""
    if config.flag("swiglu"):
        config.ignore("quick_geglu", "squared_relu")
        return "silu", True
    squared, quick = config.flag("squared_relu"), config.flag("quick_geglu")
    if quick:
        return "quick_gelu", True
    return "relu2" if squared else "gelu", False


def _has_linear_bias(config: ConfigReader) -> bool:
    """Whether linear layers have biases: not with ``--disable-bias-linear``."""
    return not config.flag("disable_bias_linear")


def _mlp(config: ConfigReader, hidden: int) -> Mlp:
    """Build the MLP of layers without experts."""
    width, (activation, gated), bias = _ffn_hidden_size(config, hidden), _activation(config), _has_linear_bias(config)
    if gated:
        return gated_mlp(hidden, width, activation, bias=bias)
    return plain_mlp(hidden, width, activation, "mlp.linear_fc1", "mlp.linear_fc2", bias=bias)


def _experts(config: ConfigReader, hidden: int) -> Moe:
    """Build the MoE layer: ``--num-experts`` grouped experts, and a shared expert of
    ``--moe-shared-expert-intermediate-size``.
    """
    experts, (activation, gated), bias = config.integer("num_experts"), _activation(config), _has_linear_bias(config)
    width = config.integer("moe_ffn_hidden_size", default=_ffn_hidden_size(config, hidden))
    shared_width = config.integer("moe_shared_expert_intermediate_size", default=0, minimum=0)
    router = "softmax" if config.flag("moe_router_pre_softmax") else "softmax-topk"  # softmax before or after top-k
    if config.text("moe_router_score_function", default="softmax") == "sigmoid":
        router = "sigmoid"
    tensors = (
        ParameterTensor("mlp.router.weight", (experts, hidden), "router"),
        *stacked_experts("mlp.experts", experts, hidden, width, gated=gated),
    )
    if bias:
        fc1_rows = width * 2 if gated else width
        tensors += (
            ParameterTensor("mlp.experts.linear_fc1.bias", (experts, fc1_rows), "experts"),
            ParameterTensor("mlp.experts.linear_fc2.bias", (experts, hidden), "experts"),
        )
    shared_gate = config.flag("moe_shared_expert_gate")
    if shared_width:
        module, fc1_rows = "mlp.shared_experts", 2 * shared_width if gated else shared_width
        if shared_gate:
            tensors += (ParameterTensor(f"{module}.gate_weight", (1, hidden), "shared_experts"),)
        tensors += linear(f"{module}.linear_fc1", fc1_rows, hidden, "shared_experts", "column")
        tensors += linear(f"{module}.linear_fc2", hidden, shared_width, "shared_experts", "row")
    return Moe(
        experts=experts,
        experts_per_token=config.integer("moe_router_topk", default=2),
        width=width,
        gated=gated,
        activation=activation,
        bias=bias,
        router=router,
        shared=SharedExperts(shared_width, gate=bool(shared_width) and shared_gate, runs_first=False),
        tensors=tensors,
    )


def _latent_attention(config: ConfigReader, hidden: int) -> LatentAttention:
    """Build multi-latent attention (``--multi-latent-attention``), with Megatron-core's defaults of
    ``MLATransformerConfig``.
    """
    heads, q_lora_rank = config.integer("num_attention_heads"), config.optional_integer("q_lora_rank")
    kv_lora_rank, qk_head_dim, qk_pos_emb_head_dim, v_head_dim = (
        config.integer(name, default=default) for name, default in LATENT_DEFAULTS.items()
    )
    config.ignore("num_query_groups", "group_query_attention", "kv_channels", "rotary_percent", "qk_layernorm")
    config.ignore("add_qkv_bias")
    config.refuse("attention_output_gate", "Megatron-core's latent attention has no output gate", "remove it")
    attention = LatentAttention(
        heads=heads,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=qk_head_dim,
        qk_rope_head_dim=qk_pos_emb_head_dim,
        v_head_dim=v_head_dim,
        tensors=(),
        dropout=config.dropout("attention_dropout", default=DROPOUT),
        bias=False,  # multi_latent_attention.py builds its matrices without
        rotary_interleaved=True,
    )
    return attention._replace(tensors=latent_tensors(hidden, attention, LATENT_NAMES))


def _attention(config: ConfigReader, hidden: int) -> Attention:
    """Build self-attention: grouped with ``--group-query-attention``, rotary where ``--position-embedding-type`` is
    ``rope``.
    """
    heads = config.integer("num_attention_heads")
    kv_channels = config.optional_integer("kv_channels") or split_heads(config, hidden, heads)
    num_query_groups = config.optional_integer("num_query_groups")
    is_grouped = config.flag("group_query_attention") and num_query_groups is not None
    kv_heads = num_query_groups if is_grouped and num_query_groups is not None else heads
    check_groups(config, heads, kv_heads, "num_query_groups")
    bias, qkv_bias = _has_linear_bias(config), config.flag("add_qkv_bias")
    use_qk_norm = config.flag("qk_layernorm")
    rotary_fraction = config.number("rotary_percent", default=1.0)
    rotary = config.text("position_embedding_type", default="learned_absolute") == "rope"
    return grouped_attention(
        StackDimensions(
            hidden=hidden, layers=1, heads=heads, kv_heads=kv_heads, head_dim=kv_channels, vocab=1, positions=0
        ),
        GATED if config.flag("attention_output_gate") else PROJECTIONS,
        qkv_bias=bias or qkv_bias,
        out_bias=bias,
        rotary_dim=int(kv_channels * rotary_fraction) if rotary else 0,
        query_norm=_norm(config, kv_channels, "self_attention.q_layernorm") if use_qk_norm else None,
        key_norm=_norm(config, kv_channels, "self_attention.k_layernorm") if use_qk_norm else None,
        dropout=config.dropout("attention_dropout", default=DROPOUT),
    )


_TERM = re.compile(r"\[([01](?:\s*,\s*[01])*)\](?:\s*\*\s*(\d{1,5}))?\Z")
"""``[0]*1`` or ``[0,1,1]``."""
_REPEATED = re.compile(r"\((.*)\)(?:\s*\*\s*(\d{1,5}))?\Z")
"""``([1]*3+[0]*1)*3``."""


def _every(n: int, i: int) -> bool:
    """Whether layer ``i`` is a multiple of ``n``: the layers with experts."""
    return i % n == 0


def _all_but_every(n: int, i: int) -> bool:
    """Whether layer ``i`` is not the last of ``n``: the layers with linear attention."""
    return (i + 1) % n != 0


def _layer_pattern(config: ConfigReader, key: str, layers: int, selects: Callable[[int, int], bool]) -> list[bool]:
    """Say for each layer whether ``key`` selects it (``--moe-layer-freq``, ``--linear-attention-freq``).

    The value is a number, to which ``selects(number, layer)`` applies, or a pattern such as ``([0]*1+[1]*3)*2``.
    """
    value = config.raw(key)
    if value is None and key == FREQUENCY:
        config.fail(key, f"{key} is not stated, without which Megatron-core builds no delta nets", "state it")
    text = "1" if value is None else str(value).strip()
    number = whole_number(text)
    if number:
        return [selects(number, i) for i in range(layers)]
    inner, repeats = text, 1
    repeated = _REPEATED.match(text)
    if repeated is not None:
        inner, repeats = repeated[1], int(repeated[2] or 1)
    selected: list[bool] = []
    for summand in inner.split("+"):
        term = _TERM.match(summand.strip())
        term_repeats = int(term[2] or 1) if term is not None else 0
        if term is None or max(term_repeats, repeats) > layers:
            config.fail(key, f"{key} = {text!r} is neither a number nor a sum like ([0]*1+[1]*3)")
        selected += [digit == "1" for digit in term[1] if digit in "01"] * term_repeats
    selected *= repeats
    if len(selected) != layers:
        config.fail(key, f"{key} describes {len(selected)} of {layers} layers")
    return selected
