"""Which single wrong number of a plan explains how its run died: each candidate is estimated again by the engine.

What was live and what was asked for are a lower bound of the need. A candidate closes the gap if its own need is above
that bound and above what the GPU had. A tensor of the size that failed, and the phase of the traceback, tell apart the
candidates that close it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import value
from memcheck.errors import MemcheckError
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.judge import Gate, check_document
from memcheck.memory.fit import DOES_NOT_FIT, FITS, verdict_in
from memcheck.models.types import Rough
from memcheck.plan.finding import Remedy
from memcheck.plan.places import Document
from memcheck.rules.result import PlanResult
from memcheck.verify.subject import Subject, changed, load_subject
from memcheck.what_if import with_remedies
from memcheck.why.evidence import (
    ALLOCATED,
    CLOSE,
    DEVICE,
    ENOUGH,
    FREE,
    HOST,
    IN_USE,
    LIKELY,
    OTHERS,
    POSSIBLE,
    RESERVED,
    TOTAL,
    TRIED,
    UNALLOCATED,
    UNEXPLAINED,
    Message,
    Observed,
    TensorReading,
    support,
)
from memcheck.why.explained import (
    AS_PREDICTED,
    EAGER,
    EVALUATION,
    FRAGMENTATION,
    IMBALANCE,
    LARGER,
    LEAK,
    LOAD,
    LOGITS_KEPT,
    LONGER,
    MORE_TOKENS,
    NOT_SHARDED,
    NOT_SYNCHRONISED,
    OTHER_PROCESS,
    RECOMPUTE,
    SAVE,
    SMALLER_CARD,
    UNKNOWN_CAUSE,
    Cause,
    Difference,
    Excluded,
    Explained,
)
from memcheck.why.readings import CONTEXT, is_fragmented, size
from memcheck.why.shapes import TensorFit, readings, tensor_bytes

TOKENS = (MORE_TOKENS, LONGER, LARGER)
MOST_TIMES = 64
"""How many times the stated batch is worth trying."""
LARGE_PART = 0.08
"""Share of the GPU from which memory that others hold is more than what contexts and rounding explain."""
TOO_MUCH = ("MEM101", "MEM102", "MEM104", "MEM108")
"""Findings that say that a plan needs too much of a GPU."""
LATE = ("backward", "optimizer")
"""Phases whose traceback shows that the phases before them were outlived."""
FRAMES = 3
"""Innermost lines of a traceback in which a cast to fp32 is looked for."""
ROUND = tuple(2**power for power in range(20, 6, -1))
RARE, ODD = 6, 7
"""Lengths that somebody chose are multiples of a power of two that is wider than the range, or small ones of any."""
LONGEST_TIMES = 8
"""More times the plan's length are packed or unbalanced rows, not one longer row."""


def explain(document: Document, message: Message, growth: int = 0) -> Explained:
    """Compare a plan with the message of a run's death.

    ``growth``: by how many bytes memory rose from the first steps to the last ones, by a log or a snapshot.
    """
    subject = load_subject(document)
    if isinstance(subject, PlanResult):
        return Explained(plan=subject)
    result = check_document(document, Gate(inventory=True, remedies=with_remedies))
    if message.kind == HOST:
        return _of_host(result, message)
    if message.kind != DEVICE:
        return Explained(plan=result)
    return PlanComparison(subject, result, message, growth).explained()


def _of_host(result: PlanResult, message: Message) -> Explained:
    estimate = result.estimate
    if estimate is None or estimate.host_moment is None:
        return Explained(plan=result, causes=(_unknown("The plan keeps nothing in host memory.", message),))
    capacity = result.host_capacity_bytes
    moment = estimate.host_moment
    told = f"{size(moment.bytes)} of host memory at {moment.name}"
    if capacity is None:
        text = f"The plan needs {told} on each node. State `hardware.host_memory_gib` to compare it with the limit."
        return Explained(
            plan=result,
            causes=(Cause(id=UNKNOWN_CAUSE, certainty=POSSIBLE, text=text, changes={}, lines=(message.line,)),),
        )
    if moment.bytes > capacity:
        text = f"As predicted: the plan needs {told}, and each node has {size(capacity)}."
        cause = Cause(
            id=AS_PREDICTED, certainty=LIKELY, text=text, changes={}, instant=moment.name, lines=(message.line,)
        )
        return Explained(plan=result, causes=(cause,), remedies=_remedies(result, "MEM106"))
    text = f"The plan needs {told} of {size(capacity)}. What else runs on the node decides."
    return Explained(plan=result, causes=(_unknown(text, message),))


def _unknown(text: str, message: Message) -> Cause:
    return Cause(id=UNKNOWN_CAUSE, certainty=POSSIBLE, text=text, changes={}, lines=(message.line,))


def _remedies(result: PlanResult, *codes: str) -> tuple[Remedy, ...]:
    found = [r for f in result.findings if not codes or f.code in codes for r in f.remedies]
    return tuple({tuple(sorted(map(str, r.set.items()))): r for r in found}.values())


class PlanComparison:
    """One plan against one message of the device."""

    def __init__(self, subject: Subject, result: PlanResult, message: Message, growth: int) -> None:
        self.subject, self.result, self.message, self.growth = subject, result, message, growth
        self.estimate = subject.estimate
        self.job = subject.job
        self.figures = message.figures
        self.lines = (message.line,)
        f = self.figures
        held = f.get(ALLOCATED)
        self.tried = f.get(TRIED)
        tried = self.tried.bytes if self.tried is not None else 0
        self.floor: int | None = held.bytes + tried if held is not None else None
        """Live bytes and those asked for: what the step needs at least."""
        total = f.get(TOTAL)
        self.total = total.bytes if total is not None else self.estimate.capacity_bytes
        self.foreign = self._foreign()
        self.available = self.total - self.foreign
        self.fit = self._readings(self.job)
        exact = message.pattern != "torch"
        bounds = tensor_bytes(self.tried, exact=exact) if self.tried is not None else None
        self.observed = Observed(message.phase, self.floor, bounds)
        self.prices: dict[str, Subject | None] = {}

    def _foreign(self) -> int:
        """Bytes of the GPU that are not this process's."""
        others = self.figures.get(OTHERS)
        rest, own = self.figures.get(UNEXPLAINED), self.figures.get(IN_USE)
        count = others.bytes if others is not None else 0
        if rest is not None:
            usual = 2**29 if own is not None else CONTEXT + self.total // 50
            count += max(0, rest.bytes - usual) if rest.bytes > usual else 0
        return count

    def _readings(self, job: TrainingJob | InferenceJob) -> TensorFit:
        if self.tried is None or isinstance(job.architecture, Rough):
            return TensorFit((), 0, 0)
        frames = (*self.message.frames, self.message.text)
        exact = self.message.pattern != "torch"
        rank = next(r for r in self.estimate.ranks if r.pipeline_rank == self.estimate.pipeline_rank)
        return readings(self.tried, job.architecture, job, frames, exact=exact, ledger=rank.ledger)

    def explained(self) -> Explained:
        """Causes, the likeliest first, and what the figures rule out."""
        causes, excluded = self._causes()
        if not causes:
            causes = [_unknown("No single number of the plan explains the figures.", self.message)]
        first = causes[0]
        on, remedies = None, _remedies(self.result, *TOO_MUCH)
        if first.changes:
            on = check_document(
                changed(self.subject.document, first.changes), Gate(inventory=True, remedies=with_remedies)
            )
            remedies = _remedies(on, *TOO_MUCH)
        remedies = tuple(r for r in remedies if r.needed_bytes <= self.available)
        return Explained(
            plan=self.result,
            causes=tuple(causes),
            excluded=tuple(excluded),
            differences=tuple(self._differences()),
            fit=self.fit,
            remedies=remedies,
            on=on,
        )

    def _causes(self) -> tuple[list[Cause], list[Excluded]]:
        """Rank the causes that the figures show directly first: they need no other number to be wrong."""
        direct = sorted(self._direct(), key=lambda cause: cause.certainty != LIKELY)
        repriced, excluded = self._repriced()
        verdict = self.result.verdict
        other_gpu = self.total > self.estimate.capacity_bytes * 1.05
        if other_gpu or self.estimate.longest_row:  # what the GPU of the run gives decides, and rows at their limit
            verdict = verdict_in(self.estimate.needed_interval_bytes, self.total, 1.0)
        outlived = self._outlived()
        if verdict != FITS and outlived is not None:
            return [outlived, *direct], excluded
        if verdict == DOES_NOT_FIT and not any(c.id == SMALLER_CARD for c in direct):
            return [self._as_predicted(LIKELY), *direct], excluded
        strong = [cause for cause in direct if cause.certainty == LIKELY or self._weighs(cause)]
        weak = [cause for cause in direct if cause not in strong]
        if verdict != FITS and not strong and not (repriced and repriced[0].id in TOKENS and self._read_tokens()):
            return [self._as_predicted(POSSIBLE), *repriced, *weak], excluded
        return [*strong, *repriced, *weak], excluded

    def _weighs(self, cause: Cause) -> bool:
        """Whether what the figures show is a large part of the GPU, so that it comes before what is only imagined."""
        unused = self.figures.get(UNALLOCATED)
        if cause.id == FRAGMENTATION:
            return unused is not None and unused.bytes > LARGE_PART / 2 * self.total
        return cause.id == OTHER_PROCESS and self.foreign > LARGE_PART * self.total

    def _outlived(self) -> Cause | None:
        """Why the run did not end as predicted: it outlived a moment that the plan cannot outlive.

        That moment's need is taken without optimizer states, which the first step makes after it. None where no such
        moment comes before the phase of the message, and the plan does not fit in that phase either.
        """
        e = self.estimate
        instants = next(r for r in e.ranks if r.pipeline_rank == e.pipeline_rank).instants
        phase, given = self.message.phase, max(e.capacity_bytes, self.total)
        first = next((n for n, i in enumerate(instants) if i.name == phase), None)
        if phase not in LATE or first is None:
            return None
        before = [(i.allocated_bytes - i.components_bytes.get("optimizer_states", 0), i) for i in instants[:first]]
        count, passed = max(before, key=lambda row: row[0], default=(0, instants[first]))
        if count * (1 - CLOSE) > given:
            return _unknown(
                f"Not as predicted: the plan needs at least {size(count)} in {passed.name} and the GPU gives "
                f"{size(given)}. The run outlived {passed.name}, since it died in {phase}: the plan is larger.",
                self.message,
            )
        there = max(i.allocated_bytes for i in instants if i.name == phase) + e.needed_bytes - e.allocated_bytes
        if there <= given and any(i.name == e.instant for i in instants[:first]):
            return _unknown(
                f"Not as predicted: the plan's highest moment is {e.instant}, which the run outlived. It died in "
                f"{phase}, where the plan needs {size(there)} and the GPU gives {size(given)}.",
                self.message,
            )
        return None

    def _as_predicted(self, certainty: str) -> Cause:
        e = self.estimate
        given = max(e.capacity_bytes, self.total)
        top = max(e.largest, key=lambda group: group.bytes, default=None)
        copies = f"{top.copies} x " if top is not None and top.copies > 1 else ""
        there = f" The largest there: {copies}{f'{top.name} {top.shape}'.strip()}." if top is not None else ""
        verb = "needs" if certainty == LIKELY else "may need more than the GPU has: it needs"
        text = (
            f"As predicted: the plan {verb} {size(e.needed_bytes)} and the GPU gives {size(given)}. "
            f"The highest moment is {e.instant}, {e.operation}.{self._died_later()}{there}"
        )
        return self._at_peak(e, AS_PREDICTED, certainty, text, {})

    def _at_peak(self, e: Estimate, id: str, certainty: str, text: str, changes: dict[str, Any]) -> Cause:
        """A cause for which the plan has this estimate: the run died at its peak."""
        return Cause(
            id=id,
            certainty=certainty,
            text=text,
            changes=changes,
            instant=e.instant,
            pipeline_rank=e.pipeline_rank,
            predicted_bytes=e.allocated_bytes,
            lines=self.lines,
        )

    def _died_later(self) -> str:
        """A sentence where the log names another moment than the plan's highest."""
        phase, e = self.message.phase, self.estimate
        found = [i for r in e.ranks if r.pipeline_rank == e.pipeline_rank for i in r.instants if i.name == phase]
        if not found or phase == e.instant:
            return ""
        there = max(instant.allocated_bytes for instant in found) + e.needed_bytes - e.allocated_bytes
        return f" The run died in {phase}, for which the plan needs {size(there)}."

    def _direct(self) -> Iterator[Cause]:
        e, f = self.estimate, self.figures
        total, unused = f.get(TOTAL), f.get(UNALLOCATED)
        needed = e.needed_bytes
        most = e.needed_interval_bytes[1]
        if total is not None and total.high_bytes < 0.95 * e.capacity_bytes:
            sure = needed > total.high_bytes
            text = (
                f"The GPU gives {size(total)}, and the plan says {self.subject.gpu.name} with {size(e.capacity_bytes)}."
            )
            text += f" The plan needs {size(needed)}." if sure else ""
            memory = {"hardware.gpu": {"name": self.subject.gpu.name, "memory_gib": round(total.bytes / 2**30, 2)}}
            yield self._at_peak(e, SMALLER_CARD, LIKELY if sure else POSSIBLE, text, memory)
        if self.growth:
            text = f"Memory rose by {size(self.growth)} over steps that the plan takes as alike."
            yield Cause(
                id=LEAK,
                certainty=LIKELY if most <= self.available else POSSIBLE,
                text=text,
                changes={},
                predicted_bytes=e.allocated_bytes,
                lines=self.lines,
            )
        if self.foreign > self.total // 50 and most <= self.total:
            sure = most > self.available
            text = (
                f"Something else holds {size(self.foreign)} of the GPU. The plan needs {size(needed)}, "
                f"and {size(max(0, self.available))} are left for it."
            )
            yield self._at_peak(e, OTHER_PROCESS, LIKELY if sure else POSSIBLE, text, {})
        if is_fragmented(self.message) and unused is not None and self.tried is not None:
            within = self.floor is not None and self.floor <= e.allocated_bytes * (1 + CLOSE)
            within = within and unused.bytes > LARGE_PART / 2 * self.total
            text = (
                f"{size(unused)} were reserved and unused, as much as the {size(self.tried)} that were asked for: "
                "the pool is in pieces."
            )
            change = {"training.expandable_segments": True} if isinstance(self.job, TrainingJob) else {}
            usable = change if not getattr(self.job, "expandable_segments", True) else {}
            yield self._at_peak(e, FRAGMENTATION, LIKELY if within else POSSIBLE, text, usable)

    def _repriced(self) -> tuple[list[Cause], list[Excluded]]:
        """Candidates that close the gap, the best supported first, and those that do not."""
        found: list[tuple[float, Cause]] = []
        excluded: list[Excluded] = []
        own = self._fixed(self.fit)
        for id, changes, why in self._candidates():
            if id in TOKENS and own is not None:
                text = f"What failed is {own.tensor} with the plan's own batch and length: {_shape(own)}."
                excluded.append(Excluded(id, text, self.lines))
                continue
            subject = self._subject(changes)
            if subject is None:
                continue
            e = subject.estimate
            enough = e.needed_interval_bytes[1] > self.available
            reaches = self.floor is None or e.allocated_bytes >= self.floor * (1 - CLOSE)
            if not (enough and reaches):
                text = f"With {_told(changes)} the plan needs {size(e.needed_bytes)}. That is less than the run had."
                excluded.append(Excluded(id, text, self.lines))
                continue
            score = support(self.observed, self.estimate, e)
            needs = f"With {_told(changes)} the plan needs {size(e.needed_bytes)}"
            text = f"{why} {needs}, and the GPU gives {size(self.available)}."
            found.append((score, self._at_peak(e, id, POSSIBLE, text, changes)))
        found.sort(key=lambda row: -row[0])
        best: dict[str, tuple[float, Cause]] = {}
        for score, cause in found:
            best.setdefault(cause.id, (score, cause))
        ranked = list(best.values())
        causes = [cause for _, cause in ranked]
        if ranked and ranked[0][0] >= ENOUGH and (len(ranked) == 1 or ranked[1][0] < ranked[0][0] - 1):
            causes[0] = causes[0]._replace(certainty=LIKELY)
        kept = {cause.id for cause in causes}
        return causes, [each for each in {x.id: x for x in excluded}.values() if each.id not in kept]

    def _fixed(self, fit: TensorFit) -> TensorReading | None:
        """A tensor of the pass, with no open number, that has the size that failed."""
        return next((r for r in fit.readings if not r.free_name and "weight" not in r.note and len(r.shape) > 1), None)

    def _read_tokens(self) -> tuple[TensorReading, ...]:
        """Readings that give a number of tokens or sequences beyond the plan's own."""
        if not isinstance(self.job, TrainingJob):
            return ()
        tokens = self.job.rows * self.job.sequence_length // self.job.layout.context
        found = tuple(
            r
            for r in self.fit.readings[: self.fit.spoken or None]
            if (r.free_name == "tokens" and tokens < r.free_range[1] and r.free_range[0] <= MOST_TIMES * tokens)
            or (r.free_name == "sequences" and self.job.rows < r.free_range[1] <= MOST_TIMES * self.job.rows)
            or (r.free_name == "length" and r.free_range[1] > self.job.sequence_length)
        )
        if any(".float()" in line for line in (*self.message.frames[-FRAMES:], self.message.text)):
            found = tuple(r for r in found if r.dtype == "fp32") or found
        logits = tuple(r for r in found if r.tensor.startswith("logits"))
        return logits if logits and self.message.phase == "loss" else found

    def _candidates(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Identifier, changes of the plan, and why, for each number that may be wrong."""
        job = self.job
        if not isinstance(job, TrainingJob):
            if job.layout.tensor > 1:
                yield NOT_SHARDED, {"parallelism.tensor": 1}, "Each rank holds the whole model before it is split."
            return
        yield from self._tokens(job)
        if job.attention != "eager" and "eager" in job.framework.attentions:
            yield EAGER, {"training.attention": "eager"}, "Attention without a fused kernel keeps its scores."
        if job.checkpointing.mode != "none":
            yield RECOMPUTE, {"training.activation_checkpointing": "none"}, "Nothing is recomputed."
        layout = job.layout
        if layout.zero_stage > 0 and layout.data * layout.context > 1:
            changes = {"parallelism.zero_stage": 0, "parallelism.shard_group": "auto"}
            yield NOT_SHARDED, changes, "Each rank holds the whole model."
        if layout.data > 1 and layout.gradient_sync == "every" and layout.zero_stage in (2, 3):
            yield (
                NOT_SYNCHRONISED,
                {"parallelism.gradient_sync": "last"},
                "Gradients stay whole until the last micro-batch.",
            )
        if job.loss.kind != "standard" and "standard" in job.framework.losses.kinds:
            yield LOGITS_KEPT, {"training.loss": "standard"}, "The loss is not fused: the logits are whole."
        elif not job.loss.keep_logits:
            kept = {**job.loss.stated(), "keep_logits": True}
            if job.loss.kind != "chunked":
                kept.pop("chunks", None)
            yield LOGITS_KEPT, {"training.loss": kept}, "The logits are kept during the backward pass."
        if layout.expert > 1:
            for imbalance in (1.5, 2.0, 4.0, 8.0):
                yield (
                    IMBALANCE,
                    {"training.expert_imbalance": imbalance},
                    "One rank's experts get more tokens than others.",
                )
        yield from self._around(job)

    def _around(self, job: TrainingJob) -> Iterator[tuple[str, dict[str, Any], str]]:
        """What the traceback says ran between or before steps, where the plan does not have it."""
        phase = self.message.phase
        if phase == "evaluation" and job.evaluation is None:
            for rows in dict.fromkeys((job.micro_batch_size, 8, 16)):
                for steps in (1, 2, 4, 8, 16, 64):
                    passed = {"micro_batch_size": rows, "logits": "kept", "steps": steps}
                    why = "The run died in an evaluation that the plan does not have."
                    yield EVALUATION, {"training.evaluation": passed}, why
        if phase == "save":
            saved = {"state_dict": "full", "offload": "none"}
            yield SAVE, {"training.checkpoint": saved}, "The whole state is gathered on every GPU to be saved."
        if phase == "load":
            for dtype in ("fp32", "bf16"):
                made = {"place": "device", "weights": dtype}
                yield LOAD, {"training.initialization": made}, "The whole model is made on every GPU."

    def _tokens(self, job: TrainingJob) -> Iterator[tuple[str, dict[str, Any], str]]:
        """What the size that failed says of the batch; without a size, twice the batch and twice the length."""
        rows, length, context = job.rows, job.sequence_length, job.layout.context
        own = rows * length // context
        seen = False
        for reading in self._read_tokens():
            low, high = reading.free_range
            many = f"{_many(low, high)} {reading.free_name}"
            said = f"What failed may be {reading.tensor} of {many}; the plan has {own:,} tokens."
            if reading.free_name == "sequences":
                seen = True
                yield LARGER, _batch(job, high), said
            elif reading.free_name == "length":
                seen = True
                yield LONGER, {"training.sequence_length": high}, said
            else:
                times = high // own if own else 0
                if times > 1 and low <= times * own:
                    yield LARGER, _batch(job, job.micro_batch_size * times), said
                chosen = _chosen(-(-low * context // rows), high * context // rows) if low > own else None
                if chosen is not None and chosen <= LONGEST_TIMES * length:
                    yield LONGER, {"training.sequence_length": chosen}, said
                if low > own:
                    yield MORE_TOKENS, {"training.sequence_length": -(-low * context // rows)}, said
                seen = True
        if not seen:
            yield LARGER, _batch(job, job.micro_batch_size * 2), "The micro-batch is larger."
            yield LONGER, {"training.sequence_length": length * 2}, "The sequences are longer."

    def _subject(self, changes: dict[str, Any]) -> Subject | None:
        key = repr(sorted(changes.items(), key=str))
        if key not in self.prices:
            other: Subject | PlanResult | None = None
            with suppress(MemcheckError):
                other = load_subject(changed(self.subject.document, changes))
            self.prices[key] = other if isinstance(other, Subject) else None
        return self.prices[key]

    def _differences(self) -> Iterator[Difference]:
        """Terms that a message prints next to what the plan predicts for them."""
        e, f = self.estimate, self.figures
        allocated, reserved, unused, own = f.get(ALLOCATED), f.get(RESERVED), f.get(UNALLOCATED), f.get(IN_USE)
        rank = next((r for r in e.ranks if r.pipeline_rank == e.pipeline_rank), None)
        at = next((i for i in rank.instants if i.name == self.message.phase), None) if rank is not None else None
        if allocated is not None:
            name = f"allocated in {at.name}" if at is not None else "allocated at the peak"
            yield Difference(
                name, self.floor or allocated.bytes, at.allocated_bytes if at is not None else e.allocated_bytes
            )
        if unused is not None:
            yield Difference("reserved, not allocated", unused.bytes, e.components_bytes.get("fragmentation", 0))
        elif reserved is not None:
            yield Difference("reserved", reserved.bytes, e.reserved_bytes)
        if own is not None and allocated is not None and unused is not None:
            outside = max(0, own.bytes - allocated.bytes - unused.bytes)
            yield Difference("context and NCCL", outside, e.components_bytes.get("context_and_nccl", 0))
        if self.foreign or OTHERS in f:
            yield Difference("others on the GPU", self.foreign, 0)
        if TOTAL in f:
            yield Difference("size of the GPU", f[TOTAL].bytes, e.capacity_bytes)


def _chosen(low: int, high: int) -> int | None:
    """The roundest length between two; None where numbers that round are in any range of this width."""
    unit = next((unit for unit in ROUND if high // unit * unit >= max(low, 1)), None)
    if unit is None:
        return None
    best = high // unit * unit
    return best if unit >= RARE * (high - low + 1) or best // unit <= ODD else None


def _batch(job: TrainingJob, size: int) -> dict[str, Any]:
    return {"training.micro_batch_size": size}


def _many(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _told(changes: dict[str, Any]) -> str:
    return " and ".join(f"`{key}: {value(item)}`" for key, item in changes.items())


def _shape(reading: TensorReading) -> str:
    return f"{' x '.join(f'{n:,}' for n in reading.shape)} {reading.dtype}"


__all__ = ["FREE", "Cause", "Difference", "Excluded", "Explained", "explain"]
