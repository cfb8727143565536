"""Mamba 2 (modeling_mamba2.py): nothing but Mamba-2 mixers, on a residual stream that may be fp32."""

from __future__ import annotations

from memcheck.models.decoder import rms_norm
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.recurrent import StateSpace, mamba2
from memcheck.models.types import TEXT_ALONE, Architecture, Block, LogitCasts, Mixer, Paths, WideStreamBlock


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mamba2``."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_heads")
    layers = config.integer("num_hidden_layers", maximum=MAX_LAYERS)
    config.ignore("time_step_rank", "time_step_limit", "time_step_min", "time_step_max", "time_step_floor")
    config.ignore("rescale_prenorm_residual", "hidden_act", "rms_norm", "layer_types", "norm_before_gate")
    dimensions = StateSpace(
        heads=heads,
        head_dim=config.integer("head_dim"),
        state=config.integer("state_size"),
        groups=config.integer("n_groups"),
        kernel=config.integer("conv_kernel", default=4),
        chunk=config.integer("chunk_size", default=256),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias", default=True),
    )
    if dimensions.heads * dimensions.head_dim != config.integer("expand", default=2) * hidden:
        config.fail("num_heads", f"{heads} heads of {dimensions.head_dim} are not expand x hidden_size")
    return backbone(config, mamba2(hidden, dimensions, "mixer"), hidden, layers, tied=False)


def backbone(config: ConfigReader, mixer: Mixer, hidden: int, layers: int, *, tied: bool) -> Architecture:
    """Build a model of mixers alone, each after a norm, without MLPs.

    ``layers``: their number. ``tied``: the class's default of ``tie_word_embeddings``.
    """
    wide = config.flag("residual_in_fp32", default=True)
    block = (WideStreamBlock if wide else Block)(
        mixer=mixer,
        mlp=None,
        input_norm=rms_norm(hidden, "norm"),
        mlp_norm=None,
    )
    return Architecture(
        model_type=config.model_type,
        hidden_size=hidden,
        vocab_size=config.integer("vocab_size"),
        blocks=((block, layers),),
        embedding_size=hidden,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=tied),
        final_norm=rms_norm(hidden, "backbone.norm_f"),
        logit_casts=LogitCasts(in_model=True, in_loss=True),
        paths=Paths("backbone.layers", "backbone.embeddings", positions="", head="lm_head"),
        max_position_embeddings=0,
        rotary_dim=0,
        task=None,
        modalities=TEXT_ALONE,
    )
