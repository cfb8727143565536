"""Adapters on experts of several ranks, held against AutoModel's own module.

Traced: ``GroupedExpertsLoRA`` of NVIDIA-NeMo/Automodel 36044ad3 (``experts: torch_mm``) as
``tests/frameworks/transformers/test_expert_parallel.py`` says it of ``GroupedExperts``: four processes with gloo, torch
2.13.0 on the CPU, storages alive on a rank rounded up to 512 bytes, without the experts' weights and their adapters'.
"""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.accounts.state import shard_numel
from memcheck.autograd.tensor import rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.rank_tensors import TensorPlacement, block_tensors, checked_architecture
from memcheck.frameworks.torch.units import base_setting
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from tests.frameworks.transformers.test_expert_parallel import (
    BIASED,
    COMPUTED,
    HANDLES,
    HIDDEN,
    LOCAL,
    PLAIN,
    ROWS,
    SAVED,
    WIDE,
    allocated,
    measured,
    resolved,
)

BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
TRACED = {
    ("plain", 8): (11_226_112, 2_736_640, 7_193_088),
    ("plain", 4): (11_283_456, 2_793_984, 7_250_432),
    ("biased", 8): (15_420_416, 3_785_216, 9_298_432),
    ("biased", 4): (15_477_760, 3_842_560, 9_355_776),
}
"""By the adapters' rank: highest point of the forward, what is kept, highest point of the backward. A rank of 4 in 16
bits is padded to 8."""


def adapted(model: dict[str, Any], dispatcher: str = "torch", degree: int = 4, **lora: Any) -> TrainingJob:
    """A job whose experts are on four GPUs and have adapters."""
    said = {"target_modules": ["q_proj"], "target_parameters": BOTH, "dtype": "bf16", **lora}
    training = {"method": "lora", "lora": said, "options": {"dispatcher": dispatcher}}
    return resolved({"architecture": model}, degree=degree, training=training).job


@pytest.mark.parametrize(("name", "rank"), TRACED)
def test_gathered_tokens_are_those_of_the_traced_module(name: str, rank: int) -> None:
    """Every highest point and what is kept within a thousandth of four processes that ran the module."""
    job = adapted(PLAIN if name == "plain" else BIASED, expert_rank=rank)
    for ours, theirs in zip(measured(job), TRACED[name, rank], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("name", HANDLES)
def test_sent_tokens_keep_what_their_functions_save(name: str) -> None:
    """By hand: what they keep without adapters, and a row as wide as the rank of either adapter."""
    kept = COMPUTED + sum(map(rounded, (*HANDLES[name], *SAVED[name]))) + 2 * ROWS * 16 * 2
    assert measured(adapted(PLAIN, name, rank=16))[1] == kept


def factors(job: TrainingJob) -> dict[str, tuple[int, ...]]:
    """The experts' factors of the first layer on a rank."""
    assert isinstance(job.architecture, Architecture)
    base = base_setting(job, job.architecture, None)
    block, degree = job.architecture.blocks[0][0], job.layout.expert
    found = block_tensors(block, TensorPlacement(expert=degree, trained=False, adapter=base.adapter))
    assert all(
        t.expert and t.trained and t.dtype == "bf16" for t in found if ".lora_" in t.name and "experts" in t.name
    )
    return {t.name: (*t.shape, shard_numel(t, 2)) for t in found if "experts.lora_" in t.name}


def test_factors_lie_where_their_experts_lie() -> None:
    """By hand: whole experts of a rank, both matrices, divided behind the experts where two ranks share them."""
    assert factors(adapted(PLAIN, expert_rank=4)) == {
        "mlp.experts.lora_gate_and_up_A": (LOCAL, HIDDEN, 4, LOCAL * HIDDEN // 2 * 4),
        "mlp.experts.lora_gate_and_up_B": (LOCAL, 4, 2 * WIDE, LOCAL * 2 * 2 * WIDE),
        "mlp.experts.lora_down_A": (LOCAL, WIDE, 4, LOCAL * WIDE // 2 * 4),
        "mlp.experts.lora_down_B": (LOCAL, 4, HIDDEN, LOCAL * 2 * HIDDEN),
    }
    odd = factors(adapted(PLAIN, expert_rank=1))["mlp.experts.lora_down_B"]
    assert odd == (LOCAL, 1, HIDDEN, LOCAL * HIDDEN)  # a rank of one on two ranks: one has it, the other room for it


def test_a_rank_of_their_own_is_that_of_experts_alone() -> None:
    """Without `expert_rank` they have that of all; with it less rests, and linear layers keep theirs."""
    whole, own = (adapted(PLAIN, rank=16, **said) for said in ({}, {"expert_rank": 4}))
    assert factors(whole)["mlp.experts.lora_down_A"][2] == 16
    assert factors(own)["mlp.experts.lora_down_A"][2] == 4
    peft = [adapted(PLAIN, degree=1, rank=16, **said) for said in ({}, {"expert_rank": 4})]
    shapes = []
    for job in peft:
        assert isinstance(job.architecture, Architecture)
        adapter = base_setting(job, job.architecture, None).adapter
        found = block_tensors(job.architecture.blocks[0][0], TensorPlacement(trained=False, adapter=adapter))
        shapes.append({t.name: t.shape for t in found if ".lora_A" in t.name})
    assert shapes[0]["mlp.experts.down_proj.lora_A"] == (16 * 16, WIDE)
    assert shapes[1]["mlp.experts.down_proj.lora_A"] == (16 * 4, WIDE)
    assert shapes[0]["self_attn.q_proj.lora_A"] == shapes[1]["self_attn.q_proj.lora_A"]


def test_names_of_modules_are_no_names_of_experts_there() -> None:
    """peft takes `gate_proj` of this family for the experts; AutoModel's classes have shared experts of that name."""
    shared = {**PLAIN, "model_type": "deepseek_v3", "n_shared_experts": 1, "first_k_dense_replace": 0, "n_group": 1}
    shared |= {"topk_group": 1, "n_routed_experts": 16, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
    shared |= {"qk_nope_head_dim": 16, "v_head_dim": 32, "num_key_value_heads": 8}
    for key in ("num_experts", "num_local_experts", "head_dim"):
        shared.pop(key)
    job = adapted(shared, target_modules=["gate_proj"])
    assert isinstance(job.architecture, Architecture)
    built = checked_architecture(job, job.architecture)
    base = base_setting(job, built, None)
    found = block_tensors(built.blocks[0][0], TensorPlacement(expert=4, trained=False, adapter=base.adapter))
    names = {t.name for t in found if ".lora_" in t.name and t.name.startswith("mlp.shared_experts")}
    assert names == {"mlp.shared_experts.gate_proj.lora_A", "mlp.shared_experts.gate_proj.lora_B"}
    assert allocated(
        resolved({"architecture": shared}, training={"method": "lora", "lora": {"target_modules": ["gate_proj"]}})
    )


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"target_parameters": BOTH[:1]}, "adapters of all their matrices, or none"),
        ({"dora": True}, "AutoModel refuses `dora`"),
        ({"target_parameters": [], "expert_rank": 4}, "`expert_rank` is that of `target_parameters`"),
    ],
)
def test_what_its_classes_cannot_be_told_is_refused(lora: dict[str, Any], said: str) -> None:
    """One matrix alone, DoRA, a rank of nothing."""
    said_lora = {"target_modules": ["q_proj"], "target_parameters": BOTH, **lora}
    with pytest.raises(UnsupportedError, match=said):
        allocated(resolved({"architecture": PLAIN}, training={"method": "lora", "lora": said_lora}))


def test_dropout_is_that_of_linear_layers() -> None:
    """Beside it peft refuses adapted parameters; these classes have none, and attention's layers keep their masks."""
    few, many = (
        allocated(
            resolved(
                {"architecture": PLAIN},
                training={
                    "method": "lora",
                    "lora": {"target_modules": ["q_proj"], "target_parameters": BOTH, "dropout": dropout},
                },
            )
        )
        for dropout in (0, 0.1)
    )
    assert few < many
