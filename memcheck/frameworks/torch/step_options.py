"""How a rank runs its step, and the sizes outside its units: all that the record of a step asks of a job."""

from __future__ import annotations

from memcheck.accounts.ranks import ResidentTensors
from memcheck.accounts.unit import WRAPPED
from memcheck.autograd.tensor import rounded, rounded_bytes
from memcheck.errors import UnsupportedError
from memcheck.frameworks.engine import engine_code
from memcheck.frameworks.torch.data_parallel import MicroBatch, StepSizes, Strategy
from memcheck.frameworks.torch.dtypes import stream_dtype
from memcheck.frameworks.torch.fsdp import (
    adds_in_place,
    carves_ends,
    flattens,
    leaves_apart,
    reduces_head,
    replicates,
    skips_reduction,
    ties_ends,
    wraps,
)
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.pipelining import Border, in_flight, pairs_of, walks_of
from memcheck.frameworks.torch.rank_units import Run
from memcheck.frameworks.torch.trained_parts import is_hooked
from memcheck.frameworks.torch.variables import Lifetimes
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture, DebertaModel, Mixer
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.frameworks.torch.fully_shard import FullyShard
    from memcheck.frameworks.torch.interleaved import ChunkPass


INSIDE = ("standard", "in-place", "fused-linear")
"""Kinds of loss that the model's own forward computes."""


class Schedule(Record):
    """In which order a rank runs its micro-batches."""

    micro_batches: tuple[MicroBatch, ...]
    """Micro-batches that differ."""
    all_forwards_first: bool
    """All micro-batches are in flight at once: every forward is over before a backward leaves gradients."""
    pipelined: bool
    paired: bool = False
    """Two passes run before the backward, whose gradients meet."""
    passes: tuple[ChunkPass, ...] = ()
    """What an interleaved pipeline's chunks run, in place of ``micro_batches``."""
    chunk_runs: tuple[int, ...] = ()
    """How many of the rank's runs each chunk has."""
    chunk_roots: tuple[bool, ...] = ()
    """Whether each chunk has units that FSDP2 leaves to the root."""


class StepOptions(Record):
    """How a rank runs its step."""

    schedule: Schedule
    lifetimes: Lifetimes
    parallel: Strategy
    """What data parallelism does: a strategy. Records are tuples: those of two kinds must differ in their fields."""


def step_options(
    job: TrainingJob, rank: int, border: Border, held: ResidentTensors
) -> tuple[StepOptions, tuple[int, ...], tuple[float, ...]]:
    """How pipeline rank ``rank`` runs its step, the sizes of its strategy's own buffers, and for each walk how many
    other micro-batches are in flight.
    """
    layout, profile = job.layout, job.framework
    if layout.expert > 1 and profile.fsdp2.leaves_whole_experts and not wraps(job):
        message = "experts on several ranks are modelled with FSDP2 alone"
        raise UnsupportedError(message, "choose parallelism.zero_stage: 3", "/parallelism/zero_stage")
    strategy, sizes, apart = strategy_of(job, held)
    schedule, others = _schedule(job, rank, border, apart=apart)
    return StepOptions(schedule, _lifetimes(job), strategy), sizes, others


def strategy_of(job: TrainingJob, held: ResidentTensors) -> tuple[Strategy, tuple[int, ...], bool]:
    """The strategy of a job, the sizes of its own buffers, and whether its last micro-batch differs from the second."""
    if wraps(job):
        found = _fully_shard(job)
        apart = found.no_sync or found.stays_gathered
        if reduces_head(job) and not flattens(job):
            from memcheck.frameworks.torch.head_reductions import HeadReducingShard

            return HeadReducingShard(found), (), apart
        if not flattens(job):
            return found, (), apart
        from memcheck.frameworks.torch.flat_shard import FlatShard

        checkpointing = job.checkpointing
        reenters = checkpointing.mode == "full" and checkpointing.reentrant
        return FlatShard(found, leaves_apart(job), reenters), (), apart
    own_engine = job.framework.own_engine
    engine = engine_code(job.framework)
    if engine is not None:
        return *engine.strategy(job, held.units), own_engine  # type: ignore[arg-type]
    from memcheck.frameworks.torch.ddp import Replicated, buckets

    ddp = buckets(job)
    return Replicated(ddp.views, ddp.views_late), (), ddp.views_late or own_engine


def _fully_shard(job: TrainingJob) -> FullyShard:
    """What FSDP does in a step."""
    from memcheck.frameworks.torch.fully_shard import FullyShard

    layout, profile, architecture, tied = job.layout, job.framework, job.architecture, ties_ends(job)
    pipelined, no_sync, carved = layout.pipeline > 1, skips_reduction(job), carves_ends(job)
    returned = job.objective.outside and not job.objective.fused
    inside = job.objective.fused or (job.loss.kind in INSIDE and job.loss.upcast)
    outside = not pipelined and job.loss.kind == "chunked" and profile.style.modeling_files
    stays = flattens(job) and no_sync and not layout.reshard_after_forward
    return FullyShard(
        reshards=layout.reshard_after_forward and layout.zero_stage == 3,
        several_backwards=job.run_micro_batches < job.gradient_accumulation_steps,
        keeps_all_reduce_output=job.fsdp == 2 and replicates(layout),
        no_sync=no_sync,
        adds_in_place=adds_in_place(job),
        stays_gathered=pipelined,
        frees_early=job.casts_gradients,
        loss_inside_root=not (pipelined or tied or job.carves_ends or returned) and inside,
        loss_after_root=(tied and not job.carves_ends) or reduces_head(job) or outside,
        whole_table_gradient=layout.tensor > 1 and profile.style.modeling_files,
        offloads=job.parameter_offload != "none",
        carved=carved,
        collapses=carved and isinstance(architecture, Architecture) and architecture.collapses,
        gathers_ahead=layout.expert > 1 and profile.fsdp2.prefetches_experts,
        keeps_gathered=stays or (job.fsdp == 1 and _is_paired(job)),
        wrapped=wrapped_kinds(job),
    )


def _is_paired(job: TrainingJob) -> bool:
    return job.head.columns > 1 and job.layout.pipeline == 1


def _schedule(job: TrainingJob, rank: int, border: Border, *, apart: bool) -> tuple[Schedule, tuple[float, ...]]:
    """The micro-batches that differ, and of each how many others are in flight."""
    layout = job.layout
    held, paired = max(in_flight(rank, layout, job.run_micro_batches), job.head.columns), _is_paired(job)
    several = wraps(job) and job.run_micro_batches < job.gradient_accumulation_steps
    steps = job.run_micro_batches if several else job.passes
    walks = pairs_of(job.gradient_accumulation_steps, apart) if paired else walks_of(steps, held, apart)
    each = [MicroBatch(first, last, min(int(others), border.sends)) for first, last, others in walks]
    schedule = Schedule(tuple(each), all_forwards_first=held >= steps, pipelined=layout.pipeline > 1, paired=paired)
    return schedule, tuple([others for _, _, others in walks])


def _lifetimes(job: TrainingJob) -> Lifetimes:
    """What the model's forward and the training loop keep."""
    profile, architecture, checkpointing = job.framework, job.architecture, job.checkpointing
    found = Lifetimes(
        loss_after_model=job.objective.outside or job.objective.watched or job.head.columns > 1,
        keeps_graph=profile.keeps_graph,
        keeps_outputs=job.objective.holds_reference,
        holds_rows=job.layout.pipeline == 1 and profile.style.modeling_files,
        keeps_states=isinstance(architecture, DebertaModel),
        leaves_graphs=isinstance(architecture, Architecture) and _leaves_graphs(architecture),
        saved_inputs=wraps(job) and job.fsdp == 1 and checkpointing.mode == "full" and checkpointing.reentrant,
    )
    if not isinstance(architecture, Architecture):
        return found
    if architecture.vision is not None:
        from memcheck.frameworks.torch.tower_setup import sinks, stays

        found = found._replace(towers_stay=stays(job, architecture.vision), sinks=sinks(job, architecture.vision))
    return (
        found._replace(returns_first=_returns_first(architecture))
        if architecture.head_transform or architecture.task
        else found
    )


def _returns_first(architecture: Architecture) -> bool:
    """Whether the body has returned before the modules that precede the loss run.

    A layer precedes the head, and no norm ends a body whose variable has the looked-up rows (UltraBERT's has). Or the
    head's part of the forward starts where the body has returned: no norm ends the body, or none while a variable has
    the looked-up rows (modeling_modernbert.py, which rebinds ``hidden_states``).
    """
    transforms = bool(architecture.head_transform) and (
        architecture.embeddings_apart or architecture.final_norm is None
    )
    pooled = architecture.pooling is not None and architecture.pooling.norm
    return transforms or (architecture.task is not None and (architecture.final_norm is None or pooled))


def wrapped_kinds(job: TrainingJob) -> tuple[str, ...]:
    """Kinds of units that FSDP makes groups of their own of: none where the model's class names no layers, so that all
    of it is the root's, and none of the tower's where that names none.
    """
    architecture, profile = job.architecture, job.framework
    if not isinstance(architecture, Architecture):
        return WRAPPED
    if architecture.model_type in (profile.unsplit or ()):
        return ()
    if architecture.vision is None:
        return WRAPPED
    from memcheck.frameworks.torch.tower_setup import wrapped_of

    return wrapped_of(job, architecture.vision)


def _leaves_graphs(architecture: Architecture) -> bool:
    """Whether an attribute of its layers is a state of the recurrence."""
    return any(isinstance(block.mixer, Mixer) and block.mixer.kind == "rg-lru" for block, _ in architecture.blocks)


def step_sizes(job: TrainingJob, runs: list[Run], buffers: ModelBuffers, others: tuple[float, ...]) -> StepSizes:
    """The sizes of a rank's step outside its units. ``others``: of each walk, the other micro-batches in flight."""
    border = buffers.border
    own = buffers.per_micro_batch
    saved = own + border.output
    for run in runs:
        saved += run.times * run.unit.fresh.saved
    whole = rows = 0
    if job.layout.tensor > 1 and runs[0].unit.kind == "embedding":
        item, local = DTYPE_BYTES[job.recipe.compute], runs[0].unit.tensors[0]
        rows, whole = rounded(local.numel * item), rounded(local.numel * job.layout.tensor * item)
    held = tuple([int(count * saved) for count in others])
    waiting, features = (0, 0), 0
    if job.head.columns > 1 or any(run.unit.kind == "projector" for run in runs):
        waiting, features = waiting_rows(job, buffers, runs), features_of(job, buffers)
    return StepSizes(own, held, border, whole, rows, buffers.masks, *waiting, features)


def features_of(job: TrainingJob, buffers: ModelBuffers) -> int:
    """``features["token_embeddings"]`` of the caller (sentence-transformers 6.2, base/modules/transformer.py)."""
    shape = job.micro_batch_size * job.sequence_length, buffers.architecture.hidden_size
    return (job.head.columns - 1) * rounded_bytes(shape, stream_dtype(buffers.setting))


def waiting_rows(job: TrainingJob, buffers: ModelBuffers, runs: list[Run]) -> tuple[int, int]:
    """Bytes of the looked-up rows while a tower runs, and of their gradient while its backward does."""
    architecture = buffers.architecture
    crossed = (
        architecture.vision is not None and architecture.vision.crosses
    )  # pictures come first, and the text waits for none
    if crossed or not any(run.unit.kind == "projector" for run in runs):
        return 0, 0
    tokens = job.rows * job.sequence_length
    size = rounded(tokens * architecture.hidden_size * DTYPE_BYTES[stream_dtype(buffers.setting)])
    trained = any(t.trained for t in runs[0].unit.tensors)
    hooked = is_hooked(job, architecture)
    return 0 if hooked and not trained else size, size if trained or hooked else 0
