"""When the DeepSpeed engine takes and frees its buffers in a step."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.program import NOTHING, Amount, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.deepspeed.engine import EngineBuffers, engine_buffers, gathered_at_once, kept_whole, sums_apart
from memcheck.frameworks.engine import Engine
from memcheck.frameworks.torch.data_parallel import FIRST_OF_PAIR, DataParallel, MicroBatch, NamedUnit, StepUnits
from memcheck.job.types import TrainingJob
from memcheck.record import Record


class EngineForm(Record):
    """How DeepSpeed's engine runs a step, without the sizes of its buffers."""

    stage: int
    """ZeRO's stage, 0 to 3."""
    several: bool
    """Micro-batches are accumulated."""
    there: tuple[bool, ...]
    """Fields of :class:`EngineBuffers` that are not zero; those that are facts come as they are."""

    @property
    def sizes(self) -> int:
        """How many buffers there are."""
        return sum(there for name, there in zip(EngineBuffers._fields, self.there, strict=True) if name not in FACTS)

    def hooks(self, recorder: Recorder, row: StepUnits, first: int) -> EngineStep:
        """The hooks, whose sizes have the places from ``first`` on."""
        found: dict[str, int | bool] = {}
        for name, there in zip(EngineBuffers._fields, self.there, strict=True):
            if name in FACTS:
                found[name] = there
            elif there:
                found[name] = first
                first += 1
        buffers = EngineBuffers(**found)  # type: ignore[arg-type]
        return EngineStep(recorder, row, self, buffers)


FACTS = ("reduces_late", "reduces_once", "copies_out", "adds_in_place")
"""Fields of :class:`EngineBuffers` that are no sizes."""


def engine_step(job: TrainingJob, units: Sequence[tuple[LocalTensor, ...]]) -> tuple[EngineForm, tuple[int, ...]]:
    """How the engine runs a step, and the sizes of its buffers in a row. ``units``: a rank's parameters."""
    buffers = engine_buffers(job, units, recomputes=job.checkpointing.mode == "full")
    sizes = [n for name, n in zip(buffers._fields, buffers, strict=True) if n and name not in FACTS]
    several = job.gradient_accumulation_steps > 1
    return EngineForm(job.layout.zero_stage, several, tuple([bool(n) for n in buffers])), tuple(sizes)


def saves_inputs(job: TrainingJob) -> bool:
    """Whether ZeRO-3 puts a function of its own in place of ``F.linear`` (``memory_efficient_linear``)."""
    return job.layout.zero_stage == 3 and bool(job.option("memory_efficient_linear", True))


class EngineStep(DataParallel):
    """The engine's hooks in a step."""

    def __init__(self, recorder: Recorder, row: StepUnits, options: EngineForm, buffers: EngineBuffers) -> None:
        """``buffers``: with places of sizes."""
        super().__init__(recorder, row)
        self.buffers, self.stage = buffers, options.stage
        early = not options.several and not buffers.reduces_late and buffers.copies_out
        self.moves_gradients = self.stage >= 2 or (self.stage == 1 and early)
        """Each gradient moves into its bucket and the partition as it appears; else the whole model's are kept."""
        self._buckets = NOTHING
        self._reducing = NOTHING
        self._each = MicroBatch(True, True, 0)

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """A gradient that moves leaves nothing new."""
        return unit.again if self.moves_gradients else super().curve(unit, first)

    def drops_pending(self, earlier: bool) -> bool:
        """The engine takes the sum."""
        return True

    def before_inputs(self) -> None:
        """ZeRO-3 gathers parameters."""
        self.recorder.hold("communication_buffers", self.buffers.live_parameters)

    def before_loss(self, *, after_model: bool) -> None:
        """The last unit is about to run."""
        self.recorder.hold("communication_buffers", self.buffers.live_head)
        self.recorder.release("communication_buffers", self.buffers.live_parameters)

    def begin_backward(self, each: MicroBatch, *, all_at_once: bool) -> None:
        """Which micro-batch it is decides what is reduced."""
        self._each = each

    def before_backward(self, i: int, curve: NamedCurve) -> None:
        """The first unit's backward is about to run."""
        if i == 0 and self.pair != FIRST_OF_PAIR:
            self.recorder.hold("communication_buffers", self.buffers.live_end)
            self.recorder.release("communication_buffers", self.buffers.live_backward)

    def arrive(self, i: int, curve: NamedCurve) -> Amount:
        """The hooks of a unit's gradients, which are AccumulateGrad's: none runs in the first pass of a pair."""
        if self.pair != FIRST_OF_PAIR:
            self._take(self.units[i].kind, curve, self.names[i], self._each.first, self._each.last)
        return super().arrive(i, curve)

    def _take(self, kind: str, curve: NamedCurve, name: str, first: bool, last: bool) -> None:
        """A unit's gradients are there. Buckets are made for the first, the rank's own part as they are reduced.

        ZeRO-2 reduces every micro-batch and adds to what it has; ZeRO-1 reduces the last one. The curve has the highest
        point at which a gradient of the unit arrived (``hooked``). It also has that at which another did than the first
        of the backward, for which nothing is pending (``later``).
        """
        recorder, b = self.recorder, self.buffers
        reduces = not b.reduces_late and (last or self.stage >= 2)
        if kind == "head":
            if not self._buckets:
                recorder.hold("communication_buffers", b.buckets)
                self._buckets = b.buckets
            self._reduce(b.waiting if reduces else NOTHING)
        any_, later = curve.hooked, curve.later
        if any_ is not None and kind == "head":
            recorder.high("backward", any_, name)
        reducing = later if kind == "head" else any_
        if reducing is not None:
            ends = {"head": b.reducing_head, "embedding": b.reducing_last}
            copies = ends.get(kind, b.reducing_within) if reduces else NOTHING
            recorder.hold("communication_buffers", copies)
            recorder.high("backward", reducing, name)
            recorder.release("communication_buffers", copies)
        if kind != "head":
            return
        recorder.hold("communication_buffers", b.live_backward)
        recorder.release("communication_buffers", b.live_head)
        if reduces and self._takes_own(first) and not b.reduces_once:
            recorder.hold("gradients", b.partition)
        if reduces:
            self._copy_for_offload()

    def end_micro_batch(self, first: bool, last: bool) -> None:
        """Everything of this micro-batch is reduced, or none of it was to be."""
        recorder, b = self.recorder, self.buffers
        reduces = last or self.stage >= 2
        self._reduce(b.reducing_after if reduces else NOTHING)
        once = b.partition if reduces and b.reduces_once and self._takes_own(first) else NOTHING
        if b.adds_in_place:  # the fp32 sums are made before
            recorder.hold("gradients", once)
        if last:
            recorder.hold("communication_buffers", b.all_reduce)
        recorder.mark("backward", "reduction of the gradients")
        self._reduce(NOTHING)
        if reduces:
            recorder.hold("gradients", b.moving)
            self._copy_for_offload()
            recorder.release("gradients", b.moving)
        if not b.adds_in_place:
            recorder.hold("gradients", once)
            recorder.mark("backward", "the rank's own gradients")
        if last:
            recorder.release("communication_buffers", b.all_reduce)
        if self.stage == 2 and not first and self._adds(first):
            recorder.release("gradients", b.partition)
        if self.stage == 2 or last:
            recorder.release("communication_buffers", self._buckets)
            self._buckets = NOTHING
        if last and b.whole_gradients and not self.moves_gradients:
            recorder.release("gradients", b.whole_gradients)
            if b.reduces_late or not self._own_apart:
                recorder.hold("gradients", b.partition)
        recorder.release("communication_buffers", b.live_end)

    def _takes_own(self, first: bool) -> bool:
        """The rank's own gradients go to a buffer of this micro-batch's own."""
        return (self.stage == 1 or self._adds(first)) and self._own_apart

    @property
    def _own_apart(self) -> bool:
        """The rank's own gradients are not among those that autograd keeps."""
        return self.moves_gradients or self.buffers.copies_out

    def _reduce(self, size: int) -> None:
        """What reducing takes from now on."""
        self.recorder.release("communication_buffers", self._reducing)
        self.recorder.hold("communication_buffers", size)
        self._reducing = size

    def _copy_for_offload(self) -> None:
        self.recorder.hold("temporaries", self.buffers.reducing)
        self.recorder.mark("backward", "gradients on their way to the host")
        self.recorder.release("temporaries", self.buffers.reducing)

    def _adds(self, first: bool) -> bool:
        return first or not self.buffers.adds_in_place


ENGINE = Engine(
    buffers=engine_buffers,
    strategy=engine_step,
    sums_apart=sums_apart,
    saves_inputs=saves_inputs,
    kept_whole=kept_whole,
    gathered_at_once=gathered_at_once,
)
