"""Steps of models with a tower or an encoder whose rows are pairs or are padded, held against traced ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.errors import UnsupportedError
from tests.frameworks.torch.test_towers import MIB, priced
from tests.models.multimodal import FACTS, QWEN2_5_VL

TRACED: dict[str, Any] = json.loads((FACTS.parent / "rows" / "traced.json").read_text())
STEPS = {step["id"]: step for step in TRACED["steps"]}


@pytest.mark.parametrize("name", STEPS)
def test_traced_rows(name: str) -> None:
    """A step's peak is within 0.3 % of the traced one; no moment is more than 0.15 % below its own, or 0.3 % above.

    A decoder's mask counts through the encoder's backward, too, which it does not live to see.
    """
    step = STEPS[name]
    training = TRACED["common"] | step["training"]
    if training.get("framework") == "huggingface":
        training["framework_version"] = "5.23"
    else:
        training["options"] = {"transformers_version": "5.23", **training.get("options", {})}
    found = priced(TRACED["configs"][step["config"]], training)
    assert found.allocated_bytes / MIB == pytest.approx(step["peak_mib"], rel=0.003)
    instants = {instant.name: instant.allocated_bytes / MIB for instant in found.ranks[0].instants}
    instants["before_backward"] = max(instants["forward"], instants["loss"])  # TRL's fused loss runs within the forward
    for phase, seen in step["phases_mib"].items():
        assert -0.0015 < instants[phase] / seen - 1 < 0.003, phase


def test_eager_masks_of_recomputed_layers() -> None:
    """BART's layers hold the masks of padded rows to their backward, in the model's dtype: 138.726 MiB at the loss.

    The decoder's count through the encoder's backward, too, where 212.716 MiB were traced.
    """
    training = STEPS["bart, eager, recompute none, bf16, padded rows"]["training"]
    common = TRACED["common"] | training | {"activation_checkpointing": "full"}
    found = priced(TRACED["configs"]["bart (small)"], common)
    instants = {instant.name: instant.allocated_bytes / MIB for instant in found.ranks[0].instants}
    assert instants["loss"] == pytest.approx(138.726, rel=0.001)
    assert 212.716 <= instants["backward"] <= 212.716 + 1.1


def test_both_rows_of_a_pair_see() -> None:
    """Each row of a pair has its pictures: a preference step's tower keeps twice what it keeps of one."""
    knobs = {"framework": "huggingface", "precision": "bf16-pure", "freeze": ["language"], "reference": "precomputed"}
    few, many = (
        priced(
            QWEN2_5_VL,
            {
                **knobs,
                "objective": "dpo",
                "trainer": "ms-swift",
                "images": {"patches": patches, "tokens": patches // 4},
            },
        )
        for patches in (1600, 3200)
    )
    alone, twice = (
        priced(QWEN2_5_VL, {**knobs, "images": {"patches": patches, "tokens": patches // 4}, "reference": None})
        for patches in (1600, 3200)
    )
    grown = many.components_bytes["activations"] - few.components_bytes["activations"]
    assert grown > 1.8 * (twice.components_bytes["activations"] - alone.components_bytes["activations"]) > 0


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"objective": "kto"}, "objective kto"),
        ({"objective": "dpo", "trainer": {"name": "trl", "version": "0.24.0"}}, "objective dpo"),
        ({"sequences": "masked"}, "masked rows"),
        ({"evaluation": {"micro_batch_size": 1}}, "the evaluation"),
    ],
)
def test_what_has_no_model_beside_a_tower(training: dict[str, Any], said: str) -> None:
    """Objectives and rows that nothing was traced of stay refused, by name."""
    with pytest.raises(UnsupportedError, match=said):
        priced(QWEN2_5_VL, {"framework": "huggingface", "images": {"patches": 3200, "tokens": 800}, **training})
