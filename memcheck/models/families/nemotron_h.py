"""Nemotron-H and Nemotron Nano 2/3 (modeling_nemotron_h.py): each layer is one of Mamba-2, attention, MLP or MoE."""

from __future__ import annotations

from memcheck.models.decoder import (
    Names,
    Projections,
    decoder,
    grouped_attention,
    linear,
    plain_mlp,
    read_sizes,
    rms_norm,
    stack,
    stacked_experts,
)
from memcheck.models.module_types import NORMALISED_SCORES, LatentMoe, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.recurrent import StateSpace, mamba2
from memcheck.models.types import Architecture, Attention, Block, LogitCasts, Mixer, Mlp, Moe, ParameterTensor, Paths

NORM = "rmsnorm-fp32-weight"
PROJECTIONS = Projections(module="mixer")
LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
KINDS = {"linear_attention": "mamba", "full_attention": "attention", **{v: v for v in LETTERS.values()}}

IRRELEVANT_KEYS = (
    "chunk_size", "expand", "mamba_chunk_size", "mamba_expand", "mamba_ssm_cache_dtype",
    "mtp_hybrid_override_pattern", "mtp_layers_block_type", "num_nextn_predict_layers", "rescale_prenorm_residual",
    "residual_in_fp32", "sliding_window", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min",
    "use_mamba_kernels", "hidden_dropout", "mamba_dt_init_floor", "mamba_dt_limit", "mamba_dt_max", "mamba_dt_min",
    "time_step_rank",
)  # fmt: skip


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: nemotron_h``.

    Each layer is one of Mamba-2, attention, MLP or experts, with one norm before it.
    """
    layers = _layers(config)
    size = read_sizes(config, Names(), kv_heads="required", head_dim=128, layers=len(layers))
    config.ignore(*IRRELEVANT_KEYS)
    activation = config.activation("mlp_hidden_act", default="relu2")
    width = config.integer("intermediate_size") if "mlp" in layers else config.raw("intermediate_size")
    bias = config.flag("mlp_bias")
    mamba = _mamba(config, size.hidden)
    config.refuse("attention_bias", "the model has no attention biases", "remove attention_bias")
    attention = grouped_attention(size, PROJECTIONS, rotary_dim=0, dropout=config.dropout("attention_dropout"))
    moe = _moe(config, size.hidden, activation, bias=bias) if "moe" in layers else None
    if moe is None:
        config.ignore(*MOE_KEYS)

    def build_layer(kind: str) -> Block:
        """Build one layer, which has a mixer or an MLP or experts, and the norm before it."""
        norm = rms_norm(size.hidden, "norm", NORM)
        if kind in ("mamba", "attention"):
            mixer: Mixer | Attention = mamba if kind == "mamba" else attention
            return Block(mixer=mixer, mlp=None, input_norm=norm, mlp_norm=None)
        mlp: Mlp | Moe | None = moe
        if kind == "mlp":
            mlp = plain_mlp(size.hidden, width, activation, "mixer.up_proj", "mixer.down_proj", bias=bias)
        return Block(mixer=None, mlp=mlp, input_norm=None, mlp_norm=norm)

    if config.flag("tie_word_embeddings"):
        config.note("tie_word_embeddings has no effect: transformers does not tie this model's head")
    return decoder(
        config,
        size,
        stack(layers, build_layer),
        tied=False,
        final_norm=rms_norm(size.hidden, "model.norm_f", NORM),
        rotary_dim=0,
        paths=Paths(embedding="model.embeddings", layers="model.layers", positions="", head="lm_head"),
        logit_casts=LogitCasts(in_model=True, in_loss=True),
    )._replace(tie_word_embeddings=False)


MOE_KEYS = (
    "n_routed_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_overlap",
    "n_group",
    "topk_group",
)


def _layers(config: ConfigReader) -> list[str]:
    """Return each layer's kind, which ``num_hidden_layers`` must agree with."""
    layers = _stated_layers(config)
    if "num_hidden_layers" in config.config and config.integer("num_hidden_layers") != len(layers):
        config.fail("num_hidden_layers", f"num_hidden_layers contradicts the pattern of {len(layers)} layers")
    return layers


def _stated_layers(config: ConfigReader) -> list[str]:
    """Read each layer's kind from a list of names, or from the older pattern of letters."""
    stated = config.texts("layers_block_type", "layer_types")
    pattern = config.text("hybrid_override_pattern", default="")
    if stated is None:
        if not pattern:
            config.fail("layers_block_type", "layers_block_type is missing", "it says what each layer is")
        if set(pattern) - set(LETTERS):
            config.fail("hybrid_override_pattern", f"unknown letters in {pattern!r}", "known: M, E, * and -")
        return [LETTERS[letter] for letter in pattern]
    unknown = next((name for name in stated if name not in KINDS), None)
    if unknown is not None:
        config.fail("layers_block_type", f"unknown layer {unknown!r}", f"known: {', '.join(KINDS)}")
    return [KINDS[name] for name in stated]


def _mamba(config: ConfigReader, hidden: int) -> Mixer:
    """Return the Mamba-2 mixer of this configuration."""
    config.ignore("mamba_hidden_act", "mamba_proj_bias")
    dimensions = StateSpace(
        heads=config.integer("mamba_num_heads"),
        head_dim=config.integer("mamba_head_dim"),
        state=config.integer("ssm_state_size"),
        groups=config.integer("n_groups", "mamba_n_groups"),
        kernel=config.integer("conv_kernel", "mamba_d_conv", default=4),
        chunk=config.integer("chunk_size", "mamba_chunk_size", default=128, null=128),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias", "mamba_conv_bias", default=True),
    )
    return mamba2(hidden, dimensions, "mixer")


def _moe(config: ConfigReader, hidden: int, activation: str, *, bias: bool) -> Moe:
    """Build ungated experts of two matrices, without biases.

    With ``moe_latent_size`` they work on a narrower projection of the hidden states.
    """
    config.ignore("n_group", "topk_group", "n_shared_experts", "moe_shared_expert_overlap")
    experts = config.integer("n_routed_experts", "num_local_experts")
    width = config.integer("moe_intermediate_size")
    shared = config.integer("moe_shared_expert_intermediate_size")
    latent = config.optional_integer("moe_latent_size") or 0
    tensors = (
        ParameterTensor("mixer.gate.weight", (experts, hidden), "router"),
        *stacked_experts("mixer.experts", experts, latent or hidden, width, gated=False),
        *linear("mixer.shared_experts.up_proj", shared, hidden, "shared_experts", "column", bias=bias),
        *linear("mixer.shared_experts.down_proj", hidden, shared, "shared_experts", "row", bias=bias),
    )
    if latent:
        tensors += linear("mixer.fc1_latent_proj", latent, hidden, "mlp", "none", bias=bias)
        tensors += linear("mixer.fc2_latent_proj", hidden, latent, "mlp", "none", bias=bias)
    return (LatentMoe if latent else Moe)(
        experts,
        config.integer("num_experts_per_tok"),
        width,
        gated=False,
        bias=False,
        activation=activation,
        router="sigmoid",
        shared=SharedExperts(shared, gate=False, runs_first=False),
        tensors=tensors,
        routing=NORMALISED_SCORES._replace(
            input_fp32=True, scores_fp32=True, normalised=config.flag("norm_topk_prob", default=True)
        ),
    )
