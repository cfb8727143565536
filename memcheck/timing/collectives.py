"""What NCCL's collectives take: its own cost model, latency + bytes / bandwidth, per algorithm and protocol.

Source: NCCL 2.30 ``src/graph/tuning.cc`` (baseLatencies, hwLatencies, steps of rings and trees, the LL protocol at half
the bandwidth); rings between nodes use the adapter of every local rank of the group (``src/graph/search.cc``).
"""

from __future__ import annotations

from functools import lru_cache
from math import log2

from memcheck.autograd.tensor import ceil_div
from memcheck.record import Record
from memcheck.timing.rates import Rates

MICRO = 1e-6
BASE_SIMPLE, BASE_LL, BASE_TREE = 8.4 * MICRO, 6.6 * MICRO, 8.4 * MICRO
STEP_SIMPLE = {"nvlink": 3.4 * MICRO, "pcie": 5.7 * MICRO, "network": 14.0 * MICRO}
STEP_LL = {"nvlink": 0.6 * MICRO, "pcie": 1.0 * MICRO, "network": 2.7 * MICRO}
STEP_TREE = {"nvlink": 4.0 * MICRO, "pcie": 4.0 * MICRO, "network": 14.0 * MICRO}
TREE_SHARE = 0.92
"""What trees reach of the bandwidth of rings, as a fraction."""
LL_OVERHEAD = 2
"""Bytes that the protocol LL sends per byte of data: every 4 bytes carry a flag of 4 bytes."""


class GroupLinks(Record):
    """A process group as NCCL's cost model sees it: latency in seconds, and bandwidth in bytes per second."""

    ranks: int
    """Ranks of the group."""
    local: int
    """Ranks in one node (or NVLink domain)."""
    bandwidth: float
    """Bytes per second of a ring in one direction."""
    near: float
    """Bytes per second between ranks of one node."""
    far: float
    """Bytes per second between nodes, per rank."""
    ring: float
    """Seconds of latency of one pass around, protocol Simple."""
    ring_low: float
    """Seconds of latency of one pass around, protocol LL."""
    tree: float
    """Seconds of latency of a tree's all-reduce."""


@lru_cache(maxsize=4096)
def group(rates: Rates, ranks: int, stride: int) -> GroupLinks:
    """Describe the links of a group of ``ranks`` ranks that are ``stride`` apart in the order of all ranks.

    Bandwidths are in bytes per second, latencies in seconds. ``rates``: of the GPU and its node. A ring over several
    nodes is as fast as its slowest link, the network adapters of all its ranks in a node together.
    """
    nvlink_domain = rates.nvlink_gpus if rates.nvlink_bandwidth else rates.gpus_per_node
    node = max(nvlink_domain, rates.gpus_per_node)  # an NVLink domain may span several nodes
    local = max(1, min(ranks, node // stride))
    nodes = ceil_div(ranks, local)
    reached_by_nvlink = rates.nvlink_bandwidth > 0 and (local - 1) * stride < nvlink_domain
    near = rates.nvlink_bandwidth if reached_by_nvlink else rates.pcie_bandwidth
    link = "nvlink" if reached_by_nvlink else "pcie"
    far = rates.network_bandwidth
    if nodes == 1:
        bandwidth = near
    elif local == 1:
        bandwidth = far
    else:
        bandwidth = min(near, far * local)
    steps_inside, steps_outside = ranks - nodes, nodes - 1

    def latency(base: float, seconds_per_step: dict[str, float]) -> float:
        return base + steps_inside * seconds_per_step[link] + steps_outside * seconds_per_step["network"]

    # a tree chains the GPUs of a node and has log2(nodes) levels of nodes; an all-reduce goes up and down
    one_way = (local - 1) * STEP_TREE[link] + log2(nodes) * STEP_TREE["network"]
    tree = BASE_TREE + 2 * one_way
    return GroupLinks(
        ranks=ranks,
        local=local,
        bandwidth=bandwidth,
        near=near,
        far=far,
        ring=latency(BASE_SIMPLE, STEP_SIMPLE),
        ring_low=latency(BASE_LL, STEP_LL),
        tree=tree,
    )


def exposed(exchange: float, work: float, collective_sm_share: float) -> float:
    """Compute the seconds that an exchange adds to the computation (``work`` seconds) that it overlaps.

    It adds what it takes longer than the computation, or what the computation loses to it, whichever is more.
    ``collective_sm_share``: the share of the multiprocessors that the exchange occupies, 0 to 1.
    """
    return max(collective_sm_share * exchange, exchange - work)


def gather(links: GroupLinks, total_bytes: float) -> float:
    """Compute the seconds of an all-gather or reduce-scatter over a ring. ``total_bytes``: of all ranks together.

    Each rank sends and receives all but its own shard. NCCL takes the faster of its protocols Simple and LL; LL has a
    lower latency and sends twice the bytes.
    """
    if links.ranks <= 1 or total_bytes <= 0:
        return 0.0
    seconds = total_bytes * (links.ranks - 1) / links.ranks / links.bandwidth
    return min(links.ring + seconds, links.ring_low + LL_OVERHEAD * seconds)


def all_reduce(links: GroupLinks, total_bytes: float) -> float:
    """Compute the seconds of an all-reduce of ``total_bytes``: around a ring or along a tree, whichever is faster.

    Around the ring it is a reduce-scatter and an all-gather: twice the bytes and steps of one, but one kernel's base
    latency. The protocol LL sends twice the bytes once more. Along the tree each rank sends and receives all bytes.
    """
    if links.ranks <= 1 or total_bytes <= 0:
        return 0.0
    seconds = 2 * total_bytes * (links.ranks - 1) / links.ranks / links.bandwidth
    ring = 2 * links.ring - BASE_SIMPLE + seconds
    ring_low = 2 * links.ring_low - BASE_LL + LL_OVERHEAD * seconds
    tree = links.tree + 2 * total_bytes / (links.bandwidth * TREE_SHARE)
    return min(ring, ring_low, tree)


def all_to_all(links: GroupLinks, sent_bytes: float, forwarded_bytes: float | None = None) -> float:
    """Compute the seconds of an all-to-all: every rank sends ``sent_bytes``, in equal parts to all ranks.

    Traffic inside a node overlaps traffic between nodes. ``forwarded_bytes``: bytes per rank that cross to other nodes
    where a node gets one copy of a token and passes it on inside (DeepEP); None: each rank gets its own copy.
    """
    if links.ranks <= 1 or sent_bytes <= 0:
        return 0.0
    if forwarded_bytes is None:
        near_seconds = sent_bytes * (links.local - 1) / links.ranks / links.near
        far_seconds = sent_bytes * (links.ranks - links.local) / links.ranks / links.far
    else:
        near_seconds = sent_bytes * (links.local - 1) / links.local / links.near
        far_seconds = forwarded_bytes / links.far
    crosses_nodes = links.ranks > links.local
    latency = BASE_SIMPLE + STEP_SIMPLE["network" if crosses_nodes else "nvlink"]
    return latency + max(near_seconds, far_seconds)


def send(links: GroupLinks, sent_bytes: float) -> float:
    """Compute the seconds of sending ``sent_bytes`` to the next rank of the group."""
    if links.ranks <= 1 or sent_bytes <= 0:
        return 0.0
    crosses_nodes = links.ranks > links.local
    latency = BASE_SIMPLE + STEP_SIMPLE["network" if crosses_nodes else "nvlink"]
    return latency + sent_bytes / (links.far if crosses_nodes else links.near)
