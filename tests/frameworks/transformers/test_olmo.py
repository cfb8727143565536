"""OLMo's rotary embedding, by fp32 tables and cast back, in traces of torch 2.13 and transformers 5.23."""

from __future__ import annotations

import pytest

from benchmarks.score import resolved
from memcheck.memory.estimate import estimate

LAYERS = {"num_hidden_layers": 3, "vocab_size": 32003}


@pytest.mark.parametrize(
    ("model", "attention", "precision", "recompute", "traced"),
    [
        ("olmo-2-7b", "eager", "bf16-mixed", "full", (5_899_650_048, 5_846_284_800, 8_392_374_272)),
        ("olmo-2-7b", "sdpa", "bf16-pure", "none", (3_524_325_376, 4_129_408_512, 4_391_560_192)),
        ("olmo-7b", "eager", "bf16-pure", "full", (3_208_741_888, 2_505_243_136, 5_000_812_544)),
        ("olmo-3-7b", "sdpa", "fp16-mixed", "full", (4_928_676_864, 5_829_507_584, 7_119_452_160)),
        ("olmo-1b", "sdpa", "bf16-mixed", "none", (2_236_149_760, 3_031_045_632, 3_276_420_096)),
    ],
)
def test_forward_loss_and_backward_are_the_traced_ones(
    model: str, attention: str, precision: str, recompute: str, traced: tuple[int, int, int]
) -> None:
    """One sequence of 2048 tokens through three layers, with SGD: each within 0.03 %."""
    plan = {
        "memcheck": 1,
        "name": model,
        "model": {"name": model, "overrides": LAYERS},
        "hardware": {"gpu": {"name": "any", "memory_gib": 1000}},
        "training": {
            "framework": "pytorch",
            "torch_version": "2.13",
            "micro_batch_size": 1,
            "sequence_length": 2048,
            "precision": precision,
            "optimizer": "sgd",
            "attention": attention,
            "activation_checkpointing": recompute,
            "loss": "standard",
        },
    }
    found = {i.name: i.allocated_bytes for i in estimate(*resolved(plan)).ranks[0].instants}
    for name, truth in zip(("forward", "loss", "backward"), traced, strict=True):
        assert found[name] == pytest.approx(truth, rel=3e-4), name
