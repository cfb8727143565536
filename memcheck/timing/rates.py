"""How fast a GPU and its links are: datasheet rates, brought down to what was published as achievable.

Matrix products: the fastest one that stas00/ml-engineering measured ("Maximum Achievable Matmul FLOPS", in the GPU's
record). Attention: FlashAttention-2 reaches 50 to 73 % of an A100 (Dao 2023, abstract) and 35 % of an H100;
FlashAttention-3 and cuDNN reach 75 % there (Shah et al. 2024, abstract and figure 5); backward, 322 and 561 TFLOPS of
its 989 (figure 6: head dimension 128, 16,384 tokens). NVLink and PCIe: what NCCL counts
on, 20.0 of 25 GB/s a link on Volta and Ampere, 20.6 of 25 on Hopper, 40.1 of 50 on Blackwell, 12.0 of 14.06 on sm_86,
12.0 of 15.75 GB/s of PCIe 3 x16 (NCCL 2.30 ``src/graph/topo.h``). Device memory: what element-wise kernels with large
inputs reach, 92 % of an H100's and 84 % of a B300's (torchao ``testing/training/roofline_utils.py``, "measurement on
hardware"; its other GPUs take the H100's share, too). Copies to the host: 55.4 of 63 GB/s of PCIe 5
(stas00/ml-engineering ``network/README.md``, nvbandwidth on an H200).

A matrix product is bounded by arithmetic, by memory, or by the multiprocessors that its last wave leaves idle.

Source: NVIDIA, "Matrix Multiplication Background User's Guide" (arithmetic intensity, tile and wave quantisation; tiles
of 256 x 128 and 128 x 128). Products with fewer tiles than multiprocessors are cut along the inner dimension.

What NCCL's collectives take: its own cost model, latency + bytes / bandwidth, per algorithm and protocol.

Source: NCCL 2.30 ``src/graph/tuning.cc`` (baseLatencies, hwLatencies, steps of rings and trees, the LL protocol at half
the bandwidth); rings between nodes use the adapter of every local rank of the group (``src/graph/search.cc``).
"""

from __future__ import annotations

from functools import lru_cache
from math import log2

from memcheck.autograd.tensor import ceil_div, round_up
from memcheck.catalog.names import Gpu
from memcheck.job.types import Assumption
from memcheck.record import Record
from memcheck.timing.types import MissingRateError

GB = 1e9
TERA = 1e12

MATMUL_NVIDIA = 0.803
"""Median of the measured shares of NVIDIA's GPUs (A100, H100, GH200, B200, GB200, B300), for those not measured."""
MATMUL_OTHER = 0.601
"""Median of the measured shares of AMD's GPUs (MI300X, MI325X, MI355X), for those not measured."""
FP8_OTHER = 0.734
"""Median of the measured fp8 shares (H100, H200, GH200, B200, GB200, B300)."""
FP32_OF_BF16 = 1 / 16
"""fp32 outside the tensor cores where no rate is known: A100's 19.5 of 312."""

FLASH = {"sm_80": 0.6, "sm_86": 0.6, "sm_89": 0.6, "sm_90": 0.35}
"""Share of the peak that FlashAttention-2 reaches, forward and backward together."""
FLASH_HOPPER = 0.75
"""FlashAttention-3 and cuDNN on sm_90, which Transformer Engine calls."""
FLASH_BACKWARD = 322 / 989
"""FlashAttention-2's backward pass on sm_90."""
FLASH_HOPPER_BACKWARD = 561 / 989
FLASH_UNKNOWN = 0.5
"""The lower end of FlashAttention-2 on the hardware it was written for."""

HBM = {"sm_103": 0.84}
HBM_OTHER = 0.92

NVLINK = {"sm_70": 0.8, "sm_75": 0.8, "sm_80": 0.8, "sm_86": 0.853, "sm_90": 0.824, "sm_100": 0.802, "sm_103": 0.802}
NVLINK_OTHER = 0.8
PCIE_COLLECTIVE = 12.0 / 15.75
PCIE_COPY = 55.4 / 63.0
PCIE_UNKNOWN_GBS = 15.75
"""NCCL's ``PCI_BW`` is that of PCIe 3 x16 where it cannot tell."""
NETWORK_UNKNOWN_GBS = 12.0
"""NCCL's ``NET_BW``: one adapter of 100 Gb/s, which the GPUs of a node share."""

CHANNELS = 16
"""Blocks of threads of one collective, each on a multiprocessor of its own: what NCCL's log prints on nodes of eight
Hopper GPUs ("16 coll channels, 16 nvls channels"). DeepSeek gives its all-to-all 20 of 132 (report, section 3.2.2)."""


class Rates(Record):
    """Operations and bytes per second of one GPU in one kind of node."""

    matmul_flops: float
    """Floating-point operations per second of matrix products."""
    attention_flops: float
    """Floating-point operations per second of attention's forward kernel."""
    attention_backward_flops: float
    """Floating-point operations per second of attention's backward kernel."""
    peak_flops: float
    """Datasheet rate of the activations' dtype: what MFU divides by."""
    hbm_bandwidth: float
    """Bytes per second of the GPU's own memory."""
    nvlink_bandwidth: float
    """Bytes per second of NVLink in one direction; 0 = no NVLink."""
    nvlink_gpus: int
    """GPUs that NVLink connects with each other."""
    pcie_bandwidth: float
    """Bytes per second from GPU to GPU through the host, in one direction."""
    host_bandwidth: float
    """Bytes per second of copies between GPU and host, in one direction."""
    network_bandwidth: float
    """Bytes per second of the network, per GPU and direction."""
    gpus_per_node: int
    multiprocessors: int
    """Streaming multiprocessors of the GPU; 0 = not known: waves are not counted."""
    collective_sm_share: float
    """Share of the multiprocessors that a collective occupies while it runs; 0 where their number is not known."""
    assumptions: tuple[Assumption, ...]


@lru_cache(maxsize=256)
def rates_of(gpu: Gpu, compute: str, gpus_per_node: int, *, fp8: bool, engine_attention: bool = False) -> Rates:
    """Return the FLOPs and bytes per second that a GPU and its links achieve, with the assumptions that were made.

    ``compute``: dtype of activations, ``bf16`` | ``fp16`` | ``fp32``. ``fp8``: matrix products take fp8 inputs.
    ``engine_attention``: Transformer Engine's attention kernels run.

    Raises:
        MissingRateError: the record has no rate for that dtype, or no memory bandwidth.
    """
    assumed: list[Assumption] = []
    peak = _peak(gpu, compute, assumed)
    if gpu.hbm_gbs is None:
        raise _missing(gpu, "hbm_gbs", "memory bandwidth")
    arch = gpu.arch or ""
    nvlink_one_way = gpu.nvlink_gbs / 2 if gpu.nvlink_gbs else 0.0  # datasheets add up both directions
    if gpu.nvlink_gbs is None and gpus_per_node > 1:
        assumed.append(Assumption("hardware.gpu.nvlink_gbs", 0, "not known: GPUs of a node are linked by PCIe"))
    pcie = gpu.pcie_gbs
    if pcie is None:
        pcie = PCIE_UNKNOWN_GBS
        assumed.append(Assumption("hardware.gpu.pcie_gbs", pcie, "not known: PCIe 3 x16, as NCCL takes it"))
    network = gpu.network_gbs
    if network is None:
        network = NETWORK_UNKNOWN_GBS / gpus_per_node
        why = "not stated: one 100 Gb/s adapter per node, NCCL's default"
        assumed.append(Assumption("hardware.gpu.network_gbs", round(network, 2), why))
    forward_share = backward_share = 1.0  # no flash attention in fp32
    if compute != "fp32":
        forward_share = _flash(gpu, assumed, engine=engine_attention)
        backward_share = _flash_backward(gpu, forward_share, engine=engine_attention)
    return Rates(
        matmul_flops=_linear(gpu, compute, peak, assumed, fp8=fp8),
        attention_flops=peak * forward_share,
        attention_backward_flops=peak * backward_share,
        peak_flops=peak,
        hbm_bandwidth=gpu.hbm_gbs * GB * HBM.get(arch, HBM_OTHER),
        nvlink_bandwidth=nvlink_one_way * NVLINK.get(arch, NVLINK_OTHER) * GB,
        nvlink_gpus=gpu.nvlink_gpus or gpus_per_node,
        pcie_bandwidth=pcie * PCIE_COLLECTIVE * GB,
        host_bandwidth=pcie * PCIE_COPY * GB,
        network_bandwidth=network * GB,
        gpus_per_node=gpus_per_node,
        multiprocessors=gpu.multiprocessors or 0,
        collective_sm_share=CHANNELS / gpu.multiprocessors if gpu.multiprocessors else 0.0,
        assumptions=tuple(assumed),
    )


def _peak(gpu: Gpu, compute: str, assumed: list[Assumption]) -> float:
    """Return the datasheet's FLOPs per second of a GPU in dtype ``compute``; a guess is added to ``assumed``."""
    if compute == "fp32" and gpu.fp32_tflops is None and gpu.bf16_tflops is not None:
        fp32 = gpu.bf16_tflops * FP32_OF_BF16
        assumed.append(Assumption("hardware.gpu.fp32_tflops", fp32, "not known: a sixteenth of bf16, as on the A100"))
        return fp32 * TERA
    tflops = {"fp32": gpu.fp32_tflops, "bf16": gpu.bf16_tflops, "fp16": gpu.fp16_tflops}.get(compute)
    if not tflops:
        raise _missing(gpu, f"{compute}_tflops", f"{compute} rate")
    return tflops * TERA


def _linear(gpu: Gpu, compute: str, peak: float, assumed: list[Assumption], *, fp8: bool) -> float:
    """Return the FLOPs per second that large matrix products achieve: a measured or assumed share of the peak.

    ``compute``: dtype of the operands; ``fp8``: they are fp8 instead. ``peak``: datasheet FLOPs per second of
    ``compute``. A share that was not measured on this GPU is added to ``assumed``.
    """
    if compute == "fp32":
        return peak
    nvidia = (gpu.arch or "sm_").startswith("sm_")
    if not fp8:
        share = gpu.bf16_efficiency
        if share is None:
            share = MATMUL_NVIDIA if nvidia else MATMUL_OTHER
            assumed.append(Assumption("matrix products", share, "not measured: the median share of the maker's GPUs"))
        return peak * share
    if not gpu.fp8_tflops:
        raise _missing(gpu, "fp8_tflops", "fp8 rate")
    share = gpu.fp8_efficiency
    if share is None:
        share = FP8_OTHER if nvidia else MATMUL_OTHER
        assumed.append(Assumption("fp8 matrix products", share, "not measured: the median share of other GPUs"))
    return gpu.fp8_tflops * TERA * share


def _flash(gpu: Gpu, assumed: list[Assumption], *, engine: bool) -> float:
    """Return the share of the datasheet rate that attention's forward reaches, 0 to 1.

    ``engine``: Transformer Engine's kernels run. A guess is added to ``assumed``.
    """
    if gpu.arch == "sm_90" and engine:
        return FLASH_HOPPER
    share = FLASH.get(gpu.arch or "")
    if share is None:
        share = FLASH_UNKNOWN
        why = "no published share for this architecture: the lower end of FlashAttention-2's"
        assumed.append(Assumption("attention kernels", share, why))
    return share


def _flash_backward(gpu: Gpu, forward_share: float, *, engine: bool) -> float:
    """Return the share of the datasheet rate that attention's backward reaches, 0 to 1.

    It is published for Hopper alone; on other GPUs it is that of the forward. ``engine``: Transformer Engine's kernels
    run.
    """
    if gpu.arch != "sm_90":
        return forward_share
    return FLASH_HOPPER_BACKWARD if engine else FLASH_BACKWARD


def _missing(gpu: Gpu, field: str, what: str) -> MissingRateError:
    """Return the error that a GPU's record lacks ``field``, called ``what`` in the message."""
    return MissingRateError(
        f"the speed of {gpu.name} is not known: its record has no {what}",
        f"state `hardware.gpu: {{name: {gpu.name}, {field}: ...}}`",
        "/hardware/gpu",
    )


TILES = ((256, 128), (128, 256), (128, 128))
"""Rows and columns of a result that one multiprocessor computes at a time."""
SHORTEST_SLICE = 512
"""Fewest elements of the inner dimension in a slice: in shorter ones, adding up costs more than slicing gains."""


def filled(rows: int, columns: int, inner: int, batch: int, multiprocessors: int) -> float:
    """Compute the share of the multiprocessors' time that a matrix product spends on elements of its result, 0 to 1.

    The product is [rows, inner] x [inner, columns], ``batch`` times. The rest of the time is lost to partly filled
    tiles, and to multiprocessors without a tile in the last wave. The best tile size is taken. Products with fewer
    tiles than multiprocessors are sliced along the inner dimension.
    """
    if not multiprocessors:
        return 1.0
    best = 0.0
    for tile_rows, tile_columns in TILES:
        tiles = ceil_div(rows, tile_rows) * ceil_div(columns, tile_columns) * batch
        share_of_tiles = rows * columns * batch / (tiles * tile_rows * tile_columns)
        if tiles < multiprocessors:
            slices = max(1, min(multiprocessors // tiles, inner // SHORTEST_SLICE))
            share_of_multiprocessors = tiles * slices / multiprocessors
        else:
            share_of_multiprocessors = tiles / round_up(tiles, multiprocessors)
        best = max(best, share_of_tiles * share_of_multiprocessors)
    return best


class MatmulTime(Record):
    """The time of a matrix product, and what bounds it."""

    seconds: float
    is_memory_bound: bool
    """Memory bandwidth bounds the product; else arithmetic does."""


@lru_cache(maxsize=16384)
def matmul(rows: int, columns: int, inner: int, rates: Rates, batch: int = 1, item_bytes: int = 2) -> MatmulTime:
    """Compute the time of ``batch`` matrix products ``[rows, inner] x [inner, columns]``.

    ``item_bytes``: bytes per element of the operands. Results of fp8 products are written in 16 bits.
    """
    if rows <= 0 or columns <= 0 or inner <= 0:
        return MatmulTime(0.0, is_memory_bound=False)
    achieved_flops = rates.matmul_flops * filled(rows, columns, inner, batch, rates.multiprocessors)
    arithmetic_seconds = 2.0 * rows * columns * inner * batch / achieved_flops
    operand_bytes = item_bytes * (rows * inner + inner * columns)
    result_bytes = max(2, item_bytes) * rows * columns
    memory_seconds = float(operand_bytes + result_bytes) * batch / rates.hbm_bandwidth
    if memory_seconds > arithmetic_seconds:
        return MatmulTime(memory_seconds, is_memory_bound=True)
    return MatmulTime(arithmetic_seconds, is_memory_bound=False)


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
    ranks_in_node: int
    """Ranks in one node (or NVLink domain)."""
    ring_bandwidth: float
    """Bytes per second of a ring in one direction."""
    bandwidth_in_node: float
    """Bytes per second between ranks of one node."""
    bandwidth_between_nodes: float
    """Bytes per second between nodes, per rank."""
    ring_latency: float
    """Seconds of latency of one pass around, protocol Simple."""
    ring_latency_low: float
    """Seconds of latency of one pass around, protocol LL."""
    tree_latency: float
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
        ranks_in_node=local,
        ring_bandwidth=bandwidth,
        bandwidth_in_node=near,
        bandwidth_between_nodes=far,
        ring_latency=latency(BASE_SIMPLE, STEP_SIMPLE),
        ring_latency_low=latency(BASE_LL, STEP_LL),
        tree_latency=tree,
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
    seconds = total_bytes * (links.ranks - 1) / links.ranks / links.ring_bandwidth
    return min(links.ring_latency + seconds, links.ring_latency_low + LL_OVERHEAD * seconds)


def all_reduce(links: GroupLinks, total_bytes: float) -> float:
    """Compute the seconds of an all-reduce of ``total_bytes``: around a ring or along a tree, whichever is faster.

    Around the ring it is a reduce-scatter and an all-gather: twice the bytes and steps of one, but one kernel's base
    latency. The protocol LL sends twice the bytes once more. Along the tree each rank sends and receives all bytes.
    """
    if links.ranks <= 1 or total_bytes <= 0:
        return 0.0
    seconds = 2 * total_bytes * (links.ranks - 1) / links.ranks / links.ring_bandwidth
    ring = 2 * links.ring_latency - BASE_SIMPLE + seconds
    ring_low = 2 * links.ring_latency_low - BASE_LL + LL_OVERHEAD * seconds
    tree = links.tree_latency + 2 * total_bytes / (links.ring_bandwidth * TREE_SHARE)
    return min(ring, ring_low, tree)


def all_to_all(links: GroupLinks, sent_bytes: float, forwarded_bytes: float | None = None) -> float:
    """Compute the seconds of an all-to-all: every rank sends ``sent_bytes``, in equal parts to all ranks.

    Traffic inside a node overlaps traffic between nodes. ``forwarded_bytes``: bytes per rank that cross to other nodes
    where a node gets one copy of a token and passes it on inside (DeepEP); None: each rank gets its own copy.
    """
    if links.ranks <= 1 or sent_bytes <= 0:
        return 0.0
    if forwarded_bytes is None:
        near_seconds = sent_bytes * (links.ranks_in_node - 1) / links.ranks / links.bandwidth_in_node
        far_seconds = sent_bytes * (links.ranks - links.ranks_in_node) / links.ranks / links.bandwidth_between_nodes
    else:
        near_seconds = sent_bytes * (links.ranks_in_node - 1) / links.ranks_in_node / links.bandwidth_in_node
        far_seconds = forwarded_bytes / links.bandwidth_between_nodes
    crosses_nodes = links.ranks > links.ranks_in_node
    latency = BASE_SIMPLE + STEP_SIMPLE["network" if crosses_nodes else "nvlink"]
    return latency + max(near_seconds, far_seconds)


def send(links: GroupLinks, sent_bytes: float) -> float:
    """Compute the seconds of sending ``sent_bytes`` to the next rank of the group."""
    if links.ranks <= 1 or sent_bytes <= 0:
        return 0.0
    crosses_nodes = links.ranks > links.ranks_in_node
    latency = BASE_SIMPLE + STEP_SIMPLE["network" if crosses_nodes else "nvlink"]
    return latency + sent_bytes / (links.bandwidth_between_nodes if crosses_nodes else links.bandwidth_in_node)
