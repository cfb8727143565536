"""Norms that are put together head by head, before a kernel that reads heads."""

from __future__ import annotations

from pathlib import Path

from memcheck.check import Gate, check_file

PLAN = """\
memcheck: 1
model: command-r-plus
hardware: {gpu: mi300x}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 2048, precision: fp32, method: qlora}
"""


def test_normed_heads_reach_the_kernel_that_computes_in_fp32(tmp_path: Path) -> None:
    """Command R+ in fp32: grouped heads run in ATen's math kernel, which needs heads, and the plan is judged."""
    (result,), traces = check_file("plan.yaml", PLAN.encode(), Gate())
    assert traces == []
    assert result.estimate is not None
