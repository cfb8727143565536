"""What the memory engine answers."""

from __future__ import annotations

from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.job.engines.types import EngineAnswer

COMPONENTS = (
    "parameters",
    "gradients",
    "master_weights",
    "optimizer_states",
    "activations",
    "logits_and_loss",
    "communication_buffers",
    "temporaries",
    "kv_cache",
    "adapters",
    "context_and_nccl",
    "fragmentation",
)
"""Every byte belongs to exactly one of these; the order is the order of reports."""

CACHE = "cache"
"""What of ``fragmentation`` the allocator returns before an allocation fails: seen, and no need of the step."""
PARTS = (*COMPONENTS, CACHE)
"""What people see: the parts of a need, then the cache."""


LARGEST = 12
"""Groups of tensors that reports show."""


class TensorGroup(Record):
    """Equal live tensors at a peak."""

    name: str
    shape: str
    """Shape with dtype for people: ``[4096, 14336] bf16``; of what is sharded ``1/8 of [4096, 14336] bf16``."""
    copies: int
    """How many of them."""
    bytes: int
    """Sum of all components, in bytes."""
    component: str


class Instant(Record):
    """Live bytes at one moment of the step on one rank."""

    name: str
    """``load`` | ``init`` | ``forward`` | ``loss`` | ``backward`` | ``optimizer`` | ``save`` | ``prefill`` ..."""
    operation: str
    """The operation during which the bytes were highest, in words."""
    allocated_bytes: int
    components_bytes: dict[str, int]


class Formula(Record):
    """One component's arithmetic, for ``--formulas``."""

    component: str
    formula: str
    numbers: str
    bytes: int
    source: str


class Pools(Record):
    """What of a rank's step decides how much the caching allocator holds beyond live tensors, in bytes."""

    largest: int = 0
    """The largest block of the step; 0 where its layers are not replayed."""
    apart: int = 0
    """How much more than at the peak the allocator's pools have once held: each stream has its own, each has its
    highest point at another moment, and no stream may use another's blocks. And optimizer states in managed memory,
    which are on the GPU while there is room."""
    others: int = 0
    """The highest points of all streams but the default one together; 0: the step has one stream, or they are not
    known."""
    before: int = 0
    """Live bytes at the highest moment without ``lists``, if the peak is a moment with them; 0 if it is not. The
    allocator can return more among ``lists``, so that the other moment may need more memory than the peak."""
    lists: int = 0
    """What lives while the lists of torch's optimizer do, a temporary for each parameter, or while the model is loaded
    or saved as a whole, whichever is more: every block has the size of a parameter. 0: neither happens."""
    unfilled: int | None = None
    """Bytes that the segments of resident blocks leave to no other block; None: not known."""
    unfilled_most: int = 0
    """``unfilled`` in the worst case: every one of these blocks needed a new segment."""


class RankEstimate(Record):
    """All instants of one pipeline rank (the worst of its data, tensor and expert peers)."""

    pipeline_rank: int
    """Index of the pipeline stage, from 0."""
    instants: tuple[Instant, ...]
    """The highest moment of each phase of a step, in order."""
    parameters: int
    """Number of parameters that this rank holds."""
    ledger: tuple[TensorGroup, ...] = ()
    """Every group of equal tensors that is live at the peak, the largest first; collected with an inventory."""
    formulas: tuple[Formula, ...] = ()
    """The arithmetic of each component; collected with an inventory."""
    host_bytes: int = 0
    """Activations that this rank keeps in host memory."""
    pools: Pools = Pools()
    """What decides how much the caching allocator holds beyond live tensors."""

    @property
    def largest(self) -> tuple[TensorGroup, ...]:
        """The first groups of the ledger, as reports show them."""
        return self.ledger[:LARGEST]

    @property
    def peak(self) -> Instant:
        """The instant with the most live bytes."""
        return max(self.instants, key=lambda i: i.allocated_bytes)

    @property
    def step(self) -> RankEstimate:
        """The estimate without the moments before and after the steps, which no run of a step shows."""
        return self._replace(instants=tuple(i for i in self.instants if i.name not in ("load", "save")))


class HostMoment(Record):
    """What the processes of one node hold in its memory at one moment."""

    name: str
    """``load`` | ``init`` | ``step`` | ``save``."""
    operation: str
    components: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(count for _, count in self.components)


class Estimate(Record):
    """The answer for one plan: the worst rank, and every pipeline rank."""

    allocated_bytes: int
    """Live tensors at the peak: ``torch.cuda.max_memory_allocated()``."""
    reserved_bytes: int
    """Bytes with all that the allocator holds, its cache included: ``torch.cuda.max_memory_reserved()``."""
    device_bytes: int
    """What ``nvidia-smi`` will show, the allocator's cache included."""
    capacity_bytes: int
    interval_bytes: tuple[int, int]
    """95 % interval of ``device_bytes``."""
    needed_interval_bytes: tuple[int, int]
    """95 % interval of ``needed_bytes``."""
    instant: str
    operation: str
    pipeline_rank: int
    components_bytes: dict[str, int]
    """At the peak of the worst rank; sums to ``device_bytes``."""
    parameters: int
    trainable_parameters: int
    host_bytes_per_node: int
    """What the processes of a node hold in its memory at the highest of ``host_moments``."""
    ranks: tuple[RankEstimate, ...]
    largest: tuple[TensorGroup, ...] = ()
    formulas: tuple[Formula, ...] = ()
    cache_bytes: int = 0
    """What of ``fragmentation`` the allocator returns before an allocation fails."""
    host_components: tuple[tuple[str, int], ...] = ()
    """What ``host_bytes_per_node`` is made of."""
    host_moments: tuple[HostMoment, ...] = ()
    """Moments in which host memory holds anything, in the order of a run."""
    longest_row: int = 0
    """Tokens of the longest row with which the job fits, where rows are not packed and it does not fit at their limit.
    """
    padded_bytes: int = 0
    """What is needed if rows are padded that are taken as full, which the intervals cover; 0: the plan says how they
    lie, or it makes no difference."""

    engine: EngineAnswer | None = None
    """What the serving engine makes of the plan; None: the plan names no engine."""

    @property
    def shown(self) -> Estimate:
        """An estimate without the tensors that reports do not show: verdicts are kept from run to run."""
        return self._replace(ranks=tuple([rank._replace(ledger=rank.largest) for rank in self.ranks]))

    @property
    def host_moment(self) -> HostMoment | None:
        """The highest of them, the first of equal ones; None where host memory holds nothing."""
        return max(self.host_moments, key=lambda m: m.bytes, default=None)

    @property
    def needed_bytes(self) -> int:
        """The floor below which the job dies: ``device_bytes`` without the allocator's cache."""
        return self.device_bytes - self.cache_bytes

    @property
    def utilization(self) -> float:
        """``needed / capacity``."""
        return self.needed_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    @property
    def needed_parts_bytes(self) -> dict[str, int]:
        """What ``needed_bytes`` is made of: of ``fragmentation`` what the allocator cannot return."""
        parts = dict(self.components_bytes)
        if self.cache_bytes:
            parts["fragmentation"] -= self.cache_bytes
        return {name: count for name, count in parts.items() if count}

    @property
    def parts_bytes(self) -> dict[str, int]:
        """What ``device_bytes`` is made of, for people: the parts of the need, then the allocator's cache."""
        return {**self.needed_parts_bytes, **({CACHE: self.cache_bytes} if self.cache_bytes else {})}
