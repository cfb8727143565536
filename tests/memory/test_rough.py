"""A model of which little is known: what its optimizer's step holds is that of a model with layers."""

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import load_documents, read_plan

GIB = 2**30
ROUGH = "{rough: {parameters: 13896668160, layers: 40, hidden_size: 5120, activation_multiplier: 34}}"
LAYERS = (
    "{architecture: {model_type: llama, num_hidden_layers: 40, hidden_size: 5120, num_attention_heads: 40, "
    "num_key_value_heads: 40, intermediate_size: 13696, vocab_size: 125696, tie_word_embeddings: false}}"
)
PLAN = """\
memcheck: 1
model: {model}
hardware: {{gpu: a800-80gb, gpus_per_node: 4}}
parallelism: {{zero_stage: {stage}}}
training:
  framework: deepspeed
  micro_batch_size: 1
  sequence_length: 1536
  precision: {precision}
  optimizer: adamw
  activation_checkpointing: full
"""


def instants(model: str, stage: int, precision: str) -> dict[str, int]:
    """Allocated bytes of each instant."""
    text = PLAN.format(model=model, stage=stage, precision=precision)
    (document,) = load_documents("plan.yaml", text.encode())
    plan, _ = read_plan(document)
    assert plan is not None
    resolved = resolve(plan, FRAMEWORKS, base_dir=".")
    answer = estimate(resolved.job, resolved.gpu, resolved.overhead)
    return {each.name: each.allocated_bytes for each in answer.ranks[0].instants}


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_engine_is_priced_without_layers(stage: int, precision: str) -> None:
    """States and the optimizer's step lie within 3 % of those of the same number of parameters in layers."""
    rough, layers = instants(ROUGH, stage, precision), instants(LAYERS, stage, precision)
    for instant in ("init", "optimizer"):
        assert rough[instant] == pytest.approx(layers[instant], rel=0.03), instant


def test_zero_2_steps_on_fp32_copies_of_its_gradients() -> None:
    """In hiyouga/LLaMA-Factory#1158, 77.65 GiB were allocated when 12.94 more were asked for."""
    assert instants(ROUGH, 2, "bf16-mixed")["optimizer"] == pytest.approx((77.65 + 12.94) * GIB, rel=0.001)


def parts(instant: str, rank: int = 0, *, vocabulary: int = 0, steps: int = 1, parallelism: str = "") -> dict[str, int]:
    """What a model of 24 layers and 24 * 2**20 parameters holds at an instant, on eight GPUs of PyTorch's own."""
    said = f", vocab_size: {vocabulary}" if vocabulary else ""
    text = (
        "memcheck: 1\n"
        f"model: {{rough: {{parameters: 25165824, layers: 24, hidden_size: 256, activation_multiplier: 34{said}}}}}\n"
        f"hardware: {{gpu: h100-80gb, gpus_per_node: 8}}\nparallelism: {{{parallelism}}}\n"
        "training: {framework: pytorch, micro_batch_size: 1, sequence_length: 1024, precision: bf16-mixed, "
        f"loss: standard, gradient_accumulation_steps: {steps}}}\n"
    )
    (document,) = load_documents("plan.yaml", text.encode())
    plan, findings = read_plan(document)
    assert plan is not None, findings
    resolved = resolve(plan, FRAMEWORKS, base_dir=".")
    found = estimate(resolved.job, resolved.gpu, resolved.overhead).ranks[rank]
    return next(each.components_bytes for each in found.instants if each.name == instant)


def test_zero_3_gathers_a_layer_ahead() -> None:
    """Two layers of a twenty-fourth of the parameters each are whole at once, in bf16."""
    assert parts("forward", parallelism="zero_stage: 3")["communication_buffers"] == 2 * 2**20 * 2
    assert parts("forward").get("communication_buffers", 0) == 0


def test_only_the_last_stage_has_logits() -> None:
    """Twelve bytes for each token and word, while backward begins; without a vocabulary nobody has any."""
    stages = "pipeline: 2"
    assert (
        parts("backward", 1, vocabulary=128_000, steps=4, parallelism=stages)["logits_and_loss"] == 12 * 1024 * 128_000
    )
    assert "logits_and_loss" not in parts("backward", 0, vocabulary=128_000, steps=4, parallelism=stages)
    assert "logits_and_loss" not in parts("backward", 1, steps=4, parallelism=stages)


def test_gradients_of_earlier_micro_batches_are_there_beside_the_logits() -> None:
    """In the first micro-batch there are none yet."""
    assert parts("backward", vocabulary=128_000, steps=2)["gradients"] == 4 * 25_165_824
    assert parts("backward", vocabulary=128_000, steps=1).get("gradients", 0) == 0
