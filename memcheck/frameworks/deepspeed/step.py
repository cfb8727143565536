"""When the DeepSpeed engine takes and frees its buffers in a step."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.program import NOTHING, Amount, NamedCurve, Recorder
from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.deepspeed.engine import EngineBuffers, engine_buffers, gathered_at_once, kept_whole, sums_apart
from memcheck.frameworks.engine import Engine
from memcheck.frameworks.torch.data_parallel import FIRST_OF_PAIR, DataParallel, MicroBatch, NamedUnit, StepUnits
from memcheck.job.types import TrainingJob
from memcheck.record import Record


class ZeroEngine(Record):
    """The settings of DeepSpeed's engine that decide a step, and which of its buffers are not empty."""

    stage: int
    """ZeRO's stage, 0 to 3."""
    accumulates: bool
    """Micro-batches are accumulated."""
    there: tuple[bool, ...]
    """Fields of :class:`EngineBuffers` that are not zero; those that are facts come as they are."""

    @property
    def sizes(self) -> int:
        """How many buffers there are."""
        return sum(there for name, there in zip(EngineBuffers._fields, self.there, strict=True) if name not in FACTS)

    def hooks(self, recorder: Recorder, step_units: StepUnits, first: int) -> EngineStep:
        """Return the hooks of one step, whose buffers get the indices of sizes from ``first`` on."""
        fields: dict[str, int | bool] = {}
        for name, there in zip(EngineBuffers._fields, self.there, strict=True):
            if name in FACTS:
                fields[name] = there
            elif there:
                fields[name] = first
                first += 1
        buffers = EngineBuffers(**fields)  # type: ignore[arg-type]
        return EngineStep(recorder, step_units, self, buffers)


FACTS = ("reduces_late", "reduces_once", "copies_out", "adds_in_place")
"""Fields of :class:`EngineBuffers` that are no sizes."""


def engine_step(job: TrainingJob, units: Sequence[tuple[LocalTensor, ...]]) -> tuple[ZeroEngine, tuple[int, ...]]:
    """Return how the engine runs a step, and the bytes of its buffers one after the other.

    ``units``: the parameters of each unit of the rank.
    """
    buffers = engine_buffers(job, units, recomputes=job.checkpointing.mode == "full")
    sizes = [n_bytes for name, n_bytes in zip(buffers._fields, buffers, strict=True) if n_bytes and name not in FACTS]
    accumulates = job.gradient_accumulation_steps > 1
    return ZeroEngine(job.layout.zero_stage, accumulates, tuple([bool(n_bytes) for n_bytes in buffers])), tuple(sizes)


def saves_inputs(job: TrainingJob) -> bool:
    """Whether ZeRO-3 puts a function of its own in place of ``F.linear`` (``memory_efficient_linear``)."""
    return job.layout.zero_stage == 3 and bool(job.option("memory_efficient_linear", True))


class EngineStep(DataParallel):
    """The hooks of DeepSpeed's engine in one step."""

    def __init__(self, recorder: Recorder, step_units: StepUnits, options: ZeroEngine, buffers: EngineBuffers) -> None:
        """``buffers``: the engine's buffers, with indices of sizes instead of bytes."""
        super().__init__(recorder, step_units)
        self.buffers, self.stage = buffers, options.stage
        moves_at_once = not options.accumulates and not buffers.reduces_late and buffers.copies_out
        self.moves_gradients = self.stage >= 2 or (self.stage == 1 and moves_at_once)
        """Whether hooks move each gradient to its bucket and partition at once; else all gradients are kept."""
        self._buckets = NOTHING
        self._reducing = NOTHING
        self._micro_batch = MicroBatch(first=True, last=True, sends=0)

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Return the curve of a unit: one without new gradients if hooks move them to buckets."""
        return unit.later_curve if self.moves_gradients else super().curve(unit, first)

    def frees_first_gradients(self, pair_before: bool) -> bool:
        """The engine takes the sum."""
        return True

    def before_inputs(self) -> None:
        """ZeRO-3 gathers parameters."""
        self.recorder.hold("communication_buffers", self.buffers.live_parameters)

    def before_loss(self, *, after_model: bool) -> None:
        """Replace ZeRO-3's gathered parameters of the forward by those of the last unit."""
        self.recorder.hold("communication_buffers", self.buffers.live_head)
        self.recorder.release("communication_buffers", self.buffers.live_parameters)

    def begin_backward(self, micro_batch: MicroBatch, *, all_forwards_first: bool) -> None:
        """Remember which micro-batch it is, which decides what is reduced."""
        self._micro_batch = micro_batch

    def before_backward(self, index: int, curve: NamedCurve) -> None:
        """Before the first unit's backward, replace ZeRO-3's gathered parameters by those of the backward's end."""
        if index == 0 and self.pair != FIRST_OF_PAIR:
            self.recorder.hold("communication_buffers", self.buffers.live_end)
            self.recorder.release("communication_buffers", self.buffers.live_backward)

    def unit_gradients(self, index: int, curve: NamedCurve) -> Amount:
        """Run the hooks on the gradients of the unit at ``index``, and return these gradients.

        The hooks are AccumulateGrad's: none runs in the first pass of a pair.
        """
        if self.pair != FIRST_OF_PAIR:
            first, last, _ = self._micro_batch
            self._reduce_in_hooks(self.units[index].kind, curve, self.names[index], first, last)
        return super().unit_gradients(index, curve)

    def _reduce_in_hooks(self, kind: str, curve: NamedCurve, name: str, first: bool, last: bool) -> None:
        """Put the gradients of one unit into buckets and reduce full buckets, as ZeRO-1 and ZeRO-2 do in hooks.

        The buckets are allocated at the head, whose gradients come first, and the rank's partition with the first
        reduction. ZeRO-2 reduces in every micro-batch and adds to its partition; ZeRO-1 reduces in the last one.
        ``curve.grad_hook_peak`` is the unit's peak when a gradient arrives. ``curve.later_grad_hook_peak`` leaves out
        the first gradient of the backward, for which no reduction is pending.
        """
        recorder, b = self.recorder, self.buffers
        reduces = not b.reduces_late and (last or self.stage >= 2)
        if kind == "head":
            if not self._buckets:
                recorder.hold("communication_buffers", b.buckets)
                self._buckets = b.buckets
            self._replace_temporaries(b.unbucketed_gradients if reduces else NOTHING)
        at_any_gradient, at_later_gradient = curve.grad_hook_peak, curve.later_grad_hook_peak
        if at_any_gradient is not None and kind == "head":
            recorder.high("backward", at_any_gradient, name)
        reducing = at_later_gradient if kind == "head" else at_any_gradient
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
        if reduces and self._allocates_partition(first) and not b.reduces_once:
            recorder.hold("gradients", b.partition)
        if reduces:
            self._copy_for_offload()

    def end_micro_batch(self, first: bool, last: bool) -> None:
        """Reduce what is left in the buckets after the backward, and free the buffers that end with it.

        ZeRO-2 and 3 reduce in every micro-batch, stages 0 and 1 in the last one.
        """
        recorder, b = self.recorder, self.buffers
        reduces = last or self.stage >= 2
        self._replace_temporaries(b.reducing_after if reduces else NOTHING)
        new_partition = b.partition if reduces and b.reduces_once and self._allocates_partition(first) else NOTHING
        if b.adds_in_place:  # the fp32 sums are made before
            recorder.hold("gradients", new_partition)
        if last:
            recorder.hold("communication_buffers", b.all_reduce)
        recorder.mark("backward", "reduction of the gradients")
        self._replace_temporaries(NOTHING)
        if reduces:
            recorder.hold("gradients", b.last_gradient)
            self._copy_for_offload()
            recorder.release("gradients", b.last_gradient)
        if not b.adds_in_place:
            recorder.hold("gradients", new_partition)
            recorder.mark("backward", "the rank's own gradients")
        if last:
            recorder.release("communication_buffers", b.all_reduce)
        if self.stage == 2 and not first and self._starts_partition(first):  # the sum replaces the earlier partition
            recorder.release("gradients", b.partition)
        if self.stage == 2 or last:
            recorder.release("communication_buffers", self._buckets)
            self._buckets = NOTHING
        if last and b.whole_gradients and not self.moves_gradients:
            recorder.release("gradients", b.whole_gradients)
            if b.reduces_late or not self._has_own_partition:
                recorder.hold("gradients", b.partition)
        recorder.release("communication_buffers", b.live_end)

    def _allocates_partition(self, first: bool) -> bool:
        """Return whether this micro-batch allocates a new buffer for the rank's partition of the gradients."""
        return (self.stage == 1 or self._starts_partition(first)) and self._has_own_partition

    @property
    def _has_own_partition(self) -> bool:
        """Whether the rank's partition is a buffer in addition to the gradients that autograd keeps."""
        return self.moves_gradients or self.buffers.copies_out

    def _replace_temporaries(self, size: int) -> None:
        """Replace the temporary buffers of a reduction by buffers of ``size``; NOTHING frees them."""
        self.recorder.release("communication_buffers", self._reducing)
        self.recorder.hold("communication_buffers", size)
        self._reducing = size

    def _copy_for_offload(self) -> None:
        self.recorder.hold("temporaries", self.buffers.reducing)
        self.recorder.mark("backward", "gradients on their way to the host")
        self.recorder.release("temporaries", self.buffers.reducing)

    def _starts_partition(self, first: bool) -> bool:
        return first or not self.buffers.adds_in_place


ENGINE = Engine(
    buffers=engine_buffers,
    strategy=engine_step,
    sums_apart=sums_apart,
    saves_inputs=saves_inputs,
    kept_whole=kept_whole,
    gathered_at_once=gathered_at_once,
)
