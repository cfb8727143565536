"""Log lines as the frameworks print them."""

from __future__ import annotations

import pytest

from memcheck.why.readings import read_log

GIB, MIB = 2**30, 2**20
LINES = {
    "torchtitan": (
        "[titan] \x1b[31mstep:  5  \x1b[32mloss:  7.1250  \x1b[38;2;54;234;195mmemory: 61.31GiB(77.54%)  \x1b[34mtps: 2,911",
        {"reserved": 61.31 * GIB},
    ),
    "torchtitan's metrics": (
        '{"memory/max_reserved(GiB)": 46.5, "memory/max_active(GiB)": 40.1}',
        {"reserved": 46.5 * GIB},
    ),
    "Megatron": (
        (
            "[Rank 3] (after 2 iterations) memory (MB) | allocated: 10240.5 | max allocated: 20480.25"
            " | reserved: 21000.0 | max reserved: 22528.0"
        ),
        {"allocated": 20480.25 * MIB, "reserved": 22528 * MIB},
    ),
    "DeepSpeed": (
        "MA 12.31 GB         Max_MA 15.5 GB         CA 17.86 GB         Max_CA 18 GB ",
        {"allocated": 15.5 * GIB, "reserved": 18 * GIB},
    ),
    "Axolotl": (
        (
            "{'loss': 0.1, 'memory/max_mem_active(gib)': 14.56, 'memory/max_mem_allocated(gib)': 14.5,"
            " 'memory/device_mem_reserved(gib)': 14.75}"
        ),
        {"allocated": 14.5 * GIB, "reserved": 14.75 * GIB},
    ),
    "nvidia-smi": (
        "| N/A   33C    P0    70W / 700W |  61300MiB / 81559MiB |   98%   Default |",
        {"device": 61300 * MIB},
    ),
    "Trainer, as log_metrics prints it": (
        (
            "  before_init_mem_gpu        =        0MB\n  init_mem_gpu_alloc_delta   =      230MB\n"
            "  init_mem_gpu_peaked_delta  =        0MB\n  train_mem_gpu_alloc_delta  =      693MB\n"
            "  train_mem_gpu_peaked_delta =     7000MB\n"
        ),
        {"allocated": 7923 * MIB},
    ),
    "Trainer, as a dictionary": (
        (
            "{'init_mem_gpu_alloc_delta': 1000, 'train_mem_gpu_alloc_delta': 200, 'train_mem_gpu_peaked_delta': 30,"
            " 'before_init_mem_gpu': 4}"
        ),
        {"allocated": 1234},
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_line(name: str) -> None:
    """Each quantity in the unit that the framework means."""
    text, expected = LINES[name]
    assert {r.metric: r.bytes for r in read_log(text, "x.log")} == {k: int(v) for k, v in expected.items()}


def test_the_highest_figure_of_a_log_counts() -> None:
    """Memory grows over the first steps."""
    text = "\n".join(f"step: {i}  memory: {20 + i % 3:.2f}GiB({i}.00%)" for i in range(7))
    (reading,) = read_log(text, "train.log")
    assert reading.bytes == 22 * GIB
    assert reading.source == "train.log, printed by torchtitan"


def test_out_of_memory_is_a_lower_bound() -> None:
    """What was live and what was asked for did not fit: the step needs at least that."""
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
        " of which 1.20 GiB is free. Of the allocated memory 75.50 GiB is allocated by PyTorch, and 512.00 MiB is"
        " reserved by PyTorch but unallocated."
    )
    (reading,) = read_log(text, "train.log")
    assert (reading.metric, reading.bytes, reading.at_least) == ("allocated", int(77.5 * GIB), True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "loss: 3.14", "memory: a lot", "Trainer: train_mem_gpu_alloc_delta = 3MB"),
        *(f"memory: {'9' * 400}GiB(1%)", f"train_mem_gpu_peaked_delta = {'9' * 5000}"),
    ],
    ids=range(6),
)
def test_a_log_without_figures(text: str) -> None:
    """Nothing is made up."""
    assert read_log(text, "x") == []


def test_messages_are_not_mixed() -> None:
    """What one message asked for and what another had live are not added; torch 1.x prints other words."""
    old = (
        "RuntimeError: CUDA out of memory. Tried to allocate 786.00 MiB (GPU 0; 14.73 GiB total capacity; 13.33 GiB already"
        " allocated; 575.88 MiB free; 13.38 GiB reserved in total by PyTorch)\n"
    )
    without = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 58.15 GiB. GPU 1 has a total capacity of 139.8\n"
    )
    (reading,) = read_log(without + old, "x")
    assert reading.bytes == round((786 * 2**20) + 13.33 * GIB)
    assert read_log(without, "x") == []
