"""What a plan asks of a serving engine, and what the engine makes of it: plain records without any arithmetic."""

from __future__ import annotations

from memcheck.record import Record


class EngineSettings(Record):
    """How an engine is started: what the plan states, and the defaults of the version for the rest."""

    name: str
    """``vllm``."""
    version: str
    tensor: int = 1
    pipeline: int = 1
    share: float | None = None
    """``gpu_memory_utilization``: share of the whole GPU's memory; None: the pool is stated."""
    pool_bytes: int | None = None
    """``kv_cache_bytes``: bytes of one GPU for the KV cache, which replace the share."""
    length: int = 0
    """``max_model_len``: tokens of a request at most; 0: the longest that fits (``auto``)."""
    longest: int = 0
    """Tokens that the model itself can take; 0: it states no limit."""
    sequences: int = 256
    """``max_num_seqs``."""
    batched_tokens: int = 8192
    """``max_num_batched_tokens``: tokens of one forward pass at most."""
    block: int | None = None
    """``block_size`` in tokens, where the plan states it."""
    kv_cache: str = "auto"
    """``auto`` (the dtype of the weights) | ``fp8``."""
    weights: str = "bf16"
    eager: bool = False
    """``enforce_eager``: no CUDA graphs."""
    graphs_bytes: int | None = None
    """Bytes of CUDA graphs, from a log; None: unknown."""
    prefix_caching: bool = True
    pictures: bool = True
    """Whether the vision tower is loaded; False: the plan limits pictures to none."""
    world: int = 1
    """GPUs of the plan."""
    demand: tuple[int, int] | None = None
    """(sequences, tokens of each) that the plan wants to be served at once."""


class Cache(Record):
    """The KV cache of one layer on one rank, in the engine's own words."""

    kind: str
    """The engine's class of it, such as ``FullAttentionSpec``."""
    block: int
    """Tokens of a block."""
    page_bytes: int
    """Bytes of one block of this layer, padding included."""
    heads: int = 0
    """KV heads on a tensor-parallel rank."""
    head_dim: int = 0
    window: int = 0
    """Tokens of a sliding window or of a chunk; 0: none."""
    states: int = 0
    """Pages that one request holds of a recurrent state; 0: this is no state."""
    item_bytes: int = 0


class CacheGroup(Record):
    """Layers whose blocks are allocated together."""

    layers: tuple[int, ...]
    """Numbers of the layers, in the order of the model; a layer with two caches is listed twice."""
    caches: tuple[Cache, ...]
    """One cache for each layer."""
    mixed: bool = False
    """Whether the layers' pages differ in size."""

    @property
    def cache(self) -> Cache:
        """The cache of the group's first layer: kind and block are those of all."""
        return self.caches[0]


class KvPool(Record):
    """What the engine makes of the bytes for its KV cache."""

    blocks: int
    tokens: int
    """Tokens as the engine logs them."""
    concurrency: float
    """Requests of the longest length at once."""
    length: int
    """``max_model_len``, found by the engine where the plan says ``auto``."""


class Refusal(Record):
    """An error with which the engine ends before it serves."""

    kind: str
    """``none`` (no memory left) | ``too-long`` (for one request) | ``auto`` (not a single token) | ``free`` | ``setup``
    (before any question of memory)."""
    words: str
    """The engine's own words, with its numbers."""
    needed_bytes: int = 0
    available_bytes: int = 0
    longest: int = 0
    """Tokens that would fit; 0: none."""
    pointer: str = ""
    """The key of the plan that is responsible."""


class Term(Record):
    """One part of a rank's memory, with the interval that its sources leave."""

    name: str
    """``weights`` | ``buffers`` | ``profile`` | ``outside`` | ``graphs``."""
    low_bytes: int
    high_bytes: int | None
    """None: unknown above ``low_bytes``."""
    source: str
    expected_bytes: int = 0


GRAPHS_SEEN = "public logs show 0.1 to 4.2 GiB, and one 57"
GRAPHS_USUAL_BYTES = 4.2 * 2**30
"""What CUDA graphs took in public logs; sources in ``docs/internals/engines.md``."""


class Transients(Record):
    """Bytes of the pass that the engine runs to profile, replayed by the memory engine."""

    layer: int
    """The peak of one layer on the tokens of a pass."""
    tower: int
    """The peak of the vision tower on its budget of pictures; 0 without one."""


class Captures(Record):
    """The batch sizes for which an engine captures CUDA graphs."""

    sizes: int = 0
    """How many sizes."""
    largest: int = 0


class EngineAnswer(Record):
    """The engine's answer to a plan, for the rank that decides."""

    settings: EngineSettings
    answer: str
    """``boots`` | ``does_not_boot`` | ``depends``."""
    refusal: Refusal | None
    """The error at the lower end of the pool; at the upper end if the engine does not boot at all."""
    depends_on: tuple[str, ...]
    """Names of the terms, or ``version``, on which the answer depends."""
    pool: KvPool | None
    """At the expected pool; None: the engine does not boot with it."""
    pool_bytes: int
    """Expected bytes for the KV cache on the rank that has least."""
    pool_interval_bytes: tuple[int, int]
    groups: tuple[CacheGroup, ...]
    """The groups of layers on the first pipeline rank."""
    block: int
    request_bytes: int
    """Bytes of one request of the longest length, with what the engine holds back."""
    request_pages: int
    ranks: tuple[tuple[Term, ...], ...]
    """The terms of each pipeline rank."""
    longest: int = 0
    """Tokens of the longest request that fits into the expected pool."""
    share_needed: float | None = None
    """The smallest share with which the expected terms leave one request's bytes; None: none below 1."""
    captures: Captures = Captures()
    demand_pages: int = 0
    """Blocks that the demand of the plan takes at once."""
    enclosing: tuple[tuple[str, str], ...] = ()
    """(version, answer) of the known versions around one that memcheck does not know."""

    @property
    def demand_held(self) -> bool | None:
        """Whether the expected pool holds the plan's demand, without the block that the engine keeps for itself.

        None without a demand; false where the engine does not boot, or takes no request of that length.
        """
        if self.settings.demand is None:
            return None
        pool = self.pool
        return pool is not None and self.settings.demand[1] <= pool.length and self.demand_pages < pool.blocks

    @property
    def graphs_room_bytes(self) -> int | None:
        """Bytes that CUDA graphs may take while the engine still boots, where nothing but their size decides.

        None where it is less than graphs usually take, where another term decides, or without a fixed length.
        """
        if self.answer != "depends" or self.depends_on != ("graphs",) or not self.settings.length:
            return None
        room = self.pool_interval_bytes[0] - self.request_bytes
        return room if room > GRAPHS_USUAL_BYTES else None
