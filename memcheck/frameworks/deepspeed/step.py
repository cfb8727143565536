"""When the DeepSpeed engine takes and frees its buffers in a step."""

from __future__ import annotations

from memcheck.accounts.timeline import Timeline
from memcheck.frameworks.deepspeed.engine import EngineBuffers
from memcheck.job.types import TrainingJob


class EngineWalk:
    """Hooks that the walk through a step calls where the engine's own hooks run."""

    def __init__(self, job: TrainingJob, buffers: EngineBuffers, timeline: Timeline) -> None:
        self.buffers = buffers
        self.stage = job.layout.zero_stage
        self.timeline = timeline
        several = job.gradient_accumulation_steps > 1
        late = self.buffers.reduces_late
        self.moves_gradients = self.stage >= 2 or (self.stage == 1 and not several and not late)
        """Each gradient moves into its bucket and the partition as it appears; else the whole model's are kept."""
        self._buckets = 0
        self._gathering = 0

    def begin_micro_batch(self) -> None:
        """ZeRO-3 gathers as much as may live, through a flat buffer."""
        self.timeline.hold("communication_buffers", self.buffers.live_parameters)
        self._gather(self.buffers.gathering)

    def before_head(self) -> None:
        """The last parameter is copied out of the flat buffer."""
        self._gather(0)

    def behind(self, kind: str, first: bool, last: bool) -> None:
        """A unit's gradients are there. Buckets are made for the first, the rank's own part as they are reduced.

        ZeRO-2 reduces every micro-batch and adds to what it has; ZeRO-1 reduces the last one.
        """
        timeline, b = self.timeline, self.buffers
        if kind != "head":
            return
        if not self._buckets:
            timeline.hold("communication_buffers", b.buckets)
            self._buckets = b.buckets
        if not b.reduces_late and (self._adds(first) if self.stage == 2 else last):
            timeline.hold("gradients", b.partition)
        if b.gathers_again:
            self._gather(b.gathering)
        if not b.reduces_late and (last or self.stage >= 2):
            self._copy_for_offload()

    def end_backward(self, first: bool, last: bool) -> None:
        """Everything of this micro-batch is reduced, or none of it was to be."""
        timeline, b = self.timeline, self.buffers
        self._gather(0)
        if last:
            timeline.hold("gradients", b.partition if b.reduces_late and b.copies_out else 0)
            timeline.hold("communication_buffers", b.all_reduce)
        timeline.mark("backward", "reduction of the gradients")
        if last or self.stage >= 2:
            timeline.hold("gradients", b.moving)
            self._copy_for_offload()
            timeline.release("gradients", b.moving)
        if last:
            timeline.release("communication_buffers", b.all_reduce)
        if self.stage == 2 and not first and self._adds(first):
            timeline.release("gradients", b.partition)
        if self.stage == 2 or last:
            timeline.release("communication_buffers", self._buckets)
            self._buckets = 0
        if last and b.whole_gradients and not self.moves_gradients:
            timeline.release("gradients", b.whole_gradients)
            timeline.hold("gradients", 0 if b.copies_out else b.partition)
        timeline.release("communication_buffers", b.live_parameters)

    def _copy_for_offload(self) -> None:
        self.timeline.hold("temporaries", self.buffers.reducing)
        self.timeline.mark("backward", "gradients on their way to the host")
        self.timeline.release("temporaries", self.buffers.reducing)

    def _adds(self, first: bool) -> bool:
        return first or not self.buffers.adds_in_place

    def _gather(self, size: int) -> None:
        self.timeline.hold("communication_buffers", size - self._gathering)
        self._gathering = size
