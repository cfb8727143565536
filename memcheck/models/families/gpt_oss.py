"""GPT-OSS (modeling_gpt_oss.py): attention sinks, biases, transposed experts, alternating windows."""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    layer_types,
    pre_norm_block,
    read_attention,
    read_sizes,
    rms_norm,
    stack,
    stacked_experts,
    vector,
    windows,
)
from memcheck.models.module_types import HALF, KERNELS, NORMALISED_SCORES
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Fp32Params, Moe, ParameterTensor

NORM = "rmsnorm-fp32-weight"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gpt_oss``. ``num_experts`` is the class's own alias."""
    size = read_sizes(config, kv_heads="required", head_dim=64)
    config.ignore("swiglu_alpha", "swiglu_limit", "initial_context_length", "experts_per_token")
    attention = read_attention(
        config,
        size,
        bias=True,
        sinks="logit",
        rotation=HALF._replace(form="chunks"),
        kernels=KERNELS._replace(sdpa=False),
        tensors=(vector("self_attn.sinks", size.heads, "attention", "column"),),
    )
    window = config.window()
    attention_types = layer_types(config, size.layers, lambda i: "full_attention" if i % 2 else "sliding_attention")
    if window is None and "sliding_attention" in attention_types:
        config.integer("sliding_window")
    moe = _experts(config, size.hidden)

    def build_layer(span: int | None) -> Block:
        """Build one layer. ``span``: its sliding window in tokens; None for full attention."""
        return pre_norm_block(size.hidden, attention._replace(window=span), moe, kind=NORM)

    final_norm = rms_norm(size.hidden, "model.norm", NORM)
    return decoder(
        config,
        size,
        stack(windows(attention_types, window), build_layer),
        tied=False,
        final_norm=final_norm,
        fp32_params=Fp32Params(always=(), of_fp16=("norm",)),
    )


def _experts(config: ConfigReader, hidden: int) -> Moe:
    """Build routed experts with biases, whose gates are clamped (``swiglu_limit``); gate and up interleave in one
    matrix.
    """
    experts, width = config.integer("num_local_experts", "num_experts"), config.integer("intermediate_size")
    up, down = stacked_experts("mlp.experts", experts, hidden, width, transposed=True)
    tensors = (
        ParameterTensor("mlp.router.weight", (experts, hidden), "router"),
        vector("mlp.router.bias", experts, "router"),
        up,
        ParameterTensor("mlp.experts.gate_up_proj_bias", (experts, 2 * width), "experts", shard="column"),
        down,
        ParameterTensor("mlp.experts.down_proj_bias", (experts, hidden), "experts"),
    )
    return Moe(
        experts,
        config.integer("num_experts_per_tok"),
        width,
        gated=True,
        activation=config.activation(),
        bias=True,
        router="softmax-topk",
        tensors=tensors,
        routing=NORMALISED_SCORES._replace(normalised=False),
        clamp="interleaved",
    )
