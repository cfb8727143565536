"""The catalog of GPUs: usable memory, rates, names."""

from __future__ import annotations

import os

import pytest

from memcheck.catalog.names import DATA, AmbiguousNameError, find_gpu, gpu_names, read_record
from memcheck.job.lookup import resolve_gpu
from memcheck.judge import Gate, check_file
from memcheck.plan.types import GpuSpec

GIB = 2**30
RATES = ("bf16_tflops", "fp16_tflops", "fp8_tflops", "hbm_gbs", "nvlink_gbs")
SPEED = (
    "fp32_tflops",
    "multiprocessors",
    "bf16_efficiency",
    "fp8_efficiency",
    "nvlink_gpus",
    "pcie_gbs",
    "network_gbs",
)
GENERATIONS = {
    *("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"),
    *("gfx90a", "gfx942", "gfx950", "hpu", "tpu", "xpu"),
}
FACTS = ("peer_access", "context_read")
KEYS = {
    "aliases",
    "shared_names",
    "arch",
    "marketed_gb",
    "memory_bytes",
    *RATES,
    *SPEED,
    *FACTS,
    "gpus_per_node",
    "source",
    "note",
}


def test_every_generation_is_there() -> None:
    """From Volta to Blackwell, AMD's CDNA 2 to 4, and the accelerators of Google and Intel; no record is out of reach."""
    assert {name + ".yaml" for name in gpu_names()} == {
        name for name in os.listdir(os.path.join(DATA, "gpus")) if name.endswith(".yaml")
    }
    assert {find_gpu(name).arch for name in gpu_names()} >= GENERATIONS


def test_records_are_complete() -> None:
    """Each record has memory and a source; its rates are positive, or absent where they are not known."""
    for name in gpu_names():
        record = read_record(os.path.join(DATA, "gpus", name + ".yaml"))
        assert set(record) <= KEYS, name
        assert isinstance(record["memory_bytes"], int), name
        assert len(record["source"]) > 20, name
        assert all(record[r] >= 0 for r in RATES if r in record), name
        assert all(record[r] > 0 for r in SPEED if r in record), name
        assert all(record[r] < 1 for r in ("bf16_efficiency", "fp8_efficiency") if r in record), name


def test_who_reaches_whose_memory_is_in_the_records() -> None:
    """GeForce cards may have no access to each other's memory; no name says so, and a plan's own GPU is taken to have it."""
    without = {name for name in gpu_names() if not find_gpu(name).peer_access}
    assert {"rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-5090"} <= without
    assert not without & {"rtx-6000-ada", "rtx-a6000", "rtx-pro-6000", "l40s", "h100-80gb"}
    for name in without:
        assert "peers" in find_gpu(name).source, name
    own = resolve_gpu(GpuSpec(name="rtx-9999", memory_gib=24))
    assert own.peer_access
    assert not own.context_read


def test_memory_is_what_can_be_reached() -> None:
    """Usable memory is never above the number on the box read as GiB, and not far below it."""
    for name in gpu_names():
        record = read_record(os.path.join(DATA, "gpus", name + ".yaml"))
        share = record["memory_bytes"] / (record["marketed_gb"] * GIB)
        assert 0.9 < share < 1.0, name


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("h100-80gb", 79.10),
        ("a100-40gb", 39.38),
        ("a100-80gb", 79.15),
        ("b200", 178.35),
        ("l40s", 44.34),
        ("t4", 14.56),
    ],
)
def test_lowest_total_seen(name: str, gib: float) -> None:
    """The catalog holds the lowest total that torch printed on real machines, not the marketed size."""
    assert find_gpu(name).memory_bytes == int(gib * GIB)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("h100", "h100-80gb"),
        ("H100-SXM", "h100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("h100-nvl", "h100-nvl-94gb"),
        ("h100-pcie", "h100-pcie-80gb"),
        ("DGX Spark", "gb10"),
        ("NVIDIA GeForce RTX 3060", "rtx-3060"),
        ("RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("a4000", "rtx-a4000"),
        ("NVIDIA RTX 5000 Ada Generation", "rtx-5000-ada"),
        ("NVIDIA GeForce RTX 5080", "rtx-5080"),
        ("A100-PCIE-40GB", "a100-40gb"),
        ("A100-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("h200", "h200"),
        ("b200", "b200"),
        ("mi300x", "mi300x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("rtx-4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("l40s", "l40s"),
    ],
)
def test_names(name: str, canonical: str) -> None:
    """Catalog names, what nvidia-smi prints and what people say lead to one record."""
    assert find_gpu(name).name == canonical


@pytest.mark.parametrize(
    ("name", "cards"),
    [
        ("A100", ("a100-40gb", "a100-80gb")),
        ("a100-sxm4", ("a100-40gb", "a100-80gb")),
        ("V100", ("v100-16gb", "v100-32gb")),
        ("NVIDIA GeForce RTX 4060 Ti", ("rtx-4060-ti-16gb", "rtx-4060-ti-8gb")),
        ("rtx-5060-ti", ("rtx-5060-ti-16gb", "rtx-5060-ti-8gb")),
    ],
)
def test_a_name_of_two_cards_is_an_error(name: str, cards: tuple[str, ...]) -> None:
    """Cards that differ in memory and share a name are listed; neither is taken without a word."""
    with pytest.raises(AmbiguousNameError) as caught:
        find_gpu(name)
    assert caught.value.message == f"gpu {name!r} is the name of several: {', '.join(cards)}"
    assert caught.value.help == f"write {' or '.join(cards)}"


def test_a_stated_memory_picks_the_card() -> None:
    """A plan that gives the memory of its A100 has said which one it is: the rates are that card's."""
    for gib, rates in ((39.4, 1555), (79.2, 2039)):
        gpu = resolve_gpu(GpuSpec(name="a100", memory_gib=gib))
        assert (gpu.hbm_gbs, gpu.memory_bytes) == (rates, round(gib * GIB))


def test_a_plan_with_a_name_of_two_cards_is_refused() -> None:
    """`gpu: A100` is a finding at that line which names both cards."""
    plan = b"""memcheck: 1
model: llama-3.1-8b
hardware: {gpu: A100}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 512}
"""
    (result,), _ = check_file("plan.yaml", plan, Gate())
    (found,) = result.findings
    assert (found.code, found.location.span.line) == ("MEM021", 3)
    assert found.help == "write a100-40gb or a100-80gb"


def test_bf16_is_absent_where_the_hardware_has_none() -> None:
    """V100 and T4 have fp16 rates and no bf16: rules tell the two apart by that."""
    for name in ("v100-32gb", "t4", "rtx-2080-ti"):
        gpu = find_gpu(name)
        assert gpu.bf16_tflops is None
        assert gpu.fp16_tflops is not None
        assert gpu.fp8_tflops is None
