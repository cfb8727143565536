"""Whose experts' adapters PEFT names as transformers 4 did, and which matrices those names reach."""

from __future__ import annotations

import pytest

from benchmarks.added import added
from memcheck.autograd.context import Adapter
from memcheck.families.registry import FAMILIES, TOWERS, read_architecture
from memcheck.frameworks.torch.rank_tensors import TensorPlacement, block_tensors
from memcheck.models.types import Moe
from memcheck.models.variants import NAMED

ALL = Adapter(8, "all-linear", "fp32")
REMOTE = {"kimi_k2"}
"""Read as DeepSeek V3, whose class it is given to transformers under."""


def adapted(kind: str) -> set[str]:
    """The matrices of the last kind of layer that have an adapter."""
    block, _ = read_architecture(added()[kind]["config"]).blocks[-1]
    tensors = block_tensors(block, TensorPlacement(trained=False, adapter=ALL))
    return {t.name.removesuffix(".lora_A") for t in tensors if t.name.endswith(".lora_A")}


@pytest.mark.torch
def test_those_are_named_that_peft_names() -> None:
    """Of every type that memcheck reads; a type is a model's own, which its text part's is not."""
    pytest.importorskip("torch")
    conversion = pytest.importorskip("peft.utils.transformers_weight_conversion")
    groups = conversion._MODEL_TO_CONVERSION_PATTERN
    known = (set(FAMILIES) | set(TOWERS)) - REMOTE
    of_peft = {kind for kind in known if groups.get(kind) in conversion._MOE_TARGET_MODULE_MAPPING}
    assert of_peft == NAMED & known


def test_only_a_type_decides() -> None:
    """Families that share code and parts do not share what PEFT does with them."""
    for kind, record in added().items():
        for block, _ in read_architecture(record["config"]).blocks:
            if isinstance(block.mlp, Moe):
                assert block.mlp.adaptable != (kind in NAMED), kind


@pytest.mark.parametrize(
    ("kind", "has", "has_not"),
    [
        ("cohere2_moe", {"mlp.experts.gate_up_proj", "mlp.gate.weight"}, set()),
        ("qwen3_5_moe_text", {"mlp.shared_expert.up_proj"}, {"mlp.experts.gate_up_proj", "mlp.gate.weight"}),
        ("afmoe", {"mlp.experts.down_proj"}, {"self_attn.gate_proj", "mlp.shared_experts.gate_proj"}),
        ("lfm2_moe", {"conv.in_proj"}, {"feed_forward.gate"}),
        ("glm_moe_dsa", {"self_attn.indexer.wk"}, {"mlp.shared_experts.up_proj"}),
    ],
)
def test_what_all_linear_reaches(kind: str, has: set[str], has_not: set[str]) -> None:
    """As ``get_peft_model`` wraps the model of transformers."""
    found = adapted(kind)
    assert has <= found
    assert not has_not & found


def test_an_indexer_gets_no_gradient_through_its_adapters_either() -> None:
    """They rest, and the optimizer has no states of them."""
    block, _ = read_architecture(added()["glm_moe_dsa"]["config"]).blocks[-1]
    of_indexer = [t for t in block_tensors(block, TensorPlacement(trained=False, adapter=ALL)) if ".indexer." in t.name]
    assert any(t.name.endswith(".lora_B") for t in of_indexer)
    assert not any(t.trained for t in of_indexer)
