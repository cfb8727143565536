"""A step whose micro-batch has two forward passes before its backward: the columns of a pair of texts, embedded apart.

Every weight has two uses in one graph, and its ``AccumulateGrad`` waits for the gradients of both
(torch/csrc/autograd/engine.cpp, ``GraphTask::dependencies_`` and ``InputBuffer``). Until the backward of the first
column arrives, the second column's gradients wait whole in autograd's buffers. They are not summed with those of
earlier micro-batches, are in no DDP bucket and are unsharded. FSDP2 reduces what ``AccumulateGrad`` has stored
(_fsdp_param_group.py, ``post_backward``). FSDP1's hook belongs to that node, so that its parameters stay gathered, too.
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Amount
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.flat_moves import FlatReductions
from memcheck.frameworks.torch.fsdp import Group
from memcheck.frameworks.torch.step import Step
from memcheck.frameworks.torch.step_options import MicroBatch
from memcheck.frameworks.torch.step_parts import NamedUnit


def pairs(micro_batches: int, apart: bool) -> list[tuple[bool, bool, float]]:
    """Passes that differ: (first of its pair, last of the step, other micro-batches alive at the same time).

    The first backward is of the second pass, while both are alive. ``apart``: the last micro-batch differs from those
    in the middle.
    """
    found: list[tuple[bool, bool, float]] = []
    for last in (False,) * min(micro_batches - 1, 2 if apart else 1) + (True,):
        found += [(True, False, 1), (False, last, 0)]
    return found


class MeetingReductions(FlatReductions):
    """FSDP1's, of flat gradients of which the second is added in place to the one that has waited."""

    meets = False

    def join(self, g: Group, unsharded: Amount, where: str) -> Amount:
        """The flat gradient and the previous one, which are both live while autograd adds them."""
        joined = super().join(g, unsharded, where)
        self.recorder.release("gradients", g.accumulated if self.meets else NOTHING)
        return joined


class PairedStep(Step):
    """Records the passes in turn: the one whose gradients wait, and the one that they are joined with."""

    place = 0
    """The unit whose backward runs."""
    waits = False
    """Whether this pair's gradients are added to others, and gone then."""
    earlier = False
    """Whether there was a pair before."""

    def walk(self, each: MicroBatch, held: int, *, muted: bool) -> None:
        """One pass. A pair's gradients are new, and go where there are others: earlier ones, or DDP's buckets."""
        if self.how.flat:
            self.reductions = MeetingReductions(self.recorder, self.how)
            self.reductions.meets = not each.first
            each = each if self.how.unsynchronised else each._replace(last=not each.first)
        if each.first:
            self.waits = not self.how.sharded and (self.earlier or self.how.views or self.engine is not None)
        super().walk(each, held, muted=not each.first)  # both forwards came before
        self.earlier = self.earlier or not each.first

    def retain(self, curve: NamedCurve) -> None:
        """After the backward of a unit's second use, the pending gradient is summed with its own."""
        unit = self.units[self.place]
        if curve is not unit.fresh and (self.how.sharded or self.waits):
            self.recorder.release("gradients", unit.fresh.gradients)

    def _curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        return unit.fresh if first or self.how.flat else unit.again

    def _turn(self, i: int, first: bool) -> NamedCurve:
        self.place = i
        curve = super()._turn(i, first)
        if first or self.how.flat or not self.how.sharded:
            return curve
        return curve._replace(gradients=self.units[i].fresh.gradients)

    def _backward(self, first: bool, last: bool, gathered: list[int]) -> None:
        engine = self.engine
        self.engine = None if first else engine  # its hooks are AccumulateGrad's
        super()._backward(first, last, gathered)
        self.engine = engine

    def _reduce(
        self, i: int, curve: NamedCurve, gradients: Amount, released: int, previous: int, first: bool, last: bool
    ) -> int:
        if not first:
            return super()._reduce(i, curve, gradients, released, previous, not self.earlier, last)
        self.reductions.join(self._late(i), gradients, self.names[i])
        self.recorder.release("communication_buffers", released)
        return previous

    def _reduce_root(self, unsharded: Amount, previous: int, first: bool, last: bool, *, keeps: bool) -> int:
        if not first:
            return super()._reduce_root(unsharded, previous, not self.earlier, last, keeps=keeps)
        self.reductions.join(self.root, unsharded, "the root group")
        self.recorder.release("communication_buffers", self.root.gathered)
        return previous

    def _let_reduced_go(self, first: bool, *, reduced: bool) -> None:
        if not first:
            super()._let_reduced_go(not self.earlier, reduced=reduced)
