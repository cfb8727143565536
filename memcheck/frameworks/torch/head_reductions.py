"""FSDP2's hooks around a loss that runs the head chunk by chunk and reduces the head's gradient itself.

Source: torchtitan components/loss.py, ChunkedLossWrapper; torch 2.13 _fsdp_param_group.py, post_backward.
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.data_parallel import MicroBatch, NamedUnit, StepUnits
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.fully_shard import ROOT, WHERE, FullyShard, FullyShardHooks
from memcheck.record import Record


class HeadReducingShard(Record):
    """How FSDP2 runs a step with such a loss."""

    shard: FullyShard

    @property
    def sizes(self) -> int:
        """No sizes but those of groups."""
        return 0

    def hooks(self, recorder: Recorder, row: StepUnits, first: int) -> FullyShardHooks:
        """The hooks of one step; those of FSDP2 alone where the rank or the chunk has no head."""
        if not row.units[-1].reduced:
            return FullyShardHooks(recorder, row, self.shard)
        return HeadReducingHooks(recorder, row, self.shard)


class HeadReducingHooks(FullyShardHooks):
    """What the loss's own reduction leaves, and what is pending until the next one."""

    def __init__(self, recorder: Recorder, row: StepUnits, options: FullyShard) -> None:
        super().__init__(recorder, row, options)
        self.head, self.group = row.units[-1], row.groups[-1]
        self.joined, self.pending = False, NOTHING

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """The head's gradient is there from the first micro-batch on."""
        if unit.reduced and self.options.unsynchronised:
            return unit.fresh if first else unit.again
        return super().curve(unit, first)

    def reduced_by_hook(self, i: int) -> Group:
        """All but what the loss has."""
        return self.group.late if self.units[i].reduced else self.own[i]

    def before_loss(self, *, after_model: bool) -> None:
        """After the norm the group is resharded, and gathered again for the head.

        A head's curve counts the input of the reduction before to its own one.
        """
        super().before_loss(after_model=after_model)
        if after_model or self.options.loss_after_root:
            if self.root != NO_GROUP:
                self._gather_root_again("loss")
            elif self.head.fresh.before is not None:
                self.recorder.hold(WHERE, self.own[-1].flat)
                self.recorder.high("forward", self.head.fresh.before, "all-gather of the head")
                self.recorder.release(WHERE, self.own[-1].flat)
        self.recorder.release(WHERE, self.pending)
        self.pending = NOTHING

    def after_forward(self, i: int, end: int) -> None:
        """The gradients that are left of the head: the first shard is added to later on.

        In a pipeline the norm's gradients wait for a reduction, and the second micro-batch's has both: the norm's new
        shard is a view of all that it wrote.
        """
        if self.units[i].reduced:
            if self.each.first:
                self.recorder.hold("gradients", self.group.early.reduce_output)
            elif self.options.unsynchronised and not self.joined:
                self.recorder.hold("gradients", self.group.whole.reduce_output)
                self.joined = True
            self.recorder.release(WHERE, self.gathered[i])
            self.gathered[i] = NOTHING
        super().after_forward(i, end)

    def begin_backward(self, each: MicroBatch, *, all_at_once: bool) -> None:
        """The input of the loss's reduction stays until the next one."""
        super().begin_backward(each, all_at_once=all_at_once)
        self.reduce_input = self.group.early.reduce_input
        self.recorder.hold(WHERE, self.reduce_input)
        if self.root != NO_GROUP:
            self._gather_root_again("backward")

    def release_input(self) -> None:
        """In a pipeline the input of the loss's reduction waits for the next loss."""
        if self.options.unsynchronised and not self.each.last:
            self.pending = self.reduce_input
        else:
            super().release_input()

    def _gather_root_again(self, instant: str) -> None:
        """The flat buffer of a group that was let go of for a moment, in which nothing else is made."""
        self.recorder.hold(WHERE, self.root.flat)
        self.recorder.mark(instant, f"all-gather of {ROOT}")
        self.recorder.release(WHERE, self.root.flat)
