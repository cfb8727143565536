"""Configs of TrainingArguments in four dialects: what they mean together, where files lie, and what is never silent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from memcheck.configs.answers import Beside
from memcheck.configs.config_file import NO_IMAGES
from memcheck.configs.detect import detect
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ConfigError, ReadSetting

GPUS: dict[str, object] = {"hardware.gpu": "h100-80gb", "hardware.gpus_per_node": 8}
AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
learning_rate: 2e-5
"""
QLORA = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\n"
FACTORY = """\
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
do_train: true
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
"""
SECOND = """\
model: Qwen/Qwen3-4B
model_class: llm
dist_config:
  name: fsdp2
train_dataset: data.yaml
micro_batch_size: 1
cutoff_len: 2048
"""
TRL = """\
model_name_or_path: meta-llama/Llama-3.1-8B
dataset_name: trl-lib/Capybara
torch_dtype: bfloat16
bf16: true
max_length: 2048
per_device_train_batch_size: 4
gradient_checkpointing: true
learning_rate: 2.0e-05
"""
SWIFT = """\
NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora \\
    --max_length 2048 --per_device_train_batch_size 1 --gradient_accumulation_steps 16
"""
LAUNCH = """\
#!/bin/bash
MODEL=meta-llama/Llama-3.1-8B
accelerate launch --config_file fsdp.yaml trl/scripts/sft.py \\
    --model_name_or_path $MODEL --dataset_name a/b --max_length 2048 \\
    --per_device_train_batch_size 2 --torch_dtype bfloat16 --gradient_checkpointing --learning_rate 2e-5
"""
FSDP = (
    "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}\n"
)
CONFIGS = {"a.yml": AXOLOTL, "f.yaml": FACTORY, "g.yaml": SECOND, "t.yaml": TRL, "s.sh": SWIFT}
FORMATS = {"a.yml": "axolotl", "f.yaml": "llamafactory", "g.yaml": "llamafactory", "t.yaml": "trl", "s.sh": "ms-swift"}


def read(name: str, text: str, version: str = "", images: Mapping[str, int] = NO_IMAGES, **stated: object) -> Imported:
    """The import of one text on eight GPUs; ``stated`` with ``__`` for the dot."""
    values = GPUS | {key.replace("__", "."): value for key, value in stated.items()}
    settings = {key: ReadSetting(each, "test") for key, each in values.items()}
    return import_config(name, text.encode(), settings, "", Beside(version=version, images=images))


def values(imported: Imported) -> dict[str, object]:
    """Plan key to value."""
    return {key: setting.value for key, setting in imported.settings.items()}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_each_dialect_is_told_by_its_keys(name: str) -> None:
    """The keys decide whose config it is, whatever the file's name."""
    assert detect(name, CONFIGS[name]) == FORMATS[name]


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "s.sh"])
def test_each_dialect_becomes_a_plan(name: str) -> None:
    """Model, batch and length of every dialect reach the plan, and nothing is in the way of it."""
    imported = read(name, CONFIGS[name])
    found = values(imported)
    assert imported.problems == ()
    assert {"model.name", "training.micro_batch_size", "training.sequence_length"} <= set(found)


def test_weights_under_ddp_rest_as_they_were_loaded() -> None:
    """Axolotl loads bf16 weights and steps on them: no fp32 copy rests on a GPU."""
    assert values(read("a.yml", AXOLOTL))["training.precision.params"] == "bf16"


def test_weights_are_upcast_before_fsdp_shards_them() -> None:
    """Accelerate upcasts what is trained to fp32 before it is sharded, so that bf16 is not said of the shards."""
    text = AXOLOTL + "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
    found = values(read("a.yml", text))
    assert found["parallelism.zero_stage"] == 3
    assert "training.precision.params" not in found


def test_factory_upcasts_what_it_trains() -> None:
    """LLaMA-Factory holds trained parameters in fp32 unless `pure_bf16` says otherwise."""
    assert "training.precision.params" not in values(read("f.yaml", FACTORY))
    pure = values(read("f.yaml", FACTORY + "pure_bf16: true\n"))
    assert pure["training.precision.recipe"] == "bf16-pure"


def test_selective_recompute_is_refused_however_it_is_written() -> None:
    """Axolotl's switch may be a section, too."""
    for written in ("selective_checkpointing: true\n", "selective_checkpointing: {save: [attention]}\n"):
        problems = read("a.yml", AXOLOTL + written).problems
        assert any("selective recompute" in each.message for each in problems)


def test_the_engine_fills_in_what_is_auto() -> None:
    """A shipped DeepSpeed config leaves batch and precision to the trainer, whose values stay."""
    imported = read("a.yml", AXOLOTL + "deepspeed: deepspeed_configs/zero3_bf16.json\n")
    found = values(imported)
    assert imported.problems == ()
    assert found["training.framework"] == "deepspeed"
    assert (found["parallelism.zero_stage"], found["training.micro_batch_size"]) == (3, 2)
    assert found["training.options.stage3_max_live_parameters"] == 0
    assert "training.precision.params" not in found


def test_a_file_is_found_in_the_folders_above(tmp_path: Path) -> None:
    """A path is relative to the config, to a folder above it, or to the top of the repository."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "ds").mkdir()
    (tmp_path / "recipes" / "deep").mkdir(parents=True)
    engine = {"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}
    (tmp_path / "ds" / "mine.json").write_text(json.dumps(engine))
    path = tmp_path / "recipes" / "deep" / "a.yml"
    imported = read(str(path), AXOLOTL + "deepspeed: ds/mine.json\n")
    assert imported.problems == ()
    assert values(imported)["parallelism.zero_stage"] == 1


def test_a_missing_engine_is_an_error_at_its_line() -> None:
    """How the job is split cannot be guessed."""
    (problem,) = read("a.yml", AXOLOTL + "deepspeed: gone/other.json\n").problems
    assert problem.location.span.line == AXOLOTL.count("\n") + 1
    assert "gone/other.json" in problem.message


def test_a_recipe_and_its_launcher_are_one_job(tmp_path: Path) -> None:
    """`source: {trl, accelerate}`: the launcher's engine runs the recipe, and neither contradicts the other."""
    from memcheck.judge import Gate, check_file

    (tmp_path / "recipe.yaml").write_text(TRL)
    launch = "distributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 8\nmixed_precision: bf16\n"
    (tmp_path / "ds.yaml").write_text(f"{launch}deepspeed_config: {{zero_stage: 2, gradient_clipping: 1.0}}\n")
    plan = "memcheck: 1\nsource: {trl: ./recipe.yaml, accelerate: ./ds.yaml}\nhardware: {gpu: h100-80gb}\n"
    (result,), traces = check_file(str(tmp_path / "plan.yaml"), plan.encode(), Gate())
    assert not traces
    assert [each.message for each in result.findings if each.severity == "error"] == []
    assert result.framework == "deepspeed"


def test_a_launch_line_follows_its_launcher(tmp_path: Path) -> None:
    """`accelerate launch --config_file` says how many processes there are and how they share the model."""
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    imported = read(str(tmp_path / "run.sh"), LAUNCH)
    found = values(imported)
    assert imported.problems == ()
    assert found["model.name"] == "meta-llama/Llama-3.1-8B"
    assert (found["hardware.gpus_per_node"], found["parallelism.zero_stage"]) == (8, 3)
    assert "training.precision.params" not in found


def test_a_launch_line_follows_its_recipe(tmp_path: Path) -> None:
    """`--config recipe.yaml` holds the arguments, and the command line goes before it."""
    (tmp_path / "recipe.yaml").write_text(TRL)
    line = "trl sft --config recipe.yaml --per_device_train_batch_size 1 --dataset_name a/b --gradient_checkpointing\n"
    path = tmp_path / "run.sh"
    imported = import_config(str(path), line.encode(), {k: ReadSetting(v, "t") for k, v in GPUS.items()}, "trl")
    found = values(imported)
    assert imported.problems == ()
    assert (found["training.micro_batch_size"], found["training.sequence_length"]) == (1, 2048)
    assert imported.settings["training.sequence_length"].location is not None
    assert str(tmp_path / "recipe.yaml") in imported.sources


def test_a_launchers_variables_are_its_own() -> None:
    """ms-swift takes the GPUs of a node from its environment."""
    imported = import_config("s.sh", SWIFT.encode(), {"hardware.gpu": ReadSetting("h100-80gb", "test")})
    assert imported.problems == ()
    assert values(imported)["hardware.gpus_per_node"] == 4


@pytest.mark.parametrize(("version", "implementation"), [("", "fused"), ("5.2", "fused"), ("4.46", "foreach")])
def test_defaults_follow_the_release(version: str, implementation: str) -> None:
    """The optimizer's default became the fused one with transformers 5."""
    setting = read("t.yaml", TRL, version).settings["training.optimizer.implementation"]
    assert (setting.value, setting.assumed) == (implementation, True)


@pytest.mark.parametrize(
    ("written", "value"),
    [("micro_batch_size: '4'", 4), ("micro_batch_size: 4.0", 4), ("micro_batch_size: 4e0", 4)],
)
def test_numbers_are_numbers_however_yaml_reads_them(written: str, value: int) -> None:
    """YAML 1.1 reads `4e0` as text; a framework's parser makes it a number, and so does the reader."""
    found = values(read("a.yml", AXOLOTL.replace("micro_batch_size: 2", written)))
    assert found["training.micro_batch_size"] == value


@pytest.mark.parametrize(
    ("pattern", "modules"),
    [
        ("model.layers.[\\d]+.(mlp|self_attn).(up|down|q|v)_proj", ["up_proj", "down_proj", "q_proj", "v_proj"]),
        ("model.language_model.layers.[\\d]+.(mlp|cross_attn|self_attn).(gate|o)_proj", ["gate_proj", "o_proj"]),
        (".*\\.layers\\.(3|7)\\.self_attn\\.(q|k)_proj", None),
        ("(a+)+$", None),
    ],
)
def test_patterns_of_modules_are_read_or_refused(pattern: str, modules: list[str] | None) -> None:
    """The one shape that configs use becomes names; another is refused at its line, and no pattern is run."""
    text = AXOLOTL + f"adapter: lora\nlora_r: 8\nlora_target_modules: '{pattern}'\n"
    imported = read("a.yml", text)
    if modules is None:
        assert any("lora.target_modules" in key for each in imported.problems for key in each.keys)
    else:
        assert values(imported)["training.lora.target_modules"] == modules


def test_a_base_in_eight_bits_is_never_lost() -> None:
    """What a frozen base is held in reaches the plan, or the line that says it is refused by name."""
    text = AXOLOTL + "adapter: lora\nlora_r: 8\nlora_target_linear: true\nload_in_8bit: true\n"
    imported = read("a.yml", text)
    said = [each.message for each in imported.problems if "load_in_8bit" in each.message]
    assert values(imported).get("training.base.held_in") == "int8" or said


@pytest.mark.parametrize(
    ("added", "word"),
    [
        ("load_in_4bit: true\n", ""),
        ("load_in_4bit: true\nuse_scattermoe: true\n", "use_scattermoe"),
    ],
)
def test_experts_are_quantized_by_transformers_own_code(added: str, word: str) -> None:
    """Kernels that dequantize in chunks are refused at the line that quantizes experts."""
    text = AXOLOTL + "adapter: qlora\nlora_r: 8\nlora_target_modules: [q_proj]\nquantize_moe_experts: true\n" + added
    imported = read("a.yml", text)
    if word:
        (problem,) = (each for each in imported.problems if "training.options.quantize_experts" in each.keys)
        assert word in problem.message
    else:
        assert values(imported)["training.options.quantize_experts"] is True


@pytest.mark.parametrize(
    ("added", "found"),
    [
        ("rl: dpo\n", {"training.objective.name": "dpo", "training.reference": "resident"}),
        (f"{QLORA}rl: dpo\nprecompute_ref_log_probs: true\n", {"training.reference": "precomputed"}),
        ("rl: orpo\n", {"training.objective.name": "orpo"}),
        ("reward_model: true\n", {"training.objective.name": "reward", "training.head": "reward"}),
        ("val_set_size: 0.05\n", {"training.evaluation.micro_batch_size": 2}),
        ("", {"training.sequences": "packed", "training.trainer.name": "axolotl"}),
    ],
)
def test_what_is_optimized_reaches_the_plan(added: str, found: dict[str, object]) -> None:
    """The objective, its reference, the pass between steps and packed rows are keys of the plan."""
    imported = read("a.yml", AXOLOTL + added)
    assert imported.problems == ()
    assert values(imported) | found == values(imported)


@pytest.mark.parametrize(
    ("added", "gone"),
    [
        ("sample_packing: false\n", {"training.sequences": "padded"}),
        ("sample_packing: false\nattn_implementation: flex_attention\n", {"training.sequences": "unpacked"}),
        ("sample_packing: false\nattn_implementation: sdpa\n", {"training.sequences": "padded"}),
        (
            "sample_packing: false\nattn_implementation: sdpa\nmicro_batch_size: 1\n",
            {"training.sequences": "unpacked-masked"},
        ),
        ("deepspeed: deepspeed_configs/zero1.json\nval_set_size: 0.1\n", {"training.trainer.name": "axolotl"}),
        ("tensor_parallel_size: 2\nval_set_size: 0.1\n", {"training.evaluation.micro_batch_size": None}),
        (
            f"{QLORA}fsdp_version: 2\nfsdp_config:\n  cpu_ram_efficient_loading: true\n",
            {"training.initialization.place": None},
        ),
    ],
)
def test_a_whole_config_asks_for_nothing_that_cannot_be_priced(added: str, gone: dict[str, object]) -> None:
    """What runs is never refused for what the reader itself assumed: it is estimated as what comes closest, and said."""
    from memcheck.judge import Gate, check_file

    names = [line.partition(":")[0] for line in added.splitlines()]
    kept = [line for line in AXOLOTL.splitlines() if line.partition(":")[0] not in names]
    imported = read("a.yml", "\n".join([*kept, added]))
    assert imported.problems == ()
    assert {key: values(imported).get(key) for key in gone} == gone
    (plan,), traces = check_file("plan.yaml", imported.text.encode(), Gate())
    assert not traces
    assert not [each for each in plan.findings if each.code in ("MEM408", "MEM417")]


def test_a_recipe_for_preferences_is_told_by_its_keys_and_its_folder(tmp_path: Path) -> None:
    """Keys that only preferences have say that it is one, and the folder which."""
    for folder, kind in (("dpo", "dpo"), ("orpo", "orpo")):
        path = tmp_path / folder / "config.yaml"
        found = values(read(str(path), TRL + "beta: 0.1\nmax_prompt_length: 512\n"))
        assert (found["training.objective.name"], found["training.objective.prompt_length"]) == (kind, 512)


@pytest.mark.parametrize("word", ["objective: dpo", "checkpoint: sharded", "initialization: meta", "trainer: trl"])
def test_a_plan_says_in_one_word_what_its_config_says_in_several(tmp_path: Path, word: str) -> None:
    """A record that the plan writes as one word goes together with fields of it that its config states."""
    from memcheck.configs.documents import load_plans

    text = (
        AXOLOTL + "rl: dpo\nsave_only_model: true\nfsdp_version: 2\nfsdp_config:\n  cpu_ram_efficient_loading: false\n"
    )
    (tmp_path / "a.yml").write_text(text)
    plan = "memcheck: 1\nsource: {axolotl: ./a.yml}\nhardware: {gpu: h100-80gb, gpus_per_node: 8}\n"
    (document,) = load_plans(str(tmp_path / "plan.yaml"), f"{plan}training: {{{word}}}\n".encode())
    assert isinstance(document.values, dict)
    assert isinstance(document.values["training"], dict)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chat.yaml", "model_name_or_path: Qwen/Qwen3-4B\ntemplate: qwen3\ninfer_backend: huggingface\n"),
        ("verl.yaml", "actor_rollout_ref:\n  model:\n    path: Qwen/Qwen3-4B\ntrainer:\n  nnodes: 1\n"),
        ("rl.yaml", "policy:\n  model_name: a/b\n  generation:\n    backend: vllm\n"),
    ],
)
def test_what_is_no_training_step_is_named(name: str, text: str) -> None:
    """A chat, and reinforcement learning with a rollout engine, are refused by their names."""
    with pytest.raises(ConfigError, match=r"this is a (chat|verl job|NeMo-RL job)"):
        read(name, text)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_every_unknown_key_is_reported(name: str) -> None:
    """A key that no table has is a note with its line, in every dialect."""
    text = CONFIGS[name]
    added = text.rstrip() + (" --brand_new_buffer 3\n" if name == "s.sh" else "\nbrand_new_buffer: 3\n")
    stated = {key: ReadSetting(each, "test") for key, each in GPUS.items() if name != "s.sh" or key == "hardware.gpu"}
    notes = import_config(name, added.encode(), stated).notes
    assert [each.message for each in notes if "brand_new_buffer" in each.message]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CONFIGS))
def test_damaged_configs_never_break_a_reader(name: str) -> None:
    """Whatever one line or one value is replaced by, there is a plan, a problem with a line, or an error that says why."""
    lines = CONFIGS[name].splitlines()
    damaged = ["\n".join(lines[:i] + lines[i + 1 :]) for i in range(len(lines))]
    for i, line in enumerate(lines):
        for value in ("0", "-1", "true", "null", "[]", "{}", "1e400", "3.5", '""', '"x"', "99999999999999999999"):
            changed = re.sub(r"([:=]\s*|--[\w-]+ )[^\s,}]+", rf"\g<1>{value}", line, count=1)
            damaged.append("\n".join([*lines[:i], changed, *lines[i + 1 :]]))
    for each in damaged:
        stated = {key: ReadSetting(value, "test") for key, value in GPUS.items()}
        try:
            imported = import_config(name, each.encode(), stated, FORMATS[name])
        except ConfigError:
            continue
        assert all(problem.location.span.line >= 1 for problem in imported.problems)


def test_ligers_layer_norm_is_a_note_where_there_is_one() -> None:
    """Models of RMSNorms have nothing that it replaces."""
    switch = f"{AXOLOTL}liger_layer_norm: true\n"
    assert not [each for each in read("a.yml", switch).notes if "liger_layer_norm" in each.message]
    gpt2 = read("a.yml", switch.replace("meta-llama/Llama-3.1-8B", "openai-community/gpt2"))
    assert [each for each in gpt2.notes if "liger_layer_norm" in each.message]
