"""What ranks exchange through: process groups as one rank sees them, and DeepEP's buffers for experts' tokens.

DeepEP's sizes: deepseek-ai/DeepEP ``csrc/config.hpp`` (get_nvl_buffer_size_hint, get_rdma_buffer_size_hint) and
``deep_ep/buffer.py`` (recommended configurations). Megatron-core ``transformer/moe/fused_a2a.py``, and NeMo
AutoModel's copy of it, make the buffers as large as the larger of dispatch and combine asks for. What goes through the
network lies on NVSHMEM's heap, which grows by NVSHMEM_CUMEM_GRANULARITY.

HybridEP (the same repository's branch hybrid-ep, ``csrc/hybrid_ep/buffer/intranode.cu`` and ``internode_nixl.cu``)
makes its buffers for the worst case, in which every rank sends all of its tokens to one.
"""

from __future__ import annotations

from memcheck.autograd.tensor import ceil_div, round_up
from memcheck.job.types import Layout
from memcheck.record import Record

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object


class OutsideTerm(Record):
    """One owner of GPU memory outside the caching allocator, such as a communicator, on one rank."""

    name: str
    bytes: int
    source: str
    """Where the bytes come from, for reports."""


class ProcessGroup(Record):
    """One process group as a rank of it sees it."""

    kind: str
    """``world`` | ``data`` | ``tensor`` | ``context`` | ``pipeline`` | ``expert`` ..."""
    ranks_in_node: int
    """Ranks of the group in this node."""
    nodes: int
    uses_collectives: bool
    """Uses rings, trees and NVLink SHARP."""
    peers: int = 0
    """Ranks it sends to and receives from directly."""
    connects_one_algorithm: bool = False
    """Connects one algorithm alone: sums of a few numbers, or rings that gather and scatter."""


class UsedGroups(Protocol):
    """What of a job decides which groups its ranks exchange in. Two that are equal use the same."""

    def __hash__(self) -> int:
        """Part of the key under which terms are remembered."""

    def groups(self, layout: Layout) -> tuple[ProcessGroup, ...]:
        """Every group of one rank with a communicator of its own, as far as a step uses it."""

    def buffers(self, layout: Layout) -> tuple[OutsideTerm, ...]:
        """Buffers of libraries that exchange data in addition to NCCL."""


def spread(kind: str, degree: int, stride: int, layout: Layout) -> ProcessGroup | None:
    """Return the process group of ``degree`` ranks, of which every ``stride``-th rank is one; None for a single rank.

    ``kind``: its name, such as ``tensor``.
    """
    if degree <= 1:
        return None
    local = max(1, min(degree, layout.gpus_per_node // stride))
    return ProcessGroup(kind, local, nodes_of(degree, local), uses_collectives=True)


def nodes_of(degree: int, local: int) -> int:
    """Nodes over which ``degree`` ranks lie, ``local`` of them in each."""
    return max(1, ceil_div(degree, local))


MULTIPROCESSORS = 20
"""``Buffer.num_sms``: two of them serve one channel."""
NODE_RANKS = 8
"""``NUM_MAX_NVL_PEERS``."""
NEAR_TOKENS = {8: 256, 16: 288, 24: 288, 32: 288, 48: 288, 64: 288, 96: 480, 128: 560, 144: 720, 160: 720}
"""Tokens in a channel's receive buffer for each rank of the node, by ranks of the group."""
FAR_TOKENS = {16: 140, 24: 128, 32: 128, 48: 128, 64: 140, 96: 132, 128: 132, 144: 132, 160: 132}
"""Tokens in a channel's receive buffer for each node, by ranks of the group: 128, rounded up to a multiple of what is
sent at once."""
BF16, FP32, INT32 = 2, 4, 4
"""Bytes of one element."""
TOKEN_BYTES = 8 + 128 * 8 + 128 * 4 + 128 * 4
"""Bytes of a token in addition to its hidden state: its source 8, and 128 entries each of expert numbers (int64), of
router weights and of scales (fp32)."""
HEAP_GRANULE = 2**29
"""NVSHMEM_CUMEM_GRANULARITY."""
HEAP_MARGIN = 2**20
"""Bytes of NVSHMEM's heap that are counted in addition to DeepEP's buffers."""
FAR_TOKEN_BYTES = 16
"""Bytes that a token has in addition where it goes through the network (one ``int4``)."""


def deepep_bytes(ranks: int, hidden: int) -> int:
    """Compute the bytes of DeepEP's buffers on one rank of an expert group, for 16-bit tokens.

    Each channel has a token buffer and int32 counters for each rank of the node, and for each node. Buffers for nodes
    exist twice, to send and to receive. ``hidden``: elements of a token.
    """
    if ranks <= 1:
        return 0
    channels = MULTIPROCESSORS // 2
    nodes = max(1, ranks // NODE_RANKS)
    token_bytes = BF16 * hidden + TOKEN_BYTES
    near_counters = 2 * nodes + 3
    near_per_rank = _at_least(NEAR_TOKENS, ranks) * token_bytes + near_counters * INT32
    near = channels * min(ranks, NODE_RANKS) * near_per_rank
    if ranks <= NODE_RANKS:
        return near
    far_counters = 2 * NODE_RANKS + 2
    far_per_node = _at_least(FAR_TOKENS, ranks) * (token_bytes + FAR_TOKEN_BYTES) + far_counters * INT32
    far = 2 * channels * nodes * far_per_node
    return near + round_up(far + HEAP_MARGIN, HEAP_GRANULE)


def hybrid_bytes(ranks: int, near: int, hidden: int, tokens: int, experts: int) -> int:
    """Compute the bytes of HybridEP's buffers on one rank, for 16-bit tokens; dispatch and combine share them.

    ``near``: ranks of the group that NVLink reaches. ``tokens``: those of one rank. ``experts``: those of one rank. A
    token is sent as 2 bytes per element, 4 per router score, and an fp32 scale per 128 elements. Combine sends no
    scales, and has one buffer to send and one to receive.
    """
    if ranks <= 1:
        return 0
    near = min(near, ranks)
    domains = ceil_div(ranks, near)
    other_domains = domains - 1
    state_bytes = BF16 * hidden
    score_bytes = FP32 * experts * near
    scale_bytes = FP32 * (hidden // SCALED_ELEMENTS)
    within_domain = tokens * ranks * (state_bytes + score_bytes + scale_bytes)
    if not other_domains:
        return within_domain
    sent = tokens * (state_bytes + score_bytes * domains + scale_bytes)
    received = tokens * other_domains * (state_bytes + score_bytes + scale_bytes)
    combined = 2 * tokens * other_domains * (state_bytes + score_bytes)  # to send, and to receive
    return within_domain + sent + received + combined


SCALED_ELEMENTS = 128
"""Elements of a token that share an fp32 scale."""


def _at_least(table: dict[int, int], ranks: int) -> int:
    """Return the tokens of DeepEP's configuration for a group of ``ranks``, or for the next larger group it knows."""
    return next((tokens for size, tokens in table.items() if size >= ranks), table[max(table)])
