"""Mamba and Falcon Mamba (modeling_mamba.py, modeling_falcon_mamba.py): nothing but Mamba's first mixer."""

from __future__ import annotations

from memcheck.models.families.mamba2 import backbone
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.recurrent import SelectiveScan, mamba1
from memcheck.models.types import Architecture

IRRELEVANT_KEYS = (
    "hidden_act",
    "layer_types",
    "mixer_rms_eps",
    "rescale_prenorm_residual",
    "time_step_floor",
    "time_step_init_scheme",
    "time_step_max",
    "time_step_min",
    "time_step_scale",
    "use_associative_scan",
)
"""The associative scan runs under torch.compile alone."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mamba``."""
    return _read(config, has_norms=False)


def read_falcon(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: falcon_mamba``: time steps, B and C are normalised without weights, whose
    ones are buffers.
    """
    return _read(config, has_norms=True)


def _read(config: ConfigReader, *, has_norms: bool) -> Architecture:
    """Build a stack of Mamba-1 mixers. ``has_norms``: time steps, B and C are normalised (Falcon Mamba)."""
    hidden = config.integer("hidden_size")
    layers = config.integer("num_hidden_layers", maximum=MAX_LAYERS)
    config.ignore(*IRRELEVANT_KEYS)
    refuse_mambapy(config)
    expand = config.number("expand", default=2.0)
    inner_size = config.integer("intermediate_size", default=int(expand * hidden), null=int(expand * hidden))
    if inner_size != int(expand * hidden):
        config.fail("intermediate_size", f"{inner_size} is not expand x hidden_size, {int(expand * hidden)}")
    dimensions = SelectiveScan(
        inner=inner_size,
        state=config.integer("state_size", default=16),
        rank=time_step_rank(config, "time_step_rank", hidden),
        kernel=config.integer("conv_kernel", default=4),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias", default=True),
    )
    mixer = mamba1(hidden, dimensions, "mixer")
    if has_norms:
        mixer = mixer._replace(normed_inputs=True, buffer_numel=dimensions.inner + 2 * dimensions.state)
    return backbone(config, mixer, hidden, layers, tied=True)


def time_step_rank(config: ConfigReader, key: str, hidden: int) -> int:
    """Read the rank of the time-step projection; ``auto`` is a sixteenth of the hidden size, rounded up."""
    default = -(-hidden // 16)
    return default if config.raw(key) in (None, "auto") else config.integer(key)


def hybrid_scan(config: ConfigReader, hidden: int) -> SelectiveScan:
    """Read the dimensions of a hybrid model's scan, whose keys begin with ``mamba_``."""
    return SelectiveScan(
        inner=config.integer("mamba_expand", default=2) * hidden,
        state=config.integer("mamba_d_state", default=16),
        rank=time_step_rank(config, "mamba_dt_rank", hidden),
        kernel=config.integer("mamba_d_conv", default=4),
        bias=config.flag("mamba_proj_bias"),
        conv_bias=config.flag("mamba_conv_bias", default=True),
    )


def refuse_mambapy(config: ConfigReader) -> None:
    """Refuse mamba.py's parallel scan, which saves other tensors for backward than the sequential loop.

    Raises:
        ArchitectureError: ``use_mambapy`` is true.
    """
    if config.flag("use_mambapy", "use_falcon_mambapy"):
        config.fail("use_mambapy", "memcheck has no model of mamba.py's scan", "write use_mambapy: false")
