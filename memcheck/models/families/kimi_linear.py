"""Kimi Linear (modeling_kimi_linear.py): Kimi's delta attention in most layers, latent attention without rotation in
the others, DeepSeek V3's experts.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    layer_types,
    linear,
    pre_norm_block,
    routed,
    sparse_types,
    stack,
    vector,
)
from memcheck.models.families.deepseek import latent_attention, latent_dimensions
from memcheck.models.module_types import Routing, SharedExperts, UnturnedLatentAttention
from memcheck.models.reader import ConfigReader
from memcheck.models.recurrent import generation_bytes
from memcheck.models.types import Architecture, Block, Mixer, Moe, ParameterTensor


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: kimi_linear``. Older files state the mixers in ``linear_attn_config``."""
    config.ignore("pretraining_tp", "moe_layer_freq", "rope_theta", "model_max_length", "routed_scaling_factor")
    config.ignore("moe_router_activation_func", "num_nextn_predict_layers", "mla_use_nope", "use_grouped_topk")
    size = latent_dimensions(config)
    hidden = size.hidden
    nested = config.raw("linear_attn_config")
    older = nested if isinstance(nested, dict) else {}
    attention = UnturnedLatentAttention(*latent_attention(config, size, whole_queries=True))
    mixer = _delta(config, hidden, older)
    moe = experts(config, hidden)
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), moe.activation)
    full_layers = _full_layers(older)
    attention_types = layer_types(config, size.layers, lambda i: _kind(i, full_layers))
    moe_layers = sparse_types(
        config, size.layers, config.integer("first_k_dense_replace", default=1, null=1, minimum=0)
    )

    def build_layer(kind: tuple[str, bool]) -> Block:
        attention_type, has_experts = kind
        return pre_norm_block(
            hidden, mixer if attention_type == "linear_attention" else attention, moe if has_experts else mlp
        )

    return decoder(
        config, size, stack(zip(attention_types, moe_layers, strict=True), build_layer), tied=False, rotary_dim=0
    )


def _full_layers(older_keys: dict[str, object]) -> set[int] | None:
    """Read the layers with full attention from ``full_attn_layers``, which counts from 1; None if it is absent."""
    stated = older_keys.get("full_attn_layers")
    return {number - 1 for number in stated if isinstance(number, int)} if isinstance(stated, list) else None


def _kind(layer: int, full_layers: set[int] | None) -> str:
    """Return a layer's kind of attention: full for every fourth, or for those that ``full_layers`` names."""
    is_full = layer > 0 and layer % 4 == 0 if full_layers is None else layer in full_layers
    return "full_attention" if is_full else "linear_attention"


def experts(config: ConfigReader, hidden: int, groups_by_default: tuple[int, int] | None = None) -> Moe:
    """Build routed experts as DeepSeek V3 has them, from Kimi's names of the keys.

    ``groups_by_default``: number of groups of experts, and how many of them a token may use, if the keys are absent.
    """
    width = config.integer("moe_intermediate_size")
    default_groups, default_chosen = groups_by_default or (1, None)
    groups = config.integer("num_expert_group", "n_group", default=default_groups, null=default_groups)
    default_chosen = groups if default_chosen is None else default_chosen
    return routed(
        hidden,
        (
            config.integer("num_experts", "num_local_experts"),
            config.integer("num_experts_per_token", "num_experts_per_tok"),
        ),
        width,
        config.activation(),
        SharedExperts(
            config.integer("num_shared_experts", "n_shared_experts", default=1, minimum=0) * width,
            gate=False,
            runs_first=False,
        ),
        experts_first=True,
        router="sigmoid",
        routing=Routing(
            input_fp32=True,
            scores_fp32=True,
            normalised=config.flag("moe_renormalize", "norm_topk_prob", default=True),
            groups=(groups, config.integer("topk_group", default=default_chosen, null=default_chosen)),
        ),
    )


def _delta(config: ConfigReader, hidden: int, older_keys: dict[str, object]) -> Mixer:
    """Return Kimi Delta Attention: three projections, one convolution over them, low-rank gates of decay and output.

    ``older_keys``: the nested section of earlier files, whose values are defaults.
    """
    heads = _size(config, "linear_num_heads", older_keys.get("num_heads"), 32)
    head_dim = _size(config, "linear_head_dim", older_keys.get("head_dim"), 128)
    kernel = _size(config, "linear_conv_kernel_dim", older_keys.get("short_conv_kernel_size"), 4)
    width, module = heads * head_dim, "self_attn"
    forget = (
        *linear(f"{module}.forget_gate.f_a_proj", head_dim, hidden, "mixer", "none"),
        *linear(f"{module}.forget_gate.f_b_proj", width, head_dim, "mixer", "column"),
        vector(f"{module}.forget_gate.dt_bias", width, "mixer", "column"),
        ParameterTensor(f"{module}.forget_gate.A_log", (1, 1, heads, 1), "mixer"),
    )
    gate = (
        *linear(f"{module}.g_a_proj", head_dim, hidden, "mixer", "none"),
        *linear(f"{module}.g_b_proj", width, head_dim, "mixer", "column"),
    )
    return delta_mixer(hidden, (heads, head_dim, kernel), forget, gate)


def delta_mixer(
    hidden: int,
    size: tuple[int, int, int],
    forget: tuple[ParameterTensor, ...],
    gate: tuple[ParameterTensor, ...],
) -> Mixer:
    """Build the mixer of Kimi delta attention.

    ``size``: heads, channels per head, and tokens of the convolution. ``forget``, ``gate``: tensors that compute the
    decay and the output's gate.
    """
    heads, head_dim, kernel = size
    width, module = heads * head_dim, "self_attn"
    tensors = (
        *(t for name in "qkv" for t in linear(f"{module}.{name}_proj", width, hidden, "mixer", "column")),
        ParameterTensor(f"{module}.conv1d.weight", (3 * width, 1, kernel), "mixer", shard="column"),
        *forget,
        *linear(f"{module}.b_proj", heads, hidden, "mixer", "column"),
        *gate,
        vector(f"{module}.o_norm.weight", head_dim, "norm"),
        *linear(f"{module}.o_proj", hidden, width, "mixer", "row"),
    )
    return Mixer(
        kind="kimi-delta",
        heads=heads,
        head_dim=head_dim,
        state_bytes_per_sequence=generation_bytes(state=width * head_dim, convolution=3 * width * kernel),
        width=3 * width,
        tensors=tensors,
        kernel=kernel,
        output="o_proj",
        key_heads=0,
        key_dim=0,
        chunk=0,
    )


def _size(config: ConfigReader, key: str, nested: object, default: int) -> int:
    """Read a size from ``key``, or take ``nested``, the value that older files have in ``linear_attn_config``."""
    if config.raw(key) is None and isinstance(nested, int) and not isinstance(nested, bool) and nested > 0:
        return nested
    return config.integer(key, default=default, null=default)
