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
"""

from __future__ import annotations

from memcheck.accounts.estimate import Pools
from memcheck.frameworks.torch.fsdp import uses_flat_parameters
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.job.versions import ends_apart
from memcheck.memory.residuals import ENOUGH, Residuals, Spread, look_up, residuals
from memcheck.models.types import Architecture, Moe
from memcheck.record import Record

LENGTHS_VARY = "/lengths vary"
"""In a kind of step with sequences of different lengths, which decide what is held and not what is stuck."""

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
    """What is held, as ratios; ``held`` is nowhere below ``stuck``."""

    stuck: Spread
    """Over ``allocated``, on the smallest memory on which the step runs: what cannot be returned."""
    held: Spread
    """Over ``allocated`` and ``apart`` together, with memory to spare: what is seen."""
    filled: Spread
    """``stuck`` without what the segments of resident blocks leave, where that is known."""
    optimizer: Spread
    """``filled`` for steps that are highest in the optimizer."""
    held_in_optimizer: Spread
    """``held`` of such steps."""
    alone: float
    """The middle of ``filled`` on one stream."""
    of_block: Spread | None
    """One plus what is held over the largest block of a step; None: not known of the kind."""

    def held_of(self, allocated: int, pools: Pools) -> Spread:
        """Return the ratio of held to live bytes with memory to spare: small where every temporary block is small."""
        if pools.before:
            return self.held_in_optimizer
        if self.of_block is None or not pools.largest:
            return self.held
        median = min(self.held.median, 1 + (self.of_block.median - 1) * pools.largest / max(1, allocated))
        return self.held._replace(low=min(self.held.low, median), median=median)

    def stuck_of(self, allocated: int, pools: Pools) -> Spread:
        """Return the ratio, over ``allocated``, of what the allocator holds and cannot return in a step.

        It is that of the optimizer's lists of temporaries, or of the highest other moment, whichever needs more.
        """
        return self.higher(allocated, pools, self.before(pools))

    def higher(self, allocated: int, pools: Pools, elsewhere: Spread) -> Spread:
        """Return the higher of two ratios over ``allocated``: ``elsewhere``, and that of the optimizer's lists.

        Streams keep each other from no more than they hold: at most all that the other streams have held is idle, in
        addition to the share of a step on one stream.
        """
        live = max(1, allocated)
        unfilled_most = pools.unfilled_most / live
        if pools.others:
            elsewhere = elsewhere.no_more_than(self.alone + pools.others / (pools.before or live))
        outside_lists = elsewhere.over((pools.before or live) / live).beside(
            (pools.unfilled or 0) / live, unfilled_most
        )
        if not pools.lists:
            return outside_lists
        return self.optimizer.over(pools.lists / live).beside(unfilled_most, unfilled_most).or_higher(outside_lists)

    def before(self, pools: Pools) -> Spread:
        """What cannot be returned outside of the optimizer; without what resident blocks leave, if that is known."""
        return self.stuck if pools.unfilled is None else self.filled


def shares(job: TrainingJob | InferenceJob) -> Shares:
    """Look up the shares of a job, which do not depend on its batch."""
    return shares_of(residuals(), allocator_group(job))


def shares_of(tables: Residuals, group: str) -> Shares:
    """Look up the shares of one kind of step in given tables. ``group``: the name of the kind.

    No allocator holds less than what is live, nor keeps less with memory to spare than it cannot return: a kind that
    borrows either share from its neighbours is held to both.
    """
    held = look_up(tables.reserved, group)[1]
    held = held._replace(median=max(1.0, held.median), high=max(1.0, held.high))
    stuck, filled = (_below(look_up(table, stuck_group(group))[1], held) for table in (tables.tight, tables.filled))
    optimizer_spreads = [table.get(optimizer_group(group)) for table in (tables.filled, tables.reserved)]
    optimizer, held_in_optimizer = (
        spread if spread is not None and spread.n >= ENOUGH else None for spread in optimizer_spreads
    )
    blocks = tables.held_blocks.get(group)
    adapters = what_trains(group)
    return Shares(
        stuck=stuck,
        held=held,
        filled=filled,
        optimizer=filled if optimizer is None else _below(optimizer, filled),
        held_in_optimizer=held_in_optimizer or held,
        alone=look_up(tables.filled, f"one stream/plain{adapters}/{group.rpartition('/')[2]}")[1].median,
        of_block=blocks if blocks is not None and blocks.n >= ENOUGH else None,
    )


def _below(share: Spread, limit: Spread) -> Spread:
    """Limit a share from above by another one, and from below by 1."""
    median, high = (max(1.0, min(a, b)) for a, b in ((share.median, limit.median), (share.high, limit.high)))
    return Spread(n=share.n or limit.n, low=min(max(1.0, share.low), median), median=median, high=high)


def optimizer_group(group: str) -> str:
    """Return the name of the group of measured steps whose peak is in the optimizer, for a step of ``group``."""
    streams, setting = group.partition("/")[0], group.rpartition("/")[2]
    return f"{'sharded' if streams.startswith('sharded') else streams}{OPTIMIZER}/{setting}"


def kept(shares: Shares, allocated: int, room: int, pools: Pools) -> tuple[int, int]:
    """Compute the bytes beyond ``allocated`` that the allocator cannot return, and those of its cache.

    ``room``: bytes of the GPU that are left for both; the cache takes no more than that.
    """
    stuck = int(allocated * (shares.stuck_of(allocated, pools).median - 1))
    held = int((allocated + pools.apart) * shares.held_of(allocated, pools).median) - allocated
    return stuck, max(0, min(held, room) - stuck)


def stuck_group(group: str) -> str:
    """Return the group whose *stuck* shares apply to a step of ``group``: equal lengths, eager, under FSDP2."""
    return group.replace(LENGTHS_VARY, "").replace(COMPILED_APART, "").replace(FSDP1_APART, "")


def remainder_group(job: TrainingJob | InferenceJob) -> str:
    """Name the kind of step under which needs were compared with the largest block; empty: no such step was replayed.

    On one stream, models with experts are a kind of their own: the blocks of routed tokens have sizes of their own.
    """
    if isinstance(job, InferenceJob) or job.expandable_segments or job.compiles("model"):
        return ""
    if job.framework.own_engine:
        return ""
    group = stuck_group(allocator_group(job)).removesuffix("/default")
    if job.method == "qlora" and not group.endswith(QUANTISED):
        return ""
    if "/" not in group or what_trains(group):
        return group
    return f"{group}/{'experts' if has_experts(job) else 'dense'}"


def blocks_group(job: TrainingJob | InferenceJob) -> str:
    """Name the kind of step that cannot return at least a share of its largest block; empty: it is no such kind.

    In full steps of FSDP2 that gather twice a smaller flat buffer lies in the segment of the largest; with
    recomputation on one stream it is states that lie in the logits' or in a layer's.
    """
    group, layout = remainder_group(job), job.layout
    if group.startswith("one stream/recompute/") and not what_trains(group):
        return group
    if isinstance(job, InferenceJob) or not group.startswith("sharded") or job.method != "full":
        return ""
    return group if layout.zero_stage == 3 and layout.reshard_after_forward else ""


def has_experts(job: TrainingJob | InferenceJob) -> bool:
    """Any block with routed experts."""
    architecture = job.architecture
    return isinstance(architecture, Architecture) and any(isinstance(b.mlp, Moe) for b, _ in architecture.blocks)


def allocator_group(job: TrainingJob | InferenceJob) -> str:
    """Name the kind of plan as the caching allocator sees it.

    The name is ``streams/recompute/allocator``, and ``streams/allocator`` for sharded plans.
    """
    if isinstance(job, InferenceJob):
        return "serving"
    framework = job.framework
    streams = framework.measured_as
    if not streams and job.layout.zero_stage >= 2 and job.layout.shard_group > 1:
        apart = ends_apart(job, framework)
        streams = _sharded(job, apart=apart)
        if _adapters(job) and not apart:
            streams += ADAPTERS
    if not streams:
        lengths = LENGTHS_VARY if job.sequences == "padded" else ""
        mode = "plain" if job.checkpointing.mode == "none" else "recompute"
        quantised = QUANTISED if _quantised(job) and mode == "recompute" and not lengths else ""
        streams = f"one stream{lengths}/{mode}{ADAPTERS if _adapters(job) else quantised}"
    return f"{streams}/{'expandable' if job.expandable_segments else 'default'}"


def _adapters(job: TrainingJob) -> bool:
    """Whether nothing large is trained, and nothing is made whole for a product, as 4-bit weights are."""
    return job.method == "lora" and job.lora is not None and not job.lora.modules_to_save and not job.compile


def _quantised(job: TrainingJob) -> bool:
    """Nothing large is trained, over weights in 4 bits."""
    return job.method == "qlora" and job.lora is not None and not job.lora.modules_to_save and not job.compile


def what_trains(group: str) -> str:
    """The part of a kind that says that nothing large is trained in it: ``ADAPTERS``, ``QUANTISED``, or nothing."""
    return next((each for each in (ADAPTERS, QUANTISED) if each in group), "")


def _sharded(job: TrainingJob, *, apart: bool) -> str:
    """FSDP2's streams, by its groups: embedding and head each with their own, or one root group.

    Compiled steps have their own kind where published readings show it: what a compiler fuses is not traced.
    torchtitan's graph_trainer keeps what its own passes decide, and has none.
    """
    if not apart:
        return f"sharded{FSDP1_APART}" if uses_flat_parameters(job) else "sharded"
    own_passes = str(job.option("module", "")).startswith("graph_trainer")
    return f"sharded ends apart{COMPILED_APART}" if job.compiles("model") and not own_passes else "sharded ends apart"
