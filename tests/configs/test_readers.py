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
        ('"AdamW"', '"OneBitAdam"', 12, "OneBitAdam"),
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


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("--experimental-attention-variant gated_delta_net", "experimental attention"),
        ("--experimental-attention-variant dsa", "experimental attention"),
        ("--linear-attention-freq 4", "linear attention"),
        ("--heterogeneous-layers-config-path layers.json", "differ by a file"),
        ("--inference-dynamic-batching --inference-dynamic-batching-buffer-size-gb 20", "generates text"),
        ("--num-tokens-to-generate 32", "generates text"),
        ("--hierarchical-context-parallel-sizes two", "not a whole number"),
    ],
)
def test_megatron_jobs_of_another_kind_are_refused(added: str, message: str) -> None:
    """What decides the architecture is an error and no note, and a server is no training step."""
    imported = read("run.sh", MEGATRON.replace("--bf16", f"--bf16 {added}"), {"hardware.gpu": "h100-80gb"})
    assert any(message in each.message for each in imported.problems)


def test_a_server_is_taken_by_a_plan_that_serves() -> None:
    """The same arguments have nothing against a plan with `inference:`, which takes how much it serves."""
    from memcheck.configs.formats import FORMATS
    from memcheck.configs.served import reading_for

    text = MEGATRON.replace("--bf16", "--bf16 --inference-max-requests 8 --inference-dynamic-batching")
    kind = FORMATS["megatron"]
    served = reading_for(kind.read(kind.load("run.sh", text), 8), serving=True)
    assert served.settings["inference.batch_size"].value == 8
    assert not [each for each in served.problems if "generates text" in each.message]


def test_a_padded_vocabulary_is_a_vocabulary() -> None:
    """`--padded-vocab-size` says how many rows there are: nothing is asked for."""
    text = MEGATRON.replace("--vocab-size 50304", "--padded-vocab-size 50432")
    imported = read("run.sh", text, {"hardware.gpu": "h100-80gb"})
    assert imported.problems == ()
    assert values(imported)["model.architecture.vocab_size"] == 50432


def test_a_written_layout_says_how_many_stages_there_are() -> None:
    """Eight stages on two pipeline ranks are four virtual stages on each, as MEM206 counts them."""
    layout = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|tt|tt|tt|tt|tt|t|L'"
    imported = read("run.sh", MEGATRON.replace("--bf16", f"--bf16 {layout}"), {"hardware.gpu": "h100-80gb"})
    found = values(imported)
    assert imported.problems == ()
    assert (found["parallelism.virtual_stages"], found["parallelism.pipeline_schedule"]) == (4, "interleaved-1f1b")


def test_layers_per_virtual_stage_count_embedding_and_loss() -> None:
    """14 layers, the embedding and the loss are 16 over 2 ranks: 4 to a stage are 2 stages on each."""
    text = MEGATRON.replace("--num-layers 12", "--num-layers 14").replace(
        "--bf16",
        "--bf16 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 "
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
    )
    imported = read("run.sh", text, {"hardware.gpu": "h100-80gb"})
    assert imported.problems == ()
    assert values(imported)["parallelism.virtual_stages"] == 2


def test_a_list_in_brackets_is_a_list() -> None:
    """`"[2 2]"`, as functional tests write it, is two numbers."""
    text = MEGATRON.replace("--bf16", '--bf16 --hierarchical-context-parallel-sizes "[2 2]"')
    found = values(read("run.sh", text, {"hardware.gpu": "h100-80gb"}))
    assert found["training.options.hierarchical_context_parallel_sizes"] == [2, 2]


def test_a_callers_variable_is_asked_for() -> None:
    """A variable that the script does not set is named with the flag that says it; its default counts."""
    text = MEGATRON.replace("${TP}", "$SIZE")
    (problem,) = read("run.sh", text, {"hardware.gpu": "h100-80gb"}).problems
    assert "`$SIZE` is not set in the script" in problem.message
    assert "--define SIZE=8" in problem.help
    stated = {"hardware.gpu": ReadSetting("h100-80gb", "test")}
    defined = import_config("run.sh", text.encode(), stated, defines={"SIZE": "4"})
    assert values(defined)["parallelism.tensor"] == 4
    usual = read("run.sh", text.replace("$SIZE", "${SIZE:-4}"), {"hardware.gpu": "h100-80gb"})
    assert values(usual)["parallelism.tensor"] == 4


def test_a_branch_of_a_script_is_not_guessed() -> None:
    """A value that is set in an `if`, and an argument that stands in one, are refused by their names."""
    text = MEGATRON.replace("TP=2\n", 'if [ "$BIG" = 1 ]; then\n  TP=8\nelse\n  TP=2\nfi\n')
    (problem,) = read("run.sh", text, {"hardware.gpu": "h100-80gb"}).problems
    assert "`$TP` is set in an `if`" in problem.message
    inside = MEGATRON + 'if [ "$FP8" = 1 ]; then\n  EXTRA=(--fp8-format hybrid)\nfi\n'
    assert any("`fp8-format`" in each.message for each in read("run.sh", inside, {"hardware.gpu": "h100-80gb"}).problems)


def test_a_script_that_sources_another_says_so() -> None:
    """A script without arguments of its own points at the one that has them."""
    with pytest.raises(ConfigError, match=r"run\.sh:2:8: the script's arguments are in `common\.sh`"):
        read("run.sh", "#!/bin/bash\nsource common.sh\n")


@pytest.mark.parametrize(("written", "place"), [("true", "rank0"), ("false", None)])
def test_accelerates_loading_on_one_rank_is_read(written: str, place: str | None) -> None:
    """`fsdp_cpu_ram_efficient_loading` decides host memory: one process of a node loads the model."""
    text = ACCELERATE.replace("fsdp_version: 2", f"fsdp_version: 2\n  fsdp_cpu_ram_efficient_loading: {written}")
    imported = read("fsdp.yaml", text, {"hardware.gpu": "h100-80gb"}, REST)
    assert values(imported).get("training.initialization.place") == place


def test_a_job_on_cpus_is_refused() -> None:
    """`use_cpu: true` runs on no GPU."""
    problems = read("fsdp.yaml", ACCELERATE + "use_cpu: true\n", {"hardware.gpu": "h100-80gb"}, REST).problems
    assert any("use_cpu" in each.message for each in problems)


def test_how_zero_3_makes_and_saves_the_model_is_read() -> None:
    """`zero3_init_flag: false` loads the whole model in every process; the gathered save is an option of the engine."""
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config: {zero_stage: 3, zero3_init_flag: false, zero3_save_16bit_model: true}\n"
    )
    found = values(read("ds.yaml", text, {"hardware.gpu": "h100-80gb"}, REST))
    assert found["training.initialization.place"] == "host"
    assert found["training.options.stage3_gather_16bit_weights_on_model_save"] is True
    engine = DEEPSPEED.replace('"stage": 3,', '"stage": 3, "gather_16bit_weights_on_model_save": true,')
    alone = values(read("ds.json", engine, GPUS, REST | {"training.micro_batch_size": 2}))
    assert alone["training.options.stage3_gather_16bit_weights_on_model_save"] is True


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
        ("model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\n", "torchtune"),
        ("model_name_or_path: a/b\ntemplate: llama3\ninfer_backend: vllm\n", "LLaMA-Factory"),
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
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\nname = "x"\n[tool.ruff]\nline-length = 120\n'),
        ("hello.json", '{"hello": 1}'),
        ("data.json", '{"input_ids": [[1, 2]], "labels": [[1, 2]]}'),
        ("fsdp.json", '{"fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "backward_prefetch": "backward_pre"}'),
        ("trainer_state.json", '{"global_step": 10, "train_batch": 2, "fp16": false}'),
        ("settings.toml", "[training]\nsteps = 100\n"),
        ("build.sh", "#!/bin/bash\npip install --upgrade pip\n"),
    ],
)
def test_files_that_are_no_job_are_no_config(name: str, text: str) -> None:
    """A suffix is no evidence: JSON and TOML of any other kind never become a plan."""
    with pytest.raises(ConfigError, match=r"this is (no config|the FSDP section)"):
        read(name, text, GPUS, REST)


def test_a_config_that_says_nothing_is_an_error() -> None:
    """Naming the format does not make a plan of a file in which nothing decides memory."""
    stated = {key: ReadSetting(value, "test") for key, value in {**GPUS, **REST}.items()}
    for name, text, format in (
        ("pyproject.toml", "[project]\nname = 'x'\n", "torchtitan"),
        ("a.json", '{"x": 1}', "deepspeed"),
    ):
        assert import_config(name, text.encode(), stated, format).problems


def test_a_default_names_no_line() -> None:
    """What torchtitan decides by itself carries no file and line, although the file has other keys."""
    settings = read("job.toml", TITAN.replace("data_parallel_shard_degree = -1\n", ""), GPUS).settings
    for key in ("parallelism.zero_stage", "parallelism.reshard_after_forward"):
        assert (settings[key].location, settings[key].assumed) == (None, True)


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
