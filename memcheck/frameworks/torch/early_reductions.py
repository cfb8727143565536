"""A loss that runs the head chunk by chunk, and reduces its gradient itself: what that leaves, and what waits for it.

Source: torchtitan components/loss.py, ChunkedLossWrapper; torch 2.13 _fsdp_param_group.py, post_backward.
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Recorder
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.step_options import StepOptions, UnitGroups
from memcheck.frameworks.torch.step_parts import NamedUnit

WHERE = "communication_buffers"


class EarlyReductions:
    """Records them in a step. ``root``: the one group of embedding, norm and head, where they share one."""

    def __init__(self, recorder: Recorder, how: StepOptions, root: Group) -> None:
        self.recorder, self.how, self.root = recorder, how, root
        self.joined, self.waiting = False, NOTHING

    def gather(self, head: NamedUnit, own: Group) -> None:
        """After the norm the group is resharded, and gathered again for the head."""
        if not head.reduced:
            return
        if self.root != NO_GROUP:
            self._gather_root_again("loss")
        elif head.fresh.before is not None:
            self.recorder.hold(WHERE, own.flat)
            self.recorder.high("forward", head.fresh.before, "all-gather of the head")
            self.recorder.release(WHERE, own.flat)

    def begin(self, unit: NamedUnit) -> None:
        """A head's curve counts the input of the reduction before to its own one."""
        if unit.reduced:
            self.recorder.release(WHERE, self.waiting)
            self.waiting = NOTHING

    def reduced(self, group: UnitGroups, first: bool) -> None:
        """The gradients that are left: the first shard is added to later on.

        In a pipeline the norm's gradients wait for a reduction, and the second micro-batch's has both: the norm's new
        shard is a view of all that it wrote.
        """
        if first:
            self.recorder.hold("gradients", group.early.reduce_output)
        elif self.how.unsynchronised and not self.joined:
            self.recorder.hold("gradients", group.whole.reduce_output)
            self.joined = True

    def input(self, head: NamedUnit, group: UnitGroups) -> int:
        """The input of the reduction, which stays until the next one."""
        if not head.reduced:
            return NOTHING
        self.recorder.hold(WHERE, group.early.reduce_input)
        if self.root != NO_GROUP:
            self._gather_root_again("backward")
        return group.early.reduce_input

    def let_go(self, reduce_input: int, head: NamedUnit, *, reduced: bool) -> None:
        """The input of the last reduction goes with the backward; in a pipeline the loss's waits for the next loss."""
        if head.reduced and self.how.unsynchronised and not reduced:
            self.waiting = reduce_input
        else:
            self.recorder.release(WHERE, reduce_input)

    def _gather_root_again(self, instant: str) -> None:
        """The flat buffer of a group that was let go of for a moment, in which nothing else is made."""
        self.recorder.hold(WHERE, self.root.flat)
        self.recorder.mark(instant, "all-gather of the root group")
        self.recorder.release(WHERE, self.root.flat)
