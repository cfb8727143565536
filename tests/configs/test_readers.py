"""What the readers take from a config, what they list, what they ask for, what they refuse, and where they point."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ConfigError, ReadSetting

GPUS: dict[str, object] = {"hardware.gpu": "h100-80gb", "hardware.gpus_per_node": 8}
REST: dict[str, object] = {
    "model": "llama-3.1-8b",
    "training.sequence_length": 4096,
    "training.micro_batch_size": 1,
}

DEEPSPEED = """\
{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "reduce_bucket_size": 5e7,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "zenflow": {"topk_ratio": 0.1},
    "stage3_prefech_bucket_size": 1
  },
  "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
  "steps_per_print": 10
}
"""
TITAN = """\
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 4        # of each pipeline
seq_len = 8192

[parallelism]
data_parallel_shard_degree = -1
pipeline_parallel_degree = 2

[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
"""
MEGATRON = """\
#!/bin/bash
TP=2
MODEL_ARGS=(
    --num-layers 12 --hidden-size 512   # a comment: --num-layers 99
    --num-attention-heads 8
    --seq-length=1024 --max-position-embeddings 1024
    --vocab-size 50304
)
torchrun --nproc-per-node 8 pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size ${TP} \\
    --micro-batch-size 4 --global-batch-size 32 \\
    --bf16 --use-distributed-optimizer --no-bias-gelu-fusion \\
    --cp-comm-type p2p --brand-new-buffer 3
"""
ACCELERATE = """\
distributed_type: FSDP
mixed_precision: 'no'
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
parallelism_config:
  parallelism_config_tp_size: 2
"""


def read(name: str, text: str, *stated: dict[str, object]) -> Imported:
    """The import of one text."""
    values = {key: value for each in stated for key, value in each.items()}
    return import_config(name, text.encode(), {key: ReadSetting(value, "test") for key, value in values.items()})


def values(imported: Imported) -> dict[str, object]:
    """Plan key to value."""
    return {key: setting.value for key, setting in imported.settings.items()}


def test_deepspeed_is_read() -> None:
    """Stage, offload and buckets are carried over, floats as whole numbers; accumulation follows from the batch."""
    found = values(read("ds.json", DEEPSPEED, GPUS, REST | {"training.micro_batch_size": 2}))
    assert found["parallelism.zero_stage"] == 3
    assert found["training.optimizer.offload"] == "cpu"
    assert found["training.options.reduce_bucket_size"] == 50_000_000
    assert found["training.gradient_accumulation_steps"] == 4
    assert found["training.precision"] == "bf16-mixed"
    assert found["training.clip_grad_norm"] is False


def test_every_value_names_its_line() -> None:
    """The comment beside a value is the file, the line and the key it was read from."""
    imported = read("conf/ds.json", DEEPSPEED, GPUS, REST | {"training.micro_batch_size": 2})
    lines = {line.split("#")[0].strip(): line.partition("# ")[2] for line in imported.text.splitlines()}
    assert lines["zero_stage: 3"] == "conf/ds.json:6 zero_optimization.stage"
    assert lines["name: adamw"] == "conf/ds.json:12 optimizer.type"
    assert lines["gpu: h100-80gb"] == "test"
    assert "default" in lines["clip_grad_norm: false"]


def test_unmodelled_and_unknown_keys_are_listed() -> None:
    """A key that moves memory without a place in the plan and a key nobody knows are notes with their lines."""
    notes = read("ds.json", DEEPSPEED, GPUS, REST | {"training.micro_batch_size": 2}).notes
    assert [(note.location.span.line, note.message.split(":")[0]) for note in notes] == [
        (9, "`zero_optimization.zenflow.topk_ratio`"),
        (10, "`zero_optimization.stage3_prefech_bucket_size`"),
    ]


def test_what_no_config_says_is_asked_for() -> None:
    """Model, GPU, how many, sequence length: each with the flag that states it."""
    problems = read("ds.json", DEEPSPEED).problems
    assert [each.keys for each in problems] == [
        ("model",),
        ("hardware.gpu",),
        ("hardware.gpus_per_node",),
        ("training.sequence_length",),
    ]
    assert all("--" in each.help for each in problems)


def test_disagreement_is_an_error_at_the_line() -> None:
    """What is stated beside a config must agree with it."""
    (problem,) = read("ds.json", DEEPSPEED, GPUS, REST).problems
    assert problem.location.span.line == 3
    assert "`training.micro_batch_size` is 2 here" in problem.message


def test_batch_product_is_checked() -> None:
    """DeepSpeed's own rule: micro-batch x accumulation x data is the total."""
    text = DEEPSPEED.replace('"steps_per_print": 10', '"gradient_accumulation_steps": 3')
    (problem,) = read("ds.json", text, GPUS, REST | {"training.micro_batch_size": 2}).problems
    assert problem.location.span.line == 2
    assert "64, not micro-batch 2 x accumulation 3 x data 8" in problem.message


def test_broken_json_is_located() -> None:
    """A template with a bare placeholder is no JSON, and the line says where."""
    with pytest.raises(ConfigError, match=r"^ds\.json:6:14: not JSON"):
        read("ds.json", DEEPSPEED.replace('"stage": 3,', '"stage": ${zero_stage},'), GPUS)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('"AdamW"', '"MuAdam"', 12, "MuAdam"),
        ('"enabled": true', '"enabled": "auto"', 4, "auto"),
        ('"stage": 3', '"stage": "three"', 6, "three"),
    ],
)
def test_deepspeed_refusals(old: str, new: str, line: int, message: str) -> None:
    """An optimizer without a model, a precision left to somebody else, a word for a number."""
    stated = REST | {"training.micro_batch_size": 2}
    problems = read("ds.json", DEEPSPEED.replace(old, new), GPUS, stated).problems
    assert [(each.location.span.line, message in each.message) for each in problems] == [(line, True)]


def test_stating_a_value_settles_a_refusal() -> None:
    """A precision that is `auto` can be stated beside the config."""
    text = DEEPSPEED.replace('"enabled": true', '"enabled": "auto"')
    stated = {"training.micro_batch_size": 2, "training.precision": "fp16-mixed"}
    imported = read("ds.json", text, GPUS, REST | stated)
    assert imported.problems == ()
    assert values(imported)["training.precision"] == "fp16-mixed"


def test_torchtitan_is_read() -> None:
    """A pipeline's local batch becomes micro-batches; layer-wise recompute is full recompute of every n-th layer."""
    imported = read("job.toml", TITAN, GPUS)
    found = values(imported)
    assert imported.problems == ()
    assert "training.compile" not in found
    assert found["model"] == "llama-3.1-8b"
    assert (found["training.micro_batch_size"], found["training.gradient_accumulation_steps"]) == (1, 4)
    assert found["parallelism.zero_stage"] == 3
    assert found["parallelism.reshard_after_forward"] is False
    assert found["training.activation_checkpointing.mode"] == "full"
    assert found["training.activation_checkpointing.every_n_layers"] == 2
    assert imported.settings["training.sequence_length"].why == "job.toml:7 training.seq_len"


def test_torchtitan_defaults_are_written_out() -> None:
    """What the file leaves to torchtitan is in the plan, marked as torchtitan's."""
    imported = read("job.toml", TITAN.replace("seq_len = 8192\n", ""), GPUS)
    setting = imported.settings["training.sequence_length"]
    assert (setting.value, setting.assumed) == (2048, True)
    assert "torchtitan's default" in setting.why


def test_compiled_parts_are_read() -> None:
    """Which parts torch.compile runs decides what they keep."""
    found = values(read("job.toml", TITAN + '[compile]\nenable = true\ncomponents = ["loss"]\n', GPUS))
    assert (found["training.compile"], found["training.options.components"]) == (True, ["loss"])


def test_torchtitan_images_are_refused() -> None:
    """A model that is no decoder of text has no plan."""
    (problem,) = read("job.toml", TITAN.replace('"llama3"', '"flux"'), GPUS, REST).problems[:1]
    assert problem.location.span.line == 2
    assert "image generator" in problem.message


def test_old_torchtitan_names_are_read() -> None:
    """`training.batch_size` and `experimental.*` of 2024 mean what they meant."""
    text = """\
    [model]
    name = "llama2"
    flavor = "70B"
    [training]
    batch_size = 2
    seq_len = 4096
    tensor_parallel_degree = 8
    data_parallel_degree = -1
    compile = true
    [experimental]
    pipeline_parallel_degree = 1
    """
    imported = read("job.toml", textwrap.dedent(text), GPUS)
    found = values(imported)
    assert imported.notes == ()
    assert (found["model"], found["training.micro_batch_size"], found["parallelism.tensor"]) == ("llama-2-70b", 2, 8)
    assert found["training.compile"] is True


def test_megatron_script_is_read() -> None:
    """A shell script: arrays, variables it sets itself, `--name=value`, comments, torchrun's own arguments."""
    imported = read("run.sh", MEGATRON, {"hardware.gpu": "h100-80gb"})
    found = values(imported)
    assert imported.problems == ()
    assert found["model.architecture.num_layers"] == 12
    assert found["parallelism.tensor"] == 2
    assert found["parallelism.zero_stage"] == 1
    assert found["parallelism.sequence"] is False
    assert found["hardware.gpus_per_node"] == 8
    assert found["training.sequence_length"] == 1024
    assert found["training.options.bias_gelu_fusion"] is False
    assert found["training.options.cp_comm_type"] == "p2p"
    assert [note.message.split(":")[0] for note in imported.notes] == ["`brand-new-buffer`"]
    assert imported.settings["parallelism.tensor"].why == "run.sh:10 tensor-model-parallel-size"


def test_megatron_test_files_are_read() -> None:
    """The YAML of functional tests holds the same arguments."""
    text = """\
    ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
    MODEL_ARGS:
      --num-layers: 12
      --hidden-size: 512
      --num-attention-heads: 8
      --seq-length: 1024
      --max-position-embeddings: 1024
      --micro-batch-size: 4
      --vocab-size: 50304
      --swiglu: true
      --bf16: true
    """
    imported = read("model_config.yaml", textwrap.dedent(text), GPUS)
    assert (imported.problems, imported.notes) == ((), ())
    assert values(imported)["model.architecture.swiglu"] is True


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--vocab-size 50304", "--tokenizer-type GPT2BPETokenizer", "vocabulary"),
        ("${TP}", "${WORLD}", "${WORLD}"),
        ("pretrain_gpt.py", "pretrain_t5.py", "T5"),
        ("--bf16", "--bf16 --hybrid-layer-pattern M*M*", "Mamba"),
        ("--bf16", "--bf16 --vocab-file vocab.txt", "BERT"),
        ("--num-layers 12", "", "--num-layers"),
    ],
)
def test_megatron_refusals(old: str, new: str, message: str) -> None:
    """An unstated vocabulary, a variable from elsewhere, another kind of model, a missing dimension."""
    imported = read("run.sh", MEGATRON.replace(old, new), {"hardware.gpu": "h100-80gb"})
    assert any(message in each.message for each in imported.problems)


def test_accelerate_is_read() -> None:
    """Processes over machines, FSDP 2 and degrees; `no` leaves the precision to the script, which is asked."""
    imported = read("fsdp.yaml", ACCELERATE, {"hardware.gpu": "h100-80gb"}, REST)
    found = values(imported)
    assert (found["hardware.nodes"], found["hardware.gpus_per_node"]) == (2, 8)
    assert found["parallelism.tensor"] == 2
    assert found["parallelism.reshard_after_forward"] is False
    assert [(each.location.span.line, each.keys) for each in imported.problems] == [(2, ("training.precision",))]


@pytest.mark.parametrize(
    ("word", "kind", "notes"),
    [("FULL_STATE_DICT", "full", 0), ("SHARDED_STATE_DICT", "sharded", 0), ("LOCAL_STATE_DICT", None, 1)],
)
def test_accelerates_state_dict_is_read(word: str, kind: str | None, notes: int) -> None:
    """How FSDP's state is saved moves host memory; a kind that is not modelled is a note."""
    text = ACCELERATE.replace("fsdp_version: 2", f"fsdp_version: 2\n  fsdp_state_dict_type: {word}")
    imported = read("fsdp.yaml", text, {"hardware.gpu": "h100-80gb"}, REST)
    assert values(imported).get("training.checkpoint.state_dict") == kind
    assert sum("LOCAL_STATE_DICT" in note.message for note in imported.notes) == notes


def test_accelerate_follows_its_deepspeed_file(tmp_path: Path) -> None:
    """The engine's file beside the config is read, and each value names the file it is from."""
    (tmp_path / "ds.json").write_text(DEEPSPEED.replace('"zenflow": {"topk_ratio": 0.1},', ""))
    config = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    path = tmp_path / "launch.yaml"
    imported = read(str(path), config, {"hardware.gpu": "h100-80gb"}, REST | {"training.micro_batch_size": 2})
    assert imported.problems == ()
    assert values(imported)["parallelism.zero_stage"] == 3
    assert "ds.json:6" in imported.settings["parallelism.zero_stage"].why
    assert set(imported.sources) == {str(path), str(tmp_path / "ds.json")}


def test_a_missing_deepspeed_file_is_refused(tmp_path: Path) -> None:
    """What decides the sharding cannot be left out."""
    config = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: gone.json}\n"
    (problem,) = read(str(tmp_path / "a.yaml"), config, {"hardware.gpu": "h100-80gb"}, REST).problems[:1]
    assert "gone.json" in problem.message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("model_name_or_path: a/b\ntemplate: llama3\ninfer_backend: vllm\n", "a chat, a server or an evaluation"),
        ("per_device_train_batch_size: 2\n", "TrainingArguments"),
        ("memcheck: 1\nmodel: gpt2\n", "a plan already"),
        ("apples: 3\n", "no config that memcheck knows"),
    ],
)
def test_other_configs_are_named_and_refused(text: str, what: str) -> None:
    """A config of a framework that is not read says so, never an empty plan."""
    with pytest.raises(ConfigError, match=what):
        read("train.yaml", text)


@pytest.mark.parametrize(
    ("name", "text", "stated", "line", "message"),
    [
        ("job.toml", TITAN.replace("local_batch_size = 4", "local_batch_size = 0"), GPUS, 6, "micro_batch_size"),
        ("run.sh", MEGATRON.replace("--hidden-size 512", "--hidden-size 511"), {"hardware.gpu": "h100-80gb"}, 5, "511"),
        (
            "ds.json",
            DEEPSPEED.replace('"stage": 3', '"stage": 7'),
            GPUS | REST | {"training.micro_batch_size": 2},
            6,
            "7",
        ),
    ],
)
def test_impossible_values_are_refused_at_their_line(
    name: str, text: str, stated: dict[str, object], line: int, message: str
) -> None:
    """A plan that `check` would refuse as a file is not written: the config's line is named."""
    found = [(each.location.span.line, message in each.message) for each in read(name, text, stated).problems]
    assert (line, True) in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("d.json", DEEPSPEED, "deepspeed"),
        ("a.yaml", ACCELERATE, "accelerate"),
        ("j.toml", TITAN, "torchtitan"),
        ("r.sh", MEGATRON, "megatron"),
    ],
)
def test_damaged_configs_never_break_a_reader(name: str, text: str, format: str) -> None:
    """Whatever one line or one value is replaced by, there is a plan, a problem with a line, or an error that says why."""
    lines = text.splitlines()
    values = ["0", "-1", "true", "null", "[]", "{}", "1e400", "3.5", '""', '"x"', "99999999999999999999"]
    damaged = ["\n".join(lines[:i] + lines[i + 1 :]) for i in range(len(lines))]
    for i, line in enumerate(lines):
        for value in values:
            changed = re.sub(r"([:=]\s*|--[\w-]+ )[^\s,}]+", rf"\g<1>{value}", line, count=1)
            damaged.append("\n".join([*lines[:i], changed, *lines[i + 1 :]]))
    for each in damaged:
        stated = {key: ReadSetting(value, "test") for key, value in GPUS.items()}
        try:
            imported = import_config(name, each.encode(), stated, format)
        except ConfigError:
            continue
        assert all(problem.location.span.line >= 1 for problem in imported.problems)
