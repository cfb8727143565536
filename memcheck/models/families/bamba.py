"""Bamba, Granite 4's hybrids and Falcon-H1 (modeling_bamba.py, modeling_granitemoehybrid.py, modeling_falcon_h1.py):
Mamba-2 in most layers, or in parallel with attention in each.
"""

from __future__ import annotations

from memcheck.models.attention_types import FalconH1Attention
from memcheck.models.feed_forward_types import FalconH1Mlp
from memcheck.models.mixer_types import FalconH1Mixer, NormFirstMixer
from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, pre_norm_block, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp, routed
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.recurrent import StateSpace, mamba2
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Mixer, Mlp, Moe

OLDER_WORDS = {"mamba": "linear_attention", "attention": "full_attention"}
HARMLESS = ("num_logits_to_keep", "time_step_limit", "z_loss_coefficient", "mamba_expand", "mamba_act", "mamba_dt_rank")


def read(config: ConfigReader) -> Architecture:
    """``model_type: bamba``: every layer has a network; ``attn_layer_indices`` are those with attention."""
    size = read_sizes(config, kv_heads="required")
    hidden = size.hidden
    mamba, attention = _mamba(config, hidden), _attention(config, size, 0.5)
    chosen = frozenset(config.integers("attn_layer_indices") or ())
    usual = ("full_attention" if i in chosen else "linear_attention" for i in range(size.layers))
    types = _types(config, tuple(usual))
    mlp = gated_mlp(
        hidden,
        config.integer("intermediate_size"),
        config.activation(),
        bias=config.flag("mlp_bias"),
        module="feed_forward",
    )

    def make(kind: str) -> Block:
        return Block(
            mixer=mamba if kind == "linear_attention" else attention,
            mlp=mlp,
            input_norm=rms_norm(hidden, "input_layernorm"),
            mlp_norm=rms_norm(hidden, "pre_ff_layernorm"),
        )

    final = rms_norm(hidden, "model.final_layernorm")
    return decoder(config, size, stack(types, make), tied=False, final_norm=final, rotary_dim=attention.rotary_dim)


def read_granite(config: ConfigReader) -> Architecture:
    """``model_type: granitemoehybrid``: Granite's multipliers, experts (or none) and a shared network."""
    size = read_sizes(config)
    hidden = size.hidden
    config.ignore("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")
    config.ignore("init_method", "normalization_function")
    turned = config.text("position_embedding_type", default="none")
    mamba = _mamba(config, hidden)
    attention = _attention(config, size, 1.0 if turned == "rope" else 0.0)
    types = _types(config, ("linear_attention",) * size.layers)
    mlp = granite_experts(config, hidden, config.integer("shared_intermediate_size", default=1024))

    def make(kind: str) -> Block:
        block = pre_norm_block(hidden, mamba if kind == "linear_attention" else attention, mlp)
        return block._replace(residual_scale=True)

    return decoder(
        config, size, stack(types, make), tied=False, embedding_scale="model", logit_scale=True,
        rotary_dim=attention.rotary_dim,
    )  # fmt: skip


def granite_experts(config: ConfigReader, hidden: int, shared: int) -> Mlp | Moe:
    """Granite's experts and a shared network with a joint gate and up matrix, or that network alone."""
    width, activation = config.integer("intermediate_size"), config.activation()
    both = (
        *linear("shared_mlp.input_linear", 2 * shared, hidden, "shared_experts", "column"),
        *linear("shared_mlp.output_linear", hidden, shared, "shared_experts", "row"),
    )
    experts = config.integer("num_local_experts", minimum=0)
    chosen = config.integer("num_experts_per_tok", minimum=0)
    if not experts:
        tensors = tuple(t._replace(group="mlp") for t in both)
        return Mlp(shared, gated=True, activation=activation, fused_gate_up=True, tensors=tensors)
    moe = routed(
        hidden,
        (experts, chosen),
        width,
        activation,
        module="block_sparse_moe",
        gate="router",
        router="softmax-topk",
        normalised_scores=False,
    )
    return moe if not shared else moe._replace(shared_width=shared, tensors=moe.tensors + both)


def read_falcon_h1(config: ConfigReader) -> Architecture:
    """``model_type: falcon_h1``: attention and Mamba-2 read the same norm in every layer, and are added."""
    size = read_sizes(config, kv_heads="required")
    hidden = size.hidden
    config.ignore(
        "attention_in_multiplier",
        "attention_out_multiplier",
        "embedding_multiplier",
        "key_multiplier",
        "lm_head_multiplier",
        "mlp_multipliers",
        "ssm_in_multiplier",
        "ssm_multipliers",
        "ssm_out_multiplier",
        "mlp_expansion_factor",
        "attn_layer_indices",
        "layers_block_type",
        "layer_types",
        "mamba_use_mlp",
        "rope_theta",
    )
    bias = config.flag("projectors_bias")
    normed, before = config.flag("mamba_rms_norm"), config.flag("mamba_norm_before_gate", default=True)
    width = config.optional_integer("mamba_d_ssm")
    mamba = _mamba(config, hidden, norm=normed, out_bias=bias, width=width)
    mamba = (NormFirstMixer if normed and before else FalconH1Mixer)(*mamba)
    attention = FalconH1Attention(*_attention(config, size, 1.0))
    mlp = gated_mlp(
        hidden,
        config.integer("intermediate_size"),
        config.activation(),
        bias=config.flag("mlp_bias"),
        module="feed_forward",
    )
    block = Block(
        mixer=attention,
        mlp=FalconH1Mlp(*mlp),
        input_norm=rms_norm(hidden, "input_layernorm"),
        mlp_norm=rms_norm(hidden, "pre_ff_layernorm"),
        beside=mamba,
    )
    return decoder(
        config, size, ((block, size.layers),), tied=False, final_norm=rms_norm(hidden, "model.final_layernorm"),
        embedding_scale="model", logit_scale=True,
    )  # fmt: skip


def _types(config: ConfigReader, usual: tuple[str, ...]) -> tuple[str, ...]:
    """``layers_block_type`` under that name or the newer one; the older words are Mamba and attention."""
    stated = config.texts("layers_block_type")
    if stated is None:
        older = config.texts("layer_types")
        if older is None or not set(older) & set(OLDER_WORDS):
            return layer_types(config, len(usual), usual.__getitem__)
        stated = older
    found = tuple(OLDER_WORDS.get(t, t) for t in stated)
    if len(found) != len(usual):
        config.fail("layers_block_type", f"{len(found)} layers are named, the model has {len(usual)}")
    strange = next((t for t in found if t not in ("linear_attention", "full_attention")), None)
    if strange is not None:
        config.fail("layers_block_type", f"unknown layer {strange!r}", "known: linear_attention, full_attention")
    return found


def _attention(config: ConfigReader, size: StackDimensions, turned: float) -> Attention:
    bias = config.flag("attention_bias")
    fraction = config.rotary_fraction(turned)
    return grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=int(size.head_dim * fraction) if turned else 0,
        dropout=config.dropout("attention_dropout"),
    )


def _mamba(
    config: ConfigReader, hidden: int, *, norm: bool = True, out_bias: bool | None = None, width: int | None = None
) -> Mixer:
    config.ignore(*HARMLESS)
    heads = config.integer("mamba_n_heads", default=128)
    inner = width or config.integer("mamba_expand", default=2) * hidden
    each = config.raw("mamba_d_head")
    sizes = StateSpace(
        heads=heads,
        head_dim=inner // heads if each in (None, "auto") else config.integer("mamba_d_head"),
        state=config.integer("mamba_d_state", default=256),
        groups=config.integer("mamba_n_groups", default=1),
        kernel=config.integer("mamba_d_conv", default=4),
        chunk=config.integer("mamba_chunk_size", default=256),
        bias=config.flag("mamba_proj_bias"),
        out_bias=out_bias,
        conv_bias=config.flag("mamba_conv_bias", default=True),
        norm=norm,
    )
    if sizes.heads * sizes.head_dim != inner:
        config.fail("mamba_n_heads", f"{heads} heads of {sizes.head_dim} are not the mixer's width, {inner}")
    return mamba2(hidden, sizes)
