"""FSDP2 gathers the next group while one computes: what the moment of it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drawn import predicted
from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.data_parallel import fsdp_group
from memcheck.job.recipe import FP32

TRACED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("traced_prefetch.json").read_text(encoding="utf-8"))
"""Steps of torch 2.13.0 around small models of transformers 5.23.0, by ``memcheck verify``, whose backward is highest
when the next group is gathered: short sequences, and layers that are frozen."""


@pytest.mark.parametrize("row", TRACED, ids=[row["id"] for row in TRACED])
def test_every_instant_of_a_traced_step(row: dict[str, Any]) -> None:
    """The shards in the dtype of the products are there beside the buffer that is filled from them."""
    found = predicted(row["plan"])["0"]
    for name, traced in row["instants"].items():
        assert -0.003 <= found[name] / traced - 1 <= 0.01, name


@pytest.mark.parametrize(("params", "cast"), [("fp32", 2 * 1024), ("bf16", 0)])
def test_shards_are_cast_before_they_are_gathered(params: str, cast: int) -> None:
    """4096 elements on four ranks: 1024 of two bytes each, unless they rest in these."""
    recipe = FP32._replace(params=params, compute="bf16")
    found = fsdp_group(
        [(LocalTensor("weight", (64, 64), True), 4)], recipe, casts_every_tensor=True, accumulation_dtype="bf16"
    )
    assert (found.all_gather_input, found.all_gather_output) == (cast, 2 * 4096)
