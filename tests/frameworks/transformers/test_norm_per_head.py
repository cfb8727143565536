"""Norms that are put together head by head, before a kernel that reads heads."""

from __future__ import annotations

from memcheck.judge import Gate, check_file
from memcheck.what_if import with_remedies

PLAN = """\
memcheck: 1
model: command-r-plus
hardware: {gpu: mi300x}
parallelism: {zero_stage: 3, gradient_sync: last}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 2048, precision: fp32, optimizer: sgd, method: qlora}
"""


def test_normed_heads_reach_the_kernel_that_computes_in_fp32() -> None:
    """Command R+ in fp32: grouped heads run in ATen's math kernel, which needs heads; plan and remedies are judged."""
    (result,), traces = check_file("plan.yaml", PLAN.encode(), Gate(remedies=with_remedies))
    assert traces == []
    assert result.estimate is not None
