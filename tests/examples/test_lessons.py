"""What the comments of the examples say is so."""

from __future__ import annotations

import pytest

from memcheck.accounts.estimate import Estimate
from memcheck.judge import Gate, check_file
from memcheck.rules.result import PlanResult
from tests.examples.rendered import ROOT, results

GIB = 2**30


def plan(name: str, document: int = 0) -> PlanResult:
    """One document's result."""
    return results(name)[document]


def estimate(name: str, document: int = 0) -> Estimate:
    """One document's estimate."""
    answer = plan(name, document).estimate
    assert answer is not None
    return answer


def status_with(name: str, **training: object) -> str:
    """The status of an example with other values under ``training``."""
    path = ROOT / "examples" / f"{name}.yaml"
    changes = {"training." + key.replace("__", "."): value for key, value in training.items()}
    (result,), _ = check_file(str(path), path.read_bytes(), Gate(changes=changes))
    return result.status


def largest(name: str, document: int = 0) -> str:
    """The component that holds most bytes at the peak."""
    components = estimate(name, document).components_bytes
    return max(components, key=lambda component: components[component])


def loss_bytes(answer: Estimate) -> int:
    """Logits, what the loss keeps, and what its backward adds: all that is proportional to the vocabulary."""
    return answer.components_bytes["logits_and_loss"] + answer.components_bytes["temporaries"]


def test_the_advertised_plan_needs_twice_the_gpu() -> None:
    """33.4 GB is not even the states and a tenth; with activations, largest of all, it is about two GPUs' worth."""
    answer = estimate("llama-3.1-8b-tp4-a100-40gb")
    assert largest("llama-3.1-8b-tp4-a100-40gb") == "activations"
    assert answer.utilization == pytest.approx(2.0, rel=0.1)


def test_foreach_peaks_in_the_optimizer_step() -> None:
    """The first of the three optimizers peaks in its step, by one fp32 copy of the parameters; the others do not."""
    foreach, fused, eight_bit = (estimate("llama-3.2-1b-optimizers-a10g", i) for i in range(3))
    assert (foreach.instant, fused.instant, eight_bit.instant) == ("optimizer", "backward", "backward")
    assert foreach.components_bytes["temporaries"] == pytest.approx(4 * foreach.parameters, rel=1e-3)
    assert eight_bit.components_bytes["optimizer_states"] < fused.components_bytes["optimizer_states"] * 0.27


def test_the_quantised_base_is_partly_in_fp32() -> None:
    """Embedding and head of QLoRA's base are fp32: a large part of its bytes, and the loss is next."""
    answer = estimate("llama-3.1-8b-qlora-rtx-4090")
    in_fp32 = 2 * 128256 * 4096 * 4
    assert answer.components_bytes["parameters"] > in_fp32 > answer.components_bytes["parameters"] / 2
    assert loss_bytes(answer) > answer.components_bytes["activations"] + answer.components_bytes["optimizer_states"]


def test_adapters_keep_more_than_the_model() -> None:
    """LoRA's activations exceed its frozen base; a rank four times smaller would not fit either."""
    answer = estimate("llama-3.1-8b-lora-l40s")
    assert answer.components_bytes["activations"] > answer.components_bytes["parameters"]
    assert status_with("llama-3.1-8b-lora-l40s", lora__rank=4) == "failed"
    assert status_with("llama-3.1-8b-lora-l40s", activation_checkpointing="full") == "passed"


def test_the_t4_takes_fp16() -> None:
    """The T4's plan passes in the precision that the comment recommends."""
    assert status_with("mistral-7b-qlora-t4", precision="fp16-mixed") == "passed"


def test_unsynchronised_gradients_are_whole() -> None:
    """Without a reduction, every rank holds 2 bytes of gradient for each of the model's parameters: it is in bf16."""
    answer = estimate("llama-3.1-8b-no-sync-8xa100-40gb")
    assert largest("llama-3.1-8b-no-sync-8xa100-40gb") == "gradients"
    assert answer.components_bytes["gradients"] == pytest.approx(2 * answer.parameters, rel=0.03)


def test_a_large_vocabulary_costs_12_bytes_a_token_and_word() -> None:
    """Gemma's loss holds 12 bytes per token and word, more than everything else on the GPU."""
    answer = estimate("gemma-3-4b-logits-8xa100-40gb")
    assert loss_bytes(answer) == pytest.approx(12 * 2 * 8192 * 262144, rel=0.02)
    assert loss_bytes(answer) > answer.device_bytes / 2


@pytest.mark.parametrize("loss", ["chunked", "fused-linear"])
def test_losses_without_all_logits_mend_it(loss: str) -> None:
    """The losses that the comment names make the same plan pass."""
    assert status_with("gemma-3-4b-logits-8xa100-40gb", loss=loss) == "passed"


def test_offload_fills_the_host() -> None:
    """The GPUs of the offloaded 70B have room; its host holds 18 bytes a parameter, most of them in pinned blocks of
    powers of two, which two nodes would share."""
    answer = estimate("llama-3.3-70b-zero3-offload-8xa100")
    assert answer.utilization < 0.85
    assert 18 * answer.parameters < answer.host_bytes_per_node < 21 * answer.parameters
    assert answer.host_bytes_per_node > 1000 * GIB > answer.host_bytes_per_node / 2


def test_loading_and_saving_fill_the_host() -> None:
    """Eight fp32 copies, rank 0's two Adam moments, or every rank's: the GPUs have the same room in all three."""
    eight, one, all_of_them = (estimate("llama-3.3-70b-loading-32xh100", document) for document in range(3))
    assert eight.device_bytes == one.device_bytes == all_of_them.device_bytes < 0.85 * eight.capacity_bytes
    moments = [answer.host_moment for answer in (eight, one, all_of_them)]
    assert [m.name for m in moments if m is not None] == ["load", "save", "load"]
    assert eight.host_bytes_per_node == 8 * 4 * eight.parameters
    assert one.host_bytes_per_node == 8 * one.parameters > 512 * GIB
    assert all_of_them.host_bytes_per_node == 4 * all_of_them.parameters < 512 * GIB


def test_the_first_pipeline_stage_decides() -> None:
    """Of the 175B's eight stages the first is the fullest, and its states are 18 bytes a parameter."""
    answer = estimate("gpt-175b-megatron-64xa100")
    peaks = [rank.peak.allocated_bytes for rank in answer.ranks]
    assert answer.pipeline_rank == 0 == peaks.index(max(peaks))
    states = sum(
        answer.components_bytes[name] for name in ("parameters", "gradients", "master_weights", "optimizer_states")
    )
    assert states == pytest.approx(18 * answer.ranks[0].parameters, rel=0.001)
    assert states > answer.capacity_bytes / 2


def test_embedding_and_head_count_as_a_layer() -> None:
    """405B: every stage but the first and the last has eight layers, those have seven."""
    counts = [rank.parameters for rank in estimate("llama-3.1-405b-2048xh100").ranks]
    assert len(counts) == 16
    assert len(set(counts[1:-1])) == 1


def test_recomputing_the_mlp_is_what_it_takes() -> None:
    """405B without recompute does not fit; the gate would say so."""
    assert status_with("llama-3.1-405b-2048xh100", activation_checkpointing="none") == "failed"


def test_imbalance_is_activations() -> None:
    """Mixtral's unbalanced plan differs from the balanced one in activations, not in states."""
    balanced, unbalanced = (estimate("mixtral-8x7b-ep8-64xh100", i).components_bytes for i in range(2))
    assert unbalanced["activations"] > 1.5 * balanced["activations"]
    assert unbalanced["optimizer_states"] == balanced["optimizer_states"]


def test_the_cache_is_four_times_larger() -> None:
    """8 x 131,072 tokens against 32 x 8,192: four times the KV cache over the same weights."""
    short, long = (estimate("llama-3.3-70b-inference-4xh100", i).components_bytes for i in range(2))
    assert long["kv_cache"] == pytest.approx(4 * short["kv_cache"], rel=1e-3)
    assert short["kv_cache"] == 32 * 8192 * 80 * 2 * (8 // 4) * 128 * 2
    assert long["parameters"] == short["parameters"]


def test_a_rough_model_answers_the_first_question() -> None:
    """7 billion parameters are 16 bytes each before anything is computed, which no 80 GB GPU holds."""
    answer = estimate("rough-7b-a100-80gb")
    states = sum(answer.components_bytes[name] for name in ("parameters", "gradients", "optimizer_states"))
    assert states == pytest.approx(16 * 7e9, rel=0.001)
    assert states > answer.capacity_bytes


def test_the_base_brings_hardware_and_policy() -> None:
    """The extending plan says how many nodes; GPU, node size and limits come from the base."""
    result = plan("qwen2.5-32b-fsdp-2x8xh100")
    assert (result.gpu, result.gpus, result.fail_above) == ("h100-80gb", 16, 0.85)
    assert isinstance(result.values, dict)
    assert result.values["training"]["precision"]["reduce"] == "fp32"
