"""How a rank runs its step, and the sizes outside its units: all that the record of a step asks of a job."""

from __future__ import annotations

from memcheck.accounts.ranks import WRAPPED, ResidentTensors
from memcheck.autograd.tensor import rounded, rounded_bytes
from memcheck.errors import UnsupportedError
from memcheck.frameworks.engine import engine_code
from memcheck.frameworks.torch.data_parallel import MicroBatch, StepSizes, Strategy
from memcheck.frameworks.torch.dtypes import stream_dtype
from memcheck.frameworks.torch.fsdp import (
    accumulates_unsharded,
    adds_in_place,
    ends_have_own_groups,
    ends_share_group,
    has_adapter_units,
    is_hybrid_sharded,
    loss_reduces_head,
    uses_flat_parameters,
    uses_fsdp,
)
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.pipelining import StageExchange, distinct_micro_batches, distinct_pair_passes, in_flight
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


LOSSES_INSIDE_MODEL = ("standard", "in-place", "fused-linear")
"""Kinds of loss that the model's own forward computes."""


class Schedule(Record):
    """In which order a rank runs its micro-batches."""

    micro_batches: tuple[MicroBatch, ...]
    """Micro-batches that differ."""
    all_forwards_first: bool
    """All micro-batches are in flight at once: every forward is over before a backward leaves gradients."""
    pipelined: bool
    """The model is divided into pipeline stages."""
    paired: bool = False
    """Two passes run before the backward, whose gradients meet."""
    passes: tuple[ChunkPass, ...] = ()
    """What an interleaved pipeline's chunks run, in place of ``micro_batches``."""
    chunk_runs: tuple[int, ...] = ()
    """How many of the rank's runs each chunk has."""
    chunk_roots: tuple[bool, ...] = ()
    """Whether each chunk has units that FSDP2 leaves to the root."""


class StepOptions(Record):
    """How a rank runs its step: the schedule, lifetimes of variables, and the data-parallel strategy."""

    schedule: Schedule
    lifetimes: Lifetimes
    parallel: Strategy
    """What data parallelism does: a strategy. Records are tuples: those of two kinds must differ in their fields."""


def step_options(
    job: TrainingJob, rank: int, exchange: StageExchange, resident: ResidentTensors
) -> tuple[StepOptions, tuple[int, ...], tuple[float, ...]]:
    """Return how a pipeline rank runs its step: schedule, variable lifetimes and data-parallel strategy.

    The second result are the bytes of the strategy's own buffers. The third has, for each distinct micro-batch, how
    many others are in flight during its backward. ``exchange``: tensors sent between stages. ``resident``: the rank's
    tensors.
    """
    layout, profile = job.layout, job.framework
    if layout.expert > 1 and profile.fsdp2.leaves_whole_experts and not uses_fsdp(job):
        message = "experts on several ranks are modelled with FSDP2 alone"
        raise UnsupportedError(message, "choose parallelism.zero_stage: 3", "/parallelism/zero_stage")
    strategy, sizes, last_differs = strategy_of(job, resident)
    schedule, others_in_flight = _schedule(job, rank, exchange, last_differs=last_differs)
    return StepOptions(schedule, _variable_lifetimes(job), strategy), sizes, others_in_flight


def strategy_of(job: TrainingJob, resident: ResidentTensors) -> tuple[Strategy, tuple[int, ...], bool]:
    """Return a job's data-parallel strategy, the sizes of its own buffers in bytes, and whether its last micro-batch
    differs.

    It differs from the second one if gradients are only reduced in it, for example.
    """
    if uses_fsdp(job):
        strategy = _fully_shard(job)
        last_differs = strategy.no_sync or strategy.stays_gathered
        if loss_reduces_head(job) and not uses_flat_parameters(job):
            from memcheck.frameworks.torch.head_reductions import HeadReducingShard

            return HeadReducingShard(strategy), (), last_differs
        if not uses_flat_parameters(job):
            return strategy, (), last_differs
        from memcheck.frameworks.torch.flat_shard import FlatShard

        checkpointing = job.checkpointing
        reenters = checkpointing.mode == "full" and checkpointing.reentrant
        return FlatShard(strategy, has_adapter_units(job), reenters), (), last_differs
    own_engine = job.framework.own_engine
    engine = engine_code(job.framework)
    if engine is not None:
        return *engine.strategy(job, resident.units), own_engine  # type: ignore[arg-type]
    from memcheck.frameworks.torch.ddp import Replicated, buckets

    ddp = buckets(job)
    return Replicated(ddp.views, ddp.views_late), (), ddp.views_late or own_engine


def _fully_shard(job: TrainingJob) -> FullyShard:
    """Return how FSDP gathers, reduces and reshards in a step of this job, by its layout, loss and framework."""
    from memcheck.frameworks.torch.fully_shard import FullyShard

    layout, profile = job.layout, job.framework
    architecture, ends_shared = job.architecture, ends_share_group(job)
    pipelined, no_sync, ends_apart = layout.pipeline > 1, accumulates_unsharded(job), ends_have_own_groups(job)
    loss_in_trainer = job.objective.loss_after_model and not job.objective.loss_from_hidden_states
    loss_in_model = job.objective.loss_from_hidden_states or (job.loss.kind in LOSSES_INSIDE_MODEL and job.loss.upcast)
    chunked_loss_outside = not pipelined and job.loss.kind == "chunked" and profile.style.modeling_files
    # FSDP1 frees no unit after a backward without synchronisation, unless units reshard after their forward
    stays_unsharded = uses_flat_parameters(job) and no_sync and not layout.reshard_after_forward
    return FullyShard(
        reshards=layout.reshard_after_forward and layout.zero_stage == 3,
        several_backwards=job.run_micro_batches < job.gradient_accumulation_steps,
        keeps_all_reduce_output=job.fsdp == 2 and is_hybrid_sharded(layout),
        no_sync=no_sync,
        adds_in_place=adds_in_place(job),
        stays_gathered=pipelined,
        frees_early=job.casts_gradients,
        loss_inside_root=not (pipelined or ends_shared or job.groups_embedding_and_head or loss_in_trainer)
        and loss_in_model,
        loss_after_root=(ends_shared and not job.groups_embedding_and_head)
        or loss_reduces_head(job)
        or chunked_loss_outside,
        whole_table_gradient=layout.tensor > 1 and profile.style.modeling_files,
        offloads=job.parameter_offload != "none",
        carved=ends_apart,
        collapses=ends_apart and isinstance(architecture, Architecture) and architecture.collapses,
        gathers_ahead=layout.expert > 1 and profile.fsdp2.prefetches_experts,
        keeps_gathered=stays_unsharded or (job.fsdp == 1 and _is_paired(job)),
        wrapped=wrapped_kinds(job),
    )


def _is_paired(job: TrainingJob) -> bool:
    """Return whether a micro-batch is two forwards, of queries and of documents, before one backward."""
    return job.head.columns > 1 and job.layout.pipeline == 1


def _schedule(
    job: TrainingJob, rank: int, exchange: StageExchange, *, last_differs: bool
) -> tuple[Schedule, tuple[float, ...]]:
    """Return the schedule with its distinct micro-batches, and how many others are in flight for each of them.

    Micro-batches that need the same memory as an earlier one are left out. ``exchange``: tensors sent between stages.
    ``last_differs``: the strategy reduces gradients in the last micro-batch alone.
    """
    layout, paired = job.layout, _is_paired(job)
    most_in_flight = max(in_flight(rank, layout, job.run_micro_batches), job.head.columns)
    has_several_backwards = uses_fsdp(job) and job.run_micro_batches < job.gradient_accumulation_steps
    steps = job.run_micro_batches if has_several_backwards else job.forward_passes
    if paired:
        distinct = distinct_pair_passes(job.gradient_accumulation_steps, last_differs)
    else:
        distinct = distinct_micro_batches(steps, most_in_flight, last_differs)
    micro_batches = []
    for first, last, others_in_flight in distinct:
        micro_batches.append(MicroBatch(first, last, min(int(others_in_flight), exchange.sends)))
    schedule = Schedule(
        tuple(micro_batches), all_forwards_first=most_in_flight >= steps, pipelined=layout.pipeline > 1, paired=paired
    )
    return schedule, tuple([others_in_flight for _, _, others_in_flight in distinct])


def _variable_lifetimes(job: TrainingJob) -> Lifetimes:
    """Return which variables of the model's forward and of the training loop outlive their last use."""
    profile, architecture, checkpointing = job.framework, job.architecture, job.checkpointing
    lifetimes = Lifetimes(
        loss_after_model=job.objective.loss_after_model or job.objective.reads_logits or job.head.columns > 1,
        keeps_graph=profile.keeps_graph,
        keeps_outputs=job.objective.holds_reference,
        holds_rows=job.layout.pipeline == 1 and profile.style.modeling_files,
        keeps_states=isinstance(architecture, DebertaModel),
        leaves_graphs=isinstance(architecture, Architecture) and _leaves_graphs(architecture),
        saved_inputs=uses_fsdp(job) and job.fsdp == 1 and checkpointing.mode == "full" and checkpointing.reentrant,
    )
    if not isinstance(architecture, Architecture):
        return lifetimes
    if architecture.vision is not None:
        from memcheck.frameworks.torch.tower_setup import sinks, stays

        lifetimes = lifetimes._replace(
            towers_stay=stays(job, architecture.vision), sinks=sinks(job, architecture.vision)
        )
    return (
        lifetimes._replace(returns_first=_returns_first(architecture))
        if architecture.head_layer.activation or architecture.task
        else lifetimes
    )


def _returns_first(architecture: Architecture) -> bool:
    """Whether the body has returned before the modules that precede the loss run.

    A layer precedes the head, and no norm ends a body whose variable has the looked-up rows (UltraBERT's has). Or the
    head's part of the forward starts where the body has returned: no norm ends the body, or none while a variable has
    the looked-up rows (modeling_modernbert.py, which rebinds ``hidden_states``).
    """
    transforms = bool(architecture.head_layer.activation) and (
        architecture.embedding_module.apart or architecture.final_norm is None
    )
    pooled = architecture.pooling is not None and architecture.pooling.norm
    return transforms or (architecture.task is not None and (architecture.final_norm is None or pooled))


def wrapped_kinds(job: TrainingJob) -> tuple[str, ...]:
    """Return the kinds of units that FSDP wraps as groups of their own.

    It is empty if the model's class names no layers (``_no_split_modules``): then all parameters are in the root's
    group. A tower's layers are left out if its class names none.
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


def step_sizes(
    job: TrainingJob, runs: list[Run], buffers: ModelBuffers, others_in_flight: tuple[float, ...]
) -> StepSizes:
    """Return the sizes in bytes of a rank's step outside its units and FSDP groups.

    ``runs``: the rank's units. ``buffers``: masks, tables and tensors sent between stages. ``others_in_flight``: for
    each distinct micro-batch, how many others are in flight, which keep their saved tensors.
    """
    exchange = buffers.exchange
    own_bytes = buffers.per_micro_batch
    saved = own_bytes + exchange.output
    for run in runs:
        saved += run.times * run.unit.first_curve.saved_bytes
    whole_table = table_rows = 0
    if job.layout.tensor > 1 and runs[0].unit.kind == "embedding":
        element_bytes, local = DTYPE_BYTES[job.recipe.compute], runs[0].unit.tensors[0]
        table_rows = rounded(local.numel * element_bytes)
        whole_table = rounded(local.numel * job.layout.tensor * element_bytes)
    held_by_others = tuple([int(count * saved) for count in others_in_flight])
    waiting_bytes, features = (0, 0), 0
    if job.head.columns > 1 or any(run.unit.kind == "projector" for run in runs):
        waiting_bytes, features = waiting_embedding_bytes(job, buffers, runs), token_embeddings_bytes(job, buffers)
    return StepSizes(
        own_bytes, held_by_others, exchange, whole_table, table_rows, buffers.masks, *waiting_bytes, features
    )


def token_embeddings_bytes(job: TrainingJob, buffers: ModelBuffers) -> int:
    """Return the bytes of ``features["token_embeddings"]`` that the caller keeps for each text of a pair or triple.

    Source: sentence-transformers 6.2, base/modules/transformer.py.
    """
    shape = job.micro_batch_size * job.sequence_length, buffers.architecture.hidden_size
    return (job.head.columns - 1) * rounded_bytes(shape, stream_dtype(buffers.setting))


def waiting_embedding_bytes(job: TrainingJob, buffers: ModelBuffers, runs: list[Run]) -> tuple[int, int]:
    """Return two byte counts: the embedded text while a vision tower runs, and its gradient during the tower's
    backward.

    Both are 0 without a tower, or if the tower runs before the text is embedded (cross attention). ``runs``: the rank's
    units.
    """
    architecture = buffers.architecture
    crossed = architecture.vision is not None and architecture.vision.crosses
    if crossed or not any(run.unit.kind == "projector" for run in runs):
        return 0, 0
    tokens = job.rows * job.sequence_length
    size = rounded(tokens * architecture.hidden_size * DTYPE_BYTES[stream_dtype(buffers.setting)])
    trained = any(t.trained for t in runs[0].unit.tensors)
    hooked = is_hooked(job, architecture)
    return 0 if hooked and not trained else size, size if trained or hooked else 0
