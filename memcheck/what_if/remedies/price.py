"""Price changed plans: are they legal, what memory do they need, and how long does their step take?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from memcheck.accounts.estimate import Estimate, Pools
from memcheck.catalog.names import Gpu, find_gpu, gpu_sizes
from memcheck.errors import MemcheckError, UnsupportedError
from memcheck.job.changes import spelled, written
from memcheck.job.resolve import Resolved, with_batch
from memcheck.job.types import InferenceJob, Layout, TrainingJob
from memcheck.memory.engine import states_floor
from memcheck.memory.fit import RUNS, gpu_fit, on_host
from memcheck.memory.overhead import slack
from memcheck.plan.finding import Finding, Location, Span
from memcheck.plan.places import Document, Provenance
from memcheck.plan.read import build_plan
from memcheck.plan.types import Plan
from memcheck.record import Record
from memcheck.rules.defaulted import NEUTRAL
from memcheck.rules.mem416_setting_without_effect import CASES
from memcheck.rules.run import check_layout, is_legal, make_context
from memcheck.rules.types import RuleContext
from memcheck.timing.serving import decode_time
from memcheck.timing.step import step_time
from memcheck.timing.types import StepTime
from memcheck.what_if.remedies.budget import Budget
from memcheck.what_if.remedies.changes import CandidateChange, Priced
from memcheck.what_if.variants import Frames, SharedFrame, Variants


class Clock(Record):
    """Times the plans of one search against the plan as written."""

    gpu: str
    """The GPU of the plan as written."""
    stand_in: Gpu | None
    """Whose rates are taken for it: the same, unless its own are not known."""
    written: float | None
    """Seconds per token of the plan as written; None where there is no model."""

    def step(self, resolved: Resolved) -> StepTime | None:
        """Return the step of a plan; None where there is no model of it (unknown rates)."""
        job = resolved.job
        same = resolved.gpu.name == self.gpu and self.stand_in is not None
        return _step(job, self.stand_in if same and self.stand_in is not None else resolved.gpu)

    def slowdown(self, resolved: Resolved) -> float | None:
        """Return relative time per token: 0.33 is a third slower."""
        foreign = resolved.gpu.name != self.gpu
        if self.written is None or (foreign and self.stand_in is not None and self.stand_in.name != self.gpu):
            return None
        step = self.step(resolved)
        return None if step is None else _per_token(resolved.job, step) / self.written - 1


def clock_of(resolved: Resolved) -> Clock:
    """Return the clock of one plan's search. A GPU without rates is timed as one of its architecture that has them."""
    job, gpu = resolved.job, resolved.gpu
    for stand_in in _relatives(gpu):
        step = _step(job, stand_in)
        if step is not None:
            return Clock(gpu.name, stand_in, _per_token(job, step))
    return Clock(gpu.name, None, None)


def _relatives(gpu: Gpu) -> Iterator[Gpu]:
    """Yield the GPU itself, then the catalog's of its architecture."""
    yield gpu
    for each in gpu_sizes() if gpu.arch is not None else ():
        if each.arch == gpu.arch:
            yield find_gpu(each.name)


def _step(job: TrainingJob | InferenceJob, gpu: Gpu) -> StepTime | None:
    """Return the time of a step; None if it is not modelled."""
    try:
        if isinstance(job, TrainingJob):
            return step_time(job, gpu)
        return decode_time(job, gpu)
    except UnsupportedError:
        return None


def _per_token(job: TrainingJob | InferenceJob, step: StepTime) -> float:
    return 1 / (step.tokens_per_second_per_gpu * job.layout.world_size)


SECTION = "parallelism."


def unread(document: Document, job: TrainingJob, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the neutral value of each key that says something, and that the changed plan would not read."""
    lacks = job.framework.lacks
    telling = [
        key
        for key, neutral in NEUTRAL.items()
        if key not in lacks and changes.get(key, written(document, key)) not in (None, neutral)
    ]
    if not telling:
        return {}
    changed = _changed(job, changes)
    return {key: NEUTRAL[key] for key in telling if CASES[key](changed) and (key in changes or not CASES[key](job))}


def _changed(job: TrainingJob, changes: Mapping[str, object]) -> TrainingJob:
    """Return the job with the changes of its layout, as far as they decide whether a key is read.

    ``changes``: values by dotted key. Data-parallel ranks and the sharding group follow from the other degrees, unless
    the group is stated or stays as it was.
    """
    fields = {key.removeprefix(SECTION): value for key, value in changes.items() if key.startswith(SECTION)}
    degrees = {name: value for name, value in fields.items() if name in Layout._fields and value != "auto"}
    layout: Layout = job.layout._replace(**degrees)  # type: ignore[arg-type]
    for name in ("nodes", "gpus_per_node"):
        layout = layout._replace(**{name: changes.get(f"hardware.{name}", getattr(layout, name))})  # type: ignore[arg-type]
    data = max(1, layout.world_size // (layout.tensor * layout.context * layout.pipeline))
    states_group = "shard_group" in degrees
    keeps_group = "shard_group" not in fields and "data" not in fields and job.layout.zero_stage > 0
    if not layout.zero_stage:
        group = 1
    elif (states_group or keeps_group) and layout.shard_group > 1:
        group = layout.shard_group
    else:
        group = data * layout.context
    layout = layout._replace(data=data, shard_group=group)
    steps = changes.get(STEPS, job.gradient_accumulation_steps)
    return job._replace(layout=layout, gradient_accumulation_steps=steps)  # type: ignore[arg-type]


BATCH, STEPS, DATA = "training.micro_batch_size", "training.gradient_accumulation_steps", "parallelism.data"
GROUP, SYNC = "parallelism.shard_group", "parallelism.gradient_sync"
UNREAD = "MEM416"
"""A warning that keeps no change from being made: what is left unread is set to what says nothing, where that exists.
"""
TIMED = 64
"""Plans whose times are kept: those of a change that is looked at from several sides."""
OFTEN = 64
"""Plans between two reports of progress."""
START = Span(1, 1, 1, 1)
"""The place of findings that are not shown: looking up the places of keys takes longer than checking a rule."""


class LayoutTally(Record):
    """Counts of the layouts that a search looked at, by what became of them."""

    illegal: int = 0
    """Layouts that break a rule which the plan does not break, cannot keep the global batch, or change a kept key."""
    repeated: int = 0
    """Layouts that equal another layout, written differently."""
    below_floor: int = 0
    """Layouts that cannot fit: their states alone need more than the limit."""
    slower: int = 0
    """Legal layouts slower than enough faster ones that fit, so that their memory was not estimated."""
    too_large: int = 0
    """Layouts whose estimate is above the limit."""
    fitting: int = 0

    @property
    def considered(self) -> int:
        """The number of all layouts that were looked at."""
        return sum(self)


class LegalChange(Record):
    """A candidate that breaks no rule, unpriced."""

    candidate: CandidateChange
    changes: dict[str, object]
    """Everything that is set, with what follows from the candidate."""
    resolved: Resolved
    shared: SharedFrame


class Pricer:
    """Prices changes of one plan. ``keep``: dotted keys, or sections, that must stay as they are."""

    def __init__(self, context: RuleContext, keep: tuple[str, ...] = ()) -> None:
        self.context = context
        self.document = context.document
        self._unplaced = context.document._replace(marks={"": Provenance(None, Location(context.document.path, START))})
        self.keep = keep
        self.limit = min(context.fail_above, 1.0)
        self._host = context.host_bytes
        self.allowed = frozenset({UNREAD, *(finding.code for finding in check_layout(context)[0])})
        self.counts = dict.fromkeys(LayoutTally._fields, 0)
        self.clock = clock_of(context.resolved)
        self._variants = Variants(self._unplaced, self._read)
        self._frames = Frames(os.path.dirname(self.document.path) or ".")
        self.watch: Callable[[int], None] | None = None
        """Hears how many plans were looked at, now and then."""
        self.budget = Budget()
        """How long a search may take; without a limit unless one is given."""
        self.whole = context.fail_above
        """The share of the capacity that the whole interval has to stay below, for a plan to be sure."""
        self.sure = False
        """Whether plans fit only if the whole interval of what they need does."""
        self._only: frozenset[str] | None = None
        self._looked = 0
        self._known: dict[tuple[object, ...], Priced | None] = {}
        self._times: dict[int, tuple[Resolved, float | None]] = {}
        """By the identity of what was timed, which the entry keeps."""
        self._put_off: set[tuple[object, ...]] = set()
        self._floors: dict[tuple[object, ...], int] = {}

    @property
    def tally(self) -> LayoutTally:
        """What became of the layouts so far."""
        return LayoutTally(**self.counts)

    def price(self, candidate: CandidateChange, *, prune: bool = True) -> Priced | None:
        """Return the candidate with its estimate; None when it is illegal, or, to ``prune``, when its states do not
        fit.
        """
        legal = self.look(candidate)
        return None if legal is None else self.price_legal(legal, prune=prune)

    def look(self, candidate: CandidateChange) -> LegalChange | None:
        """Return the candidate as it would be written; None when it is illegal."""
        changes = self.complete(candidate)
        found = None if changes is None else self._legal(changes)
        if changes is None or found is None:
            self.counts["illegal"] += 1
            return None
        return LegalChange(candidate, changes, *found)

    def price_legal(self, legal: LegalChange, *, prune: bool = True) -> Priced | None:
        """Return a legal candidate with its estimate; None where, to ``prune``, its states do not fit."""
        key = _key(legal)
        if key in self._known and (prune or self._known[key] is not None):
            self.counts["repeated"] += 1
            known = self._known[key]
            return None if known is None else self._again(known, legal)
        counted = key in self._put_off
        if not counted:
            self.budget.check()
        self._put_off.discard(key)
        priced = self._priced(legal, prune=prune and not counted, counted=counted)
        if priced is not None or prune:
            self._known[key] = priced
        return priced

    def put_off(self, legal: LegalChange) -> None:
        """Price a plan later, or never. The budget counts it now: what is found does not depend on what is put off."""
        key = _key(legal)
        if self._known.get(key) is None and key not in self._put_off:
            self.budget.check()
            self._count(legal)
            self._put_off.add(key)

    def _count(self, legal: LegalChange) -> None:
        if self.budget.effort is not None:
            self.budget.effort.estimate(legal.resolved.job)

    def fits(self, priced: Priced) -> bool:
        """Say whether the changed plan stays within what the policy allows, on the GPU and on the host."""
        answer = priced.estimate
        runs = gpu_fit(answer, self.context.fail_above) in RUNS and (priced.sure or not self.sure)
        return runs and on_host(answer.host_bytes_per_node, self._host)

    def sets_only(self, changes: Mapping[str, object] | None) -> None:
        """From now on plans that set any key but these, and what follows from them, are illegal; None: no longer."""
        self._only = None if changes is None else frozenset({*changes, STEPS, DATA, GROUP})

    def pressure(self, priced: Priced) -> float:
        """How full the fullest memory of the changed plan is."""
        return self.full(priced.estimate)

    def full(self, answer: Estimate) -> float:
        """Need over what there is, on the GPU or, where that is fuller, beyond what there is in a node."""
        if self._host and not on_host(answer.host_bytes_per_node, self._host):
            return max(answer.utilization, answer.host_bytes_per_node / self._host)
        return answer.utilization

    def complete(self, candidate: CandidateChange) -> dict[str, object] | None:
        """Return the candidate's changes as they would be written, with those that follow; None if they cannot be made.

        The global batch stays: micro-batches are accumulated as often as the number of data-parallel ranks and the
        size of the micro-batch ask for.
        """
        job = self.context.training
        changes = spelled(self.document, candidate.set, job)
        following = _following(self.context, changes)
        if following is None:
            return None
        changes = {**changes, **following}
        if job is not None:
            changes.update(unread(self.document, job, changes))
        changes = {key: value for key, value in changes.items() if not self._is_so(key, value)}
        return None if self._is_kept(changes) else changes

    def touches(self, layout: CandidateChange) -> bool:
        """Whether a layout sets a key that must stay as the plan states it."""
        return self._is_kept(layout.set)

    def _is_kept(self, changes: Mapping[str, object]) -> bool:
        if self._only is not None and not self._only.issuperset(changes):
            return True
        return any(key == kept or key.startswith(f"{kept}.") for key in changes for kept in self.keep)

    def _is_so(self, key: str, value: object) -> bool:
        """Say whether the plan says so already, by a value or by silence."""
        now = written(self.document, key)
        framework = self.context.framework
        if key == SYNC and now is None and framework is not None:
            return value == framework.parallelism.gradient_sync_default
        return value == now or (now is None and key in NEUTRAL and value == NEUTRAL[key])

    def below_floor(self, resolved: Resolved) -> bool:
        """Whether the states that are resident between steps exceed the limit without anything else."""
        return self.is_above(resolved, 0)

    def is_above(self, resolved: Resolved, beside: int) -> bool:
        """Whether the states that are resident between steps exceed the limit with ``beside`` bytes added to them."""
        return self._least_bytes(resolved) + beside > int(resolved.gpu.memory_bytes * self.limit)

    def least(self, candidate: CandidateChange) -> float | None:
        """Return a lower bound of how full the changed plan's GPU is, by the states that rest; None where it is
        illegal.
        """
        found = self.legal(candidate)
        if found is None:
            self.counts["illegal"] += 1
            return None
        try:
            return self._least_bytes(found) / found.gpu.memory_bytes
        except MemcheckError:
            return 0.0  # pricing it says why

    def _least_bytes(self, resolved: Resolved) -> int:
        """Return what is needed at least; 0 where no bound is known."""
        job, gpu = resolved.job, resolved.gpu
        if isinstance(job, InferenceJob):
            return 0
        key = (job.layout, job.recipe, job.optimizer, job.method, job.base_format, job.parameter_offload)
        floor = self._floors.get(key)
        if floor is None:
            floor = self._floors[key] = states_floor(job)
        least = Pools(before=1, lists=floor)  # as in the optimizer, where the allocator can return most
        extra = slack(job, gpu, resolved.overhead, floor, pools=least)
        return floor + extra.fragmentation - extra.cache + extra.context_and_nccl

    def legal(self, candidate: CandidateChange) -> Resolved | None:
        """Return the changed plan's job, or None."""
        changes = self.complete(candidate)
        return None if changes is None else self.resolved(changes)

    def resolved(self, changes: dict[str, object]) -> Resolved | None:
        """Return the job of the changed plan, unless it breaks a rule that was not broken yet."""
        found = self._legal(changes)
        return None if found is None else found[0]

    def _legal(self, changes: dict[str, object]) -> tuple[Resolved, SharedFrame] | None:
        """Return the changed plan's job, if it is legal, with what it shares with plans of other batches."""
        self.budget.check()
        if self.budget.effort is not None:
            self.budget.effort.look()
        self._looked += 1
        if self.watch is not None and self._looked % OFTEN == 0:
            self.watch(self._looked)
        context = self.context
        try:
            plan, _ = self._variants.read(changes)
            assert plan is not None  # noqa: S101 - _read makes one or raises
            shared = self._frames.of(plan)
            resolved = with_batch(shared.known, plan.training)
            new = make_context(
                plan, self._unplaced, resolved, fail_above=context.fail_above, warn_above=context.warn_above
            )
            return (resolved, shared) if is_legal(new, self.allowed, shared.standing(new)) else None
        except MemcheckError:
            return None

    def _read(self, document: Document) -> tuple[Plan, list[Finding]]:
        """What changes make of the plan is valid, and judged by the plan's own policy."""
        plan = build_plan(document.values)  # type: ignore[arg-type]
        return plan._replace(policy=self.context.plan.policy), []

    def _priced(self, legal: LegalChange, *, prune: bool, counted: bool) -> Priced | None:
        try:
            if prune and self.below_floor(legal.resolved):
                self.counts["below_floor"] += 1
                return None
            if not counted:
                self._count(legal)
            answer = legal.shared.estimator().worst(legal.resolved.job)
        except MemcheckError:
            self.counts["illegal"] += 1
            return None
        found = Priced(*legal[:3], estimate=answer, slowdown=0.0, limit=self.whole)
        fits = self.fits(found)
        self.counts["fitting" if fits else "too_large"] += 1
        return found._replace(slowdown=self.slowdown(legal.candidate, legal.resolved)) if fits else found

    def _again(self, known: Priced, legal: LegalChange) -> Priced:
        return known._replace(candidate=legal.candidate, changes=legal.changes, resolved=legal.resolved)

    def slowdown(self, candidate: CandidateChange, resolved: Resolved) -> float | None:
        """Return relative time per token against the plan as written; where serving is not timed, what the candidate
        says.
        """
        if self.context.training is None and self.clock.written is None:
            return candidate.slowdown
        known = self._times.get(id(resolved))
        if known is None:
            if len(self._times) >= TIMED:
                self._times.clear()
            known = self._times[id(resolved)] = resolved, self.clock.slowdown(resolved)
        return known[1]


def _key(legal: LegalChange) -> tuple[object, ...]:
    """Return the job and the GPU that a price follows from. The architecture is left out: all plans share it, and its
    hash is slow.
    """
    return legal.resolved.job[1:], legal.resolved.gpu.name


def _following(context: RuleContext, changes: dict[str, object]) -> dict[str, object] | None:
    """Return what follows from changes of degrees and batch: accumulation, stated data-parallel ranks, sharding
    groups.
    """
    layout, document, job = context.layout, context.document, context.training

    def now(section: str, name: str) -> int:
        value = changes.get(f"{section}.{name}")
        return value if isinstance(value, int) else int(getattr(layout, name))

    world = now("hardware", "nodes") * now("hardware", "gpus_per_node")
    model = now("parallelism", "tensor") * now("parallelism", "context") * now("parallelism", "pipeline")
    if world % model:
        return None
    data = world // model
    found: dict[str, object] = {}
    if isinstance(written(document, DATA), int):
        found[DATA] = data
    if job is None:
        return found
    steps = _accumulation(context, job, changes, data)
    if steps is None:
        return None
    found.update(steps)
    if now("parallelism", "zero_stage") == 3 and _splits(context, job, changes, found, data):
        found[SYNC] = "every"
    group, ranks = changes.get(GROUP, written(document, GROUP)), data * now("parallelism", "context")
    if isinstance(group, int) and (group > ranks or ranks % group):
        found[GROUP] = "auto"
    return found


def _accumulation(
    context: RuleContext, job: TrainingJob, changes: dict[str, object], data: int
) -> dict[str, object] | None:
    """Return the micro-batches per step that keep the global batch; None when there is no whole number of them."""
    if STEPS in changes:
        return {}
    written_batch = context.plan.training.global_batch_size if context.plan.training else None
    stated = changes.get("training.global_batch_size", written_batch)
    size = changes.get(BATCH, job.micro_batch_size)
    whole = stated or job.micro_batch_size * job.layout.data * job.gradient_accumulation_steps
    if not isinstance(size, int) or not isinstance(whole, int) or whole % (size * data):
        return None
    steps = whole // (size * data)
    return {} if stated is not None or steps == job.gradient_accumulation_steps else {STEPS: steps}


def _splits(
    context: RuleContext, job: TrainingJob, changes: dict[str, object], following: dict[str, object], data: int
) -> bool:
    """Say whether a step of one micro-batch becomes one of several that a framework would reduce with the last one
    alone.

    It reduced its only one: so that splitting it saves memory, each of them has to be reduced.
    """
    framework = context.framework
    if (
        job.gradient_accumulation_steps > 1
        or framework is None
        or framework.parallelism.gradient_sync_default == "every"
    ):
        return False
    if SYNC in framework.lacks or SYNC in changes or written(context.document, SYNC) is not None:
        return False
    steps = following.get(STEPS, changes.get(STEPS))
    if steps is None:
        stated = context.plan.training.global_batch_size if context.plan.training else None
        whole, size = changes.get("training.global_batch_size", stated), changes.get(BATCH, job.micro_batch_size)
        steps = whole // (size * data) if isinstance(whole, int) and isinstance(size, int) else 1
    return isinstance(steps, int) and steps > 1


def with_margin(context: RuleContext, keep: tuple[str, ...] = ()) -> Pricer:
    """Prices changes of a plan; only those fit whose interval lies within the limit of the plan.

    Intervals grow about as the need does. The limit of the need is lowered by their ratio, which says where to look,
    and the interval itself decides.
    """
    limit, estimate = context.fail_above, context.estimate
    if estimate is not None and estimate.needed_interval_bytes[1]:
        aim = estimate.needed_bytes / estimate.needed_interval_bytes[1]
        context = context._replace(fail_above=limit * min(1.0, aim))
    pricer = Pricer(context, keep)
    pricer.whole, pricer.sure = limit, True
    return pricer
