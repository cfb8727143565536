"""Models in addition to the one that is trained: their resident bytes, and what is gathered of them."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.accounts.state import LocalTensor, shard_numel, weight_bytes
from memcheck.frameworks.registry import Engine, GatheredOfReference, engine_code, layers_of
from memcheck.frameworks.torch.data_parallel import Group, all_gather_dtype, fsdp_group, is_zero3, uses_fsdp
from memcheck.frameworks.torch.tower_tensors import model_tensors
from memcheck.job.types import Companion, Objective, TrainingJob
from memcheck.models.types import Architecture


def alone(job: TrainingJob, companion: Companion) -> TrainingJob:
    """Return the job that would train the companion model in full, whose tensors are those that the companion keeps."""
    return job._replace(
        architecture=companion.architecture,
        method="full",
        lora=None,
        freeze=(),
        liger=(),  # whose kernels are put into the model that is trained
        objective=Objective(),
        auxiliary_models=(),
        # accelerate casts only what it prepares for training (utils/fsdp_utils.py, fsdp2_prepare_model)
        upcasts_before_sharding=False,
        recipe=job.recipe._replace(params=companion.dtype),
    )


def companion_bytes(job: TrainingJob) -> int:
    """Return the resident bytes of all companion models on one rank. FSDP and ZeRO-3 shard them; otherwise each rank
    has whole copies.
    """
    shards = sum(
        _shards(job, companion) for companion in job.auxiliary_models if companion.parameters_place == "device"
    )
    return shards + sum(_beside(job, companion) for companion in job.auxiliary_models)


def _shards(job: TrainingJob, companion: Companion) -> int:
    shards = job.layout.shard_group if is_wrapped(job, companion) or is_zero3(job) else 1
    companion_job = alone(job, companion)
    return sum(weight_bytes(t, companion.dtype, shard_numel(t, shards)) for t in companion_tensors(companion_job))


def is_wrapped(job: TrainingJob, companion: Companion) -> bool:
    """Say whether FSDP wraps a companion: a reference, and what a framework's own recipe shards.

    TRL's distillation trainers hand their teacher to accelerate's ``prepare_model(evaluation_mode=True)``, which wraps
    nothing (TRL 0.24 to 1.16 gkd_trainer.py, distillation_trainer.py; accelerate 1.15 accelerator.py).
    """
    return uses_fsdp(job) and (companion.role != "teacher" or job.framework.runs_objectives_in_recipes)


def _beside(job: TrainingJob, companion: Companion) -> int:
    """Return the bytes of a companion's parameters that stay gathered between its forwards, in addition to its shards.

    Under ZeRO-3 these are the persistent parameters. Under FSDP it is the root's group, unless the model is on the
    host.
    """
    if is_zero3(job):
        companion_job = alone(job, companion)
        return _engine(job).undivided_model_bytes(companion_job, companion_tensors(companion_job))
    runs = companion.parameters_place == "device" or job.framework.runs_objectives_in_recipes
    root_stays_gathered = runs and is_wrapped(job, companion) and by_layer(job)
    return _root(job, companion).unsharded_params if root_stays_gathered else 0


def companion_caches(job: TrainingJob) -> int:
    """Return the rotary tables that all companions hold as buffers."""
    states = layers_of(job.framework.style)
    models = [companion.architecture for companion in job.auxiliary_models]
    return sum(states.rotary_caches(a, job.sequence_length, a.num_layers, adapted=False) for a in models)


def by_layer(job: TrainingJob) -> bool:
    """Say whether each layer of the companion model is an FSDP unit of its own.

    FSDP1 wraps it by its auto-wrap policy (TRL ``models/utils.py``, ``prepare_fsdp``), what a script has wrapped itself
    is left as it is, and torchtune's recipes shard it by layers.
    """
    if job.framework.runs_objectives_in_recipes:  # resident bytes are asked of a job without its objective
        return True
    return job.option("reference_fsdp", "per_layer" if job.fsdp_version == 1 else "whole_model") == "per_layer"


def _root(job: TrainingJob, companion: Companion) -> Group:
    """Return the embedding, final norm and head: the FSDP root of a reference model.

    They stay gathered after a forward, since no backward frees them.
    """
    units = list(model_tensors(alone(job, companion), companion.architecture))
    return _gathered_group(job, companion, (*units[0], *units[-1]))


def _gathered_group(job: TrainingJob, companion: Companion, tensors: Iterable[LocalTensor]) -> Group:
    """Return the sizes of an FSDP group of ``tensors`` of a companion, under the mixed-precision policy of the trained
    model.

    With that policy they are gathered in the compute dtype, whatever the companion's stored dtype (TRL models/utils.py,
    ``prepare_fsdp``: ``mp_policy=fsdp_plugin.mixed_precision_policy``).
    """
    sharded = [(t, job.layout.shard_group) for t in tensors]
    recipe = job.recipe._replace(params=companion.dtype)
    casts_every_tensor = all_gather_dtype(job) is not None
    if not casts_every_tensor:
        recipe = recipe._replace(compute=companion.dtype)
    return fsdp_group(sharded, recipe, casts_every_tensor=casts_every_tensor, accumulation_dtype=job.recipe.reduce)


def companion_tensors(job: TrainingJob) -> list[LocalTensor]:
    """List the tensors of a reference or teacher model. ``job``: one that runs that model alone (:func:`alone`)."""
    architecture = job.architecture
    assert isinstance(architecture, Architecture)  # noqa: S101 - a companion has one
    return [t for tensors in model_tensors(job, architecture) for t in tensors]


def gathered_whole(job: TrainingJob, companion: Companion) -> int:
    """Return the bytes of a reference model's gathered parameters and their flat buffer, while its forward runs.

    TRL wraps a reference as one FSDP2 unit (``models/utils.py``, ``prepare_fsdp``).
    """
    group = _gathered_group(job, companion, companion_tensors(alone(job, companion)))
    return group.unsharded_params + group.all_gather_output


def gathered_by_engine(job: TrainingJob, companion: Companion) -> GatheredOfReference:
    """Bytes that DeepSpeed's engine has gathered at once in the companion's forward."""
    inside = alone(job, companion)
    units = list(model_tensors(inside, companion.architecture))
    return _engine(job).gathered_model_bytes(inside, units, companion.dtype)


def _engine(job: TrainingJob) -> Engine:
    """Return the data-parallel engine of the job if it partitions parameters."""
    engine = engine_code(job.framework)
    assert engine is not None  # noqa: S101 - see `partitioned`
    return engine
