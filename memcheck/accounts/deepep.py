"""DeepEP's buffers, through which tokens travel to experts (deepseek-ai/DeepEP ``csrc/config.hpp``,
get_nvl_buffer_size_hint and get_rdma_buffer_size_hint; ``deep_ep/buffer.py``, recommended configurations).

Megatron-core ``transformer/moe/fused_a2a.py``, and NeMo AutoModel's copy of it, make them as large as the larger of
dispatch and combine asks for. What goes through the network lies on NVSHMEM's heap, which grows by
NVSHMEM_CUMEM_GRANULARITY.

HybridEP (the same repository's branch hybrid-ep, ``csrc/hybrid_ep/buffer/intranode.cu`` and ``internode_nixl.cu``)
makes its buffers for the worst case, in which every rank sends all of its tokens to one.
"""

from __future__ import annotations

from memcheck.autograd.tensor import ceil_div, round_up

MULTIPROCESSORS = 20
"""``Buffer.num_sms``: two of them serve one channel."""
NODE_RANKS = 8
"""``NUM_MAX_NVL_PEERS``."""
NEAR_TOKENS = {8: 256, 16: 288, 24: 288, 32: 288, 48: 288, 64: 288, 96: 480, 128: 560, 144: 720, 160: 720}
"""Tokens in a channel's receive buffer for each rank of the node, by ranks of the group."""
FAR_TOKENS = {16: 140, 24: 128, 32: 128, 48: 128, 64: 140, 96: 132, 128: 132, 144: 132, 160: 132}
"""Tokens in a channel's receive buffer for each node, by ranks of the group: 128, rounded up to a multiple of what is
sent at once."""
TOKEN_BYTES = 8 + 128 * 8 + 128 * 4 + 128 * 4
"""Bytes of a token in addition to its hidden state: its source 8, and 128 entries each of expert numbers (int64), of
router weights and of scales (fp32)."""
HEAP_GRANULE = 2**29
"""NVSHMEM_CUMEM_GRANULARITY."""


def deepep_bytes(ranks: int, hidden: int) -> int:
    """Compute the bytes of DeepEP's buffers on one rank of an expert group, for 16-bit tokens.

    Each channel has a token buffer and int32 counters for each rank of the node, and for each node. Buffers for nodes
    exist twice, to send and to receive, and a token has 16 bytes more there (one ``int4``). ``hidden``: elements.
    """
    if ranks <= 1:
        return 0
    channels = MULTIPROCESSORS // 2
    nodes = max(1, ranks // NODE_RANKS)
    token = 2 * hidden + TOKEN_BYTES
    near = channels * min(ranks, NODE_RANKS) * (_at_least(NEAR_TOKENS, ranks) * token + (2 * nodes + 3) * 4)
    if ranks <= NODE_RANKS:
        return near
    far = 2 * channels * nodes * (_at_least(FAR_TOKENS, ranks) * (token + 16) + (2 * NODE_RANKS + 2) * 4) + 2**20
    return near + round_up(far, HEAP_GRANULE)


def hybrid_bytes(ranks: int, near: int, hidden: int, tokens: int, experts: int) -> int:
    """Compute the bytes of HybridEP's buffers on one rank, for 16-bit tokens; dispatch and combine share them.

    ``near``: ranks of the group that NVLink reaches. ``tokens``: those of one rank. ``experts``: those of one rank. A
    token is sent as 2 bytes per element, 4 per router score, and an fp32 scale per 128 elements. Combine sends no
    scales, and has one buffer to send and one to receive.
    """
    if ranks <= 1:
        return 0
    near = min(near, ranks)
    other_domains, scores, scales = ceil_div(ranks, near) - 1, 4 * experts * near, 4 * (hidden // 128)
    within_domain = tokens * ranks * (2 * hidden + scores + scales)
    if not other_domains:
        return within_domain
    send = tokens * (2 * hidden + scores * (other_domains + 1) + scales)
    received = tokens * other_domains * (2 * hidden + scores + scales)
    combined = 2 * tokens * other_domains * (2 * hidden + scores)
    return within_domain + send + received + combined


def _at_least(table: dict[int, int], ranks: int) -> int:
    """Return the tokens of DeepEP's configuration for a group of ``ranks``, or for the next larger group it knows."""
    return next((tokens for size, tokens in table.items() if size >= ranks), table[max(table)])
