"""Who shares the matrices of one expert, and what that does to a rank."""

from __future__ import annotations

import pytest

from memcheck.accounts.state import expert_slices
from memcheck.catalog.names import find_gpu
from memcheck.families.registry import catalog_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import InferenceJob, Layout, TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.memory.overhead import groups
from tests.timing.plans import job

GPU = find_gpu("b300")
OPTIONS = {"moe_token_dispatcher_type": "alltoall"}


def components(case: TrainingJob | InferenceJob) -> dict[str, int]:
    """Bytes by component on the fullest rank."""
    return dict(estimate(case, GPU).components_bytes)


@pytest.mark.parametrize(
    ("framework", "degrees", "ways"),
    [
        ("megatron", {"tensor": 4}, 1),
        ("megatron", {"tensor": 4, "expert_tensor": 2}, 2),
        ("torchtitan", {"tensor": 4}, 4),
        ("torchtitan", {"tensor": 4, "expert": 8}, 1),
        ("torchtitan", {"tensor": 4, "expert": 2, "expert_tensor": 4}, 4),
        ("pytorch", {"tensor": 4}, 4),
        ("deepspeed", {"tensor": 4}, 1),
        ("", {"tensor": 8}, 8),
        ("", {"tensor": 8, "expert": 8}, 1),
    ],
)
def test_who_cuts_experts(framework: str, degrees: dict[str, int], ways: int) -> None:
    """Experts that are not dealt out are cut like the layers, but for Megatron and AutoTP; else as the plan says."""
    own = bool(framework) and FRAMEWORKS[framework].has_sharding_engine
    assert expert_slices(Layout(gpus_per_node=8, **degrees), own_degree=own) == ways


def test_serving_cuts_or_deals_out() -> None:
    """Over eight GPUs, both leave an eighth of the experts on each, and less than a seventh of the model."""

    def held(**degrees: int) -> int:
        layout = Layout(gpus_per_node=8, **degrees)
        return components(InferenceJob(catalog_architecture("mixtral-8x7b"), layout, 1, 1024, "bf16", "bf16"))[
            "parameters"
        ]

    whole = held(data=8)
    assert held(tensor=8) == pytest.approx(whole / 8, rel=0.02)
    assert held(tensor=8, expert=8) == pytest.approx(held(tensor=8), rel=0.01)


def test_half_an_expert_for_each_of_two_ranks() -> None:
    """Megatron: the experts' weights and gradients halve, and every rank gets the tokens of both."""
    one, two = (job("mixtral-8x7b", 16, "megatron", expert=8, expert_tensor=n, options=OPTIONS) for n in (1, 2))
    experts = 3 * 4096 * 14336 * 32
    before, after = components(one), components(two)
    assert before["parameters"] - after["parameters"] == experts * 2 // 2
    assert before["gradients"] - after["gradients"] == experts * 4 // 2
    assert after["activations"] > before["activations"]


def test_its_groups_are_there_without_expert_parallelism() -> None:
    """Two ranks that share eight experts gather tokens, and the others have their copies; a dense model has neither."""
    found = {g.kind: g for g in groups(job("mixtral-8x7b", 8, "megatron", expert_tensor=2, options=OPTIONS))}
    assert found["expert tensor"].ranks_in_node == 2
    assert found["expert tokens"].ranks_in_node == 2
    assert found["expert data"].ranks_in_node == 4
    assert "expert" not in found
    dense = groups(job("llama-3.1-8b", 8, "megatron", expert_tensor=2))
    assert not any(g.kind.startswith("expert") for g in dense)


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall", "flex"])
def test_all_dispatchers_bring_the_tokens_of_all_its_ranks(dispatcher: str) -> None:
    """What the experts keep of their inputs is twice as much, and of their inner width as much as before."""
    options = {"moe_token_dispatcher_type": dispatcher}
    one, two = (job("mixtral-8x7b", 16, "megatron", expert=8, expert_tensor=n, options=options) for n in (1, 2))
    more = components(two)["activations"] - components(one)["activations"]
    tokens = 8192 * 2 * 4096 * 2 * 32
    assert 0.9 * tokens < more < 2.6 * tokens


def test_torchtitans_tensor_ranks_have_all_tokens() -> None:
    """With experts cut over them, tensor ranks do not divide the tokens on their way to the experts."""
    divided, cut = (
        job("qwen3-30b-a3b", 16, zero_stage=3, tensor=2, expert=4, expert_tensor=n, sequence_length=16384)
        for n in (1, 2)
    )
    assert components(cut)["activations"] > components(divided)["activations"]
