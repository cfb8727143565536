"""What follows from stated releases: which FSDP wraps the model, how checkpoints run, how PyTorch behaves."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.autograd.weight_formats import BITSANDBYTES, INT8, WeightFormat
from memcheck.job.lookup import Defaults
from memcheck.job.types import DTYPE_BYTES, TORCH_2_13, TORCH_2_15, Layout, Recipe, TrainingJob
from memcheck.models.types import Architecture
from memcheck.plan import types as plan_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.job.framework import Framework


FIRST = ((TORCH_2_15, (2, 15)), (TORCH_2_13, (0, 0)))
"""Each behaviour with the first version that has it, the latest first."""
ALL = (TORCH_2_13, TORCH_2_15)


def resolve_torch(
    training: plan_types.TrainingSpec, job: TrainingJob, framework: Framework, defaults: Defaults
) -> tuple[str, ...]:
    """Return the versions of PyTorch whose behaviour is to be estimated; the one that needs most memory is reported.

    There is one if the plan states it or the job does not depend on it, else all that differ.
    """
    stated = training.torch_version
    if stated is None and framework.has_user_loop:
        stated = training.framework_version
    stated_behaviour = behaviour(stated)
    if not differs(job, framework):
        # versions then differ only in when FSDP2's forward frees a buffer: the older one never needs less
        return (stated_behaviour or TORCH_2_13,)
    if stated_behaviour is not None:
        return (stated_behaviour,)
    defaults.note("training.torch_version", f"{ALL[0]} to {ALL[-1]}", "unknown: the one that needs more memory")
    return ALL


def behaviour(version: str | None) -> str | None:
    """Return the behaviour of a version of PyTorch; None if it is no version of PyTorch 1 or 2."""
    if not version:
        return None
    import re

    match = re.match(r"([12])\.(\d+)", version)
    if match is None:
        return None
    return next(name for name, first in FIRST if (int(match[1]), int(match[2])) >= first)


def differs(job: TrainingJob, framework: Framework) -> bool:
    """Say whether no version of PyTorch needs the most memory of every step, so that a step has to be compared.

    Versions differ in the buffers of pipelines, and in when FSDP2 casts gradients to a wider dtype for a reduction.
    """
    layout = job.layout
    if framework.data_parallel != "torch":
        return False
    if layout.pipeline > 1:
        return True
    if layout.zero_stage < 2 or not reduces_wider(job.recipe):
        return False
    if layout.gradient_sync == "last" and job.gradient_accumulation_steps > 1:
        return True
    return job.loss.kind == "chunked" and not framework.fsdp2.loss_reduces_head


def reduces_wider(recipe: Recipe) -> bool:
    """Whether gradients are reduced in a wider dtype than they are computed in."""
    return DTYPE_BYTES[recipe.reduce] > DTYPE_BYTES[recipe.compute]


def ends_apart(job: TrainingJob, framework: Framework) -> bool:
    """Say whether FSDP2 gathers embedding and head in groups of their own, not in the root's.

    The framework does so, or torchtune's option ``custom_sharded_layers`` lists both. A head that reads the embedding's
    table is no module in torchtune (torchtune/modules/tied_linear.py).
    """
    if framework.fsdp2.groups_of_ends or job.groups_embedding_and_head:
        return True
    architecture, layers = job.architecture, job.option("custom_sharded_layers", ())
    tied = isinstance(architecture, Architecture) and architecture.tie_word_embeddings
    lists_both = isinstance(layers, tuple) and "tok_embeddings" in layers and "output" in layers
    return lists_both and not tied


def resolve_expandable(training: plan_types.TrainingSpec, framework: Framework, defaults: Defaults) -> bool:
    """Return whether the allocator has expandable segments: stated, or what the framework's launcher sets.

    A setting under which no step of the framework was measured is noted in ``defaults``.
    """
    key = "training.expandable_segments"
    why = f"what {framework.name}'s launcher sets"
    chosen = defaults.stated_or(key, training.expandable_segments, framework.expandable, why)
    if ("expandable" if chosen else "default") not in framework.allocators:
        defaults.note(key, chosen, f"fragmentation as without: no step of {framework.name} was measured with it")
    return chosen


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
    """Say whether a stated version is older than ``first``; False where either is unknown."""
    if not version or first is None:
        return False
    import re

    match = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    if match is None:
        return False
    numbers = [int(number) for number in match[0].split(".")[: len(first)]]
    return (*numbers, *[0] * (len(first) - len(numbers))) < first


def version_of_models(job: TrainingJob, framework: Framework) -> str | None:
    """Return the version of transformers, whose classes build the model; None: not stated, the newest."""
    stated = job.framework_version if framework.version_is_transformers else job.option(TRANSFORMERS)
    return stated if isinstance(stated, str) else None


def resolve_fsdp(
    version: str | None, options: Mapping[str, object], layout: Layout, framework: Framework, defaults: Defaults
) -> int:
    """Return 1 or 2: the version of FSDP that wraps the model; 2 for a job without FSDP.

    ``version``: of the framework, which decides if no option states it.
    """
    chosen = fsdp_of(version, options, framework)
    if framework.always_uses_fsdp1 or isinstance(options.get(FSDP), int):
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
    return defaults.stated_or(f"training.options.{FSDP}", None, 1 if old else 2, why)


def fsdp_of(version: str | None, options: Mapping[str, object], framework: Framework) -> int:
    """Return 1 or 2: the version of FSDP that an option states, or that the framework's ``version`` uses."""
    stated = options.get(FSDP)
    if framework.always_uses_fsdp1:
        return 1
    if isinstance(stated, int):
        return stated
    return 1 if framework.predates(version, "FSDP2") else 2


def reduces_each(training: plan_types.TrainingSpec, options: Mapping[str, object], framework: Framework) -> bool:
    """Say whether Accelerate reduces the gradients of every micro-batch under FSDP2, in spite of ``gradient_sync``.

    Before 1.11 its ``no_sync`` looks for a method of that name, which FSDP2 does not have (accelerator.py). Where the
    plan does not state Accelerate's version, the trainer's release may require one.
    """
    accelerate, trainer = options.get(ACCELERATE), training.trainer
    if accelerate is None and trainer is not None:
        accelerate = framework.trainer_package(trainer).asks_for_accelerate(trainer.version)
    old = isinstance(accelerate, str) and is_before(accelerate, SYNCHRONISES)
    return old and ACCELERATE in framework.options and fsdp_of(training.framework_version, options, framework) == 2


def wraps_adapters(framework: Framework, version: str | None, stated: object) -> bool:
    """Say whether FSDP1 makes units of adapters (peft ``fsdp_auto_wrap_policy``), and not of layers alone.

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
    """Note in ``defaults`` whether FSDP1 wraps each adapter as an FSDP unit by itself, unless the plan states it.

    ``fsdp``: the version of FSDP, 1 or 2; 2 also for a job without FSDP.
    """
    if fsdp == 2 or WRAPS not in framework.options or layout.zero_stage < 2 or layout.shard_group == 1:
        return
    made, since = wraps_adapters(framework, training.framework_version, None), framework.since.get("adapter units")
    why = "peft's fsdp_auto_wrap_policy, as its recipes set it"
    if since is not None:
        first = ".".join(map(str, since))
        why = f"default of {framework.name} {'since' if made else 'before'} {first}"
    stated = options.get(WRAPS)
    defaults.stated_or(f"training.options.{WRAPS}", stated if isinstance(stated, bool) else None, made, why)


def resolve_carving(
    training: plan_types.TrainingSpec,
    fsdp: int,
    options: Mapping[str, object],
    layout: Layout,
    framework: Framework,
    defaults: Defaults,
) -> bool:
    """Say whether accelerate gives embedding and head FSDP2 groups of their own, as since 1.14
    (``fsdp2_prepare_model``).

    A trainer may replace that function. A release that the plan does not state is taken to be one before 1.14, which is
    noted in ``defaults``.
    """
    wrapped_by_fsdp2 = fsdp != 1 and layout.zero_stage >= 2 and layout.shard_group > 1
    if ACCELERATE not in framework.options or not wrapped_by_fsdp2:
        return False
    if framework.trainer_package(training.trainer).own_fsdp2_prepare:
        return False
    stated = options.get(ACCELERATE)
    if isinstance(stated, str):
        return not is_before(stated, CARVES)
    late = layout.gradient_sync == "last"  # whatever the number of micro-batches: this note is made for all batches
    value, why = "before 1.14", "the release is not stated: releases before 1.14 need the most memory"
    if late:
        value, why = "1.11 to 1.13", f"{why}, and gradients stay whole until the last micro-batch"
    defaults.note(f"training.options.{ACCELERATE}", value, why)
    return False


def resolve_kbit(
    base_format: WeightFormat | None,
    options: Mapping[str, object],
    layout: Layout,
    framework: Framework,
    trainer: plan_types.TrainerSpec | None,
    defaults: Defaults,
) -> bool:
    """Say whether peft's ``prepare_model_for_kbit_training`` casts what is not quantised to fp32 (peft/utils/other.py).

    Norms, embeddings, head and the residual stream are fp32 then. ``base_format``: of the base. Trainers that shard
    the parameters do not call it (trl trainer/sft_trainer.py, ``is_sharded_qlora``). DeepSpeed casts the whole module
    back to its training dtype (runtime/engine.py, ``_configure_distributed_model``: ``self.module.bfloat16()``).
    """
    if base_format not in BITSANDBYTES or framework.adapters.are_own_code or framework.has_sharding_engine:
        return False  # peft skips GPTQ's models, and trainers call it for bitsandbytes' weights alone
    if KBIT not in framework.options:
        return True
    stated = options.get(KBIT)
    if isinstance(stated, bool):
        return stated
    shards = layout.zero_stage >= 2 and layout.shard_group > 1
    why_16_bits = framework.trainer_package(trainer).kbit_casts_undone
    if not why_16_bits and shards:
        why_16_bits = "left out where parameters are sharded"
    bits = 8 if base_format == INT8 else 4
    why = why_16_bits or f"what peft's recipe for {bits}-bit training calls"
    casts = not why_16_bits
    defaults.note(f"training.options.{KBIT}", casts, why)
    return casts
