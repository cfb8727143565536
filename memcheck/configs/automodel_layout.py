"""How an AutoModel recipe divides the job: the section ``distributed`` in both generations of its keys."""

from __future__ import annotations

import math

from memcheck.configs.automodel_keys import KEYS
from memcheck.configs.draft import Draft
from memcheck.configs.trainer_parts import on, text
from memcheck.configs.types import KeyRow
from memcheck.models.types import Architecture

SECTION = "distributed"
STAGE, GROUP = "parallelism.zero_stage", "parallelism.shard_group"
RESHARDS, SYNC = "parallelism.reshard_after_forward", "parallelism.gradient_sync"
PIPELINES = ("distributed.pipeline", "autopipeline")


def layout(draft: Draft, found: Architecture | None) -> None:
    """Strategy, degrees, and what FSDP2 does around the step."""
    config = draft.config
    _strategy(draft)
    for name in [key for key in config.values if key.startswith(f"{SECTION}.")]:
        if str(config.values[name]).lower() == "none":
            config.values[name] = None  # YAML's `none` is a word
    for degree in ("tensor", "context", "pipeline", "expert"):
        draft.rows((KeyRow(f"{SECTION}.{degree[0]}p_size", f"parallelism.{degree}"),))
    if degree_of(draft, "tensor") > 1:
        draft.rows((KeyRow(f"{SECTION}.sequence_parallel", "parallelism.sequence", "flag", default=False),))
    config.see(f"{SECTION}.sequence_parallel")
    _replicas(draft)
    if draft.value(STAGE) == 3:
        _gathers(draft)
    if text(draft, f"{SECTION}.offload_policy._target_").endswith("CPUOffloadPolicy"):
        draft.set("training.offload.parameters", "cpu", f"{SECTION}.offload_policy._target_")
    config.see(*(key for key in config.values if key.startswith(f"{SECTION}.offload_policy")))
    _pipeline(draft, found)


def degree_of(draft: Draft, name: str) -> int:
    """A degree that was read; 1 where there is none."""
    value = draft.value(f"parallelism.{name}")
    return value if isinstance(value, int) and value > 0 else 1


def _strategy(draft: Draft) -> None:
    config = draft.config
    path = f"{SECTION}.strategy" if config.has(f"{SECTION}.strategy") else f"{SECTION}._target_"
    written = text(draft, path).rpartition(".")[2].lower().replace("-", "_")
    config.see(f"{SECTION}.strategy")
    if written in ("", "fsdp2", "fsdp2manager", "fsdp2config"):
        draft.set(STAGE, 3, path)
    elif written in ("ddp", "ddpmanager", "ddpconfig"):
        draft.set(STAGE, 0, path)
        draft.assume(SYNC, "last", "micro-batches before the last run under no_sync")
    else:
        message = f"`{path}: {config.values[path]}`: this sharding has no memory model in AutoModel's loop"
        draft.refuse(path, message, "state it: --set parallelism.zero_stage=3", (STAGE,))


def _replicas(draft: Draft) -> None:
    """``dp_replicate_size``: copies of the sharded state; the shards are spread over context ranks, too."""
    path = f"{SECTION}.dp_replicate_size"
    replicas = draft.whole(path, GROUP) or 1
    data = draft.whole(f"{SECTION}.dp_size", GROUP)
    if data is not None and data > 0:  # the mesh has no other ranks: distributed/mesh_utils.py
        draft.set("parallelism.data", data, f"{SECTION}.dp_size")
    if replicas <= 1 or draft.value(STAGE) != 3:
        return
    if data is None:
        help = "state the ranks that share one copy: --set parallelism.shard_group=8"
        draft.refuse(path, "how many GPUs share one copy depends on how many there are", help, (GROUP,))
    else:
        draft.set(GROUP, max(1, data * degree_of(draft, "context") // replicas), path)


def _gathers(draft: Draft) -> None:
    """Read whether layers stay gathered after their forward pass, and which micro-batches reduce gradients.

    Source: ``components/moe/parallelizer.py``.
    """
    config, own = draft.config, f"{SECTION}.reshard_after_forward"
    sections = ("distributed.moe", "parallelizer")
    experts = next((name for name in sections if config.has(f"{name}.reshard_after_forward")), "")
    if config.has(own):
        draft.set(RESHARDS, on(draft, own), own)
    elif degree_of(draft, "expert") > 1:
        path = f"{experts or 'distributed.moe'}.reshard_after_forward"
        draft.set(RESHARDS, on(draft, path), path)
    else:
        why = "layers are gathered again unless a pipeline needs them for the next micro-batch"
        draft.assume(RESHARDS, degree_of(draft, "pipeline") == 1, why)
    config.see(own, "distributed.moe.reshard_after_forward", "parallelizer.reshard_after_forward")
    defer = f"{SECTION}.defer_fsdp_grad_sync"
    if config.has(defer):
        draft.set(SYNC, "last" if on(draft, defer) else "every", defer)
    else:
        draft.assume(SYNC, "last", "defer_fsdp_grad_sync is on by default")


def _pipeline(draft: Draft, found: Architecture | None) -> None:
    ranks = degree_of(draft, "pipeline")
    section = next((name for name in PIPELINES if draft.config.section(name)), PIPELINES[0])
    if ranks == 1:
        return
    path = f"{section}.pp_schedule"
    row = KeyRow(path, "parallelism.pipeline_schedule", kind="word", words=KEYS.words["schedules"], default="1f1b")
    draft.rows((row,))
    for name in ("pp_schedule_csv", "module_fqns_per_model_part"):
        if draft.config.has(f"{section}.{name}"):
            message = f"`{section}.{name}`: a split of the model by a list of its own has no memory model here"
            draft.refuse(f"{section}.{name}", message, keys=("parallelism.pipeline",))
    if draft.value("parallelism.pipeline_schedule") not in KEYS.names["looped"]:
        return
    each = draft.whole(f"{section}.layers_per_stage", "parallelism.virtual_stages")
    if each is None:
        draft.assume("parallelism.virtual_stages", 2, "AutoModel's default for a looped schedule")
    elif found is None and draft.value("model.name") is not None:
        draft.config.see(f"{section}.layers_per_stage")  # an unknown model is refused by its name
    elif found is None:
        message = "how many stages that makes depends on the model"
        draft.refuse(f"{section}.layers_per_stage", message, keys=("parallelism.virtual_stages", "model"))
    else:
        stages = math.ceil(found.num_layers / max(1, each))
        if text(draft, f"{section}.round_virtual_stages_to_pp_multiple") == "up":
            stages = -(-stages // ranks) * ranks
        draft.set("parallelism.virtual_stages", max(1, stages // ranks), f"{section}.layers_per_stage")
