"""One training step on one pipeline rank, unit by unit: forward, loss, backward layer by layer, optimizer.

It is recorded for all sizes: in place of bytes every record has the place of a size. What data parallelism adds is in
the hooks of :class:`memcheck.frameworks.torch.data_parallel.DataParallel`, which run where they do in PyTorch.

A micro-batch of a pair of texts, embedded apart, has two forward passes before its backward (``PairedStep``). Every
weight has two uses in one graph, and its ``AccumulateGrad`` waits for the gradients of both
(torch/csrc/autograd/engine.cpp, ``GraphTask::dependencies_`` and ``InputBuffer``). Until the backward of the first
column arrives, the second column's gradients wait whole in autograd's buffers. They are not summed with those of
earlier micro-batches, are in no DDP bucket and are unsharded. FSDP2 reduces what ``AccumulateGrad`` has stored
(_fsdp_param_group.py, ``post_backward``). FSDP1's hook belongs to that node, so that its parameters stay gathered, too.
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Bundle, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.accounts.unit import OF_TOWER
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

Later = list[tuple[int, int]]
"""Sizes that are released at the end, each with how often."""


class Step:
    """Records a step: what lives, and the moments that may be the highest. ``parallel``: the hooks."""

    def __init__(self, options: StepOptions, row: StepUnits, recorder: Recorder, parallel: DataParallel) -> None:
        self.schedule, self.keeps = options.schedule, options.keeps
        self.recorder, self.parallel, self.beyond, self.border = recorder, parallel, row.beyond, row.beyond.border
        self.units, self.names, self.stretches = row.units, row.names, row.stretches
        self.outputs = self.units[-1].fresh.lingers if self.keeps.keeps_outputs else NOTHING

    def run(self) -> None:
        """Record one steady step, without the resident bytes."""
        self.recorder.hold("logits_and_loss", self.outputs)
        self.leave_all()
        self.parallel.at_rest()
        self.hold_graph(1)
        self.parallel.begin_step()
        for each, held in zip(self.schedule.micro_batches, self.beyond.held, strict=True):
            self.walk(each, held, muted=not each.first and self.schedule.all_at_once)
        self.recorder.mark("optimizer", "optimizer step")

    def walk(self, each: MicroBatch, held: int, *, muted: bool) -> None:
        """One micro-batch, backward included. ``held``: what others hold; ``muted``: its forward is no candidate."""
        recorder, border, parallel, (first, last, sends) = self.recorder, self.border, self.parallel, each
        live = ((self.beyond.per_micro_batch, 1), (held, 1))
        arriving = NOTHING if first else border.input_gradient
        parallel.begin_micro_batch(each, others=held != NOTHING)
        here = parallel.gathered_by_first
        if first and here:
            before = recorder.here  # only the first micro-batch gathers the parameters; the next ones find them
            self._forward(first, here=False)
            recorder.repeat(before, -1)
        recorder.hold_amount("activations", live)
        recorder.hold("communication_buffers", arriving)
        parallel.before_inputs()
        recorder.muted, outer = muted or recorder.muted, recorder.muted
        going = ((border.unsent_output, sends), (self.beyond.features if held != NOTHING else NOTHING, 1))
        recorder.hold_amount("activations", going)
        self._forward(first, here=here)
        recorder.muted = outer
        recorder.hold_amount("activations", going, -1)
        recorder.hold("communication_buffers", border.output_gradient)
        self._backward(each)
        recorder.hold_amount("communication_buffers", ((border.output_gradient, -1), (arriving, -1)))
        parallel.end_micro_batch(first, last)
        recorder.hold_amount("activations", live, -1)

    def retain(self, i: int, curve: NamedCurve) -> None:
        """What the backward of unit ``i`` leaves for one of its weights: nothing, where that is the same."""

    def end_backward(self, each: MicroBatch) -> None:
        """The backward of the weights, where it is one of its own."""

    def leave_all(self) -> None:
        """What layers have left of the step before."""
        for unit in self.units:
            self._leave(unit, 1)

    def _leave(self, unit: NamedUnit, sign: int) -> None:
        """What a layer leaves of its recomputed graph until its next forward."""
        if self.keeps.leaves_graphs and unit.kind == "block":
            self.recorder.hold("activations", unit.fresh.lingers, sign)

    def hold_graph(self, sign: int) -> None:
        """What of the step before lives until the training loop assigns its loss and its logits again."""
        for unit in self.units if self.keeps.keeps_graph else ():
            found = ("logits_and_loss", unit.fresh.lingers), ("activations", unit.fresh.outlives)
            self.recorder.hold(*found[unit.kind != "head"], sign)

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """What a unit computes in the first micro-batch or a later one."""
        if self.parallel.pair == SECOND_OF_PAIR:
            return self.parallel.curve_of_second(unit)
        return unit.fresh if self.parallel.pair else self.parallel.curve(unit, first)

    def _forward(self, first: bool, *, here: bool) -> None:
        """Forward of one micro-batch; ``here``: an earlier one has left the parameters gathered."""
        recorder, parallel = self.recorder, self.parallel
        casts, states = Later(), Later()
        variables = Variables(recorder, embeds=any(each.kind == "embedding" for each in self.units))
        if self.schedule.pipelined and not first:
            # the schedule's variable holds the last stage's output until the next forward returns (schedules.py)
            variables.assign("output", "logits_and_loss", self.units[-1].fresh.lingers)
        parallel.begin_forward(here=here)
        start = 1 + sum(unit.kind in OF_TOWER for unit in self.units)
        for i, end in self.stretches:
            unit, before, ends = self.units[i], recorder.here, self.units[i].kind == "head"
            parallel.before_forward(i)
            curve = self.curve(unit, first)
            if ends:
                parallel.before_norm()
            if curve.before is not None:
                self._model_returns(variables, states, curve.before, i)
            if ends:
                self._before_loss(casts)
            recorder.high("loss" if ends else "forward", curve.forward, self.names[i])
            self._leave(unit, -1)
            recorder.hold_bundle(curve.saved)
            recorder.hold("activations", curve.until_forward_ends)
            casts.append((curve.until_forward_ends, end - i))
            if self.keeps.keeps_states and unit.kind == "block":
                recorder.hold("activations", curve.freed_input)
                states.append((curve.freed_input, end - i))
            parallel.after_forward(i, end)
            recorder.repeat(before, end - i - 1)
            variables.after_unit(unit, curve, i - start, end - i, self.keeps, self.beyond)
        variables.let_go()
        for i, end in self.stretches:
            if self.units[i].kind == "idle":  # a training loop's variable has outputs of layers that nothing reads
                recorder.hold("logits_and_loss", self.units[i].fresh.lingers, end - i)
        parallel.end_forward()
        recorder.hold_amount("activations", tuple(casts), -1)

    def _model_returns(self, variables: Variables, states: Later, before: Bundle, i: int) -> None:
        """What stands before the loss, and the end of what variables hold: ``states``, layers' outputs in a list."""
        if self.keeps.returns_first:
            self.recorder.hold_amount("activations", tuple(states), -1)
            variables.let_go()
        self.recorder.high("forward", before, self.names[i])
        variables.let_go(towers=not self.keeps.towers_stay)

    def _before_loss(self, casts: Later) -> None:
        """What is freed after the final norm."""
        if self.keeps.loss_after_model:
            self.recorder.hold_amount("activations", tuple(casts), -1)
            casts.clear()
        self.hold_graph(-1)  # the curve counts it until its logits replace the old ones
        self.recorder.release("logits_and_loss", self.outputs)
        self.parallel.before_loss(after_model=self.keeps.loss_after_model)

    def _backward(self, each: MicroBatch) -> None:
        recorder, parallel = self.recorder, self.parallel
        parallel.begin_backward(each, all_at_once=self.schedule.all_at_once)
        lingers, kept = Later(), Later()
        for i, end in reversed(self.stretches):
            unit, before, curve = self.units[i], recorder.here, self.curve(self.units[i], each.first)
            if unit.kind == "embedding":
                recorder.release("temporaries", self.beyond.rows_gradient)  # its own curve counts it
            parallel.before_backward(i, curve)
            recorder.hold_bundle(curve.saved, -1)
            recorder.release("temporaries", curve.takes)
            recorder.high("backward", curve.backward, self.names[i])
            self.retain(i, curve)
            gradients = parallel.arrive(i, curve)
            recorder.hold_amount("gradients", gradients)
            self._linger(unit, curve, end - i, lingers)
            self._keep_inputs(i, end - i, kept)
            parallel.after_backward(i, end, curve, gradients)
            recorder.repeat(before, end - i - 1)
        parallel.after_layers()
        self.end_backward(each)
        parallel.end_backward()
        recorder.hold_amount("logits_and_loss", tuple(lingers), -1)
        recorder.hold_amount("activations", tuple(kept), -1)
        recorder.mark("backward", "end of backward")
        parallel.after_end()

    def _linger(self, unit: NamedUnit, curve: NamedCurve, times: int, lingers: Later) -> None:
        """What a unit's backward leaves, to its end in ``lingers`` unless the training loop's variables hold it."""
        left = unit.kind == "block" and self.keeps.leaves_graphs
        if unit.kind != "idle":  # what a tower leaves is there already
            self.recorder.hold("activations" if left else "logits_and_loss", curve.lingers)
        if not left and (unit.kind != "head" or not (self.keeps.keeps_graph or self.keeps.keeps_outputs)):
            lingers.append((curve.lingers, times))
        self.recorder.hold("activations", curve.outlives)
        self.recorder.hold("temporaries", curve.hands)
        if unit.kind == "projector":  # the gradient of the looked-up rows waits until the tower's is over
            self.recorder.hold("temporaries", self.beyond.rows_gradient)

    def _keep_inputs(self, i: int, times: int, kept: Later) -> None:
        """What the graph holds in addition to saved tensors: of a frozen unit its input and its output's gradient."""
        unit = self.units[i]
        if not self.keeps.keeps_graph:
            kept.append((unit.fresh.outlives, times))
        if self.keeps.saved_inputs and unit.adapted:
            follows = i + 1 < len(self.units) and self.units[i + 1].adapted
            for size in [unit.fresh.input, unit.fresh.output_gradient] if follows else [unit.fresh.input]:
                self.recorder.hold("activations", size)
                kept.append((size, times))


class PairedStep(Step):
    """Records the passes in turn: the one whose gradients wait, and the one that they are joined with."""

    def walk(self, each: MicroBatch, held: int, *, muted: bool) -> None:
        """One pass. A pair's gradients are new, and go where there are others: earlier ones, or DDP's buckets."""
        self.parallel.pair = FIRST_OF_PAIR if each.first else SECOND_OF_PAIR
        super().walk(each, held, muted=not each.first)  # both forwards came before
        self.parallel.earlier = self.parallel.earlier or not each.first

    def retain(self, i: int, curve: NamedCurve) -> None:
        """After the backward of a unit's second use, the pending gradient is summed with its own."""
        unit = self.units[i]
        if curve is not unit.fresh and self.parallel.drops_pending(self.parallel.earlier):
            self.recorder.release("gradients", unit.fresh.gradients)
