"""DTensor's exchanges in traces are CUDA's, whatever this machine's CPUs would do."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from benchmarks import fuzz  # noqa: E402


@pytest.mark.parametrize("gpus", [2, 8])
def test_muon_on_shards_is_predicted(gpus: int) -> None:
    """Two ranks gather whole matrices, eight exchange their shards, and the optimizer's moment is that of the trace."""
    plan = {
        "memcheck": 1,
        "name": "muon",
        "model": {"name": "qwen2.5-0.5b", "overrides": {"vocab_size": 1024, "num_hidden_layers": 2}},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": gpus},
        "parallelism": {"zero_stage": 3},
        "training": {
            "framework": "pytorch",
            "torch_version": "2.13",
            "micro_batch_size": 1,
            "sequence_length": 512,
            "precision": "bf16-mixed",
            "optimizer": "muon",
            "activation_checkpointing": "full",
        },
    }
    (rank,) = fuzz.run(plan, 200)["ranks"]
    said, traced = rank["instants"]["optimizer"]
    assert said == pytest.approx(traced, rel=1e-4)
