"""One training step on one pipeline rank, unit by unit: forward, loss, backward layer by layer, optimizer.

It is recorded for all sizes: instead of bytes every record has the index of a size. What data parallelism adds is in
the hooks of :class:`memcheck.frameworks.torch.data_parallel.DataParallel`, which run where they do in PyTorch.

A micro-batch of a pair of texts, embedded apart, has two forward passes before its backward (``PairedStep``). Every
weight has two uses in one graph, and its ``AccumulateGrad`` waits for the gradients of both
(torch/csrc/autograd/engine.cpp, ``GraphTask::dependencies_`` and ``InputBuffer``). Until the backward of the first
column arrives, the second column's gradients wait whole in autograd's buffers. They are not summed with those of
earlier micro-batches, are in no DDP bucket and are unsharded. FSDP2 reduces what ``AccumulateGrad`` has stored
(_fsdp_param_group.py, ``post_backward``). FSDP1's hook belongs to that node, so that its parameters stay gathered, too.

How a rank runs its step, and the sizes outside its units: all that the record of a step asks of a job.
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Blocks, ComponentSizes, NamedCurve, Recorder
from memcheck.accounts.ranks import OF_TOWER, WRAPPED, ResidentTensors, Run
from memcheck.autograd.tensor import rounded, rounded_bytes
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import engine_code
from memcheck.frameworks.torch.data_parallel import (
    FIRST_OF_PAIR,
    SECOND_OF_PAIR,
    DataParallel,
    MicroBatch,
    NamedUnit,
    StepSizes,
    StepUnits,
    Strategy,
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
from memcheck.frameworks.torch.model_buffers import Lifetimes, ModelBuffers, Variables, variable_lifetimes
from memcheck.frameworks.torch.pipelining import StageExchange, distinct_micro_batches, distinct_pair_passes, in_flight
from memcheck.frameworks.torch.rank_tensors import is_hooked, stream_dtype
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture
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
    two_passes_per_backward: bool = False
    """Two passes run before the backward, whose gradients meet."""
    chunk_passes: tuple[ChunkPass, ...] = ()
    """What an interleaved pipeline's chunks run, in place of ``micro_batches``."""
    chunk_runs: tuple[int, ...] = ()
    """How many of the rank's runs each chunk has."""
    chunk_roots: tuple[bool, ...] = ()
    """Whether each chunk has units that FSDP2 leaves to the root."""


class StepOptions(Record):
    """How a rank runs its step: the schedule, lifetimes of variables, and the data-parallel strategy."""

    schedule: Schedule
    lifetimes: Lifetimes
    strategy: Strategy
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
    return StepOptions(schedule, variable_lifetimes(job), strategy), sizes, others_in_flight


def strategy_of(job: TrainingJob, resident: ResidentTensors) -> tuple[Strategy, tuple[int, ...], bool]:
    """Return a job's data-parallel strategy, the sizes of its own buffers in bytes, and whether its last micro-batch
    differs.

    It differs from the second one if gradients are only reduced in it, for example.
    """
    if uses_fsdp(job):
        strategy = _fully_shard(job)
        last_differs = strategy.no_sync or strategy.stays_gathered
        if loss_reduces_head(job) and not uses_flat_parameters(job):
            from memcheck.frameworks.torch.flat_shard import HeadReducingShard

            return HeadReducingShard(strategy), (), last_differs
        if not uses_flat_parameters(job):
            return strategy, (), last_differs
        from memcheck.frameworks.torch.flat_shard import FlatShard

        checkpointing = job.checkpointing
        reenters = checkpointing.mode == "full" and checkpointing.reentrant
        return FlatShard(strategy, has_adapter_units(job), reenters), (), last_differs
    own_engine = job.framework.has_sharding_engine
    engine = engine_code(job.framework)
    if engine is not None:
        return *engine.strategy(job, resident.units), own_engine  # type: ignore[arg-type]
    from memcheck.frameworks.torch.ddp import Replicated, buckets

    ddp = buckets(job)
    return Replicated(ddp.are_gradients, ddp.become_gradients), (), ddp.become_gradients or own_engine


def _fully_shard(job: TrainingJob) -> FullyShard:
    """Return how FSDP gathers, reduces and reshards in a step of this job, by its layout, loss and framework."""
    from memcheck.frameworks.torch.fully_shard import FullyShard

    layout, profile = job.layout, job.framework
    architecture, ends_shared = job.architecture, ends_share_group(job)
    pipelined, no_sync, ends_apart = layout.pipeline > 1, accumulates_unsharded(job), ends_have_own_groups(job)
    loss_in_trainer = job.objective.loss_after_model and not job.objective.loss_from_hidden_states
    loss_in_model = job.objective.loss_from_hidden_states or (job.loss.kind in LOSSES_INSIDE_MODEL and job.loss.upcast)
    # a group of ends whose head's module never runs ends its forward with the root (_force_complete_incomplete_states)
    skips_head = (
        job.objective.loss_from_hidden_states or job.objective.loss_in_chunks or job.loss.kind == "fused-linear"
    )
    ends_grouped = ends_shared or job.groups_embedding_and_head
    chunked_loss_outside = not pipelined and job.loss.kind == "chunked" and profile.style.runs_transformers_modules
    head_in_last_group = ends_shared and not job.groups_embedding_and_head
    # FSDP1 frees no unit after a backward without synchronisation, unless units reshard after their forward
    stays_unsharded = uses_flat_parameters(job) and no_sync and not layout.reshard_after_forward
    return FullyShard(
        reshards=layout.reshard_after_forward and layout.zero_stage == 3,
        several_backwards=job.run_micro_batches < job.gradient_accumulation_steps,
        keeps_all_reduce_output=job.fsdp_version == 2 and is_hybrid_sharded(layout),
        no_sync=no_sync,
        adds_in_place=adds_in_place(job),
        stays_gathered=pipelined,
        frees_early=job.casts_gradients,
        loss_inside_root=not (pipelined or loss_in_trainer) and (skips_head if ends_grouped else loss_in_model),
        loss_after_root=head_in_last_group or loss_reduces_head(job) or chunked_loss_outside,
        whole_table_gradient=layout.tensor > 1 and profile.style.runs_transformers_modules,
        offloads_gradients=job.parameter_offload != "none",
        has_end_groups=ends_apart,
        root_joins_streams=ends_apart and isinstance(architecture, Architecture) and architecture.collapses,
        gathers_ahead=layout.expert > 1 and profile.fsdp2.prefetches_experts,
        keeps_gathered=stays_unsharded or (job.fsdp_version == 1 and _is_paired(job)),
        wrapped_kinds=wrapped_kinds(job),
    )


def _is_paired(job: TrainingJob) -> bool:
    """Return whether a micro-batch is two forwards, of queries and of documents, before one backward."""
    return job.head.text_columns > 1 and job.layout.pipeline == 1


def _schedule(
    job: TrainingJob, rank: int, exchange: StageExchange, *, last_differs: bool
) -> tuple[Schedule, tuple[float, ...]]:
    """Return the schedule with its distinct micro-batches, and how many others are in flight for each of them.

    Micro-batches that need the same memory as an earlier one are left out. ``exchange``: tensors sent between stages.
    ``last_differs``: the strategy reduces gradients in the last micro-batch alone.
    """
    layout, paired = job.layout, _is_paired(job)
    most_in_flight = max(in_flight(rank, layout, job.run_micro_batches), job.head.text_columns)
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
        tuple(micro_batches),
        all_forwards_first=most_in_flight >= steps,
        pipelined=layout.pipeline > 1,
        two_passes_per_backward=paired,
    )
    return schedule, tuple([others_in_flight for _, _, others_in_flight in distinct])


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
    from memcheck.frameworks.torch.tower_tensors import wrapped_of

    return wrapped_of(job, architecture.vision)


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
    if job.head.text_columns > 1 or any(run.unit.kind == "projector" for run in runs):
        waiting_bytes, features = waiting_embedding_bytes(job, buffers, runs), token_embeddings_bytes(job, buffers)
    return StepSizes(
        own_bytes, held_by_others, exchange, whole_table, table_rows, buffers.masks, *waiting_bytes, features
    )


def token_embeddings_bytes(job: TrainingJob, buffers: ModelBuffers) -> int:
    """Return the bytes of ``features["token_embeddings"]`` that the caller keeps for each text of a pair or triple.

    Source: sentence-transformers 6.2, base/modules/transformer.py.
    """
    shape = job.micro_batch_size * job.sequence_length, buffers.architecture.hidden_size
    return (job.head.text_columns - 1) * rounded_bytes(shape, stream_dtype(buffers.setting))


def waiting_embedding_bytes(job: TrainingJob, buffers: ModelBuffers, runs: list[Run]) -> tuple[int, int]:
    """Return two byte counts: the embedded text while a vision tower runs, and its gradient during the tower's
    backward.

    Both are 0 without a tower, or if the tower runs before the text is embedded (cross attention). ``runs``: the rank's
    units.
    """
    architecture = buffers.architecture
    crossed = architecture.vision is not None and architecture.vision.text_layers_that_read_images
    if crossed or not any(run.unit.kind == "projector" for run in runs):
        return 0, 0
    tokens = job.rows * job.sequence_length
    size = rounded(tokens * architecture.hidden_size * DTYPE_BYTES[stream_dtype(buffers.setting)])
    trained = any(t.trained for t in runs[0].unit.tensors)
    hooked = is_hooked(job, architecture)
    is_leaf = hooked and not trained  # AccumulateGrad keeps it, and the embedding's curve counts it
    return 0 if is_leaf else size, size if trained or hooked else 0


HOLD, RELEASE = 1, -1
"""Signs of a change: allocate the sizes, or free them."""
PendingReleases = list[Blocks]
"""Blocks that are released when a forward or backward is over."""


class Step:
    """Records one training step of a rank: each allocation, each release, and each moment that may be the peak.

    ``step_units``: the units of the rank in forward order. ``parallel``: the hooks of DDP, FSDP or DeepSpeed, which are
    called where PyTorch calls them.
    """

    def __init__(self, options: StepOptions, step_units: StepUnits, recorder: Recorder, parallel: DataParallel) -> None:
        self.schedule, self.lifetimes = options.schedule, options.lifetimes
        self.recorder, self.parallel = recorder, parallel
        self.step_sizes, self.exchange = step_units.step_sizes, step_units.step_sizes.exchange
        self.units, self.names, self.layer_groups = step_units.units, step_units.names, step_units.layer_groups
        self.outputs = (
            self.units[-1].first_curve.until_backward_ends if self.lifetimes.keeps_reference_logits else NOTHING
        )

    def run(self) -> None:
        """Record one step after the first one: what the previous step left, all micro-batches, then the optimizer.

        Each recorded micro-batch comes with the bytes that the other ones in flight hold
        (``StepSizes.held_by_others``). Resident tensors such as parameters and optimizer states are not recorded.
        """
        self.recorder.hold("logits_and_loss", self.outputs)
        self.hold_layer_states()
        self.parallel.before_step()
        self.hold_previous_graph(HOLD)
        self.parallel.begin_step()
        for micro_batch, held_by_others in zip(
            self.schedule.micro_batches, self.step_sizes.held_by_others, strict=True
        ):
            # a later forward is recorded after an earlier backward, with its gradients; if the schedule runs all
            # forwards first, that moment does not exist
            muted = not micro_batch.is_first and self.schedule.all_forwards_first
            self.run_micro_batch(micro_batch, held_by_others, muted=muted)
        self.recorder.mark("optimizer", "optimizer step")

    def run_micro_batch(self, micro_batch: MicroBatch, held_by_others: int, *, muted: bool) -> None:
        """Record the forward and the backward of one micro-batch.

        ``held_by_others``: the index of the bytes that the other micro-batches in flight hold. ``muted``: the forward
        is recorded for what it leaves allocated, and none of its moments may be the peak.
        """
        recorder, exchange, parallel = self.recorder, self.exchange, self.parallel
        first, last, sends = micro_batch
        others_in_flight = held_by_others != NOTHING
        all_step = (Blocks(self.step_sizes.per_micro_batch), Blocks(held_by_others))
        # a pipeline stage keeps the gradient that it sends back until the next one takes its place
        input_gradient = NOTHING if first else exchange.input_gradient
        parallel.begin_micro_batch(micro_batch, others=others_in_flight)
        already_gathered = parallel.gathered_by_first
        if first and already_gathered:
            before = recorder.here  # only the first micro-batch gathers the parameters; the next ones find them
            self._forward(first=first, already_gathered=False)
            recorder.undo_since(before)
        recorder.hold_amount("activations", all_step)
        recorder.hold("communication_buffers", input_gradient)
        parallel.before_inputs()
        recorder.muted, muted_before = muted or recorder.muted, recorder.muted
        in_forward = (
            Blocks(exchange.unsent_output, sends),
            Blocks(self.step_sizes.feature_hidden_states if others_in_flight else NOTHING),
        )
        recorder.hold_amount("activations", in_forward)
        self._forward(first=first, already_gathered=already_gathered)
        recorder.muted = muted_before
        recorder.release_amount("activations", in_forward)
        recorder.hold("communication_buffers", exchange.output_gradient)
        self._backward(micro_batch)
        recorder.release_amount("communication_buffers", (Blocks(exchange.output_gradient), Blocks(input_gradient)))
        parallel.end_micro_batch(first, last)
        recorder.release_amount("activations", all_step)

    def after_unit_backward(self, i: int, curve: NamedCurve) -> None:
        """Hold what the backward of unit ``i`` leaves for a later one. Here: nothing; pipelines may split backwards."""

    def end_backward(self, micro_batch: MicroBatch) -> None:
        """Record the backward of the weights where the schedule runs it separately. Here: nothing."""

    def hold_layer_states(self) -> None:
        """Hold the states that recurrent layers keep from the previous step (RecurrentGemma)."""
        for unit in self.units:
            self._hold_layer_state(unit, HOLD)

    def _hold_layer_state(self, unit: NamedUnit, sign: int) -> None:
        """Hold or release (``sign``) the graph that a recurrent layer's state keeps until its next forward."""
        if self.lifetimes.keeps_recurrent_graphs and unit.kind == "block":
            self.recorder.hold("activations", unit.first_curve.until_backward_ends, sign)

    def hold_previous_graph(self, sign: int) -> None:
        """Hold or release (``sign``) what the training loop's variables keep of the previous step.

        These are the logits, the loss and the graph, until the loop assigns its variables again.
        """
        for unit in self.units if self.lifetimes.keeps_previous_graph else ():
            if unit.kind == "head":
                self.recorder.hold("logits_and_loss", unit.first_curve.until_backward_ends, sign)
            else:
                self.recorder.hold("activations", unit.first_curve.until_graph_freed, sign)

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Return the curve of a unit in this pass. ``first``: in the first micro-batch, whose gradients are new."""
        if self.parallel.pair == SECOND_OF_PAIR:
            return self.parallel.curve_of_second(unit)
        return unit.first_curve if self.parallel.pair else self.parallel.curve(unit, first)

    def _forward(self, *, first: bool, already_gathered: bool) -> None:
        """Record the forward of one micro-batch, unit by unit; equal consecutive layers are recorded once and repeated.

        ``first``: it is the first micro-batch. ``already_gathered``: an earlier one left the parameters gathered.
        """
        recorder, parallel = self.recorder, self.parallel
        pending_casts, pending_states = PendingReleases(), PendingReleases()
        variables = Variables(recorder, embeds=any(unit_of_rank.kind == "embedding" for unit_of_rank in self.units))
        if self.schedule.pipelined and not first:
            # the schedule's variable holds the last stage's output until the next forward returns (schedules.py)
            variables.assign("output", "logits_and_loss", self.units[-1].first_curve.until_backward_ends)
        parallel.begin_forward(already_gathered=already_gathered)
        first_layer = 1 + sum(unit.kind in OF_TOWER for unit in self.units)
        for i, end in self.layer_groups:
            unit, before, times = self.units[i], recorder.here, end - i
            is_head = unit.kind == "head"
            parallel.before_forward(i)
            curve = self.curve(unit, first)
            if is_head:
                parallel.before_norm()
            if curve.peak_before_loss is not None:
                self._model_returns(variables, pending_states, curve.peak_before_loss, i)
            if is_head:
                self._before_loss(pending_casts)
            recorder.high("loss" if is_head else "forward", curve.forward_peak, self.names[i])
            self._hold_layer_state(unit, RELEASE)
            recorder.hold_components(curve.saved_bytes)
            recorder.hold("activations", curve.autocast_cache_bytes)
            pending_casts.append(Blocks(curve.autocast_cache_bytes, times))
            if self.lifetimes.keeps_layer_outputs and unit.kind == "block":
                recorder.hold("activations", curve.freed_input_bytes)
                pending_states.append(Blocks(curve.freed_input_bytes, times))
            parallel.after_forward(i, end)
            recorder.repeat(before, times - 1)
            variables.after_unit(unit, curve, i - first_layer, times, self.lifetimes, self.step_sizes)
        variables.release_all()
        for i, end in self.layer_groups:
            if self.units[i].kind == "idle":  # a training loop's variable has outputs of layers that nothing reads
                recorder.hold("logits_and_loss", self.units[i].first_curve.until_backward_ends, end - i)
        parallel.end_forward()
        recorder.release_amount("activations", tuple(pending_casts))

    def _model_returns(self, variables: Variables, states: PendingReleases, before: ComponentSizes, i: int) -> None:
        """Record the moment before the head ``i``, and release what the variables of the model's forward hold.

        ``states``: the outputs of all layers, which the forward keeps in a list. ``before``: the peak of the modules
        that run between the layers and the loss.
        """
        if self.lifetimes.body_returns_first:
            self.recorder.release_amount("activations", tuple(states))
            variables.release_all()
        self.recorder.high("forward", before, self.names[i])
        variables.release_all(towers=not self.lifetimes.keeps_tower_outputs)

    def _before_loss(self, pending_casts: PendingReleases) -> None:
        """Release what is freed after the final norm, before the loss allocates its logits.

        ``pending_casts``: autocast copies of weights, which live until the model's forward returns.
        """
        if self.lifetimes.loss_after_model:
            self.recorder.release_amount("activations", tuple(pending_casts))
            pending_casts.clear()
        self.hold_previous_graph(RELEASE)  # the curve counts it until its logits replace the old ones
        self.recorder.release("logits_and_loss", self.outputs)
        self.parallel.before_loss(after_model=self.lifetimes.loss_after_model)

    def _backward(self, micro_batch: MicroBatch) -> None:
        """Record the backward of one micro-batch, from the head to the embedding.

        For each unit: its saved tensors are freed, its peak is compared, its gradients are held, and the data-parallel
        hook after its backward runs. Equal consecutive layers are recorded once and repeated.
        """
        recorder, parallel = self.recorder, self.parallel
        parallel.begin_backward(micro_batch, all_forwards_first=self.schedule.all_forwards_first)
        until_end, saved_inputs = PendingReleases(), PendingReleases()
        for i, end in reversed(self.layer_groups):
            unit, before, curve = self.units[i], recorder.here, self.curve(self.units[i], micro_batch.is_first)
            if unit.kind == "embedding":
                recorder.release("temporaries", self.step_sizes.embedded_rows_gradient)  # its own curve counts it
            parallel.before_backward(i, curve)
            recorder.release_components(curve.saved_bytes)
            recorder.release("temporaries", curve.gradient_bytes_of_later_units)
            recorder.high("backward", curve.backward_peak, self.names[i])
            self.after_unit_backward(i, curve)
            gradients = parallel.unit_gradients(i, curve)
            recorder.hold_amount("gradients", gradients)
            self._hold_after_backward(unit, curve, end - i, until_end)
            self._hold_saved_inputs(i, end - i, saved_inputs)
            parallel.after_backward(i, end, curve, gradients)
            recorder.repeat(before, end - i - 1)
        parallel.after_layers()
        self.end_backward(micro_batch)
        parallel.end_backward()
        recorder.release_amount("logits_and_loss", tuple(until_end))
        recorder.release_amount("activations", tuple(saved_inputs))
        recorder.mark("backward", "end of backward")
        parallel.after_end()

    def _hold_after_backward(self, unit: NamedUnit, curve: NamedCurve, times: int, until_end: PendingReleases) -> None:
        """Record what stays allocated after a unit's backward, for ``times`` equal units.

        It is added to ``until_end``, to be released at the end of the whole backward, unless variables of the training
        loop or a recurrent layer's state keep it longer. ``curve``: of the unit in this micro-batch.
        """
        kept_by_layer = unit.kind == "block" and self.lifetimes.keeps_recurrent_graphs
        if unit.kind != "idle":  # a tower that no loss reads has held it since its forward
            self.recorder.hold("activations" if kept_by_layer else "logits_and_loss", curve.until_backward_ends)
        kept_by_loop = unit.kind == "head" and (
            self.lifetimes.keeps_previous_graph or self.lifetimes.keeps_reference_logits
        )
        if not (kept_by_layer or kept_by_loop):
            until_end.append(Blocks(curve.until_backward_ends, times))
        self.recorder.hold("activations", curve.until_graph_freed)
        self.recorder.hold("temporaries", curve.gradient_bytes_for_earlier_units)
        if unit.kind == "projector":  # the gradient of the looked-up rows waits until the tower's is over
            self.recorder.hold("temporaries", self.step_sizes.embedded_rows_gradient)

    def _hold_saved_inputs(self, i: int, times: int, saved_inputs: PendingReleases) -> None:
        """Record what the graph of unit ``i`` refers to until the backward is over, in addition to saved tensors.

        A recomputed unit with adapters on frozen weights keeps its input, and the gradient of its output if such a unit
        follows. ``saved_inputs``: takes these sizes, each ``times`` times.
        """
        unit = self.units[i]
        if not self.lifetimes.keeps_previous_graph:
            saved_inputs.append(Blocks(unit.first_curve.until_graph_freed, times))
        if self.lifetimes.fsdp1_keeps_inputs and unit.frozen_and_recomputed:
            sizes = [unit.first_curve.input_bytes]
            if i + 1 < len(self.units) and self.units[i + 1].frozen_and_recomputed:
                sizes.append(unit.first_curve.output_gradient_bytes)
            for size in sizes:
                self.recorder.hold("activations", size)
                saved_inputs.append(Blocks(size, times))


class PairedStep(Step):
    """Records a step that embeds a pair of texts in two passes, whose gradients autograd sums.

    Gradients of the first backward wait in autograd's buffers until the second backward adds its own.
    """

    def run_micro_batch(self, micro_batch: MicroBatch, held_by_others: int, *, muted: bool) -> None:
        """Record one of the two passes of a pair, such as chosen and rejected answers, whose gradients are summed.

        The sum is added to earlier gradients, or goes to DDP's buckets.
        """
        self.parallel.pair = FIRST_OF_PAIR if micro_batch.is_first else SECOND_OF_PAIR
        super().run_micro_batch(
            micro_batch, held_by_others, muted=not micro_batch.is_first
        )  # both forwards came before
        self.parallel.pair_before = self.parallel.pair_before or not micro_batch.is_first

    def after_unit_backward(self, i: int, curve: NamedCurve) -> None:
        """Release the pending gradients of the first pass once the second pass of unit ``i`` has added its own."""
        unit = self.units[i]
        if curve is not unit.first_curve and self.parallel.frees_first_gradients(self.parallel.pair_before):
            self.recorder.release("gradients", unit.first_curve.gradient_bytes)
