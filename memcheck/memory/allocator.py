"""What the caching allocator holds beyond live tensors, decided in one place for every job (docs/allocator.md).

Two shares of ``allocated``, each with its spread (:class:`Shares`):

- *stuck*: the smallest memory on which the step still runs. Before an allocation fails the allocator gives back every
  segment that is wholly free and tries again (c10/cuda/CUDACachingAllocator.cpp, ``release_cached_blocks``). With
  default segments little more is left than one block as large as the step's largest: see :func:`remainder_group`.
- *held*: what it keeps with memory to spare, the stuck part included, over ``allocated`` and ``apart``, which is what
  the pools of FSDP2's streams hold beyond it. The difference is its *cache*, seen in ``nvidia-smi`` and no need.

The tables are ``tight``, ``reserved``, ``beyond`` and ``blocks`` of ``data/residuals.json``, made from replays of
traced steps (``python -m benchmarks.accuracy --write``).
"""

from __future__ import annotations

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.torch import ends_apart
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.memory.residuals import Residuals, Spread, look_up, residuals
from memcheck.models.types import Architecture, Moe
from memcheck.record import Record

LENGTHS_VARY = "/lengths vary"
"""In a kind of step with sequences of different lengths, which decide what is held and not what is stuck."""

COMPILED_APART = ", compiled"
"""In a kind of sharded step whose layers are compiled, which decides what is held and not what is stuck."""

ADAPTERS = "/adapters"
"""In a kind of step that trains adapters alone. What a first step leaves behind, gradients and optimizer states, is
small: it does not split the large segments that activations and logits have let go of, and the next step finds them."""


class Shares(Record):
    """What is held, as ratios; ``held`` is nowhere below ``stuck``."""

    stuck: Spread
    """Over ``allocated``, on the smallest memory on which the step runs: what cannot be returned."""
    held: Spread
    """Over ``allocated`` and ``apart`` together, with memory to spare: what is seen."""


def shares(job: TrainingJob | InferenceJob) -> Shares:
    """A job's, whatever its batch."""
    return shares_of(residuals(), allocator_group(job))


def shares_of(tables: Residuals, group: str) -> Shares:
    """Those of a kind of step, from given tables.

    No allocator holds less than what is live, nor keeps less with memory to spare than it cannot return: a kind that
    borrows either share from its neighbours is held to both.
    """
    held = look_up(tables.reserved, group)[1]
    stuck = look_up(tables.tight, stuck_group(group))[1]
    held = held._replace(median=max(1.0, held.median), high=max(1.0, held.high))
    median, high = (max(1.0, min(a, b)) for a, b in ((stuck.median, held.median), (stuck.high, held.high)))
    return Shares(Spread(n=stuck.n or held.n, low=min(max(1.0, stuck.low), median), median=median, high=high), held)


def kept(found: Shares, allocated: int, room: int, apart: int = 0) -> tuple[int, int]:
    """Bytes that the allocator cannot return, and those of its cache, which is no more than the ``room`` for both."""
    stuck = int(allocated * (found.stuck.median - 1))
    held = int((allocated + apart) * found.held.median) - allocated
    return stuck, max(0, min(held, room) - stuck)


def stuck_group(group: str) -> str:
    """The kind under which it is recorded what a step cannot return: of equal lengths, needing no less, and eager."""
    return group.replace(LENGTHS_VARY, "").replace(COMPILED_APART, "")


def remainder_group(job: TrainingJob | InferenceJob) -> str:
    """Kind of step whose need was compared with its largest block; empty where no such step was replayed.

    On one stream experts are a kind apart: the blocks of their tokens have sizes that nothing else has.
    """
    if isinstance(job, InferenceJob) or job.expandable_segments or job.compiles("model") or job.method == "qlora":
        return ""
    profile = FRAMEWORKS[job.framework]
    if profile.own_engine or profile.allocator_group:
        return ""
    group = stuck_group(allocator_group(job)).removesuffix("/default")
    if "/" not in group or group.endswith(ADAPTERS):
        return group
    return f"{group}/{'experts' if has_experts(job) else 'dense'}"


def blocks_group(job: TrainingJob | InferenceJob) -> str:
    """Kind of step that leaves a share of its largest block at least, or nothing.

    In full steps of FSDP2 that gather twice a smaller flat buffer lies in the segment of the largest.
    """
    group, layout = remainder_group(job), job.layout
    if isinstance(job, InferenceJob) or not group.startswith("sharded") or job.method != "full":
        return ""
    return group if layout.zero_stage == 3 and layout.reshard_after_forward else ""


def has_experts(job: TrainingJob | InferenceJob) -> bool:
    """Any block with routed experts."""
    architecture = job.architecture
    return isinstance(architecture, Architecture) and any(isinstance(b.mlp, Moe) for b, _ in architecture.blocks)


def allocator_group(job: TrainingJob | InferenceJob) -> str:
    """Kind of plan as the caching allocator sees it: ``streams/recompute/allocator``, sharded ``streams/allocator``."""
    if isinstance(job, InferenceJob):
        return "serving"
    profile = FRAMEWORKS[job.framework]
    streams = profile.allocator_group
    if not streams and job.layout.zero_stage >= 2 and job.layout.shard_group > 1:
        streams = _sharded(job, apart=ends_apart(job, profile))
    if not streams:
        lengths = LENGTHS_VARY if job.sequences == "padded" else ""
        mode = "plain" if job.checkpointing.mode == "none" else "recompute"
        streams = f"one stream{lengths}/{mode}{ADAPTERS if _adapters(job) else ''}"
    return f"{streams}/{'expandable' if job.expandable_segments else 'default'}"


def _adapters(job: TrainingJob) -> bool:
    """Nothing large is trained, and nothing is made whole for a product, as 4-bit weights are."""
    return job.method == "lora" and job.lora is not None and not job.lora.modules_to_save and not job.compile


def _sharded(job: TrainingJob, *, apart: bool) -> str:
    """FSDP2's streams, by its groups: embedding and head each with their own, or one root group.

    Compiled steps have their own kind where published readings show it: what a compiler fuses is not traced.
    torchtitan's graph_trainer keeps what its own passes decide, and has none.
    """
    if not apart:
        return "sharded"
    own_passes = str(job.option("module", "")).startswith("graph_trainer")
    return f"sharded ends apart{COMPILED_APART}" if job.compiles("model") and not own_passes else "sharded ends apart"
