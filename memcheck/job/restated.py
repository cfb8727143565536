"""Options of a framework that say what a key of the plan says, for plans that leave the key out.

Where a plan states both, rule MEM409 compares them.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.job.defaults import Defaults

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Megatron-FSDP's words for ZeRO stages (``data_parallel_sharding_strategy``)."""


def zero_stage(options: Mapping[str, object]) -> tuple[str, int] | None:
    """The value of ``parallelism.zero_stage`` that options state, with the option's name; None where no option does."""
    strategy = options.get("data_parallel_sharding_strategy")
    if isinstance(strategy, str) and strategy in STRATEGIES:
        return "data_parallel_sharding_strategy", STRATEGIES[strategy]
    if options.get("use_megatron_fsdp") is True:
        return "use_megatron_fsdp", 3
    distributed = options.get("use_distributed_optimizer")
    return ("use_distributed_optimizer", int(distributed)) if isinstance(distributed, bool) else None


def reshards(options: Mapping[str, object], pipeline: int) -> tuple[str, bool] | None:
    """The value of ``parallelism.reshard_after_forward`` that options state, with the option's name. torchtitan's
    default does not reshard between stages.
    """
    chosen = options.get("fsdp_reshard_after_forward")
    if chosen not in ("always", "never", "default"):
        return None
    return "fsdp_reshard_after_forward", chosen == "always" or (chosen == "default" and pipeline == 1)


def synchronises(options: Mapping[str, object]) -> tuple[str, str] | None:
    """The value of ``parallelism.gradient_sync`` that options state, with the option's name; None where no
    option does.
    """
    each_batch = options.get("sync_each_batch")
    return None if each_batch is None else ("sync_each_batch", "every" if each_batch else "last")


def parameter_offload(stated: str | None, options: Mapping[str, object], defaults: Defaults) -> str:
    """``training.offload.parameters``: where parameters are kept between their uses."""
    chosen = options.get("enable_cpu_offload")
    if not isinstance(chosen, bool):
        return stated or "none"
    place = "cpu" if chosen else "none"
    return defaults.take("training.offload.parameters", stated, place, "options.enable_cpu_offload")


def recomputes(options: Mapping[str, object]) -> tuple[str, str] | None:
    """The mode of ``training.activation_checkpointing`` that options state, with the option's name; None where none
    does.
    """
    granularity = options.get("recompute_granularity")
    if isinstance(granularity, str):
        return "recompute_granularity", granularity
    return ("selective_ac_option", "selective") if options.get("selective_ac_option") == "op" else None
