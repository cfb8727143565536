"""Collectives, matrix products and rates: against figures worked out by hand and published ones."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import find_gpu, gpu_names
from memcheck.timing.exchanges import touched
from memcheck.timing.rates import Rates, all_reduce, all_to_all, exposed, filled, gather, group, matmul, rates_of, send
from memcheck.timing.types import MissingRateError

GB = 10**9


def h100(nodes_of: int = 8) -> Rates:
    """An H100's rates."""
    return rates_of(find_gpu("h100-80gb"), "bf16", nodes_of, fp8=False)


def test_a_ring_inside_a_node() -> None:
    """8 H100 gather 8 GB: 7 GB in and out at 370.8 GB/s of NVLink, and seven steps of latency."""
    g = group(h100(), 8, 1)
    assert gather(g, 8 * GB) == pytest.approx(7 / 370.8 + (8.4 + 7 * 3.4) * 1e-6, rel=1e-4)


def test_rings_over_nodes_use_every_adapter() -> None:
    """Eight ranks a node send through eight adapters; one rank a node through its own."""
    wide, narrow = group(h100(), 32, 1), group(h100(), 4, 8)
    assert wide.ring_bandwidth == pytest.approx(min(370.8, 8 * 50) * GB, rel=1e-3)
    assert narrow.ring_bandwidth == 50 * GB


def test_an_all_reduce_is_two_gathers_at_most() -> None:
    """Large ones go around the ring twice; small ones take the tree where the ring has many steps."""
    large = group(h100(), 8, 1)
    assert all_reduce(large, GB) == pytest.approx(2 * gather(large, GB), rel=0.01)
    many = group(h100(), 512, 1)
    assert all_reduce(many, 1024) < gather(many, 1024)


def test_nothing_to_exchange_takes_no_time() -> None:
    """A group of one rank, and an empty message."""
    one, two = group(h100(), 1, 1), group(h100(), 2, 1)
    for collective in (gather, all_reduce, all_to_all, send):
        assert collective(one, GB) == 0
        assert collective(two, 0) == 0
        assert collective(two, GB) > 0


def test_all_to_all_waits_for_the_network() -> None:
    """Of 16 ranks on two nodes, half of what a rank sends crosses its adapter."""
    g = group(h100(), 16, 1)
    assert all_to_all(g, 2 * GB) == pytest.approx(1 / 50, rel=0.01)


def test_bridges_join_pairs() -> None:
    """H100 NVL: NVLink inside a pair, PCIe beyond."""
    nvl = rates_of(find_gpu("h100-nvl-94gb"), "bf16", 8, fp8=False)
    assert group(nvl, 2, 1).bandwidth_in_node > 4 * group(nvl, 4, 1).bandwidth_in_node


def test_racks_join_nodes() -> None:
    """GB200 NVL72: 18 trays of four are one NVLink domain."""
    rack = rates_of(find_gpu("gb200"), "bf16", 4, fp8=False)
    assert group(rack, 64, 1).ring_bandwidth == pytest.approx(721.8 * GB, rel=1e-3)
    assert group(rack, 144, 1).ring_bandwidth < group(rack, 64, 1).ring_bandwidth * 10
    assert group(rack, 144, 1).ranks_in_node == 72


def test_the_last_wave_costs_as_much_as_a_full_one() -> None:
    """133 tiles on 132 multiprocessors take two waves."""
    assert filled(128 * 132, 128, 128, 1, 132) == 1.0
    assert filled(128 * 133, 128, 128, 1, 132) == pytest.approx(133 / 264)
    assert filled(128 * 133, 128, 128, 1, 0) == 1.0


def test_large_products_are_bound_by_arithmetic_and_thin_ones_by_memory() -> None:
    """8192 cubed reaches the measured rate; a product with one row reads its matrix."""
    r = h100()
    seconds, by_memory = matmul(8192, 8192, 8192, r)
    assert not by_memory
    assert 2 * 8192**3 / seconds <= 989e12 * 0.803
    assert 2 * 8192**3 / seconds > 989e12 * 0.803 * 0.9
    assert matmul(1, 8192, 8192, r)[1]


def test_rates_never_exceed_the_datasheet() -> None:
    """What is achieved is below the peak for every GPU that has rates; none is zero but NVLink's."""
    timed = 0
    for name in gpu_names():
        try:
            r = rates_of(find_gpu(name), "bf16", 8, fp8=False)
        except MissingRateError:
            continue
        timed += 1
        assert 0 < r.matmul_flops < r.peak_flops, name
        assert 0 < r.attention_flops < r.peak_flops, name
        assert min(r.hbm_bandwidth, r.pcie_bandwidth, r.host_bandwidth, r.network_bandwidth) > 0, name
        assert r.pcie_bandwidth < r.hbm_bandwidth, name
    assert timed > 35


def test_device_memory_reaches_what_was_measured() -> None:
    """92 % of an H100's, which stands for the others, and 84 % of a B300's."""
    shares = {}
    for name in ("h100-80gb", "a100-80gb", "b300"):
        gpu = find_gpu(name)
        assert gpu.hbm_gbs is not None
        shares[name] = rates_of(gpu, "bf16", 8, fp8=False).hbm_bandwidth / (gpu.hbm_gbs * 1e9)
    assert shares == {"h100-80gb": 0.92, "a100-80gb": 0.92, "b300": 0.84}


def test_attention_goes_back_at_its_own_rate() -> None:
    """On an H100 FlashAttention-2 does 322 TFLOPS backward, FlashAttention-3 561; elsewhere the forward rate counts."""
    h100, a100 = find_gpu("h100-80gb"), find_gpu("a100-80gb")
    two, three = (rates_of(h100, "bf16", 8, fp8=False, engine_attention=engine) for engine in (False, True))
    assert (two.attention_backward_flops, three.attention_backward_flops) == pytest.approx((322e12, 561e12))
    assert two.attention_flops < three.attention_flops
    other = rates_of(a100, "bf16", 8, engine_attention=True, fp8=False)
    assert other.attention_backward_flops == other.attention_flops
    single = rates_of(h100, "fp32", 8, fp8=False)
    assert single.attention_backward_flops == single.attention_flops == single.peak_flops


def test_two_rates_tell_a100_and_h100_apart() -> None:
    """The measured best matrix products: 271 TFLOPS on an A100, 794 on an H100."""
    a100 = rates_of(find_gpu("a100-80gb"), "bf16", 8, fp8=False)
    assert a100.matmul_flops == pytest.approx(271.2e12, rel=1e-3)
    assert h100().matmul_flops == pytest.approx(794.5e12, rel=1e-3)


def test_what_hides_takes_its_multiprocessors() -> None:
    """An exchange behind longer work costs the share of the GPU that carries it; a longer one is waited for."""
    assert exposed(1.0, 10.0, 0.125) == 0.125
    assert exposed(10.0, 1.0, 0.125) == 9.0
    assert exposed(0.0, 1.0, 0.125) == 0.0
    assert h100().collective_sm_share == pytest.approx(16 / 132)


def test_deepep_sends_a_token_to_a_node_once() -> None:
    """DeepSeek-V3 over eight nodes: 8 experts in 4 of 8 groups lie on 3.6 nodes on average, without groups on 5.25;
    on one node of four, two groups of eight lie together.
    """
    assert touched(8, 8, 8, 4) == pytest.approx(4 * (1 - 0.75**8))
    assert touched(8, 8, 1, 1) == pytest.approx(8 * (1 - 0.875**8))
    assert touched(4, 100, 8, 4) == pytest.approx(4 * (1 - 15 / 70))
    assert touched(16, 1000, 8, 4) == pytest.approx(8)
    g = group(h100(), 64, 1)
    assert all_to_all(g, 8 * GB, 3 * GB) == pytest.approx(3 / 50, rel=0.01)
    assert all_to_all(g, 8 * GB) == pytest.approx(7 / 50, rel=0.01)
