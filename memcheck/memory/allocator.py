"""What the caching allocator holds beyond live tensors, for every job (docs/internals/allocator.md).

Two shares of ``allocated``, each with its spread (:class:`Shares`):

- *stuck*: the smallest memory on which the step still runs. Before an allocation fails the allocator gives back every
  segment that is wholly free and tries again (c10/cuda/CUDACachingAllocator.cpp, ``release_cached_blocks``). With
  default segments little more is left than one block as large as the step's largest (:func:`remainder_group`), and
  what segments leave next to resident blocks (:attr:`Pools.unfilled`), which is added to the share.
- *held*: what it keeps with memory to spare, the stuck part included, over ``allocated`` and ``Pools.apart``, which is
  what the pools of FSDP2's streams hold beyond it. The difference is its *cache*, seen in ``nvidia-smi`` and no need.

The tables are ``tight``, ``reserved``, ``beyond`` and ``blocks`` of ``data/residuals.json``, made from replays of
traced steps (``python -m benchmarks.accuracy --write``).

What predictions were off by, and what the allocator kept on top, as data.

``data/residuals.json`` is written by ``python -m benchmarks.accuracy --write`` from every case of ``benchmarks/data``;
a test compares it with a fresh run. Nothing in the engine is fitted to it: it gives intervals their width, and the
allocator's share, for which there is no formula.

Spreads of kinds of plans with too few cases, from those of their neighbours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from memcheck.accounts.estimate import Pools
from memcheck.edge.json_text import read_own_json
from memcheck.frameworks.torch.data_parallel import uses_flat_parameters
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.job.versions import ends_apart
from memcheck.models.types import Architecture, Moe
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


ENOUGH = 8
"""A group with fewer cases is widened by the widest of its neighbours."""

SMALL_BYTES = 8 * 2**30
"""Differences are taken relative to at least this much: those of smaller jobs are buffers of constant size, and would
widen the intervals of large ones."""

COMPILED = "compiled/"
"""Family of compiled steps, whose errors say nothing about others: only some of what the compiler fuses is modelled."""

Table = Mapping[str, "Spread"]
"""A spread for each group of measured cases, by the group's name."""


class Spread(Record):
    """Ratios of measured to predicted bytes over all cases of one group: the lowest, the median and the highest."""

    n: int
    """Number of cases."""
    low: float
    median: float
    high: float

    def over(self, share: float) -> Spread:
        """Return the spread relative to a larger whole, of which the present denominator is ``share``, 0 to 1."""
        return self._replace(low=self.low * share, median=self.median * share, high=self.high * share)

    def plus(self, share: float, most: float) -> Spread:
        """Return the spread with ``share`` added to its median; its high rises by ``most`` if that is larger."""
        return self._replace(median=self.median + share, high=self.high + max(share, most))

    def no_more_than(self, most: float) -> Spread:
        """Return the spread with a median of at most ``most``; its high stays."""
        median = min(self.median, most)
        return self._replace(low=min(self.low, median), median=median)

    def or_higher(self, other: Spread) -> Spread:
        """Return a spread with the higher low, median and high of this spread and ``other``."""
        ends = [max(a, b) for a, b in zip(self[1:], other[1:], strict=True)]
        return Spread(self.n, *ends)


class Residuals(Record):
    """All tables of ``data/residuals.json``: a spread for each group of measured cases, by the group's name."""

    allocated: Table
    """One plus the difference between truth and predicted ``allocated``, over the latter but at least SMALL_BYTES, by
    ``family/kind``."""
    reserved: Table
    """Reserved over predicted ``allocated``, by kind of plan as the allocator sees it, with memory to spare."""
    tight: Table
    """Reserved over predicted ``allocated`` on the smallest GPU on which the step still runs: free segments are
    returned before it fails."""
    outside: Table
    """Measured over predicted bytes outside the allocator: ``context``, ``communicators``."""
    beyond: Table
    """What the step needs less one block as large as its largest, over its live tensors, and no less than one."""
    blocks: Table
    """One plus what cannot be returned, over the step's largest block, of sharded steps that gather twice."""
    held_blocks: Table
    """One plus what is held beyond live tensors with memory to spare, over the step's largest block, of steps on one
    stream that recompute: a layer and the logits come and go."""
    filled: Table
    """``tight`` without what the segments of resident blocks leave (``Pools.unfilled``), where that is known; also of
    steps that are highest in the optimizer.
    """


_cache: list[Residuals] = []


def residuals() -> Residuals:
    """Return the tables of ``data/residuals.json``, which is read once."""
    if not _cache:
        path = os.path.join(os.path.dirname(__file__), "data", "residuals.json")
        _cache.append(read(read_own_json(path)))
    return _cache[0]


def read(raw: Mapping[str, Any]) -> Residuals:
    """Build the tables from the JSON object of ``data/residuals.json``."""
    return Residuals(*({group: _spread(row) for group, row in raw[name].items()} for name in Residuals._fields))


def _spread(row: Mapping[str, Any]) -> Spread:
    """Build one group's spread from its JSON object."""
    return Spread(n=row["n"], low=row["low"], median=row["median"], high=row["high"])


KEPT = 1024
_found: dict[tuple[int, str], tuple[Table, LookedUp]] = {}
"""By identity of the table, which no one changes once it is read; an entry keeps its table, so that none other can have
that identity while the entry is there."""


class LookedUp(Record):
    """A spread, and the measured cases behind it."""

    groups: str
    """Names of the measured groups that the spread is based on."""
    spread: Spread


def look_up(table: Table, group: str, *, by_method: bool = False) -> LookedUp:
    """Return the spread of a group in a table.

    A group with fewer than ``ENOUGH`` cases borrows from its neighbours. ``by_method``: the table's groups are
    ``family/kind``; a group of adapters without cases also borrows from the adapters of every family.
    """
    known = _found.get((id(table), group))
    if known is None:
        if len(_found) >= KEPT:
            _found.clear()
        known = _found[id(table), group] = (table, _look_up(table, group, by_method=by_method))
    return known[1]


def _look_up(table: Table, group: str, *, by_method: bool) -> LookedUp:
    """Return what :func:`look_up` does, without its cache: the group's own spread if it has enough cases."""
    spread = table.get(group)
    if spread is not None and spread.n >= ENOUGH:
        return LookedUp(group, spread)

    return borrowed(table, group, by_method=by_method and spread is None)


def forget() -> None:
    """Read the file again next time; for the program that writes it."""
    _cache.clear()


LENGTHS_VARY = "/lengths vary"
"""In a kind of step with sequences of different lengths, which decide what is held and not what is stuck. Pages of
expandable segments serve blocks of any length, so that only default segments are such a kind."""

COMPILED_APART = ", compiled"
"""In a kind of sharded step whose layers are compiled, which decides what is held and not what is stuck."""

FSDP1_APART = ", FSDP1"
"""In a kind of step under FSDP1, whose record_stream keeps blocks from being used again: decides what is held and not
what is stuck.
"""

ADAPTERS = "/adapters"
"""In a kind of step that trains adapters alone. The gradients and optimizer states that a first step leaves are small:
they do not split the large freed segments of activations and logits, and the next step finds those whole.
"""

QUANTISED = "/quantised"
"""In a kind of step on one GPU that trains adapters over a 4-bit base and recomputes: each product makes one weight
whole, and lets it go, so that the blocks of weights find each other's places."""

OPTIMIZER = ", optimizer"
"""In a kind of step that is highest in the optimizer. Activations, logits and gathered parameters are gone by then, and
every block has the size of a parameter, for which another parameter's has left a segment: hardly anything is stuck."""


class Shares(Record):
    """Measured ratios of bytes that the caching allocator has reserved to live bytes, for one group of steps.

    *Stuck* bytes are reserved and free, but lie in segments that are in use, so that the allocator cannot return them.
    *Held* bytes are all that it reserves if the GPU has memory to spare. ``held`` is never below ``stuck``.
    """

    stuck: Spread
    """Reserved over live bytes on the smallest GPU on which the step still runs."""
    held: Spread
    """Reserved over live bytes and ``Pools.apart`` together, on a GPU with memory to spare."""
    filled: Spread
    """``stuck`` without the gaps that resident blocks leave in their segments (``Pools.unfilled``). It is used where
    these gaps are computed for the plan."""
    optimizer: Spread
    """``filled`` of steps whose peak is in the optimizer."""
    held_in_optimizer: Spread
    """``held`` of steps whose peak is in the optimizer."""
    alone: float
    """Median of ``filled`` of steps that run on one CUDA stream."""
    of_block: Spread | None
    """One plus the held bytes that are not live, over the step's largest block. None: not measured for this group."""

    def held_of(self, allocated: int, pools: Pools) -> Spread:
        """Return the ratio of reserved bytes (``torch.cuda.memory_reserved``) to live bytes, with memory to spare.

        ``allocated``: live bytes at the peak. ``pools``: the step's largest block, and where its peak is. What the
        allocator keeps in its cache is at most a measured multiple of the step's largest block. The ratio is therefore
        small if every temporary block is small.
        """
        if pools.before:  # the peak is in the optimizer, or in loading or saving, whose blocks are alike
            return self.held_in_optimizer
        if self.of_block is None or not pools.largest:
            return self.held
        by_largest_block = 1 + (self.of_block.median - 1) * pools.largest / max(1, allocated)
        median = min(self.held.median, by_largest_block)
        return self.held._replace(low=min(self.held.low, median), median=median)

    def stuck_of(self, allocated: int, pools: Pools) -> Spread:
        """Return the ratio to ``allocated`` (live bytes at the peak) of bytes that the allocator holds and cannot free.

        Two moments are compared, and the higher ratio is returned: the optimizer's step with its lists of temporaries,
        and the highest moment of the rest of the step.
        """
        return self.stuck_at_higher(allocated, pools, self.stuck_outside_optimizer(pools))

    def stuck_at_higher(self, allocated: int, pools: Pools, elsewhere: Spread) -> Spread:
        """Return the higher of two ratios to ``allocated``: outside the optimizer's step, and in it.

        ``elsewhere``: what the allocator holds and cannot return outside the optimizer's step, over what is live there.
        ``allocated``: live bytes at the peak of the whole step.
        """
        live = max(1, allocated)
        live_elsewhere = pools.before or live
        unfilled = 0 if pools.unfilled is None else pools.unfilled
        gaps, most_gaps = unfilled / live, pools.unfilled_most / live
        if pools.others:
            # no stream may use another's free blocks: in addition to what one stream alone cannot return, at most all
            # blocks that the other streams have had are free
            elsewhere = elsewhere.no_more_than(self.alone + pools.others / live_elsewhere)
        outside_optimizer = elsewhere.over(live_elsewhere / live).plus(gaps, most_gaps)
        if not pools.lists:
            return outside_optimizer
        in_optimizer = self.optimizer.over(pools.lists / live).plus(most_gaps, most_gaps)
        return in_optimizer.or_higher(outside_optimizer)

    def stuck_outside_optimizer(self, pools: Pools) -> Spread:
        """Return the ratio, to live bytes, of what the allocator cannot return outside the optimizer's step.

        Gaps that resident blocks leave in their segments are included only if they are not computed for this plan
        (``pools.unfilled``); otherwise the caller adds the computed ones.
        """
        return self.stuck if pools.unfilled is None else self.filled


def shares(job: TrainingJob | InferenceJob) -> Shares:
    """Look up the measured ratios of reserved to live bytes for a job; they do not depend on its batch size."""
    return shares_of(residuals(), allocator_group(job))


def shares_of(tables: Residuals, group: str) -> Shares:
    """Look up the measured ratios of reserved to live bytes for one group of steps, named by :func:`allocator_group`.

    Groups with few cases borrow from their neighbours, so two facts are enforced here: the allocator holds no less than
    what is live, and no less with memory to spare than on the smallest GPU on which the step runs.
    """
    held = look_up(tables.reserved, group).spread
    held = held._replace(median=max(1.0, held.median), high=max(1.0, held.high))
    stuck = _between_one_and(held, look_up(tables.tight, stuck_group(group)).spread)
    filled = _between_one_and(held, look_up(tables.filled, stuck_group(group)).spread)
    optimizer = _with_enough_cases(tables.filled.get(optimizer_group(group)))
    held_in_optimizer = _with_enough_cases(tables.reserved.get(optimizer_group(group)))
    adapters = what_trains(group)
    allocator_setting = group.rpartition("/")[2]
    return Shares(
        stuck=stuck,
        held=held,
        filled=filled,
        optimizer=filled if optimizer is None else _between_one_and(filled, optimizer),
        held_in_optimizer=held_in_optimizer or held,
        alone=look_up(tables.filled, f"one stream/plain{adapters}/{allocator_setting}").spread.median,
        of_block=_with_enough_cases(tables.held_blocks.get(group)),
    )


def _with_enough_cases(spread: Spread | None) -> Spread | None:
    """Return the spread if it is based on enough measured cases to be used by itself, else None."""
    return spread if spread is not None and spread.n >= ENOUGH else None


def _between_one_and(limit: Spread, ratio: Spread) -> Spread:
    """Limit the low, median and high of ``ratio`` to at least 1, and to at most those of ``limit``."""
    median = max(1.0, min(ratio.median, limit.median))
    high = max(1.0, min(ratio.high, limit.high))
    return Spread(n=ratio.n or limit.n, low=min(max(1.0, ratio.low), median), median=median, high=high)


def optimizer_group(group: str) -> str:
    """Name the group of measured steps whose peak is in the optimizer, for a step of ``group``.

    Example: ``sharded ends apart, compiled/default`` gives ``sharded, optimizer/default``. In the optimizer neither
    recomputation nor the number of FSDP groups matters.
    """
    streams, allocator_setting = group.partition("/")[0], group.rpartition("/")[2]
    if streams.startswith("sharded"):
        streams = "sharded"
    return f"{streams}{OPTIMIZER}/{allocator_setting}"


class AllocatorBytes(Record):
    """What the caching allocator holds beyond live tensors, in bytes."""

    stuck: int
    """Free parts of segments that are in use, which it cannot return to the driver."""
    cache: int
    """Free segments, which it returns before an allocation fails."""


def allocator_bytes(shares: Shares, allocated: int, room: int, pools: Pools) -> AllocatorBytes:
    """Compute what the caching allocator holds beyond live tensors.

    ``allocated``: live bytes at the peak. ``room``: bytes of the GPU that are left beyond them. The allocator empties
    its cache before an allocation fails, so that the cache takes no more than that.
    """
    stuck = int(allocated * (shares.stuck_of(allocated, pools).median - 1))
    with_cache = int((allocated + pools.apart) * shares.held_of(allocated, pools).median) - allocated
    return AllocatorBytes(stuck=stuck, cache=max(0, min(with_cache, room) - stuck))


def stuck_group(group: str) -> str:
    """Return the name of ``group`` without what does not matter for bytes that the allocator cannot return.

    These are varying sequence lengths, compilation, and FSDP1 instead of FSDP2.
    """
    return group.replace(LENGTHS_VARY, "").replace(COMPILED_APART, "").replace(FSDP1_APART, "")


def remainder_group(job: TrainingJob | InferenceJob) -> str:
    """Name the job's group in the table ``beyond``: what a step needs in addition to one more of its largest block.

    Empty: no such step was replayed, as with expandable segments, compiled layers, or an engine's own buffers. On one
    stream, models with experts have a group of their own, because each expert gets another number of tokens, and so
    blocks of another size.
    """
    if isinstance(job, InferenceJob):
        return ""
    if job.expandable_segments or job.compiles("model") or job.framework.has_sharding_engine:
        return ""
    group = stuck_group(allocator_group(job)).removesuffix("/default")
    if job.method == "qlora" and not group.endswith(QUANTISED):
        return ""
    is_one_stream = "/" in group  # as in `one stream/recompute`; sharded groups have no second part
    if not is_one_stream or what_trains(group):
        return group
    return f"{group}/{'experts' if has_experts(job) else 'dense'}"


def blocks_group(job: TrainingJob | InferenceJob) -> str:
    """Name the job's group in the table ``blocks``: steps that cannot return a share of their largest block.

    Empty: not such a step. Full training under FSDP2 that gathers again in backward leaves a smaller gather buffer in
    the segment of the largest one. With recomputation on one stream, optimizer states lie in the segment of the logits
    or of a layer.
    """
    group, layout = remainder_group(job), job.layout
    if group.startswith("one stream/recompute/") and not what_trains(group):
        return group
    if isinstance(job, InferenceJob) or not group.startswith("sharded") or job.method != "full":
        return ""
    return group if layout.zero_stage == 3 and layout.reshard_after_forward else ""


def has_experts(job: TrainingJob | InferenceJob) -> bool:
    """Say whether any block of the job's model has routed experts (a mixture of experts)."""
    architecture = job.architecture
    return isinstance(architecture, Architecture) and any(isinstance(b.mlp, Moe) for b, _ in architecture.blocks)


def allocator_group(job: TrainingJob | InferenceJob) -> str:
    """Name the group of measured steps that this job belongs to, by what the caching allocator sees of it.

    The name is ``streams/recompute/allocator``, such as ``one stream/recompute/default``; sharded plans have
    ``streams/allocator``, such as ``sharded/expandable``.
    """
    if isinstance(job, InferenceJob):
        return "serving"
    if job.framework.measured_as:
        streams = job.framework.measured_as
    elif job.layout.zero_stage >= 2 and job.layout.shard_group > 1:
        streams = _sharded(job)
    else:
        streams = _one_stream(job)
    allocator_setting = "expandable" if job.expandable_segments else "default"
    return f"{streams}/{allocator_setting}"


def _one_stream(job: TrainingJob) -> str:
    """Name the kind of a step that runs on one CUDA stream, such as ``one stream/recompute/adapters``."""
    lengths = LENGTHS_VARY if job.sequences == "padded" and not job.expandable_segments else ""
    mode = "plain" if job.checkpointing.mode == "none" else "recompute"
    trained = ""
    if _adapters(job):
        trained = ADAPTERS
    elif _quantised(job) and mode == "recompute" and not lengths:
        trained = QUANTISED
    return f"one stream{lengths}/{mode}{trained}"


def _adapters(job: TrainingJob) -> bool:
    """Whether only LoRA matrices are trained, over 16-bit base weights: no large gradient, no dequantised weight."""
    return job.method == "lora" and job.lora is not None and not job.lora.modules_to_save and not job.compile


def _quantised(job: TrainingJob) -> bool:
    """Whether only LoRA matrices are trained, over 4-bit base weights that are dequantised for each product."""
    return job.method == "qlora" and job.lora is not None and not job.lora.modules_to_save and not job.compile


def what_trains(group: str) -> str:
    """Return ``ADAPTERS`` or ``QUANTISED`` if the group's name says that only adapters are trained; else empty."""
    for adapters_only in (ADAPTERS, QUANTISED):
        if adapters_only in group:
            return adapters_only
    return ""


def _sharded(job: TrainingJob) -> str:
    """Name the kind of a sharded step: ``sharded`` or ``sharded ends apart``, and FSDP1, compilation or adapters.

    ``ends apart``: FSDP2 gathers embedding and head in groups of their own; otherwise they are in the root's group.
    Compiled steps have a group of their own where published readings show it. torchtitan's graph_trainer has none: its
    own passes decide what is kept.
    """
    if not ends_apart(job, job.framework):
        kind = f"sharded{FSDP1_APART}" if uses_flat_parameters(job) else "sharded"
        return kind + (ADAPTERS if _adapters(job) else "")
    own_passes = str(job.option("module", "")).startswith("graph_trainer")
    compiled = COMPILED_APART if job.compiles("model") and not own_passes else ""
    return f"sharded ends apart{compiled}"


def borrowed(table: Table, group: str, *, by_method: bool = False) -> LookedUp:
    """Return a spread for a group that has too few measured cases, borrowed from its neighbours.

    ``table``: spreads by the name of a group, which is a path from the family to the detail. The spread is widened to
    the extremes of a neighbour: the widest group that shares the longest part of the path, or else the widest of all.
    ``by_method``: groups of adapters are also widened by every family's adapters of the same method.
    """
    own, widest = table.get(group), _widest(table, group)
    if widest is None and own is not None:
        return LookedUp(group, own)
    if widest is None:
        return LookedUp("no data", Spread(n=0, low=1.0, median=1.0, high=1.0))
    spread = own or table[widest]
    neighbours = [table[widest]]
    if by_method:
        neighbours += [table[name] for name in _of_method(table, group)]
    low = min(spread.low, *(neighbour.low for neighbour in neighbours))
    high = max(spread.high, *(neighbour.high for neighbour in neighbours))
    based_on = widest if own is None else f"{group} widened by {widest}"
    return LookedUp(based_on, spread._replace(low=low, high=high))


def _of_method(table: Table, group: str) -> list[str]:
    """List the groups with enough cases, of all families, that train adapters by the same method (lora or qlora)."""
    method = _method(group)
    if method not in ("lora", "qlora"):
        return []
    return [name for name, spread in table.items() if spread.n >= ENOUGH and _method(name) == method and name != group]


def _method(group: str) -> str:
    """Return the last word of a group's name without its detail: ``qlora`` of ``huggingface/qlora, sharded``."""
    return group.rpartition("/")[2].partition(",")[0]


def _widest(table: Table, group: str) -> str | None:
    """Find the group with the highest ratio among those that share the longest part of a group's name.

    Groups of compiled steps are compared with each other alone. None: no group has enough cases.
    """
    path = group.split("/")
    candidates = [name for name, spread in table.items() if name != group and spread.n >= ENOUGH]
    for length in range(len(path) - 1, 0, -1):
        prefix = "/".join(path[:length]) + "/"
        near = [name for name in candidates if name.startswith(prefix)]
        if near:
            return max(near, key=lambda name: table[name].high)
    of_family = [name for name in candidates if name.startswith(COMPILED) == group.startswith(COMPILED)]
    return max(of_family, key=lambda name: table[name].high, default=None)
