"""Megatron-LM's own GPT: the family that its arguments describe."""

from __future__ import annotations

import pytest

from memcheck.configs.write_megatron import differences, dimensions
from memcheck.families.registry import catalog_architecture, read_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.models.parameters import count_parameters
from memcheck.models.reader import ArchitectureError
from memcheck.models.types import Moe
from memcheck.plan.read import build_plan

SMALL = {
    "model_type": "megatron-lm",
    "num_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "max_position_embeddings": 1024,
    "vocab_size": 50304,
}


@pytest.mark.parametrize(
    "name", ["gpt2", "llama-3.1-8b", "qwen2.5-7b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "nemotron-4-340b"]
)
def test_dimensions_of_known_models_count_the_same(name: str) -> None:
    """A model in Megatron's words has as many parameters as in Hugging Face's, and nothing of it is missing."""
    model = catalog_architecture(name)
    found = dimensions(model)
    assert differences(model, found) == []
    assert count_parameters(read_architecture({"model_type": "megatron-lm", **found})) == count_parameters(model)


def test_defaults_are_those_of_the_arguments() -> None:
    """Learned positions, LayerNorm, biases, tied embeddings, 4 h, dropout of a tenth."""
    a = read_architecture(SMALL, strict=True)
    ((block, count),) = a.blocks
    assert (count, a.learned_positions, a.tie_word_embeddings, block.dropout) == (4, 1024, True, 0.1)
    assert block.mlp is not None
    assert block.mlp.width == 2048
    assert {norm.kind for norm in block.norms} == {"layernorm"}


@pytest.mark.parametrize(
    ("written", "routed"),
    [
        (2, [True, False, True, False]),
        ("([0]*1+[1]*3)", [False, True, True, True]),
        ("[0,1,0,1]", [False, True] * 2),
        ("([0]+[1])*2", [False, True] * 2),
    ],
)
def test_expert_layers_follow_the_pattern(written: object, routed: list[bool]) -> None:
    """`moe_layer_freq`: every n-th layer, or a sum of lists."""
    a = read_architecture({**SMALL, "num_experts": 8, "moe_layer_freq": written})
    assert [isinstance(block.mlp, Moe) for block in a.layers()] == routed


@pytest.mark.parametrize("written", ["([0]*1+[1]*9)", "[2]*4", "soon", "([0]*1+[1]*2)", 0])
def test_impossible_patterns_are_refused(written: object) -> None:
    """A pattern that does not describe every layer, or nothing at all, is an error that shows it."""
    with pytest.raises(ArchitectureError, match="moe_layer_freq"):
        read_architecture({**SMALL, "num_experts": 8, "moe_layer_freq": written})


def test_only_megatron_runs_it() -> None:
    """No class of transformers has these shapes: under another framework the plan is refused."""
    plan = {
        "memcheck": 1,
        "model": {"architecture": SMALL},
        "hardware": {"gpu": "h100-80gb"},
        "training": {"framework": "megatron", "micro_batch_size": 1, "sequence_length": 128},
    }
    resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    with pytest.raises(ResolutionError, match="megatron's own model"):
        resolve(
            build_plan({**plan, "training": {**plan["training"], "framework": "pytorch"}}), FRAMEWORKS, base_dir="."
        )
