"""All-gathers of a group's parameters: FSDP2's through a flat buffer, FSDP1's into the parameter itself.

Sources: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_all_gather and its copy-out);
distributed/fsdp/_flat_param.py (pre_unshard, unshard, post_unshard), _runtime_utils.py (_prefetch_handle).
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
        """The root group's: the flat buffer that stays."""
        self.recorder.hold(WHERE, root.flat)
        self.recorder.mark("forward", "all-gather of the root group")
        return root.flat

    def forward(self, own: Group, previous: int, where: str) -> int:
        """Gather a unit's parameters and let go of the previous group's flat buffer before they are copied out.

        Returns the flat buffer that stays.
        """
        recorder, late = self.recorder, self.how.casts_gradients  # torch <= 2.14: in a variable
        recorder.hold(WHERE, own.flat)
        recorder.hold(WHERE, NOTHING if late else own.gathered)
        recorder.mark("forward", f"all-gather of {where}")
        recorder.release(WHERE, previous)
        recorder.hold(WHERE, own.gathered if late else NOTHING)
        return own.flat

    def backward(self, own: Group, prefetched: int, where: str) -> None:
        """Parameters from the flat buffer that was gathered ahead, or from one that is gathered now."""
        recorder = self.recorder
        recorder.hold(WHERE, own.gathered)
        recorder.hold(WHERE, NOTHING if prefetched else own.flat)
        recorder.mark("backward", f"all-gather of {where}")
        recorder.release(WHERE, prefetched or own.flat)

    def ahead(self, own: Group, where: str) -> int:
        """The next unit's, while this one computes: what is held of it."""
        self.recorder.hold(WHERE, own.flat)
        return own.flat


class FlatGathers(Gathers):
    """FSDP1's: the shard in the dtype of the products, which goes when the whole parameter is there."""

    def root(self, root: Group) -> int:
        """The root's parameter is there already."""
        self._gather(root, NOTHING, "forward", "the root group")
        return NOTHING

    def forward(self, own: Group, previous: int, where: str) -> int:
        """Nothing is left beside the parameter."""
        self._gather(own, own.gathered, "forward", where)
        return NOTHING

    def backward(self, own: Group, prefetched: int, where: str) -> None:
        """What was gathered ahead is the parameter."""
        if not prefetched:
            self._gather(own, own.gathered, "backward", where)

    def ahead(self, own: Group, where: str) -> int:
        """The whole parameter of the next unit."""
        self._gather(own, own.gathered, "backward", where)
        return own.gathered

    def _gather(self, own: Group, parameter: int, instant: str, where: str) -> None:
        self.recorder.hold(WHERE, own.flat)
        self.recorder.hold(WHERE, parameter)
        self.recorder.mark(instant, f"all-gather of {where}")
        self.recorder.release(WHERE, own.flat)
