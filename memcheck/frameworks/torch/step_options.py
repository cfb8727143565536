"""How a rank runs its step, and the sizes outside its units: all that the record of a step asks of a job."""

from __future__ import annotations

from memcheck.autograd.tensor import rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.fsdp import (
    NO_GROUP,
    Group,
    adds_in_place,
    carves_ends,
    reduces_head,
    replicates,
    skips_reduction,
    ties_ends,
    wraps,
)
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.pipelining import Border, in_flight
from memcheck.frameworks.torch.rank_units import Run
from memcheck.frameworks.torch.states import gradient_views
from memcheck.frameworks.torch.tower_setup import WRAPPED, sinks, stays, wrapped_of
from memcheck.job.torch import ends_apart
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture, Mixer
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.frameworks.torch.interleaved import ChunkPass

INSIDE = ("standard", "in-place", "fused-linear")
"""Kinds of loss that the model's own forward computes."""


class MicroBatch(Record):
    """A micro-batch that is recorded."""

    first: bool
    last: bool
    sends: int
    """Outputs of other micro-batches that may still be on their way."""


class StepOptions(Record):
    """How a rank runs its step."""

    micro_batches: tuple[MicroBatch, ...]
    """Micro-batches that differ."""
    all_at_once: bool
    """All micro-batches are in flight at once: every forward is over before a backward leaves gradients."""
    sharded: bool
    """FSDP2 wraps the units."""
    rooted: bool
    """Blocks and the root are wrapped: embedding, final norm and head are one group, gathered all step."""
    tied_ends: bool
    """The group of tied ends is no root: the model's forward ends after the head. A loss that runs the head chunk by
    chunk frees the group, gathers it again and reduces its gradient; the backward after it does so once more.
    """
    reshards: bool
    several_runs: bool
    """A pipeline's schedule runs several times a step: reduced gradients of the runs before are there."""
    keeps_reduced: bool
    """FSDP2 over replicas: every group refers to what its all-reduce wrote until the backward is over."""
    unsynchronised: bool
    """Micro-batches before the last leave their gradients unsharded."""
    in_place: bool
    stays_gathered: bool
    """torch.distributed.pipelining keeps parameters gathered from one backward to the next forward, and reduces after
    the last backward instead of within it (stage.py, perform_reduce_grad).
    """
    casts_gradients: bool
    loss_inside_root: bool
    loss_behind_model: bool
    """A trainer takes the loss, or metrics, of what the model's forward has returned."""
    loss_behind_root: bool
    """The root's forward returns hidden states, and the head runs chunk by chunk after it."""
    whole_table: bool
    """A tensor-parallel rank's embedding gradient is made for the whole table: RowwiseParallel's is."""
    offloads: bool
    """Sharded gradients are copied to the host."""
    views: bool
    views_late: bool
    pipelined: bool
    keeps_graph: bool
    """What the graph holds in addition to saved tensors lives until the next step's loss, not to the end of the
    backward.
    """
    keeps_outputs: bool
    """The loop's variables hold the reference's logits, until the next micro-batch's policy has been scored."""
    holds_rows: bool
    """The model's forward has a variable for the rows that were looked up."""
    keeps_states: bool
    """Whether the model's forward keeps the output of every layer in a list."""
    leaves_graphs: bool
    """A module keeps a state with the graph that made it, until its next forward (RecurrentGemma)."""
    returns_first: bool = False
    """Whether the model's forward has returned before the modules in front of the loss run (encoders)."""
    towers_stay: bool = False
    """Whether what the tower has made lives until the loss is over: the forward returns after the loss, or the model's
    output carries it.
    """
    sinks: bool = False
    """DDP's own function has all of the model's output, whatever of it the loss reads."""
    carved: bool = False
    """The ends are groups of their own in addition to a root, whose forward ends after the loss."""
    collapses: bool = False
    """A module of the root's joins streams between the last layer and the final norm, whose group is the head's."""
    gathers_ahead: bool = False
    """Each group's forward begins with the all-gather of the next one (``set_modules_to_forward_prefetch``)."""
    flat: bool = False
    """FSDP1 wraps them: each unit's parameters are one tensor."""
    flat_stays: bool = False
    """Units that are not resharded after their forward stay gathered after a backward that does not synchronise, too
    (_runtime_utils.py, _should_free_in_backward).
    """
    leaves_apart: bool = False
    """Trained modules inside frozen ones are units of their own (peft ``fsdp_auto_wrap_policy``)."""
    reenters: bool = False
    """Layers are recomputed within a backward of their own."""
    keeps_inputs: bool = False
    """Recomputed blocks that train nothing themselves keep their input and its gradient to the backward's end."""
    wrapped: tuple[str, ...] = WRAPPED
    """Kinds of units that are groups of their own."""
    passes: tuple[ChunkPass, ...] = ()
    """What an interleaved pipeline's chunks run, in place of ``micro_batches``."""
    chunk_runs: tuple[int, ...] = ()
    """How many of the rank's runs each chunk has."""
    paired: bool = False
    """Two passes run before the backward, whose gradients meet."""


class UnitGroups(Record):
    """What FSDP2 makes of a unit's tensors."""

    whole: Group
    early: Group = NO_GROUP
    """The group of the tensor whose gradient the loss itself reduces; of a tower's layer the size of gradients, as
    ``gathered``, which the root's group reduces."""
    late: Group = NO_GROUP
    """The group of the others."""


NO_UNIT_GROUPS = UnitGroups(NO_GROUP)


class StepSizes(Record):
    """Bytes that a step allocates outside its units and groups."""

    per_micro_batch: int
    """What each micro-batch in flight makes for itself (rotary tables, masks)."""
    held: tuple[int, ...]
    """For each recorded micro-batch, what the others in flight hold: what their units saved, and their outputs in the
    stage's cache."""
    border: Border
    """What a pipeline stage exchanges with its neighbours."""
    table: int
    """The gradient of a whole embedding table."""
    table_slice: int
    """Bytes of this rank's rows of it."""
    masks: int = 0
    """Attention masks that live while the model's forward runs."""
    rows: int = 0
    """Looked-up rows that wait for the image tokens of a vision tower, where nothing has saved them."""
    rows_gradient: int = 0
    """Bytes of the gradient of the looked-up rows, which is kept until the backward of the tower is over."""
    features: int = 0
    """Last hidden states of a batch's other columns, which the trainer's features hold until the loss is there."""


def step_options(job: TrainingJob, rank: int, border: Border) -> tuple[StepOptions, tuple[float, ...]]:
    """How pipeline rank ``rank`` runs its step, and for each walk how many other micro-batches are in flight."""
    layout, profile, a = job.layout, job.framework, job.architecture
    sharded, pipelined, tied = wraps(job), layout.pipeline > 1, ties_ends(job)
    outside = job.loss.kind == "chunked"
    if layout.expert > 1 and profile.leaves_whole_experts and not sharded:
        message = "experts on several ranks are modelled with FSDP2 alone"
        raise UnsupportedError(message, "choose parallelism.zero_stage: 3", "/parallelism/zero_stage")
    stays_gathered = sharded and pipelined
    unsynchronised = skips_reduction(job)
    views, views_late = (False, False) if sharded else gradient_views(job)
    steps, held = job.passes, max(in_flight(rank, layout, job.run_micro_batches), job.head.columns)
    several = sharded and job.run_micro_batches < job.gradient_accumulation_steps
    if several:
        steps = job.run_micro_batches
    apart = unsynchronised or stays_gathered or views_late or profile.own_engine
    paired, returned = job.head.columns > 1 and not pipelined, job.objective.outside and not job.objective.fused
    walks = _walks(steps, held, apart)
    if paired:
        from memcheck.frameworks.torch.paired_step import pairs

        walks = pairs(job.gradient_accumulation_steps, apart)
    how = StepOptions(
        micro_batches=tuple([MicroBatch(first, last, min(int(others), border.sends)) for first, last, others in walks]),
        all_at_once=held >= steps,
        sharded=sharded,
        rooted=sharded and (tied or job.carves_ends or not ends_apart(job, profile)),
        tied_ends=tied,
        reshards=layout.reshard_after_forward and layout.zero_stage == 3,
        several_runs=several,
        keeps_reduced=sharded and job.fsdp == 2 and replicates(layout),
        unsynchronised=unsynchronised,
        in_place=adds_in_place(job),
        stays_gathered=stays_gathered,
        casts_gradients=job.casts_gradients,
        loss_inside_root=not (pipelined or tied or job.carves_ends or returned)
        and (job.objective.fused or (job.loss.kind in INSIDE and job.loss.upcast)),
        loss_behind_model=job.objective.outside or job.objective.watched or job.head.columns > 1,
        loss_behind_root=(tied and not job.carves_ends)
        or reduces_head(job)
        or (not pipelined and outside and profile.style.head_behind_model),
        whole_table=layout.tensor > 1 and profile.style.whole_table_gradient,
        offloads=job.parameter_offload != "none",
        views=views,
        views_late=views_late,
        pipelined=pipelined,
        keeps_graph=profile.style.keeps_graph,
        keeps_outputs=job.objective.holds_reference,
        holds_rows=not pipelined and profile.style.holds_rows,
        keeps_states=isinstance(a, Architecture) and a.keeps_states,
        wrapped=wrapped_kinds(job),
        leaves_graphs=isinstance(a, Architecture) and _leaves_graphs(a),
        carved=carves_ends(job),
        collapses=carves_ends(job) and isinstance(a, Architecture) and a.collapses,
        gathers_ahead=sharded and layout.expert > 1 and profile.gathers_ahead,
        paired=paired,
    )
    if isinstance(a, Architecture) and a.vision is not None:
        how = how._replace(towers_stay=stays(job, a.vision), sinks=sinks(job, a.vision))
    if isinstance(a, Architecture) and (a.head_transform or a.task):
        from memcheck.frameworks.torch.ends_behind import returns_first

        how = how._replace(returns_first=returns_first(a))
    if sharded and job.fsdp == 1:
        from memcheck.frameworks.torch.flat_moves import flat_options

        how = flat_options(how, job)
        how = how._replace(flat_stays=how.flat_stays or paired)
    return how, tuple([others for _, _, others in walks])


def wrapped_kinds(job: TrainingJob) -> tuple[str, ...]:
    """Kinds of units that FSDP makes groups of their own of: none where the model's class names no layers, so that all
    of it is the root's, and none of the tower's where that names none.
    """
    a, profile = job.architecture, job.framework
    if not isinstance(a, Architecture):
        return WRAPPED
    if a.model_type in profile.unsplit:
        return ()
    if a.vision is None:
        return WRAPPED
    return wrapped_of(job, a.vision)


def _leaves_graphs(a: Architecture) -> bool:
    """Whether an attribute of its layers is a state of the recurrence."""
    return any(isinstance(block.mixer, Mixer) and block.mixer.kind == "rg-lru" for block, _ in a.blocks)


def _walks(micro_batches: int, in_flight: float, apart: bool) -> list[tuple[bool, bool, float]]:
    """Micro-batches that differ: (first, last, other micro-batches in flight during its backward).

    ``apart``: the last one differs from the second.
    """
    m, n = micro_batches, in_flight
    if m == 1:
        return [(True, True, 0)]
    walks = [(True, False, n - 1), (False, m == 2, max(0.0, min(n - 1, m - 2)))]
    return [*walks, (False, True, 0)] if m > 2 and apart else walks


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
        from memcheck.frameworks.torch.waiting import features_of, waiting_rows

        waiting, features = waiting_rows(job, buffers, runs), features_of(job, buffers)
    return StepSizes(own, held, border, whole, rows, buffers.masks, *waiting, features)
