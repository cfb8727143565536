"""LitGPT's configs and commands: which script runs, on what it is divided, and at what it stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.detect import detect
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting
from memcheck.judge import Gate, check_file

GPU = {"hardware.gpu": ReadSetting("a100-80gb", "test")}
COMMON = """\
checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
precision: bf16-true
devices: 1
train: {global_batch_size: 16, micro_batch_size: 2, max_seq_length: 512}
"""
LORA = f"{COMMON}lora_r: 16\n"
PRETRAIN = """\
model_name: tiny-llama-1.1b
precision: bf16-mixed
train: {global_batch_size: 512, micro_batch_size: 4, max_seq_length: 2048}
devices: 4
num_nodes: 2
"""
DIMENSIONS = """\
model_config:
  name: mine
  padded_vocab_size: 32000
  block_size: 256
  n_layer: 6
  n_head: 6
  n_query_groups: 6
  n_embd: 288
  intermediate_size: 768
  norm_class_name: RMSNorm
  mlp_class_name: LLaMAMLP
  bias: false
  parallel_residual: false
  rotary_percentage: 1.0
"""


def _read(text: str, path: str = "tune.yaml", **stated: object) -> Imported:
    beside = {key.replace("__", "."): ReadSetting(value, "test") for key, value in stated.items()}
    return import_config(path, text.encode(), {**GPU, **beside})


def _values(found: Imported) -> dict[str, object]:
    assert not found.problems
    return {key: each.value for key, each in found.settings.items()}


def _problems(found: Imported) -> str:
    return " | ".join(each.message for each in found.problems)


@pytest.mark.parametrize("text", [LORA, PRETRAIN, f"{PRETRAIN.partition('devices')[0]}{DIMENSIONS}"])
def test_a_config_is_told_by_its_keys(text: str) -> None:
    """`train:` beside a checkpoint or a model's name is nobody else's."""
    assert detect("a.yaml", text) == "litgpt"


@pytest.mark.parametrize(
    ("path", "more", "method"),
    [
        ("tune.yaml", "lora_r: 8\n", "lora"),
        ("tune.yaml", "lora_r: 8\nquantize: bnb.nf4\n", "qlora"),
        ("tune.yaml", "resume: false\n", "full"),
        ("full.yaml", "", "full"),
        ("tune.yaml", "out_dir: out/finetune/full-llama\n", "full"),
        ("lora.yaml", "", "lora"),
    ],
)
def test_the_script_is_what_only_its_config_has(path: str, more: str, method: str) -> None:
    """A key of one script alone; else a word in the names of the file and of `out_dir`."""
    assert _values(_read(f"{COMMON}{more}", path))["training.method"] == method


def test_a_config_of_any_script_is_asked_for_its_script() -> None:
    """Full, LoRA and adapter configs can be the same file; the answer settles it."""
    assert "which script runs it" in _problems(_read(COMMON))
    assert _values(_read(COMMON, training__method="full"))["training.method"] == "full"
    assert _values(_read(COMMON, training__method="lora"))["training.method"] == "lora"


@pytest.mark.parametrize("script", ["adapter", "adapter_v2", "lora_legacy"])
def test_adapters_without_a_model_are_refused_by_name(script: str) -> None:
    """Learned prompts are no LoRA."""
    found = _read(f"litgpt finetune_{script} EleutherAI/pythia-1b --train.max_seq_length 512\n", "run.sh")
    assert f"`finetune_{script}`" in _problems(found)
    assert found.problems[0].location.span.line == 1


def test_several_gpus_shard_and_recompute_what_is_fine_tuned() -> None:
    """The scripts decide that, and no argument does."""
    one, four = _values(_read(LORA)), _values(_read(LORA.replace("devices: 1", "devices: 4")))
    mode = "training.activation_checkpointing.mode"
    assert (one["parallelism.zero_stage"], one[mode]) == (0, "none")
    assert (four["parallelism.zero_stage"], four[mode]) == (3, "full")
    assert (one["training.gradient_accumulation_steps"], four["training.gradient_accumulation_steps"]) == (8, 2)


def test_pretraining_shards_within_a_node_and_compiles() -> None:
    """HYBRID_SHARD, no recompute, torch's fused AdamW, gradients clipped, no logits cut."""
    found = _values(_read(PRETRAIN))
    assert found["model.name"] == "tinyllama-1.1b"
    assert found["parallelism.shard_group"] == 4
    assert found["training.activation_checkpointing.mode"] == "none"
    assert (found["training.compile"], found["training.clip_grad_norm"]) == (True, True)
    assert found["training.optimizer.implementation"] == "fused"
    assert found["training.options.script"] == "pretrain"
    assert found["training.gradient_accumulation_steps"] == 16


def test_dimensions_of_llamas_kind_are_a_model() -> None:
    """Every other kind, and one whose dimensions are LitGPT's defaults, is asked for."""
    text = f"{PRETRAIN.partition('devices')[0]}devices: 1\n{DIMENSIONS}"
    found = _values(_read(text))
    assert found["model.architecture.hidden_size"] == 288
    assert found["model.architecture.vocab_size"] == 32000
    for gone in ("  bias: false\n", "  n_layer: 6\n"):
        assert "`model_config`" in _problems(_read(text.replace(gone, "")))
    assert "`model_config`" in _problems(_read(f"{text}  n_expert: 8\n"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("quantize: bnb.nf4\ndevices: 2\n", "on 2 GPUs: the script stops"),
        ("quantize: bnb.nf4\nprecision: bf16-mixed\n", "mixed precision: the script stops"),
        ("precision: bf16-mixed\ndevices: 2\n", "fp32 is gathered"),
        ("quantize: bnb.nf4\noptimizer: SGD\n", "over a quantized base: the script stops"),
        ("lora_query: false\nlora_value: false\n", "nothing is trained"),
    ],
)
def test_what_the_scripts_stop_at_is_refused(more: str, said: str) -> None:
    """Each at its line."""
    kept = [line for line in LORA.splitlines() if f"{line.partition(':')[0]}:" not in more]
    found = _read("\n".join([*kept, more]))
    assert said in _problems(found)


COMMAND = """\
litgpt download meta-llama/Llama-3.2-1B
litgpt finetune_lora \\
  meta-llama/Llama-3.2-1B --config lora.yaml \\
  --train.micro_batch_size 4 --lora_r 64   # more
litgpt chat out/final --max_new_tokens 50 --precision bf16-true
"""


def test_a_command_counts_before_the_file_that_it_names(tmp_path: Path) -> None:
    """The other commands of the script say nothing; the file's keys stand where the command is silent."""
    (tmp_path / "lora.yaml").write_text(LORA.replace("precision: bf16-true", "precision: 32-true"), encoding="utf-8")
    found = _read(COMMAND, str(tmp_path / "run.sh"))
    values = _values(found)
    assert detect("run.sh", COMMAND) == found.format == "litgpt"
    assert (values["training.micro_batch_size"], values["training.lora.rank"]) == (4, 64)
    assert values["training.precision.recipe"] == "fp32"
    assert not found.notes


def test_a_command_alone_has_the_scripts_defaults() -> None:
    """One GPU, sixteen sequences one at a time, mixed precision; the length is asked for."""
    assert "states no length" in _problems(_read("litgpt finetune Llama-3.2-1B\n", "run.sh"))
    found = _values(_read("litgpt finetune Llama-3.2-1B\n", "run.sh", training__sequence_length=512))
    assert found["training.precision.recipe"] == "bf16-mixed"
    assert (found["training.micro_batch_size"], found["training.gradient_accumulation_steps"]) == (1, 16)
    assert found["training.lora.target_modules"] == ["q_proj", "v_proj"]


def test_a_script_that_trains_twice_is_refused() -> None:
    """Arguments of two jobs are none's."""
    assert "more than once" in _problems(_read(f"{COMMAND}litgpt finetune_full a/b\n", "run.sh"))
    assert "there is no `lora.yaml`" in _problems(_read(COMMAND, "run.sh"))


def test_a_plan_that_drifts_from_its_config_fails_at_its_line(tmp_path: Path) -> None:
    """A micro-batch that the plan states otherwise is an error with both places."""
    (tmp_path / "lora.yaml").write_text(LORA, encoding="utf-8")
    plan = tmp_path / "plan.yaml"
    plan.write_text("memcheck: 1\nsource: {litgpt: ./lora.yaml}\nhardware: {gpu: a100-80gb}\n", encoding="utf-8")
    (agreed,), _ = check_file(str(plan), plan.read_bytes(), Gate())
    assert [each.code for each in agreed.findings if each.severity == "error"] == []
    plan.write_text(f"{plan.read_text()}training: {{micro_batch_size: 8}}\n", encoding="utf-8")
    (drifted,), _ = check_file(str(plan), plan.read_bytes(), Gate())
    (finding,) = (each for each in drifted.findings if each.code == "MEM501")
    assert finding.location.span.line == 4
    ((_, config),) = finding.related
    assert (Path(config.path).name, config.span.line) == ("lora.yaml", 4)
