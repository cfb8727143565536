"""Bamba, Granite 4's hybrids and Falcon-H1 (modeling_bamba.py, modeling_granitemoehybrid.py, modeling_falcon_h1.py):
Mamba-2 in most layers, or in parallel with attention in each.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    layer_types,
    linear,
    pre_norm_block,
    read_attention,
    read_sizes,
    rms_norm,
    routed,
    stack,
)
from memcheck.models.module_types import (
    NORMALISED_SCORES,
    FalconH1Attention,
    FalconH1Mixer,
    FalconH1Mlp,
    NormFirstMixer,
    SharedExperts,
)
from memcheck.models.reader import ConfigReader
from memcheck.models.recurrent import StateSpace, mamba2
from memcheck.models.types import Architecture, Attention, Block, Mixer, Mlp, Moe

OLDER_LAYER_TYPES = {"mamba": "linear_attention", "attention": "full_attention"}
IRRELEVANT_KEYS = (
    "num_logits_to_keep",
    "time_step_limit",
    "z_loss_coefficient",
    "mamba_expand",
    "mamba_act",
    "mamba_dt_rank",
)

FALCON_H1_KEYS = (
    "attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier", "key_multiplier",
    "lm_head_multiplier", "mlp_multipliers", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier",
    "mlp_expansion_factor", "attn_layer_indices", "layers_block_type", "layer_types", "mamba_use_mlp", "rope_theta",
)  # fmt: skip
"""Multipliers and derived keys of Falcon-H1, which decide no size."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: bamba``: every layer has a network; ``attn_layer_indices`` are those with
    attention.
    """
    size = read_sizes(config, kv_heads="required")
    hidden = size.hidden
    mamba, attention = _mamba_mixer(config, hidden), _attention(config, size, 0.5)
    attention_layers = frozenset(config.integers("attn_layer_indices") or ())
    default_types = ("full_attention" if i in attention_layers else "linear_attention" for i in range(size.layers))
    layer_kinds = _layer_types(config, tuple(default_types))
    mlp = gated_mlp(
        hidden,
        config.integer("intermediate_size"),
        config.activation(),
        bias=config.flag("mlp_bias"),
        module="feed_forward",
    )

    def build_layer(kind: str) -> Block:
        """Build one layer. ``kind``: ``linear_attention`` is Mamba-2, ``full_attention`` attention."""
        return Block(
            mixer=mamba if kind == "linear_attention" else attention,
            mlp=mlp,
            input_norm=rms_norm(hidden, "input_layernorm"),
            mlp_norm=rms_norm(hidden, "pre_ff_layernorm"),
        )

    final_norm = rms_norm(hidden, "model.final_layernorm")
    return decoder(
        config,
        size,
        stack(layer_kinds, build_layer),
        tied=False,
        final_norm=final_norm,
        rotary_dim=attention.rotary_dim,
    )


def read_granite(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: granitemoehybrid``: Granite's multipliers, experts (or none) and a shared
    network.
    """
    size = read_sizes(config)
    hidden = size.hidden
    config.ignore("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")
    config.ignore("init_method", "normalization_function")
    position_embedding = config.text("position_embedding_type", default="none")
    mamba = _mamba_mixer(config, hidden)
    attention = _attention(config, size, 1.0 if position_embedding == "rope" else 0.0)
    layer_kinds = _layer_types(config, ("linear_attention",) * size.layers)
    mlp = granite_feed_forward(config, hidden, config.integer("shared_intermediate_size", default=1024))

    def build_layer(kind: str) -> Block:
        """Build one layer, whose two halves are scaled by ``residual_multiplier``. ``kind``: as in :func:`read`."""
        block = pre_norm_block(hidden, mamba if kind == "linear_attention" else attention, mlp)
        return block._replace(branch_scale="constant")

    return decoder(
        config, size, stack(layer_kinds, build_layer), tied=False, embedding_scale="model", logit_scale=True,
        rotary_dim=attention.rotary_dim,
    )  # fmt: skip


def granite_feed_forward(config: ConfigReader, hidden: int, shared_width: int) -> Mlp | Moe:
    """Build Granite's feed-forward: routed experts and a shared MLP whose gate and up matrices are one.

    ``shared_width``: intermediate size of the shared MLP; 0 for none. Without ``num_local_experts`` it is the whole
    feed-forward.
    """
    width, activation = config.integer("intermediate_size"), config.activation()
    shared_tensors = (
        *linear("shared_mlp.input_linear", 2 * shared_width, hidden, "shared_experts", "column"),
        *linear("shared_mlp.output_linear", hidden, shared_width, "shared_experts", "row"),
    )
    experts = config.integer("num_local_experts", minimum=0)
    experts_per_token = config.integer("num_experts_per_tok", minimum=0)
    if not experts:
        tensors = tuple(t._replace(group="mlp") for t in shared_tensors)
        return Mlp(shared_width, gated=True, activation=activation, fused_gate_up=True, tensors=tensors, bias=False)
    moe = routed(
        hidden,
        (experts, experts_per_token),
        width,
        activation,
        module="block_sparse_moe",
        names=("router", "shared_experts"),
        router="softmax-topk",
        routing=NORMALISED_SCORES._replace(normalised=False),
    )
    if not shared_width:
        return moe
    return moe._replace(
        shared=SharedExperts(shared_width, gate=False, runs_first=False), tensors=moe.tensors + shared_tensors
    )


def read_falcon_h1(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: falcon_h1``: attention and Mamba-2 read the same norm in every layer, and
    are added.
    """
    size = read_sizes(config, kv_heads="required")
    hidden = size.hidden
    config.ignore(*FALCON_H1_KEYS)
    bias = config.flag("projectors_bias")
    has_norm, norm_before_gate = config.flag("mamba_rms_norm"), config.flag("mamba_norm_before_gate", default=True)
    width = config.optional_integer("mamba_d_ssm")
    mamba = _mamba_mixer(config, hidden, norm=has_norm, out_bias=bias, inner_width=width)
    mamba = (NormFirstMixer if has_norm and norm_before_gate else FalconH1Mixer)(*mamba)
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
        second_mixer=mamba,
    )
    return decoder(
        config, size, ((block, size.layers),), tied=False, final_norm=rms_norm(hidden, "model.final_layernorm"),
        embedding_scale="model", logit_scale=True,
    )  # fmt: skip


def _layer_types(config: ConfigReader, default_types: tuple[str, ...]) -> tuple[str, ...]:
    """Read the layer types from ``layers_block_type`` or ``layer_types``.

    Returns ``linear_attention`` for Mamba-2, and ``full_attention``.
    """
    stated = config.texts("layers_block_type")
    if stated is None:
        older = config.texts("layer_types")
        if older is None or not set(older) & set(OLDER_LAYER_TYPES):
            return layer_types(config, len(default_types), default_types.__getitem__)
        stated = older
    types = tuple(OLDER_LAYER_TYPES.get(t, t) for t in stated)
    if len(types) != len(default_types):
        config.fail("layers_block_type", f"{len(types)} layers are named, the model has {len(default_types)}")
    unknown = next((t for t in types if t not in ("linear_attention", "full_attention")), None)
    if unknown is not None:
        config.fail("layers_block_type", f"unknown layer {unknown!r}", "known: linear_attention, full_attention")
    return types


def _attention(config: ConfigReader, size: StackDimensions, default_rotary_fraction: float) -> Attention:
    """Build grouped-query attention. ``default_rotary_fraction``: default share of each head that is rotated; 0 for no
    rotary embedding.
    """
    rotary_fraction = config.rotary_fraction(default_rotary_fraction)
    rotary_dim = int(size.head_dim * rotary_fraction) if default_rotary_fraction else 0
    return read_attention(config, size, rotary_dim=rotary_dim)


def _mamba_mixer(
    config: ConfigReader,
    hidden: int,
    *,
    norm: bool = True,
    out_bias: bool | None = None,
    inner_width: int | None = None,
) -> Mixer:
    """Build a Mamba-2 mixer from the keys that begin with ``mamba_``.

    ``norm``: it has a gated RMSNorm. ``inner_width``: its inner size; None for ``mamba_expand`` times ``hidden``.
    """
    config.ignore(*IRRELEVANT_KEYS)
    heads = config.integer("mamba_n_heads", default=128)
    inner_size = inner_width or config.integer("mamba_expand", default=2) * hidden
    stated_head_dim = config.raw("mamba_d_head")
    state_space = StateSpace(
        heads=heads,
        head_dim=inner_size // heads if stated_head_dim in (None, "auto") else config.integer("mamba_d_head"),
        state=config.integer("mamba_d_state", default=256),
        groups=config.integer("mamba_n_groups", default=1),
        kernel=config.integer("mamba_d_conv", default=4),
        chunk=config.integer("mamba_chunk_size", default=256),
        bias=config.flag("mamba_proj_bias"),
        out_bias=out_bias,
        conv_bias=config.flag("mamba_conv_bias", default=True),
        norm=norm,
    )
    if state_space.heads * state_space.head_dim != inner_size:
        config.fail("mamba_n_heads", f"{heads} heads of {state_space.head_dim} are not the mixer's width, {inner_size}")
    return mamba2(hidden, state_space)
