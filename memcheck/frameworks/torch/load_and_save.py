"""Device memory before and after the steps, where it is not a part of what a step holds.

Two moments can exceed every moment of a step:

- ``load``: each process makes the whole model on its GPU and shards it afterwards. bitsandbytes always does so:
  transformers' quantizer sets a device map, and accelerate cannot keep 4-bit parameters on the meta device
  (utils/fsdp_utils.py, ``fsdp2_prepare_model``: "will still cause the VRAM spike").
- ``save``: ``get_state_dict`` with ``full_state_dict`` and without ``cpu_offload`` gathers every tensor on every rank
  and keeps them (torch 2.13 distributed/_state_dict_utils.py, ``_gather_state_dict``: no rank is left out).

All others hold a subset of a step's tensors: a model on the meta device gets its shards only (``to_empty``); FSDP2
moves a module to the GPU, shards it, and a step gathers as much twice, flat and copied out; DeepSpeed's fp32 partitions
and the gradients of its first, empty step are there in every optimizer step, and it flattens on the GPU only where
there is room; a gather that offloads holds one tensor.
"""

from __future__ import annotations

from memcheck.accounts.estimate import Instant
from memcheck.accounts.ranks import ResidentTensors
from memcheck.accounts.segments import unfilled
from memcheck.accounts.state import optimizer_state_bytes, weight_bytes
from memcheck.frameworks.torch.resident import Sharding, is_updated, resident_dtype, sharding, states_dtype
from memcheck.frameworks.torch.states import PACKED, counted, engine_of
from memcheck.job.keys import state_key
from memcheck.job.types import TrainingJob
from memcheck.record import Record
from memcheck.remembered import lru_cache


def sharding_at(job: TrainingJob, instant: str) -> Sharding:
    """How the largest tensors of a moment are divided: before they are sharded, and gathered, they are whole."""
    cut = sharding(job)
    return cut if instant not in ("load", "save") else Sharding(1, 1, 1, flat=cut.flat)


class Whole(Record):
    """Bytes of a rank's tensors before data parallelism divides them."""

    parameters: int = 0
    adapters: int = 0
    optimizer_states: int = 0


def around(job: TrainingJob, held: ResidentTensors, steps: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """The instants of a step with those before and after it."""
    loads = job.initialization.place == "device" and job.layout.shard_group > 1 and _shards(job)
    gathers = job.checkpoint.state_dict == "full" and job.checkpoint.offload == "none" and _shards(job)
    evaluates = job.evaluation is not None
    if not loads and not gathers and not evaluates:
        return steps
    found = list(steps)
    if evaluates:
        from memcheck.frameworks.torch.evaluation import evaluation_instant

        engine = engine_of(job, held.units, recomputes=True)  # type: ignore[arg-type]  # a rank's tensors
        gathered = engine.live_parameters if engine is not None else 0
        found.append(evaluation_instant(job, next(i for i in steps if i.name == "init"), gathered))
    if not loads and not gathers:
        return tuple(found)
    whole = _whole(state_key(job), held)
    if loads:
        found.insert(0, _instant("load", "building the whole model on every GPU", whole._replace(optimizer_states=0)))
    if gathers:
        rests = next(i for i in steps if i.name == "init").components_bytes
        saved = whole if job.checkpoint.optimizer else whole._replace(optimizer_states=0)
        found.append(_instant("save", "gathering the full state dict on every GPU", saved, rests))
    return tuple(found)


def _shards(job: TrainingJob) -> bool:
    least = 3 if job.framework.own_engine else 2
    return job.layout.zero_stage >= least


@lru_cache(maxsize=1024)
def _whole(job: TrainingJob, held: ResidentTensors) -> Whole:
    parameters = adapters = states = 0
    for tensors, count in counted(held):
        for t in tensors:
            size = count * weight_bytes(t, resident_dtype(job, t))
            if ".lora_" in t.name:
                adapters += size
            else:
                parameters += size
            if is_updated(job, t):
                states += count * optimizer_state_bytes(t, t.numel, job.optimizer.name, states_dtype(job, t))
    return Whole(parameters, adapters, states)


@lru_cache(maxsize=1024)
def unfilled_whole(job: TrainingJob, held: ResidentTensors) -> int:
    """What the segments of whole weights leave to no other, of a :func:`state_key` job."""
    if job.expandable_segments:
        return 0
    found = 0
    for tensors, count in counted(held):
        packed = min(count, PACKED)
        found += unfilled([weight_bytes(t, resident_dtype(job, t)) for t in tensors] * packed) * count // packed
    return found


def _instant(name: str, operation: str, whole: Whole, beside: dict[str, int] | None = None) -> Instant:
    components = dict(beside or {})
    for component, count in whole._asdict().items():
        if count:
            components[component] = components.get(component, 0) + count
    return Instant(name, operation, sum(components.values()), components)
