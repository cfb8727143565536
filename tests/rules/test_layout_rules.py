"""The layout algebra, as frameworks enforce it."""

from __future__ import annotations

import pytest

from memcheck.judge import Gate, check_document
from memcheck.what_if import with_remedies
from tests.rules.plans import document, found, layout_findings

MEGATRON = "framework: megatron, gradient_accumulation_steps: 16"
TITAN = "framework: torchtitan, gradient_accumulation_steps: 16"
STAGES = "pipeline_model_parallel_layout"


@pytest.mark.parametrize(
    ("parallelism", "nodes", "fault"),
    [
        ("tensor: 8", 1, ""),
        ("tensor: 4, pipeline: 2, data: 1", 1, ""),
        ("tensor: 2, context: 2, pipeline: 2, data: 4", 4, ""),
        ("tensor: 8, expert: 4", 4, ""),
        ("tensor: 3", 1, "does not divide 8 GPUs"),
        ("tensor: 16", 1, "does not divide 8 GPUs"),
        ("tensor: 4, data: 4", 1, "but the plan has 8 GPUs"),
        ("tensor: 4, data: 1", 1, "but the plan has 8 GPUs"),
    ],
)
def test_world_size(parallelism: str, nodes: int, fault: str) -> None:
    """The degrees multiply to the number of GPUs; experts are no factor."""
    model = "mixtral-8x7b" if "expert" in parallelism else "llama-3.1-8b"
    messages = [f.message for f in found("MEM201", parallelism, MEGATRON, nodes=nodes, model=model)]
    assert bool(messages) == bool(fault)
    assert all(fault in m for m in messages)


def test_a_wrong_world_is_not_priced() -> None:
    """What cannot start has no memory use: the plan has an error and no estimate."""
    result = check_document(document("tensor: 3", MEGATRON), Gate(remedies=with_remedies))
    assert result.estimate is None
    assert result.status == "error"


@pytest.mark.parametrize(
    ("model", "framework", "parallelism", "codes"),
    [
        ("llama-3.1-8b", "megatron", "tensor: 8", set()),
        ("qwen2.5-7b", "megatron", "tensor: 8", {"MEM202", "MEM203"}),
        ("qwen2.5-7b", "megatron", "tensor: 4", set()),
        ("qwen2.5-3b", "megatron", "tensor: 4", {"MEM203"}),
        ("qwen2.5-3b", "torchtitan", "tensor: 4, zero_stage: 3", {"MEM203"}),
        ("llama-3.1-8b", "deepspeed", "context: 8, zero_stage: 3", set()),
        ("qwen2.5-7b", "deepspeed", "context: 8, zero_stage: 3", {"MEM202"}),
        ("qwen2.5-7b", "torchtitan", "context: 8, zero_stage: 3", set()),
        ("deepseek-v2-lite", "megatron", "tensor: 8", set()),
    ],
)
def test_heads(model: str, framework: str, parallelism: str, codes: set[str]) -> None:
    """Heads are divided by the tensor degree, and by the context degree where whole heads are exchanged."""
    findings = layout_findings(parallelism, f"framework: {framework}, gradient_accumulation_steps: 16", model=model)
    assert {f.code for f in findings if f.code in {"MEM202", "MEM203"}} == codes


@pytest.mark.parametrize(
    ("parallelism", "model", "training", "fault"),
    [
        ("expert: 4, expert_tensor: 2, tensor: 2", "gpt-oss-20b", MEGATRON, "experts with biases"),
        ("expert: 4, tensor: 2", "gpt-oss-20b", MEGATRON, ""),
        ("zero_stage: 3, expert: 4, expert_tensor: 2, tensor: 2", "mixtral-8x7b", TITAN, ""),
        ("zero_stage: 3, expert: 2, expert_tensor: 2, tensor: 4", "mixtral-8x7b", TITAN, "neither 1 nor the tensor"),
    ],
)
def test_expert_tensor(parallelism: str, model: str, training: str, fault: str) -> None:
    """Megatron splits no biases of experts, and torchtitan has two degrees only."""
    messages = [f.message for f in found("MEM205", parallelism, training, model=model)]
    assert bool(messages) == bool(fault)
    assert all(fault in m for m in messages)


def test_copied_heads_are_a_warning() -> None:
    """Megatron and inference engines copy key/value heads; torchtitan cannot place them."""
    assert [f.severity for f in found("MEM203", "tensor: 4", MEGATRON, model="qwen2.5-3b")] == ["warning"]
    assert [f.severity for f in found("MEM203", "tensor: 4, zero_stage: 3", TITAN, model="qwen2.5-3b")] == ["error"]
    serving = "batch_size: 1, context_length: 4096"
    copied = found("MEM203", "tensor: 4", model="qwen2.5-3b", gpus_per_node=4, inference=serving)
    assert [f.severity for f in copied] == ["warning"]


@pytest.mark.parametrize(
    ("parallelism", "model", "fault"),
    [
        ("expert: 8", "mixtral-8x7b", ""),
        ("expert: 4, expert_tensor: 2, tensor: 2", "mixtral-8x7b", ""),
        ("expert: 3", "mixtral-8x7b", "8 experts cannot be split"),
        ("expert: 8, pipeline: 4", "mixtral-8x7b", "does not divide the 2 ranks of a stage"),
        ("expert: 2", "llama-3.1-8b", "has no experts"),
        ("expert: 2, expert_tensor: 3, tensor: 2", "mixtral-8x7b", "cannot be split over expert_tensor 3"),
    ],
)
def test_experts(parallelism: str, model: str, fault: str) -> None:
    """Experts are placed on the data, context and tensor ranks of a stage."""
    messages = [f.message for f in found("MEM205", parallelism, MEGATRON, model=model)]
    assert bool(messages) == bool(fault)
    assert not fault or any(fault in m for m in messages)


@pytest.mark.parametrize(
    ("parallelism", "training", "fault"),
    [
        ("pipeline: 4", MEGATRON, ""),
        ("pipeline: 4, virtual_stages: 2", MEGATRON, ""),
        ("pipeline: 8, virtual_stages: 8", MEGATRON, "cannot fill"),
        ("pipeline: 8, virtual_stages: 3", MEGATRON, "do not split equally"),
        ("virtual_stages: 2", MEGATRON, "without a pipeline"),
        ("", MEGATRON + ", options: {num_layers_per_virtual_pipeline_stage: 2}", "without a pipeline"),
        ("pipeline: 2", MEGATRON + ", options: {num_layers_per_virtual_pipeline_stage: 2}", ""),
        ("pipeline: 8", MEGATRON + ", options: {num_layers_in_first_pipeline_stage: 4}", ""),
        ("pipeline: 8", MEGATRON + ", options: {num_layers_in_first_pipeline_stage: 3}", "29 layers between"),
        ("pipeline: 8", MEGATRON + ", options: {account_for_loss_in_pipeline_split: true}", "counting 1"),
        ("pipeline: 2, virtual_stages: 3", TITAN + ", sequence_length: 4096", ""),
        ("pipeline: 2", MEGATRON + f", options: {{{STAGES}: 'Et*8|(t*8|)*2t*8L'}}", "2 on each of 2 ranks"),
        ("pipeline: 2, virtual_stages: 2", MEGATRON + f", options: {{{STAGES}: 'Et*8|(t*8|)*2t*8L'}}", ""),
        ("pipeline: 8", MEGATRON + f", options: {{{STAGES}: 'Et*8|(t*8|)*2t*8L'}}", "8 pipeline ranks do not divide"),
        ("tensor: 2", MEGATRON + f", options: {{{STAGES}: 'Et*16|t*16L'}}", "2 on each of 1 ranks"),
        ("pipeline: 2", MEGATRON + f", options: {{{STAGES}: 'Et*16|t*15L'}}", "has 31 layers (`t`), the model has 32"),
        ("pipeline: 2", MEGATRON + f", options: {{{STAGES}: 'Et*16|t*16'}}", "has 0 losses (`L`), the model has 1"),
        ("pipeline: 2", MEGATRON + f", options: {{{STAGES}: 'Et*16|t*16mL'}}", "1 multi-token-prediction layers"),
        ("pipeline: 2", MEGATRON + f", options: {{{STAGES}: 'Et*16|t*16mL', mtp_num_layers: 1}}", ""),
        ("pipeline: 2", MEGATRON + f", options: {{{STAGES}: 'Et*16|t*16L', mtp_num_layers: 1}}", "the model has 1"),
        ("", MEGATRON + ", options: {decoder_first_pipeline_num_layers: 8}", "the only stage has all 32"),
        ("", MEGATRON + ", options: {decoder_first_pipeline_num_layers: 32}", ""),
    ],
)
def test_layers(parallelism: str, training: str, fault: str) -> None:
    """Megatron wants equal stages or a statement of how they differ, which names every layer; torchtitan only wants
    none to be empty.
    """
    defaults = "micro_batch_size: 1" + ("" if "sequence_length" in training else ", sequence_length: 4096")
    messages = [f.message for f in found("MEM206", parallelism, training, defaults=defaults)]
    assert bool(messages) == bool(fault)
    assert all(fault in m for m in messages)


@pytest.mark.parametrize(
    ("gpu", "gpus_per_node", "nodes", "tensor", "warned"),
    [
        ("h100-80gb", 8, 2, 8, False),
        ("h100-80gb", 8, 2, 16, True),
        ("gb200", 4, 4, 8, False),
        ("h100-80gb", 8, 1, 8, False),
    ],
)
def test_tensor_groups_stay_on_nodes(gpu: str, gpus_per_node: int, nodes: int, tensor: int, warned: bool) -> None:
    """A tensor group over several nodes is slow, except where NVLink spans nodes."""
    findings = found("MEM207", f"tensor: {tensor}", MEGATRON, gpu=gpu, gpus_per_node=gpus_per_node, nodes=nodes)
    assert bool(findings) is warned


@pytest.mark.parametrize(
    ("parallelism", "training", "fault"),
    [
        ("context: 8, zero_stage: 3", TITAN + ", sequence_length: 8192", ""),
        ("context: 8, zero_stage: 3", TITAN + ", sequence_length: 8200", "2 * context 8 = 16"),
        ("tensor: 8", MEGATRON + ", sequence_length: 4100", "tensor 8 = 8"),
        ("tensor: 8, sequence: false", MEGATRON + ", sequence_length: 4100", ""),
        ("tensor: 2, context: 4", MEGATRON + ", sequence_length: 4104", "2 * context 4 * tensor 2 = 16"),
        ("context: 8, zero_stage: 3", "framework: deepspeed, sequence_length: 8200", ""),
    ],
)
def test_sequence(parallelism: str, training: str, fault: str) -> None:
    """The sequence is split by context (twice, for balance) and by sequence parallelism."""
    messages = [f.message for f in found("MEM210", parallelism, training, defaults="micro_batch_size: 1")]
    assert bool(messages) == bool(fault)
    assert all(fault in m for m in messages)


@pytest.mark.parametrize(
    ("parallelism", "steps", "found_by"),
    [
        ("pipeline: 8", 14, []),
        ("pipeline: 8", 13, ["warning MEM217"]),
        ("pipeline: 8", 1, ["warning MEM217"]),
        ("pipeline: 8, pipeline_schedule: gpipe", 4, ["warning MEM217"]),
        ("pipeline: 4, virtual_stages: 2", 8, []),
        ("pipeline: 4, virtual_stages: 2", 4, []),
        ("pipeline: 4, virtual_stages: 2", 2, ["error MEM211", "warning MEM217"]),
        ("pipeline: 4, virtual_stages: 2", 6, ["error MEM211"]),
    ],
)
def test_micro_batches_fill_the_pipeline(parallelism: str, steps: int, found_by: list[str]) -> None:
    """A pipeline idles for (p - 1) / (v m + p - 1) of the step, and an interleaved one runs whole groups only."""
    training = f"framework: megatron, gradient_accumulation_steps: {steps}"
    findings = layout_findings(parallelism, training)
    assert [f"{f.severity} {f.code}" for f in findings if f.code in {"MEM211", "MEM217"}] == found_by


def test_a_bubble_is_told_as_a_share() -> None:
    """8 stages and 2 micro-batches: 7 of 9 slots are waiting, 77.8 %."""
    (finding,) = found("MEM217", "pipeline: 8", "framework: megatron, gradient_accumulation_steps: 2")
    assert "2 micro-batches per step for a pipeline of 8 stages: it idles 77.8% of the time" in finding.message


@pytest.mark.parametrize(
    ("framework", "parallelism", "keys"),
    [
        ("huggingface", "pipeline: 2", ["/parallelism/pipeline"]),
        ("huggingface", "tensor: 2", []),
        ("deepspeed", "pipeline: 2", ["/parallelism/pipeline"]),
        ("megatron", "tensor: 2, pipeline: 2, context: 2", []),
    ],
)
def test_frameworks_have_what_is_used(framework: str, parallelism: str, keys: list[str]) -> None:
    """Parallelism that a named framework lacks is reported at its own key."""
    training = f"framework: {framework}, gradient_accumulation_steps: 16"
    assert [f.pointer for f in found("MEM212", parallelism, training)] == keys


@pytest.mark.parametrize(
    ("parallelism", "severity"),
    [
        ("tensor: 8", "error"),
        ("pipeline: 8", "error"),
        ("context: 8", "warning"),
        ("zero_stage: 3", ""),
        ("", ""),
    ],
)
def test_model_parallelism_needs_a_framework(parallelism: str, severity: str) -> None:
    """Without a framework, degrees that each framework prices differently are an error, and data parallelism is fine."""
    assert [f.severity for f in found("MEM403", parallelism)] == ([severity] if severity else [])
    assert found("MEM212", parallelism) == []


@pytest.mark.parametrize(
    ("parallelism", "severity"),
    [
        ("zero_stage: 3, shard_group: 4", ""),
        ("zero_stage: 3, shard_group: 3", "error"),
        ("shard_group: 4", "warning"),
    ],
)
def test_shard_groups(parallelism: str, severity: str) -> None:
    """Sharding groups are equal, and shard something."""
    training = "framework: huggingface"
    assert [f.severity for f in found("MEM214", parallelism, training)] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("framework", "stage", "known"),
    [("deepspeed", 2, True), ("torchtitan", 2, False), ("huggingface", 1, True), ("megatron", 1, True)],
)
def test_zero_stages(framework: str, stage: int, known: bool) -> None:
    """Only the stages that a framework has are accepted."""
    assert bool(found("MEM215", f"zero_stage: {stage}", f"framework: {framework}")) is not known


@pytest.mark.parametrize(
    ("framework", "parallelism", "fault"),
    [
        ("megatron", "pipeline: 4, pipeline_schedule: gpipe", "has no pipeline schedule `gpipe`"),
        ("megatron", "pipeline: 4, pipeline_schedule: interleaved-1f1b", "nothing to interleave"),
        ("megatron", "pipeline: 4, pipeline_schedule: interleaved-1f1b, virtual_stages: 2", ""),
        ("torchtitan", "pipeline: 4, pipeline_schedule: gpipe", ""),
        ("torchtitan", "pipeline: 4", ""),
        ("megatron", "pipeline_schedule: gpipe", ""),
        (
            "torchtitan, compile: true",
            "pipeline: 4, pipeline_schedule: zero-bubble",
            "torch refuses for compiled stages",
        ),
        ("torchtitan, compile: true", "pipeline: 4, pipeline_schedule: dualpipe", "torch refuses for compiled stages"),
        ("torchtitan, compile: true", "pipeline: 4, pipeline_schedule: 1f1b", ""),
        ("torchtitan", "pipeline: 4, pipeline_schedule: dualpipe", ""),
        ("torchtitan", "pipeline: 4, pipeline_schedule: dualpipe, virtual_stages: 2", ""),
        ("pytorch", "pipeline: 4, pipeline_schedule: dualpipe, virtual_stages: 1", "two stages on each rank"),
    ],
)
def test_schedules(framework: str, parallelism: str, fault: str) -> None:
    """A schedule is one that the framework has, with stages to interleave if it interleaves, not compiled if it splits
    the backward pass.
    """
    training = f"framework: {framework}, gradient_accumulation_steps: 16"
    messages = [f.message for f in found("MEM216", parallelism, training)]
    assert bool(messages) == bool(fault)
    assert all(fault in m for m in messages)


def test_nothing_to_shard_over() -> None:
    """A ZeRO stage over one rank is pointed out, over several it is not."""
    assert found("MEM208", "tensor: 8, zero_stage: 1", MEGATRON)
    assert found("MEM208", "zero_stage: 3, shard_group: 1", "framework: huggingface")
    assert not found("MEM208", "context: 8, zero_stage: 3", TITAN)


@pytest.mark.parametrize(
    ("framework", "parallelism", "nodes", "said"),
    [
        ("huggingface", "zero_stage: 3", 8, "8 experts of a layer into 64 shards"),
        ("huggingface", "zero_stage: 3, shard_group: 8", 8, ""),
        ("huggingface", "zero_stage: 3", 1, ""),
        ("huggingface, framework_version: '5.9'", "zero_stage: 3", 8, ""),  # FSDP1: one flat buffer
        ("pytorch", "zero_stage: 3", 2, "8 experts of a layer into 16 shards"),
        ("pytorch", "zero_stage: 3, expert: 8", 8, ""),
        ("deepspeed", "zero_stage: 3", 8, ""),
    ],
)
def test_padded_shards(framework: str, parallelism: str, nodes: int, said: str) -> None:
    """FSDP2 pads the experts' dimension; flat buffers, and matrices that are cut inside, are not padded."""
    findings = found("MEM218", parallelism, f"framework: {framework}", nodes=nodes, model="mixtral-8x7b")
    messages = [f.message for f in findings]
    assert bool(messages) == bool(said)
    assert all(said in m for m in messages)


def test_few_experts_are_dealt_out_evenly() -> None:
    """16 experts a rank over 11 shards are padded to 22: torchtitan cuts inside of them where shards are more."""
    layout = "zero_stage: 3, expert: 16"
    (finding,) = found("MEM218", layout, "framework: torchtitan", nodes=22, model="deepseek-v3")
    assert "choose degrees" in finding.help


def test_padding_has_a_remedy() -> None:
    """Groups of as many ranks as there are experts need less memory, and less time."""
    training = "framework: huggingface, activation_checkpointing: full"
    plan = document("zero_stage: 3", training, model="mixtral-8x7b", gpu="h200", nodes=8)
    findings = check_document(plan, Gate(remedies=with_remedies)).findings
    first = next(f.remedies[0] for f in findings if f.remedies)
    assert first.set == {"parallelism.shard_group": 8}
    assert first.slowdown is not None
    assert first.slowdown < 0
