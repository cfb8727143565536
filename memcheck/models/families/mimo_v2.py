"""MiMo V2 Flash (modeling_mimo_v2_flash.py): narrower values, windowed layers with sinks and twice the key heads."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    layer_types,
    linear,
    pre_norm_block,
    read_sizes,
    rotary_share,
    sparse_types,
    stack,
    vector,
)
from memcheck.models.families.deepseek import sigmoid_experts
from memcheck.models.module_types import EAGER, KERNELS, MimoAttention
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block

SHARE = 0.334
OTHER_CODE = (
    "swa_rope_theta", "attention_chunk_size", "layernorm_epsilon", "scoring_func", "topk_method", "rope_theta",
    "partial_rotary_factor",
)  # fmt: skip
"""What the hub's own code reads, and what decides no size."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mimo_v2_flash``.

    Full and windowed attention with value heads of their own width, and sigmoid-routed experts.
    """
    size = read_sizes(config, kv_heads="required", head_dim=192)
    hidden, value_dim = size.hidden, config.integer("v_head_dim", default=128)
    window = config.window()
    older_window = config.optional_integer("sliding_window_size")
    window = window if older_window is None else older_window + 1
    attention_types = layer_types(
        config, size.layers, lambda i: "sliding_attention" if i and (i + 1) % 6 else "full_attention"
    )
    config.ignore("attention_value_scale", *OTHER_CODE)
    kinds = tuple(zip(attention_types, sparse_types(config, size.layers, 1), strict=True))
    _check_other_code(config, size, value_dim, kinds)
    moe = sigmoid_experts(config, hidden, "n_routed_experts", "", aliases=("num_local_experts",))
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), moe.activation)
    bias, dropout = config.flag("attention_bias"), config.dropout("attention_dropout")
    rotary_dims = {
        kind: int(size.head_dim * rotary_share(config, kind, SHARE)) for kind in sorted(set(attention_types))
    }

    def build_layer(kind: tuple[str, bool]) -> Block:
        """Build one layer. ``kind``: its kind of attention, and whether it has experts."""
        attention_type, has_experts = kind
        sliding = attention_type == "sliding_attention"
        attention = _attention(size, value_dim, rotary_dims[attention_type], bias=bias, sliding=sliding)
        attention = attention._replace(window=window if sliding else None, dropout=dropout)
        return pre_norm_block(hidden, attention, moe if has_experts else mlp)

    return decoder(
        config,
        size,
        stack(kinds, build_layer),
        tied=False,
        rotary_tables=tuple(rotary_dims.values()) or 0,
    )


def _check_other_code(
    config: ConfigReader, size: StackDimensions, value_dim: int, kinds: tuple[tuple[str, bool], ...]
) -> None:
    """Refuse keys of the hub's own code that contradict transformers' class, which does not read them.

    Raises:
        ArchitectureError: a stated key differs from what the class builds.
    """
    expected = {
        "swa_num_attention_heads": size.heads,
        "swa_num_key_value_heads": 2 * size.kv_heads,
        "swa_head_dim": size.head_dim,
        "swa_v_head_dim": value_dim,
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind, _ in kinds],
        "moe_layer_freq": [int(sparse) for _, sparse in kinds],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    }
    for key, expected_value in expected.items():
        stated = config.raw(key)
        if stated is not None and (list(stated) if isinstance(stated, (list, tuple)) else stated) != expected_value:
            config.fail(key, f"transformers does not read {key}: its class builds {expected_value}", f"remove {key}")


def _attention(size: StackDimensions, value_dim: int, rotary_dim: int, *, bias: bool, sliding: bool) -> Attention:
    """Build attention whose values have another width than queries and keys.

    ``value_dim``: elements of a value head. ``rotary_dim``: rotated elements of a query or key head. ``sliding``: the
    attention of windowed layers, which has twice the key-value heads and sinks. The class switches
    scaled_dot_product_attention off.
    """
    hidden, heads = size.hidden, size.heads
    kv_heads = 2 * size.kv_heads if sliding else size.kv_heads
    tensors = (
        *linear("self_attn.q_proj", heads * size.head_dim, hidden, "attention", "column", bias=bias),
        *linear("self_attn.k_proj", kv_heads * size.head_dim, hidden, "attention", "column", bias=bias),
        *linear("self_attn.v_proj", kv_heads * value_dim, hidden, "attention", "column", bias=bias),
        *linear("self_attn.o_proj", hidden, heads * value_dim, "attention", "row"),
    )
    sinks = (vector("self_attn.sinks", heads, "attention", "column"),) if sliding else ()
    return MimoAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size.head_dim,
        qkv_bias=bias,
        rotary_dim=rotary_dim,
        tensors=sinks + tensors,
        v_head_dim=value_dim,
        sinks="logit" if sliding else "",
        eager=EAGER._replace(softmax_fp32=False),
        kernels=KERNELS._replace(sdpa=False),
        dropout=0.0,
        out_bias=False,
        query_norm=None,
        key_norm=None,
        window=None,
    )
