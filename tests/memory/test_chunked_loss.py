"""A loss in chunks: each chunk is a checkpoint of its own around the head that all of them share."""

from __future__ import annotations

import pytest

from memcheck.job.types import Loss
from memcheck.memory.estimate import estimate
from tests.memory.jobs import BF16_AUTOCAST, BF16_PURE, BIG_GPU, job


@pytest.mark.parametrize("recipe", [BF16_AUTOCAST, BF16_PURE])
@pytest.mark.parametrize("upcast", [True, False])
def test_chunks_are_recomputed_under_autocast_too(recipe: object, upcast: bool) -> None:
    """Autocast casts the head's weight once for all chunks of the forward, and once more in each chunk's recompute."""
    whole = estimate(job(recipe=recipe, loss=Loss("standard", upcast=upcast), sequence_length=16384), BIG_GPU)
    chunked = estimate(job(recipe=recipe, loss=Loss("chunked", 8, upcast=upcast), sequence_length=16384), BIG_GPU)
    halved = estimate(job(recipe=recipe, loss=Loss("chunked", 16, upcast=upcast), sequence_length=16384), BIG_GPU)
    peaks = [max(i.allocated_bytes for i in e.ranks[0].instants if i.name == "loss") for e in (whole, chunked, halved)]
    assert peaks[0] > peaks[1] > peaks[2]
