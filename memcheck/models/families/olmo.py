"""OLMo 1, 2, 3, OLMoE and FlexOLMo (modeling_olmo.py, modeling_olmo2.py, modeling_olmo3.py, modeling_olmoe.py,
modeling_flex_olmo.py).
"""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    head_norm,
    layer_types,
    pre_norm_block,
    read_attention,
    read_sizes,
    rms_norm,
    routed,
    stack,
    windows,
)
from memcheck.models.families.llama import intermediate_size
from memcheck.models.module_types import HALF, NORMALISED_SCORES
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Moe, Norm

FP32_TABLES = "half-fp32"
FP32_WEIGHT = "rmsnorm-fp32-weight"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: olmo``: LayerNorm without weights, on an fp32 copy."""
    size = read_sizes(config)

    def norm(name: str) -> Norm:
        """LayerNorm without weights, computed in fp32."""
        return Norm("layernorm-fp32", size.hidden, weight=False, name=name)

    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation())
    attention = _attention(config, size)._replace(rotation=HALF._replace(form=FP32_TABLES))
    block = Block(
        mixer=attention, mlp=mlp, input_norm=norm("input_layernorm"), mlp_norm=norm("post_attention_layernorm")
    )
    return decoder(config, size, ((block, size.layers),), tied=False, final_norm=norm("model.norm"))


def read_2(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: olmo2``: norms after each half and on all queries and keys together; none
    in front.
    """
    size = read_sizes(config)
    return _post_norm(config, size, [None] * size.layers)


def read_3(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: olmo3``: OLMo 2 with three windowed layers to one full layer."""
    size = read_sizes(config)
    window = config.window()
    attention_types = layer_types(
        config, size.layers, lambda i: "sliding_attention" if (i + 1) % 4 else "full_attention"
    )
    if window is None and "sliding_attention" in attention_types:
        config.integer("sliding_window")
    return _post_norm(config, size, windows(attention_types, window))._replace(
        rotary_tables=len(set(attention_types)), mask_windows=(None, window)
    )


def read_moe(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: olmoe``: pre-norm; ``num_local_experts`` is the class's own alias."""
    size = read_sizes(config)
    moe = routed(
        size.hidden,
        (config.integer("num_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        config.integer("intermediate_size"),
        config.activation(),
        routing=NORMALISED_SCORES._replace(normalised=config.flag("norm_topk_prob")),
    )
    block = pre_norm_block(size.hidden, _attention(config, size, "rmsnorm"), moe)
    return decoder(config, size, ((block, size.layers),), tied=False)


def read_flex(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: flex_olmo``: OLMo 2's order of norms around OLMoE's experts."""
    size = read_sizes(config)
    moe = routed(
        size.hidden,
        (config.integer("num_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        config.integer("intermediate_size"),
        config.activation(),
        routing=NORMALISED_SCORES._replace(normalised=config.flag("norm_topk_prob")),
    )
    return _post_norm(config, size, [None] * size.layers, moe)


def _attention(config: ConfigReader, size: StackDimensions, norm: str | None = None) -> Attention:
    """Build grouped-query attention. ``norm``: kind of the norms over all queries together and all keys together; None
    for none.
    """
    return read_attention(
        config,
        size,
        query_norm=head_norm(norm, size.heads * size.head_dim, "q") if norm else None,
        key_norm=head_norm(norm, size.kv_heads * size.head_dim, "k") if norm else None,
        clip_qkv=config.number("clip_qkv", default=0.0) > 0,
    )


def _post_norm(
    config: ConfigReader, size: StackDimensions, windows: list[int | None], moe: Moe | None = None
) -> Architecture:
    """Build a decoder whose norms follow attention and MLP, with none before them.

    ``windows``: sliding window of each layer in tokens; None for full attention. ``moe``: in place of a dense MLP.
    """
    attention = _attention(config, size, FP32_WEIGHT)._replace(rotation=HALF._replace(form=FP32_TABLES))
    mlp = moe or gated_mlp(size.hidden, intermediate_size(config), config.activation())
    attention_norm = rms_norm(size.hidden, "post_attention_layernorm", FP32_WEIGHT)
    mlp_norm = rms_norm(size.hidden, "post_feedforward_layernorm", FP32_WEIGHT)

    def build_layer(window: int | None) -> Block:
        """Build one layer. ``window``: in tokens; None for full attention."""
        return Block(
            mixer=attention._replace(window=window),
            mlp=mlp,
            input_norm=None,
            mlp_norm=None,
            mixer_output_norm=attention_norm,
            mlp_output_norm=mlp_norm,
        )

    final_norm = rms_norm(size.hidden, "model.norm", FP32_WEIGHT)
    return decoder(config, size, stack(windows, build_layer), tied=False, final_norm=final_norm)
