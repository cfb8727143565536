"""FSDP2's all-gathers of a group's parameters, through a flat buffer.

Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_all_gather and its copy-out).
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Recorder
from memcheck.frameworks.torch.fsdp import Group
from memcheck.frameworks.torch.step_options import StepOptions

WHERE = "communication_buffers"


class Gathers:
    """Records FSDP2's in a step."""

    def __init__(self, recorder: Recorder, how: StepOptions) -> None:
        self.recorder, self.how = recorder, how

    def root(self, root: Group) -> int:
        """The root group's, and its parameters: the flat buffer that stays."""
        where = "the root group"
        self.recorder.hold(WHERE, root.flat)
        self._cast(root, "forward", where)
        self.recorder.hold(WHERE, root.gathered)
        self.recorder.mark("forward", f"all-gather of {where}")
        return root.flat

    def forward(self, own: Group, previous: int, where: str) -> int:
        """Gather a unit's parameters, and let go of the previous group's flat buffer.

        Returns the flat buffer that stays.
        """
        recorder, early = self.recorder, self.how.casts_gradients  # torch <= 2.14 keeps the previous in a variable
        recorder.hold(WHERE, own.flat)
        self._cast(own, "forward", where)
        if early:
            recorder.mark("forward", f"all-gather of {where}")
            recorder.release(WHERE, previous)
            recorder.hold(WHERE, own.gathered)
        else:
            recorder.hold(WHERE, own.gathered)
            recorder.mark("forward", f"all-gather of {where}")
        self._copied(own, "forward", where)
        recorder.release(WHERE, NOTHING if early else previous)
        return own.flat

    def backward(self, own: Group, prefetched: int, where: str) -> None:
        """Parameters from the flat buffer that was gathered ahead, or from one that is gathered now."""
        recorder = self.recorder
        recorder.hold(WHERE, own.gathered)
        recorder.hold(WHERE, NOTHING if prefetched else own.flat)
        recorder.mark("backward", f"all-gather of {where}")
        self._copied(own, "backward", where)
        recorder.release(WHERE, prefetched or own.flat)

    def ahead(self, own: Group, where: str, instant: str) -> int:
        """The next unit's, while this one computes: what is held of it."""
        self.recorder.hold(WHERE, own.flat)
        self._cast(own, instant, where)
        return own.flat

    def frozen(self, behind: Group) -> int:
        """Bytes that stay gathered of ``behind``, the unit whose backward has run, while the next is gathered."""
        return NOTHING

    def _cast(self, own: Group, instant: str, where: str) -> None:
        """The shards in the dtype of the flat buffer, which they are copied into."""
        if own.cast:
            self.recorder.hold(WHERE, own.cast)
            self.recorder.mark(instant, f"all-gather of {where}")
            self.recorder.release(WHERE, own.cast)

    def _copied(self, own: Group, instant: str, where: str) -> None:
        """What is copied out twice, in addition to the flat buffer and the parameters."""
        if own.copied:
            self.recorder.hold(WHERE, own.copied)
            self.recorder.mark(instant, f"copy-out of {where}")
            self.recorder.release(WHERE, own.copied)
