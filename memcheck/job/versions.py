"""What follows from the framework's version: which FSDP wraps the model, how checkpoints run, how experts are built.

transformers 5.10 takes an ``fsdp_config`` without ``version`` for FSDP2, versions before it for FSDP1
(``training_args.py``). Before 5, ``gradient_checkpointing_enable`` has ``{"use_reentrant": True}`` by default
(``modeling_utils.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.job.defaults import Defaults
from memcheck.job.types import BITSANDBYTES, Layout, TrainingJob
from memcheck.plan import types as plan_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.job.framework import Framework

FSDP = "fsdp_version"
"""The option that states it, under its name in Accelerate's config."""
ACCELERATE = "accelerate_version"
"""The option that states Accelerate's version, which is a package of its own."""
WRAPS = "wraps_adapters"
"""The option that says whether adapters are FSDP1 units of their own."""
CARVES = (1, 14)
"""Accelerate's first version whose FSDP2 wraps the ends apart. """
TRANSFORMERS = "transformers_version"
"""The option that states transformers' version, where the framework's own is another package's."""
SYNCHRONISES = (1, 11)
"""Accelerate's first version whose ``no_sync`` leaves gradients of FSDP2 unreduced (accelerator.py)."""
ENGINE = "transformer_engine_version"
"""The option that states TransformerEngine's release."""
KBIT = "prepare_model_for_kbit_training"
"""The option that says whether peft's function of this name is called."""


def is_before(version: str | None, first: tuple[int, ...] | None) -> bool:
    """Whether a stated version is older than ``first``; False where either is unknown."""
    if not version or first is None:
        return False
    import re

    match = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    if match is None:
        return False
    numbers = [int(part) for part in match[0].split(".")[: len(first)]]
    return (*numbers, *[0] * (len(first) - len(numbers))) < first


def version_of_models(job: TrainingJob, framework: Framework) -> str | None:
    """The version of transformers, whose classes build the model; None: not stated, the newest."""
    stated = job.framework_version if framework.versions_models else job.option(TRANSFORMERS)
    return stated if isinstance(stated, str) else None


def resolve_fsdp(
    version: str | None, options: Mapping[str, object], layout: Layout, framework: Framework, defaults: Defaults
) -> int:
    """1 or 2: which FSDP wraps the model, where one does."""
    chosen = fsdp_of(version, options, framework)
    if framework.flattens_units or isinstance(options.get(FSDP), int):
        return chosen
    if FSDP not in framework.options or layout.zero_stage < 2 or layout.shard_group == 1:
        return 2
    old = chosen == 1
    if old:
        why = f"default of {framework.name} {version}"
    elif "FSDP2" in framework.since:
        why = f"default of {framework.name} since {'.'.join(map(str, framework.since['FSDP2']))}"
    else:
        why = f"default of {framework.name}"
    return defaults.take(f"training.options.{FSDP}", None, 1 if old else 2, why)


def fsdp_of(version: str | None, options: Mapping[str, object], framework: Framework) -> int:
    """Which FSDP an option or the framework's version chooses."""
    stated = options.get(FSDP)
    if framework.flattens_units:
        return 1
    if isinstance(stated, int):
        return stated
    return 1 if framework.predates(version, "FSDP2") else 2


def reduces_each(version: str | None, options: Mapping[str, object], framework: Framework) -> bool:
    """Whether Accelerate reduces the gradients of every micro-batch under FSDP2, in spite of ``gradient_sync``.

    Before 1.11 its ``no_sync`` looks for a method of that name, which FSDP2 does not have (accelerator.py).
    """
    stated = options.get(ACCELERATE)
    old = isinstance(stated, str) and is_before(stated, SYNCHRONISES)
    return old and ACCELERATE in framework.options and fsdp_of(version, options, framework) == 2


def wraps_adapters(framework: Framework, version: str | None, stated: object) -> bool:
    """Whether FSDP1 makes units of adapters (peft ``fsdp_auto_wrap_policy``), and not of layers alone.

    ``stated``: the option's value. transformers' Trainer sets that policy since 4.39 (trainer.py,
    ``_fsdp_qlora_plugin_updates``).
    """
    if isinstance(stated, bool):
        return stated
    return WRAPS in framework.options and not framework.predates(version, "adapter units")


def note_adapter_units(
    training: plan_types.TrainingSpec,
    fsdp: int,
    options: Mapping[str, object],
    layout: Layout,
    framework: Framework,
    defaults: Defaults,
) -> None:
    """List whether FSDP1 makes units of a plan's adapters, where the plan does not say so. ``fsdp``: 2 without any."""
    if fsdp == 2 or WRAPS not in framework.options or layout.zero_stage < 2 or layout.shard_group == 1:
        return
    made, since = wraps_adapters(framework, training.framework_version, None), framework.since.get("adapter units")
    why = "peft's fsdp_auto_wrap_policy, as its recipes set it"
    if since is not None:
        first = ".".join(map(str, since))
        why = f"default of {framework.name} {'since' if made else 'before'} {first}"
    stated = options.get(WRAPS)
    defaults.take(f"training.options.{WRAPS}", stated if isinstance(stated, bool) else None, made, why)


def resolve_carving(
    training: plan_types.TrainingSpec,
    fsdp: int,
    options: Mapping[str, object],
    layout: Layout,
    framework: Framework,
    defaults: Defaults,
) -> bool:
    """Whether Accelerate wraps embedding and head apart (accelerate 1.14 utils/fsdp_utils.py, ``fsdp2_prepare_model``).

    Axolotl has put a function of its own in its place (monkeypatch/accelerate/fsdp2.py).
    """
    trainer = training.trainer.name if training.trainer is not None else None
    if ACCELERATE not in framework.options or fsdp == 1 or layout.zero_stage < 2 or trainer == "axolotl":
        return False
    if layout.shard_group == 1:
        return False
    stated = options.get(ACCELERATE)
    if isinstance(stated, str):
        return not is_before(stated, CARVES)
    late = layout.gradient_sync == "last"  # however many micro-batches there are: this note is one for all batches
    value, why = "before 1.14", "the release is not stated: releases before 1.14 need the most memory"
    if late:
        value, why = "1.11 to 1.13", f"{why}, and gradients stay whole until the last micro-batch"
    defaults.note(f"training.options.{ACCELERATE}", value, why)
    return False


def resolve_kbit(
    held_in: str, options: Mapping[str, object], layout: Layout, framework: Framework, defaults: Defaults
) -> bool:
    """Whether peft's ``prepare_model_for_kbit_training`` casts what is not quantised to fp32 (peft/utils/other.py).

    Norms, embeddings and head rest in fp32 then, and so does the residual stream. Trainers that shard the parameters
    leave the call out (trl trainer/sft_trainer.py, ``is_sharded_qlora``). DeepSpeed casts the whole module back to the
    dtype that it trains in (runtime/engine.py, ``_configure_distributed_model``: ``self.module.bfloat16()``).
    """
    if held_in not in BITSANDBYTES or framework.adapters.own or framework.own_engine:
        return False  # peft leaves out GPTQ's models, and trainers call it for bitsandbytes' alone
    if KBIT not in framework.options:
        return True
    stated = options.get(KBIT)
    if isinstance(stated, bool):
        return stated
    shards = layout.zero_stage >= 2 and layout.shard_group > 1
    bits = 8 if held_in == "int8" else 4
    why = "left out where parameters are sharded" if shards else f"what peft's recipe for {bits}-bit training calls"
    return defaults.take(f"training.options.{KBIT}", None, not shards, why)
