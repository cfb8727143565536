"""Launches of ms-swift over Megatron-Core: its own names and defaults, one line for each that decided a size."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting
from memcheck.judge import Gate, check_file

LINE = """PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\
NPROC_PER_NODE=8 \\
megatron sft \\
    --model Qwen/Qwen3-30B-A3B-Base --dataset 'a/b' --packing true --max_length 8192 \\
    --micro_batch_size 1 --global_batch_size 16 --expert_model_parallel_size 8 \\
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \\
    --sequence_parallel true --attention_backend flash
"""
DENSE = LINE.replace("Qwen/Qwen3-30B-A3B-Base", "Qwen/Qwen2.5-7B").replace("--expert_model_parallel_size 8", "")
OPTION = "training.options."


def read(text: str, name: str = "s.sh") -> Imported:
    """The import of a launch on H100s."""
    return import_config(name, text.encode(), {"hardware.gpu": ReadSetting("h100-80gb", "test")})


def values(text: str, name: str = "s.sh") -> dict[str, object]:
    """Plan values of a launch that is read without a problem or a note."""
    found = read(text, name)
    assert (found.problems, found.notes) == ((), ())
    return {key: setting.value for key, setting in found.settings.items()}


def refusal(text: str) -> str:
    """What keeps a launch from becoming a plan."""
    return "\n".join(each.message for each in read(text).problems)


@pytest.mark.parametrize(
    ("more", "key", "value"),
    [
        ("", "training.framework", "megatron"),
        ("", "training.method", "full"),
        ("", "training.expandable_segments", True),
        ("", "hardware.gpus_per_node", 8),
        ("", "parallelism.expert_tensor", 1),
        ("", "parallelism.zero_stage", 1),
        ("", f"{OPTION}padding_free", True),
        ("", f"{OPTION}create_attention_mask_in_dataloader", False),
        ("", f"{OPTION}moe_router_dtype", "fp32"),
        ("--moe_router_dtype none", f"{OPTION}moe_router_dtype", None),
        ("--tensor-model-parallel-size 2", "parallelism.sequence", True),
        ("--tuner_type lora", "training.lora.rank", 8),
        (
            "--train_type lora --target_modules linear_qkv linear_proj",
            "training.lora.target_modules",
            ["linear_qkv", "linear_proj"],
        ),
        ("--tuner_type lora", "training.lora.dropout", 0.05),
        ("--recompute_granularity selective", "training.activation_checkpointing.modules", ["core_attn"]),
        ("--bias_activation_fusion false", f"{OPTION}bias_swiglu_fusion", False),
        ("--optimizer muon", "parallelism.zero_stage", 0),
        ("--torch_dtype float32", "training.precision", "fp16-mixed"),
        ("--optimizer_cpu_offload true --optimizer_offload_fraction 0.5", f"{OPTION}optimizer_cpu_offload", True),
        ("--data_parallel_sharding_strategy optim --use_megatron_fsdp true", "parallelism.zero_stage", 1),
        ("--pipeline_model_parallel_size 2 --virtual_pipeline_model_parallel_size 2", "parallelism.virtual_stages", 2),
        (
            "--pipeline_model_parallel_size 2 --pipeline_model_parallel_layout 'Et*12|t*12|t*12|t*12L'",
            "parallelism.virtual_stages",
            2,
        ),
    ],
)
def test_a_launch_says_what_it_runs(more: str, key: str, value: object) -> None:
    """Its own defaults where it is silent: they are neither Megatron-LM's nor those of ``swift sft``."""
    found = read(f"{LINE.rstrip()} {more}\n")
    assert found.problems == ()
    setting = found.settings.get(key)
    assert (setting.value if setting is not None else None) == value


def test_a_dense_model_has_no_defaults_of_experts() -> None:
    """Nothing is assumed of what the model has not."""
    assert not {key for key in values(DENSE) if "moe" in key}


def test_rows_with_padding_have_a_mask() -> None:
    """``--padding_free false``: the collator makes one, and rows stay apart."""
    found = values(DENSE.replace("--packing true", "--padding_free false"))
    assert (found[f"{OPTION}padding_free"], found[f"{OPTION}create_attention_mask_in_dataloader"]) == (False, True)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("megatron rlhf", "`rlhf_type: dpo` compares preferences"),
        ("megatron rlhf --rlhf_type grpo", "generates between its steps"),
        ("megatron sft --task_type embedding", "`task_type: embedding`"),
        ("megatron sft --freeze_parameters_ratio 0.5", "`freeze_parameters_ratio`"),
        ("megatron sft --tuner_type lora --target_modules all-linear all-router", "adapters of `all-router`"),
        ("megatron sft --tuner_type lora --lora_bias all", "biases trained with adapters"),
        ("megatron sft --mcore_adapter ./a", "`mcore_adapter`: rank and dropout"),
        ("megatron sft --use_ray true", "`use_ray`"),
        ("megatron sft --optimizer dist_muon", "`optimizer: dist_muon`"),
    ],
)
def test_what_has_no_memory_model_is_refused_by_its_name(said: str, word: str) -> None:
    """None of these is a note."""
    assert word in refusal(LINE.replace("megatron sft", said))


def test_nodes_that_the_caller_sets_are_asked_for() -> None:
    """``NNODES=$WORLD_SIZE`` was one node in silence; here, and of ``swift sft``."""
    found = read(LINE.replace("NPROC_PER_NODE", "NNODES=$WORLD_SIZE \\\nNPROC_PER_NODE"))
    (problem,) = found.problems
    assert (problem.location.span.line, problem.keys) == (2, ("hardware.nodes",))
    line = "NNODES=$N NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --train_type lora --max_length 2048\n"
    assert "`NNODES=$N`" in refusal(line)


@pytest.mark.parametrize("name", ["MAX_PIXELS", "MIN_PIXELS", "NPROC_PER_NODE"])
def test_a_variable_of_a_number_that_is_none_is_an_error_at_its_place(name: str) -> None:
    """It was passed over in silence; what the caller sets is a note."""
    line = LINE.replace("NPROC_PER_NODE=8 \\\n", "")
    found = read(f"export {name}=abc\n{line}")
    assert (found.problems[0].location.span.line, found.problems[0].message) == (
        1,
        f"`{name}=abc` is not a whole number",
    )
    found = read(f"export {name}=$X\n{line}")
    assert [each.location.span.line for each in found.notes if f"`{name}=$X`" in each.message] == [1]


def test_the_keys_are_recognised_without_a_command(tmp_path: Path) -> None:
    """YAML of the same keys, with its variables below ``ENV``; an argument of Megatron-LM's own is no evidence."""
    text = (
        "ENV:\n  PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'\n  NPROC_PER_NODE: 4\n"
        "model: Qwen/Qwen2.5-7B\ntuner_type: lora\nmax_length: 2048\nmicro_batch_size: 2\nglobal_batch_size: 16\n"
    )
    found = values(text, str(tmp_path / "sft.yaml"))
    assert (found["hardware.gpus_per_node"], found["training.expandable_segments"]) == (4, True)
    assert found["training.method"] == "lora"


def test_a_launch_is_judged_from_its_own_file() -> None:
    """The verdict of ``memcheck check sft.sh --gpu``, whose figure ms-swift gives as 60 GiB on each of 16 GPUs."""
    text = LINE.replace("--expert", "--pipeline_model_parallel_size 2 --expert")
    stated = {"hardware.gpu": ReadSetting("a100-80gb", "t"), "hardware.nodes": ReadSetting(2, "t")}
    found = import_config("s.sh", text.encode(), stated)
    assert found.problems == ()
    results, _ = check_file("s.yaml", found.text.encode(), Gate())
    estimate = results[0].estimate
    assert estimate is not None
    assert 45 * 2**30 < estimate.needed_bytes < 65 * 2**30


TOWER = LINE.replace("Qwen/Qwen3-30B-A3B-Base", "Qwen/Qwen3.6-35B-A3B")


@pytest.mark.parametrize(
    ("more", "key", "value"),
    [
        ("", "training.freeze", ["vision", "projector"]),
        ("--freeze_vit true", "training.freeze", ["vision", "projector"]),
        ("--tuner_type lora", "training.lora.parts", ["language"]),
    ],
)
def test_a_tower_is_frozen(more: str, key: str, value: object) -> None:
    """As it is by default, and adapters are the language model's; data of pictures ask how many a sample has."""
    found = read(f"{TOWER.rstrip()} {more}\n")
    assert found.settings[key].value == value
    assert not found.problems
    found = read(f"{TOWER.rstrip()} {more} --dataset AI-ModelScope/LaTeX_OCR\n")
    assert [each.message for each in found.problems] == ["the config does not say how many pictures a sample has"]


@pytest.mark.parametrize("more", ["--freeze_vit false", "--freeze_aligner false", "--freeze_llm true"])
def test_a_trained_tower_is_refused(more: str) -> None:
    """Nothing prices what it keeps."""
    assert "a tower that is trained" in refusal(f"{TOWER.rstrip()} {more}\n")


@pytest.mark.parametrize("path", ["--mcore_model Qwen3-30B-A3B-Base-mcore", "--load /data/Qwen3-30B-A3B-Base-mcore/"])
def test_the_folder_of_a_converted_checkpoint_names_the_model(path: str) -> None:
    """Launches of older releases name no other."""
    own, other = values(LINE), values(LINE.replace("--model Qwen/Qwen3-30B-A3B-Base", path))
    assert other.pop("model.name") == "Qwen3-30B-A3B-Base"
    assert own.pop("model.name") == "Qwen/Qwen3-30B-A3B-Base"
    assert other == own


def test_a_folder_that_names_no_model_is_none() -> None:
    """What was converted is not said."""
    assert "names no model" in refusal(
        LINE.replace("--model Qwen/Qwen3-30B-A3B-Base", "--load output/checkpoint-mcore")
    )
