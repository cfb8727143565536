"""Adapters on routed experts in NeMo AutoModel's recipes: which classes have them, of which rank, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.configs.importing import Imported
from memcheck.judge import Gate, check_file
from tests.configs.test_read_automodel import PEFT, read, values

OWN = "Qwen/Qwen3-30B-A3B"
TARGETS, PARAMETERS = "training.lora.target_modules", "training.lora.target_parameters"
RANK = "training.lora.expert_rank"
BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def imported(targets: object = "*", model: str = OWN, ranks: int = 8, **said: Any) -> Imported:
    """The import of a recipe with adapters. ``said``: of ``model.backend`` and ``peft``."""
    backend = {"experts": "torch_mm", "dispatcher": "deepep", **said.get("backend", {})}
    found = {
        "pretrained_model_name_or_path": model,
        "torch_dtype": "bf16",
        "backend": backend,
        **said.get("arguments", {}),
    }
    peft = {**PEFT, "dim": 32, "target_modules": targets, **said.get("peft", {})}
    return read(model=found, peft=peft, distributed={"ep_size": ranks}, step_scheduler={"local_batch_size": 1})


@pytest.mark.parametrize("targets", ["*", ["*.self_attn.*", "*.mlp.experts"]])
def test_a_pattern_that_reaches_experts_adapts_them(targets: object) -> None:
    """Both matrices, with the rank of all; the plan is judged."""
    found = imported(targets)
    assert values(found)[PARAMETERS] == BOTH
    assert RANK not in values(found)
    assert set(ATTENTION) <= set(values(found)[TARGETS])  # type: ignore[call-overload]
    (result,), traces = check_file("plan.yaml", found.text.encode(), Gate())
    assert (traces, result.status) == ([], "passed")


@pytest.mark.parametrize("said", [{"target_modules": "*_proj"}, {"target_modules": [], "match_all_linear": True}])
def test_patterns_of_linear_layers_do_not(said: dict[str, Any]) -> None:
    """What experts' matrices are called matches no pattern, and they are no linear layers."""
    assert PARAMETERS not in values(imported(peft=said))


@pytest.mark.parametrize(("dim", "scaled", "rank"), [(32, True, 4), (33, True, 4), (32, False, None)])
def test_a_scaled_rank_is_divided_by_the_experts_of_a_token(dim: int, scaled: bool, rank: int | None) -> None:
    """Eight of them share it, without a rest."""
    found = values(imported(peft={"dim": dim, "moe_rank_scaling": scaled}))
    assert (found["training.lora.rank"], found.get(RANK)) == (dim, rank)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"ranks": 1}, "routed experts that every rank has (ep_size: 1)"),
        ({"backend": {"experts": "te"}}, "experts of Transformer Engine, which AutoModel does not adapt either"),
        ({"backend": {"experts": "torch", "dispatcher": "torch"}}, "experts that a loop goes through"),
        ({"targets": "*.layers.1.mlp.experts"}, "some routed experts"),
        ({"peft": {"dim": 4, "moe_rank_scaling": True}}, "a rank of 4 for 8 experts of a token is below 1"),
    ],
)
def test_what_has_no_model_is_refused_by_name(said: dict[str, Any], message: str) -> None:
    """Experts that are not dealt out, other classes, some layers, and a rank at which AutoModel stops."""
    assert any(message in each.message for each in imported(**said).problems)


def test_transformer_engine_without_sent_tokens_is_torch() -> None:
    """`experts: te` beside `dispatcher: torch` becomes `torch_mm` (BackendConfig)."""
    assert values(imported(backend={"experts": "te", "dispatcher": "torch"}))[PARAMETERS] == BOTH


@pytest.mark.parametrize(("experts", "noted"), [("torch", True), ("torch_mm", False)])
def test_a_loop_over_experts_keeps_more(experts: str, noted: bool) -> None:
    """It gathers each expert's tokens from all of them, which autograd keeps for it: a note."""
    found = imported("*_proj", backend={"experts": experts, "dispatcher": "torch"})
    assert any("a loop over experts" in each.message for each in found.notes) == noted


def test_ranks_that_are_not_padded_are_an_upper_bound() -> None:
    """grouped_gemm takes them as they are."""
    assert any("unpadded" in each.message for each in imported(backend={"experts": "gmm"}).notes)


@pytest.mark.parametrize(("model", "forced"), [("mistralai/Mixtral-8x7B-v0.1", False), (OWN, True)])
def test_experts_of_transformers_classes_have_none(model: str, forced: bool) -> None:
    """They are no module that AutoModel knows: `*` reaches linear layers alone."""
    found = values(imported(model=model, ranks=1, arguments={"force_hf": forced}))
    assert PARAMETERS not in found
    assert found[TARGETS] == [*ATTENTION, "lm_head"]


def test_a_star_reaches_the_tower() -> None:
    """Linear layers of a vision tower have names of their own."""
    found = values(imported(model="Qwen/Qwen2.5-VL-7B-Instruct", ranks=1))[TARGETS]
    assert {"qkv", "proj", "q_proj", "lm_head"} <= set(found)  # type: ignore[call-overload]
