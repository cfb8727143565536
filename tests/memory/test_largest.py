"""The largest tensors of a rank: what is shown of them multiplies to their bytes."""

from __future__ import annotations

import math
import re

import pytest

from memcheck.accounts.estimate import TensorGroup
from memcheck.job.types import DTYPE_BYTES, Layout
from memcheck.memory.estimate import estimate
from tests.memory.jobs import BIG_GPU, FULL, job

SHAPE = re.compile(r"(?:1/(\d+) of )?\[([\d, ]+)\](?: (\w+))?")
CASES = {
    "replicated": {},
    "FSDP": {"layout": Layout(gpus_per_node=8, data=8, zero_stage=3, shard_group=8)},
    "ZeRO-2": {"framework": "deepspeed", "layout": Layout(gpus_per_node=8, data=8, zero_stage=2, shard_group=8)},
    "Megatron": {"framework": "megatron", "layout": Layout(gpus_per_node=8, data=8, zero_stage=1, shard_group=8)},
}


def shown(group: TensorGroup) -> int:
    """Bytes of one copy by its shape, the part of it, and its dtype."""
    found = SHAPE.fullmatch(group.shape)
    assert found is not None, group.shape
    part, shape, dtype = found.groups()
    assert dtype is not None, group
    return math.prod(int(side) for side in shape.split(",")) * DTYPE_BYTES[dtype] // int(part or 1)


@pytest.mark.parametrize("case", CASES)
def test_what_rests_multiplies_to_its_bytes(case: str) -> None:
    """Count, part, shape and dtype of parameters, gradients and states give their bytes; AdamW has two states."""
    given = CASES[case]
    found = estimate(job(checkpointing=FULL, sequence_length=1024, **given), BIG_GPU, inventory=True)
    rests = [
        g for g in found.largest if g.component in ("parameters", "gradients", "master_weights", "optimizer_states")
    ]
    assert rests
    for group in rests:
        states = 2 if group.component == "optimizer_states" else 1
        each = group.bytes / group.copies / states
        assert each == pytest.approx(shown(group), rel=1e-3, abs=1024), group
    sharded = {g.component for g in rests if g.shape.startswith("1/8 of ")}
    assert (
        sharded
        == {
            "replicated": set(),
            "FSDP": {g.component for g in rests},
            "ZeRO-2": {"optimizer_states"} & {g.component for g in rests},
            "Megatron": {"optimizer_states", "master_weights"} & {g.component for g in rests},
        }[case]
    )
