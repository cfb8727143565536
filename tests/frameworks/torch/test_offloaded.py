"""Activations that leave the GPU behind a unit's forward."""

from __future__ import annotations

from memcheck.frameworks.torch.units import base_setting, block_unit
from memcheck.job.types import Checkpointing
from tests.memory.jobs import job, llama_8b


def test_a_layer_whose_input_is_on_the_host_keeps_nothing() -> None:
    """What it sends is what it would keep: its input, for every micro-batch."""
    a = llama_8b(1)
    there, here = (
        block_unit(each, a.blocks[0][0], base_setting(each, a, None), "full", adds=True, inventory=False)
        for each in (job(a, checkpointing=Checkpointing("full", offload="cpu")), job(a))
    )
    assert (there.first_curve.saved_bytes, there.later_curve.saved_bytes, there.offloaded_bytes) == (
        0,
        0,
        2 * 4096 * 4096,
    )
    assert (here.first_curve.saved_bytes, here.later_curve.saved_bytes, here.offloaded_bytes) == (
        2 * 4096 * 4096,
        2 * 4096 * 4096,
        0,
    )
