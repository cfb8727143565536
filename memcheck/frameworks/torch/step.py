"""One training step on one pipeline rank, unit by unit: forward, loss, backward layer by layer, optimizer.

It is recorded for all sizes: in place of bytes every record has the place of a size. Data-parallel wrappers hook in
where they do in PyTorch: FSDP2 around each unit's forward and backward, DDP with buckets for the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.program import NOTHING, Amount, Bundle, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.accounts.stretches import stretches
from memcheck.frameworks.torch.early_reductions import EarlyReductions
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.gathers import Gathers
from memcheck.frameworks.torch.reductions import Reductions
from memcheck.frameworks.torch.step_options import MicroBatch, StepOptions, StepSizes, UnitGroups
from memcheck.frameworks.torch.step_parts import (
    TOWER,
    EngineHooks,
    NamedRun,
    NamedUnit,
    Variables,
    idle_outputs,
    keep_inputs,
    own_groups,
    shared,
)


class Step:
    """Records a step: what lives, and the moments that may be the highest.

    ``groups``: FSDP2's, run by run; ``root``: the one group of embedding, final norm and head, where they share one.
    """

    def __init__(
        self,
        how: StepOptions,
        runs: Sequence[NamedRun],
        groups: Sequence[UnitGroups],
        root: Group,
        beyond: StepSizes,
        recorder: Recorder,
        engine: EngineHooks | None = None,
    ) -> None:
        self.how, self.beyond, self.border = how, beyond, beyond.border
        self.recorder, self.engine, self.root = recorder, engine, root
        self.reductions, self.gathers = Reductions(recorder, how), Gathers(recorder, how)
        if how.flat:
            from memcheck.frameworks.torch.flat_moves import FlatGathers, FlatReductions

            self.reductions, self.gathers = FlatReductions(recorder, how), FlatGathers(recorder, how)
        self.stretches = stretches([run.times for run in runs])
        self.units: list[NamedUnit] = []
        self.names: list[str] = []
        self.groups: list[UnitGroups] = []
        for run, found in zip(runs, groups, strict=True):
            self.units += [run.unit] * run.times
            self.names += run.names()
            self.groups += [found] * run.times
        self.own = own_groups(self.units, self.groups, root, how)
        self.outputs = self.units[-1].fresh.lingers if how.keeps_outputs else NOTHING
        self.early = EarlyReductions(recorder, how, root)

    def retain(self, curve: NamedCurve) -> None:
        """What the backward of a unit leaves for one of its weights: nothing, where that is the same."""

    def end_backward(self, first: bool, *, last: bool) -> None:
        """The backward of the weights, where it is one of its own."""

    def run(self) -> None:
        """Record one steady step, without the resident bytes."""
        self.recorder.hold("logits_and_loss", self.outputs)
        self.leave_all()
        self.reductions.rest([*((self.own[i], end - i) for i, end in self.stretches), (self.root, 1)])
        self.hold_graph(1)
        self.hold_reduced(self.how.several_runs)
        for each, held in zip(self.how.micro_batches, self.beyond.held, strict=True):
            self.walk(each, held, muted=not each.first and self.how.all_at_once)
        self.recorder.mark("optimizer", "optimizer step")

    def walk(self, each: MicroBatch, held: int, *, muted: bool) -> None:
        """One micro-batch, backward included. ``held``: what others hold; ``muted``: its forward is no candidate."""
        recorder, border, (first, last, sends) = self.recorder, self.border, each
        live = ((self.beyond.per_micro_batch, 1), (held, 1))
        arriving = NOTHING if first else border.input_gradient
        stays = self.how.stays_gathered and (not first or (held != NOTHING and not self.how.reshards))
        here = stays or (self.how.flat_stays and not first)
        if first and here:
            before = recorder.here  # only the first micro-batch gathers the parameters; the next ones find them
            self._forward(first, here=False)
            recorder.repeat(before, -1)
        recorder.hold_amount("activations", live)
        recorder.hold("communication_buffers", arriving)
        if self.engine is not None:
            self.engine.begin_micro_batch()
        recorder.muted, outer = muted or recorder.muted, recorder.muted
        going = ((border.unsent_output, sends), (self.beyond.features if held != NOTHING else NOTHING, 1))
        recorder.hold_amount("activations", going)
        gathered = self._forward(first, here)
        recorder.muted = outer
        recorder.hold_amount("activations", going, -1)
        if self.how.stays_gathered and self.how.all_at_once and not first:  # the backward before has left all of them
            recorder.hold_amount("communication_buffers", tuple([(size, -1) for size in gathered]))
            gathered = [own.gathered for own in self.own]
            recorder.hold_amount("communication_buffers", tuple([(size, 1) for size in gathered]))
        recorder.hold("communication_buffers", border.output_gradient)
        self._backward(first, last, gathered)
        recorder.hold_amount("communication_buffers", ((border.output_gradient, -1), (arriving, -1)))
        if self.engine is not None:
            self.engine.end_backward(first, last)
        recorder.hold_amount("activations", live, -1)

    def leave_all(self) -> None:
        """What layers have left of the step before."""
        for unit in self.units:
            self._leave(unit, 1)

    def hold_reduced(self, sign: int) -> None:
        """Reduced gradients that are there before a forward."""
        each = [(self.own[i].sharded, end - i) for i, end in self.stretches]
        self.recorder.hold_amount("gradients", (*each, (self.root.sharded, 1)), sign)

    def _leave(self, unit: NamedUnit, sign: int) -> None:
        """What a layer leaves of its recomputed graph until its next forward."""
        if self.how.leaves_graphs and unit.kind == "block":
            self.recorder.hold("activations", unit.fresh.lingers, sign)

    def hold_graph(self, sign: int) -> None:
        """What of the step before lives until the training loop assigns its loss and its logits again."""
        for unit in self.units if self.how.keeps_graph else ():
            found = ("logits_and_loss", unit.fresh.lingers), ("activations", unit.fresh.outlives)
            self.recorder.hold(*found[unit.kind != "head"], sign)

    def _curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        if self.engine is not None and self.engine.moves_gradients:
            return unit.again
        if unit.reduced and self.how.unsynchronised:
            return unit.fresh if first else unit.again
        if self.how.flat or (self.how.sharded and (first or not self.how.in_place)):
            return unit.fresh  # autograd sees fresh unsharded gradients
        if self.how.sharded or self.how.views:
            return unit.again
        return unit.fresh if first else unit.again

    def _forward(self, first: bool, here: bool) -> list[int]:
        """Forward of one micro-batch; ``here``: an earlier one has left the parameters gathered."""
        recorder = self.recorder
        casts, states, held_flat, ahead = list[tuple[int, int]](), list[tuple[int, int]](), NOTHING, NOTHING
        # the schedule's variable holds the last stage's output until the next forward returns (schedules.py)
        variables = Variables(recorder, embeds=any(each.kind == "embedding" for each in self.units))
        if self.how.pipelined and not first:
            variables.assign("output", "logits_and_loss", self.units[-1].fresh.lingers)
        gathered = [self.own[i].gathered if here else NOTHING for i in range(len(self.units))]
        for size in gathered:
            recorder.hold("communication_buffers", size)
        if self.root != NO_GROUP and not here:
            held_flat = self.gathers.root(self.root)
        elif self.root != NO_GROUP:
            recorder.hold("communication_buffers", self.root.gathered)
        behind = 1 + sum(unit.kind in TOWER for unit in self.units)
        for i, end in self.stretches:
            unit, own, before = self.units[i], self.own[i], recorder.here
            late = unit.kind == "head" and self.how.leaves_apart  # its own module: after the final norm
            if own.gathered and not here and not late:
                held_flat, ahead = self._gather(i, held_flat, ahead)
                gathered[i] = own.gathered
            curve = self._curve(unit, first)
            if unit.kind == "head" and held_flat and self.root == NO_GROUP and not self.how.carved:
                recorder.release("communication_buffers", held_flat)
                held_flat = NOTHING
            if curve.before is not None:
                self._model_returns(variables, states, curve.before, i)
            if unit.kind == "head":
                held_flat = self._before_loss(held_flat, casts)
                gathered[i] = own.gathered if late else gathered[i]
                recorder.hold("communication_buffers", own.gathered if late and not here else NOTHING)
            self.early.begin(unit)
            recorder.high("loss" if unit.kind == "head" else "forward", curve.forward, self.names[i])
            self._leave(unit, -1)
            recorder.hold_bundle(curve.saved)
            recorder.hold("activations", curve.until_forward_ends)
            if unit.reduced:
                self.early.reduced(self.groups[i], first)
            casts.append((curve.until_forward_ends, end - i))
            if self.how.keeps_states and unit.kind == "block":
                recorder.hold("activations", curve.freed_input)
                states.append((curve.freed_input, end - i))
            if gathered[i] and (self._reshards(i) or unit.reduced):
                recorder.release("communication_buffers", gathered[i])
                gathered[i] = NOTHING
            gathered[i:end] = [gathered[i]] * (end - i)
            recorder.repeat(before, end - i - 1)
            variables.behind(unit, curve, i - behind, end - i, self.how, self.beyond)
        variables.let_go()
        recorder.hold_amount("logits_and_loss", idle_outputs(self.units, self.stretches))
        recorder.release("communication_buffers", held_flat)  # the root's post-forward frees the last flat buffer
        recorder.hold_amount("activations", tuple(casts), -1)
        return gathered

    def _gather(self, i: int, flat: int, ahead: int) -> tuple[int, int]:
        """A unit's parameters for its forward; returns the flat buffers that stay, its own and the next unit's.

        ``flat``: the buffer of the unit before; ``ahead``: what is there of this one's.
        """
        recorder, unit = self.recorder, self.units[i]
        if unit.kind == "head" and self.how.collapses and unit.fresh.before is not None:
            recorder.high("forward", unit.fresh.before, self.names[i])  # in front of the norm, which gathers
        recorder.hold("activations", unit.fresh.input)
        recorder.release("communication_buffers", ahead)
        flat = self.gathers.forward(self.own[i], flat, self.names[i])
        ahead = self._gather_ahead(i + 1)
        recorder.release("activations", unit.fresh.input)
        return flat, ahead

    def _gather_ahead(self, index: int) -> int:
        """The next unit's flat buffer, where it is gathered before one runs forward."""
        if not self.how.gathers_ahead or index == len(self.units) or not self.own[index].gathered:
            return NOTHING
        return self.gathers.ahead(self.own[index], self.names[index], "forward")

    def _model_returns(self, variables: Variables, states: list[tuple[int, int]], before: Bundle, i: int) -> None:
        """What stands before the loss, and the end of what variables hold: ``states``, layers' outputs in a list."""
        if self.how.returns_first:
            self.recorder.hold_amount("activations", tuple(states), -1)
            variables.let_go()
        self.recorder.high("forward", before, self.names[i])
        variables.let_go(towers=not self.how.towers_stay)

    def _before_loss(self, flat: int, casts: list[tuple[int, int]]) -> int:
        """What is freed after the final norm: its ``flat`` buffer, whose rest is returned, and casts."""
        if self.how.loss_behind_model:
            self.recorder.hold_amount("activations", tuple(casts), -1)
            casts.clear()
        self.hold_graph(-1)  # the curve counts it until its logits replace the old ones
        self.recorder.release("logits_and_loss", self.outputs)
        if self.engine is not None:
            self.engine.before_head()
        if not self.how.loss_behind_root and not self.how.loss_behind_model:
            return flat
        self.recorder.release("communication_buffers", flat)  # by the root's post-forward
        self.early.gather(self.units[-1], self.own[-1])
        return NOTHING

    def _reshards(self, index: int) -> bool:
        at_once = self.units[index].kind == "head" and not self.how.leaves_apart  # torchtitan: backward needs it
        return self.how.reshards and not at_once

    def _backward(self, first: bool, last: bool, gathered: list[int]) -> None:
        recorder, keeps = self.recorder, self.how.stays_gathered
        behind, last = last and keeps, last and not keeps
        keeps_own = keeps or (self.how.flat_stays and not last)
        # where the root's output is the loss, its hook runs first
        inside = self.root != NO_GROUP and (self.how.loss_inside_root or self.how.flat)
        prefetched = self._prefetch(len(self.units), gathered) if inside else NOTHING
        reduce_input = self.early.input(self.units[-1], self.groups[-1])
        lingers, kept, stays = list[tuple[int, int]](), list[tuple[int, int]](), NOTHING
        unsharded_root: Amount = ()
        for i, end in reversed(self.stretches):
            unit, own, before = self.units[i], self.own[i], recorder.here
            curve = self._turn(i, first)
            hooked = bool(own.gathered and curve.passes_back)
            prefetched, stays = self._passed(i, hooked, gathered, prefetched, stays)
            recorder.hold_bundle(curve.saved, -1)
            recorder.release("temporaries", curve.takes)
            recorder.high("backward", curve.backward, self.names[i])
            self.retain(curve)
            gradients: Amount = ((curve.gradients, 1),)
            if self.engine is not None:
                self.engine.behind(unit.kind, (curve.hooked, curve.later), self.names[i], first, last)
            if unit.kind == "embedding" and self.how.sharded and self.how.whole_table:
                gradients = self._own_rows(gradients)
            recorder.hold_amount("gradients", gradients)
            self._linger(unit, curve, end - i, lingers)
            keep_inputs(recorder, self.how, self.units, i, end - i, kept)
            if unit.kind == "head" and not prefetched:
                prefetched = self._prefetch(i, gathered)
                recorder.mark("backward", f"all-gather after {self.names[i]}")
            if hooked:
                gradients, unsharded_root = shared(unit, self.groups[i], gradients, unsharded_root, end - i)
                released = NOTHING if keeps_own else gathered[i]
                reduce_input = self._reduce(i, curve, gradients, released, reduce_input, first, last)
                gathered[i] = gathered[i] if keeps_own else NOTHING
            elif not own.gathered and unit.kind not in self.how.wrapped:
                unsharded_root += tuple([(place, times * (end - i)) for place, times in gradients])
            if last and self.how.views_late:
                recorder.release("communication_buffers", unit.fresh.gradients)  # the bucket is the gradients now
            gathered[i:end] = [gathered[i]] * (end - i)
            recorder.repeat(before, end - i - 1)
        if self.root != NO_GROUP:
            reduce_input = self._reduce_root(unsharded_root, reduce_input, first, last, keeps=keeps)
        self.end_backward(first, last=behind)
        if behind:
            reduce_input, gathered = self._reduce_all(gathered, reduce_input), []
        self._let_reduced_go(first, reduced=last or behind)
        self.early.let_go(reduce_input, self.units[-1], reduced=last or behind)
        recorder.hold_amount("communication_buffers", ((prefetched, -1), (stays, -1)))
        recorder.hold_amount("logits_and_loss", tuple(lingers), -1)
        recorder.hold_amount("activations", tuple(kept), -1)
        recorder.mark("backward", "end of backward")
        recorder.hold_amount("communication_buffers", tuple([(size, -1) for size in gathered]))

    def _reduce(
        self, i: int, curve: NamedCurve, gradients: Amount, released: int, previous: int, first: bool, last: bool
    ) -> int:
        """A unit's hook after its backward: its parameters go, its gradients are reduced."""
        unit, name = self.units[i], self.names[i]
        own, around = self._late(i), self.reductions.around(unit, curve)
        self.recorder.hold_amount("temporaries", around)
        gradients = self.reductions.join(own, gradients, name)
        self.recorder.release("communication_buffers", released)
        reduce_input = self.reductions.reduce(own, gradients, previous, first, last, name)
        self.recorder.hold_amount("temporaries", around, -1)
        return reduce_input

    def _reduce_all(self, gathered: list[int], previous: int) -> int:
        each = [(self._late(i), gathered[i], name) for i, name in enumerate(self.names)]
        return self.reductions.reduce_all(self.root, each, previous)

    def _own_rows(self, gradients: Amount) -> Amount:
        from memcheck.frameworks.torch.replicated_table import local_slice

        return local_slice(self.recorder, self.beyond, gradients)

    def _turn(self, i: int, first: bool) -> NamedCurve:
        """The curve of a unit whose backward is about to run."""
        if self.engine is not None and i == 0:
            self.engine.before_last()
        return self._curve(self.units[i], first)

    def _passed(self, i: int, hooked: bool, gathered: list[int], ahead: int, stays: int) -> tuple[int, int]:
        """What is gathered ahead after a unit's pre-backward hook, and to the end: for one without a graph."""
        if hooked or not self.own[i].gathered:
            return self._gather_again(i, gathered, ahead), stays
        return (ahead, stays) if self.how.leaves_apart else (NOTHING, stays or ahead)

    def _late(self, i: int) -> Group:
        """What a unit's own hook reduces: all but what the loss has."""
        return self.groups[i].late if self.units[i].reduced else self.own[i]

    def _let_reduced_go(self, first: bool, *, reduced: bool) -> None:
        """What every group's all-reduce wrote, which the root's final callback frees."""
        if self.how.unsynchronised and not reduced:
            return
        for i, end in self.stretches:
            self.recorder.release("gradients", self.reductions.kept(self._late(i), first), end - i)
        self.recorder.release("gradients", self.reductions.kept(self.root, first))

    def _reduce_root(self, unsharded: Amount, previous: int, first: bool, last: bool, *, keeps: bool) -> int:
        """Reduce-scatter of the root group, resharded before it if at all; returns the input buffer that stays."""
        unsharded = self.reductions.join(self.root, unsharded, "the root group")
        self.recorder.release("communication_buffers", NOTHING if keeps else self.root.gathered)
        reduce_input = self.reductions.reduce(self.root, unsharded, previous, first, last, "the root group")
        self.recorder.release("communication_buffers", self.root.gathered if keeps else NOTHING)
        return reduce_input

    def _linger(self, unit: NamedUnit, curve: NamedCurve, times: int, lingers: list[tuple[int, int]]) -> None:
        """What a unit's backward leaves, to its end in ``lingers`` unless the training loop's variables hold it."""
        left = unit.kind == "block" and self.how.leaves_graphs
        if unit.kind != "idle":  # what a tower leaves is there already
            self.recorder.hold("activations" if left else "logits_and_loss", curve.lingers)
        if not left and (unit.kind != "head" or not (self.how.keeps_graph or self.how.keeps_outputs)):
            lingers.append((curve.lingers, times))
        self.recorder.hold("activations", curve.outlives)
        self.recorder.hold("temporaries", curve.hands)
        if unit.kind == "projector":  # the gradient of the looked-up rows waits until the tower's is over
            self.recorder.hold("temporaries", self.beyond.rows_gradient)

    def _gather_again(self, index: int, gathered: list[int], prefetched: int) -> int:
        """The unit's parameters for its backward, and the next unit's flat buffer: the size of that."""
        unit, own = self.units[index], self.own[index]
        arrived, late = unit.fresh.output_gradient, NOTHING
        if index + 1 < len(self.units):
            late = self.gathers.frozen(self.own[index + 1])
        if unit.kind == "embedding":
            self.recorder.release("temporaries", self.beyond.rows_gradient)  # its own curve counts it
        self.recorder.hold("temporaries", arrived)
        self.recorder.hold("communication_buffers", late)
        if own.gathered and not gathered[index]:
            self.gathers.backward(own, prefetched, self.names[index])
            prefetched = NOTHING
            gathered[index] = own.gathered
        if own.gathered and (unit.kind != "head" or self.how.collapses):
            prefetched = prefetched or self._prefetch(index, gathered)
        self.recorder.release("temporaries", arrived)
        self.recorder.release("communication_buffers", late)
        return prefetched

    def _prefetch(self, behind: int, gathered: list[int]) -> int:
        """Backward prefetch: the next unit's flat buffer is gathered while this one computes."""
        for i in range(behind - 1, -1, -1):
            own = self.own[i]
            if own.gathered:
                if gathered[i]:
                    return NOTHING
                return self.gathers.ahead(own, self.names[i], "backward")
        return NOTHING
