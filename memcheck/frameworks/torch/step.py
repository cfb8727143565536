"""One training step on one pipeline rank, unit by unit: forward, loss, backward layer by layer, optimizer.

It is recorded for all sizes: instead of bytes every record has the index of a size. What data parallelism adds is in
the hooks of :class:`memcheck.frameworks.torch.data_parallel.DataParallel`, which run where they do in PyTorch.

A micro-batch of a pair of texts, embedded apart, has two forward passes before its backward (``PairedStep``). Every
weight has two uses in one graph, and its ``AccumulateGrad`` waits for the gradients of both
(torch/csrc/autograd/engine.cpp, ``GraphTask::dependencies_`` and ``InputBuffer``). Until the backward of the first
column arrives, the second column's gradients wait whole in autograd's buffers. They are not summed with those of
earlier micro-batches, are in no DDP bucket and are unsharded. FSDP2 reduces what ``AccumulateGrad`` has stored
(_fsdp_param_group.py, ``post_backward``). FSDP1's hook belongs to that node, so that its parameters stay gathered, too.
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Bundle, NamedCurve, Recorder
from memcheck.accounts.ranks import OF_TOWER
from memcheck.frameworks.torch.data_parallel import (
    FIRST_OF_PAIR,
    SECOND_OF_PAIR,
    DataParallel,
    MicroBatch,
    NamedUnit,
    StepUnits,
)
from memcheck.frameworks.torch.step_options import StepOptions
from memcheck.frameworks.torch.variables import Variables

PendingReleases = list[tuple[int, int]]
"""Places of sizes that are released when a forward or backward is over, each with how many tensors have the size."""


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
        self.outputs = self.units[-1].first_curve.until_backward_ends if self.lifetimes.keeps_outputs else NOTHING

    def run(self) -> None:
        """Record one step after the first one: all micro-batches, then the optimizer.

        Resident tensors such as parameters and optimizer states are not recorded.
        """
        self.recorder.hold("logits_and_loss", self.outputs)
        self.hold_layer_states()
        self.parallel.before_step()
        self.hold_previous_graph(1)
        self.parallel.begin_step()
        for micro_batch, held_by_others in zip(self.schedule.micro_batches, self.step_sizes.held, strict=True):
            self.run_micro_batch(
                micro_batch, held_by_others, muted=not micro_batch.first and self.schedule.all_forwards_first
            )
        self.recorder.mark("optimizer", "optimizer step")

    def run_micro_batch(self, micro_batch: MicroBatch, held_by_others: int, *, muted: bool) -> None:
        """Record the forward and the backward of one micro-batch.

        ``held_by_others``: the index of the bytes that the other micro-batches in flight hold. ``muted``: the forward
        is recorded for what it leaves allocated, and none of its moments may be the peak.
        """
        recorder, exchange = self.recorder, self.exchange
        parallel, (first, last, sends) = self.parallel, micro_batch
        live = ((self.step_sizes.per_micro_batch, 1), (held_by_others, 1))
        arriving = NOTHING if first else exchange.input_gradient
        parallel.begin_micro_batch(micro_batch, others=held_by_others != NOTHING)
        already_gathered = parallel.gathered_by_first
        if first and already_gathered:
            before = recorder.here  # only the first micro-batch gathers the parameters; the next ones find them
            self._forward(first, already_gathered=False)
            recorder.repeat(before, -1)
        recorder.hold_amount("activations", live)
        recorder.hold("communication_buffers", arriving)
        parallel.before_inputs()
        recorder.muted, outer = muted or recorder.muted, recorder.muted
        going = (
            (exchange.unsent_output, sends),
            (self.step_sizes.features if held_by_others != NOTHING else NOTHING, 1),
        )
        recorder.hold_amount("activations", going)
        self._forward(first, already_gathered=already_gathered)
        recorder.muted = outer
        recorder.hold_amount("activations", going, -1)
        recorder.hold("communication_buffers", exchange.output_gradient)
        self._backward(micro_batch)
        recorder.hold_amount("communication_buffers", ((exchange.output_gradient, -1), (arriving, -1)))
        parallel.end_micro_batch(first, last)
        recorder.hold_amount("activations", live, -1)

    def after_unit_backward(self, i: int, curve: NamedCurve) -> None:
        """Hold what the backward of unit ``i`` leaves for a later one. Here: nothing; pipelines may split backwards."""

    def end_backward(self, micro_batch: MicroBatch) -> None:
        """Record the backward of the weights where the schedule runs it separately. Here: nothing."""

    def hold_layer_states(self) -> None:
        """Hold the states that recurrent layers keep from the previous step (RecurrentGemma)."""
        for unit in self.units:
            self._hold_layer_state(unit, 1)

    def _hold_layer_state(self, unit: NamedUnit, sign: int) -> None:
        """Hold (``sign`` 1) or release (-1) the graph that a recurrent layer's state keeps until its next forward."""
        if self.lifetimes.leaves_graphs and unit.kind == "block":
            self.recorder.hold("activations", unit.first_curve.until_backward_ends, sign)

    def hold_previous_graph(self, sign: int) -> None:
        """Hold (``sign`` 1) or release (-1) what the training loop's variables keep of the previous step.

        These are the logits, the loss and the graph, until the loop assigns its variables again.
        """
        for unit in self.units if self.lifetimes.keeps_graph else ():
            if unit.kind == "head":
                self.recorder.hold("logits_and_loss", unit.first_curve.until_backward_ends, sign)
            else:
                self.recorder.hold("activations", unit.first_curve.until_graph_freed, sign)

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Return the curve of a unit in this pass. ``first``: in the first micro-batch, whose gradients are new."""
        if self.parallel.pair == SECOND_OF_PAIR:
            return self.parallel.curve_of_second(unit)
        return unit.first_curve if self.parallel.pair else self.parallel.curve(unit, first)

    def _forward(self, first: bool, *, already_gathered: bool) -> None:
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
            unit, before, is_head = self.units[i], recorder.here, self.units[i].kind == "head"
            parallel.before_forward(i)
            curve = self.curve(unit, first)
            if is_head:
                parallel.before_norm()
            if curve.peak_before_loss is not None:
                self._model_returns(variables, pending_states, curve.peak_before_loss, i)
            if is_head:
                self._before_loss(pending_casts)
            recorder.high("loss" if is_head else "forward", curve.forward_peak, self.names[i])
            self._hold_layer_state(unit, -1)
            recorder.hold_bundle(curve.saved_bytes)
            recorder.hold("activations", curve.autocast_cache_bytes)
            pending_casts.append((curve.autocast_cache_bytes, end - i))
            if self.lifetimes.keeps_states and unit.kind == "block":
                recorder.hold("activations", curve.freed_input_bytes)
                pending_states.append((curve.freed_input_bytes, end - i))
            parallel.after_forward(i, end)
            recorder.repeat(before, end - i - 1)
            variables.after_unit(unit, curve, i - first_layer, end - i, self.lifetimes, self.step_sizes)
        variables.let_go()
        for i, end in self.layer_groups:
            if self.units[i].kind == "idle":  # a training loop's variable has outputs of layers that nothing reads
                recorder.hold("logits_and_loss", self.units[i].first_curve.until_backward_ends, end - i)
        parallel.end_forward()
        recorder.hold_amount("activations", tuple(pending_casts), -1)

    def _model_returns(self, variables: Variables, states: PendingReleases, before: Bundle, i: int) -> None:
        """Record the moment before the head ``i``, and release what the variables of the model's forward hold.

        ``states``: the outputs of all layers, which the forward keeps in a list. ``before``: the peak of the modules
        that run between the layers and the loss.
        """
        if self.lifetimes.returns_first:
            self.recorder.hold_amount("activations", tuple(states), -1)
            variables.let_go()
        self.recorder.high("forward", before, self.names[i])
        variables.let_go(towers=not self.lifetimes.towers_stay)

    def _before_loss(self, pending_casts: PendingReleases) -> None:
        """Release what is freed after the final norm, before the loss allocates its logits.

        ``pending_casts``: autocast copies of weights, which live until the model's forward returns.
        """
        if self.lifetimes.loss_after_model:
            self.recorder.hold_amount("activations", tuple(pending_casts), -1)
            pending_casts.clear()
        self.hold_previous_graph(-1)  # the curve counts it until its logits replace the old ones
        self.recorder.release("logits_and_loss", self.outputs)
        self.parallel.before_loss(after_model=self.lifetimes.loss_after_model)

    def _backward(self, micro_batch: MicroBatch) -> None:
        """Record the backward of one micro-batch, from the head to the embedding.

        For each unit: its saved tensors are freed, its peak is compared, its gradients are held, and the data-parallel
        hook after its backward runs. Equal consecutive layers are recorded once and repeated.
        """
        recorder, parallel = self.recorder, self.parallel
        parallel.begin_backward(micro_batch, all_forwards_first=self.schedule.all_forwards_first)
        lingers, saved_inputs = PendingReleases(), PendingReleases()
        for i, end in reversed(self.layer_groups):
            unit, before, curve = self.units[i], recorder.here, self.curve(self.units[i], micro_batch.first)
            if unit.kind == "embedding":
                recorder.release("temporaries", self.step_sizes.rows_gradient)  # its own curve counts it
            parallel.before_backward(i, curve)
            recorder.hold_bundle(curve.saved_bytes, -1)
            recorder.release("temporaries", curve.taken_gradient_bytes)
            recorder.high("backward", curve.backward_peak, self.names[i])
            self.after_unit_backward(i, curve)
            gradients = parallel.unit_gradients(i, curve)
            recorder.hold_amount("gradients", gradients)
            self._hold_after_backward(unit, curve, end - i, lingers)
            self._hold_saved_inputs(i, end - i, saved_inputs)
            parallel.after_backward(i, end, curve, gradients)
            recorder.repeat(before, end - i - 1)
        parallel.after_layers()
        self.end_backward(micro_batch)
        parallel.end_backward()
        recorder.hold_amount("logits_and_loss", tuple(lingers), -1)
        recorder.hold_amount("activations", tuple(saved_inputs), -1)
        recorder.mark("backward", "end of backward")
        parallel.after_end()

    def _hold_after_backward(self, unit: NamedUnit, curve: NamedCurve, times: int, lingers: PendingReleases) -> None:
        """Record what stays allocated after a unit's backward, for ``times`` equal units.

        It is added to ``lingers``, to be released at the end of the whole backward, unless variables of the training
        loop or a recurrent layer's state keep it longer. ``curve``: of the unit in this micro-batch.
        """
        kept_by_layer = unit.kind == "block" and self.lifetimes.leaves_graphs
        if unit.kind != "idle":  # a tower that no loss reads has held it since its forward
            self.recorder.hold("activations" if kept_by_layer else "logits_and_loss", curve.until_backward_ends)
        kept_by_loop = unit.kind == "head" and (self.lifetimes.keeps_graph or self.lifetimes.keeps_outputs)
        if not (kept_by_layer or kept_by_loop):
            lingers.append((curve.until_backward_ends, times))
        self.recorder.hold("activations", curve.until_graph_freed)
        self.recorder.hold("temporaries", curve.left_gradient_bytes)
        if unit.kind == "projector":  # the gradient of the looked-up rows waits until the tower's is over
            self.recorder.hold("temporaries", self.step_sizes.rows_gradient)

    def _hold_saved_inputs(self, i: int, times: int, saved_inputs: PendingReleases) -> None:
        """Record what the graph of unit ``i`` refers to until the backward is over, in addition to saved tensors.

        A recomputed unit with adapters on frozen weights keeps its input, and the gradient of its output if such a unit
        follows. ``saved_inputs``: takes these sizes, each ``times`` times.
        """
        unit = self.units[i]
        if not self.lifetimes.keeps_graph:
            saved_inputs.append((unit.first_curve.until_graph_freed, times))
        if self.lifetimes.saved_inputs and unit.adapted:
            sizes = [unit.first_curve.input_bytes]
            if i + 1 < len(self.units) and self.units[i + 1].adapted:
                sizes.append(unit.first_curve.output_gradient_bytes)
            for size in sizes:
                self.recorder.hold("activations", size)
                saved_inputs.append((size, times))


class PairedStep(Step):
    """Records a step that embeds a pair of texts in two passes, whose gradients autograd sums.

    Gradients of the first backward wait in autograd's buffers until the second backward adds its own.
    """

    def run_micro_batch(self, micro_batch: MicroBatch, held_by_others: int, *, muted: bool) -> None:
        """Record one of the two passes of a pair, such as chosen and rejected answers, whose gradients are summed.

        The sum is added to earlier gradients, or goes to DDP's buckets.
        """
        self.parallel.pair = FIRST_OF_PAIR if micro_batch.first else SECOND_OF_PAIR
        super().run_micro_batch(micro_batch, held_by_others, muted=not micro_batch.first)  # both forwards came before
        self.parallel.pair_before = self.parallel.pair_before or not micro_batch.first

    def after_unit_backward(self, i: int, curve: NamedCurve) -> None:
        """Release the pending gradients of the first pass once the second pass of unit ``i`` has added its own."""
        unit = self.units[i]
        if curve is not unit.first_curve and self.parallel.frees_first_gradients(self.parallel.pair_before):
            self.recorder.release("gradients", unit.first_curve.gradient_bytes)
