"""Launches as unknown projects write them: what they leave to a variable, a plugin or an older release is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.detect import detect
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ConfigError, ReadSetting

LAUNCH = (
    "torchrun --nproc_per_node 8 mine.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2"
    " --gradient_accumulation_steps 4 --learning_rate 1e-5 --max_length 512"
)
SWIFT = "NPROC_PER_NODE=4 swift sft --sft_type lora --batch_size 1 --lora_rank 8 --learning_rate 1e-4"


def _read(text: str, path: str = "run.sh", **stated: object) -> Imported:
    keys = {"hardware.gpu": "h100-80gb", **{key.replace("__", "."): each for key, each in stated.items()}}
    return import_config(path, text.encode(), {key: ReadSetting(each, "test") for key, each in keys.items()})


def _messages(found: Imported) -> str:
    return " | ".join(each.message for each in found.problems)


@pytest.mark.parametrize("line", ["torchrun --nproc_per_node 8 sft_vlm.py", "accelerate launch sft_vlm_gemma3.py"])
def test_a_script_that_cuts_no_row_is_asked_for_a_length(line: str) -> None:
    """TRL's own limit of 1024 tokens stood in for rows of pictures, which its script never cuts."""
    arguments = (
        "--model_name_or_path llava-hf/llava-1.5-7b-hf --dataset_name a/b --per_device_train_batch_size 8 --bf16"
    )
    found = _read(f"{line} {arguments}\n")
    assert "training.sequence_length" not in found.settings
    assert "how long a sequence is" in _messages(found)
    assert _read(f"{line} {arguments} --max_length 4096\n").settings["training.sequence_length"].value == 4096


@pytest.mark.parametrize(
    ("before", "key"),
    [
        ('HERE="$(find . -name configs)"\nDS="${HERE}/zero3.json"\n', "deepspeed"),
        ("DS=${configs[0]}\n", "deepspeed"),
        ("", "config_file"),
    ],
    ids=["of a command", "of an array", "of the caller"],
)
def test_a_file_that_a_variable_names_is_asked_for(before: str, key: str) -> None:
    """The variable's name was looked for as a file."""
    line = LAUNCH.replace("torchrun --nproc_per_node 8", "accelerate launch --num_processes 8")
    found = _read(f"{before}{line.replace(' mine.py', f' --{key} $DS mine.py')} --bf16 True\n")
    assert f"`{key}: $DS` is a variable whose value cannot be read from the script" in _messages(found)
    assert any("--define DS=FILE" in each.help for each in found.problems)


def test_the_launchers_precision_beside_the_trainers_is_known() -> None:
    """It was no key that memcheck knows, and a script of TRL's beside it none of TRL's."""
    line = LAUNCH.replace("torchrun --nproc_per_node 8 mine.py", "accelerate launch --mixed_precision fp16 dpo.py")
    found = _read(f"{line} --fp16 --beta 0.1\n")
    assert not [each for each in found.notes if "mixed_precision" in each.message]
    assert "memcheck does not know the script" not in _messages(found)


@pytest.mark.parametrize("name", ["model_name", "model_id", "model-name"])
def test_a_model_under_a_name_of_the_scripts_own_is_read(name: str) -> None:
    """Such a launch was called one without a model."""
    text = LAUNCH.replace("--model_name_or_path", f"--{name}") + " --bf16 True\n"
    assert detect("run.sh", text) == "transformers"
    found = _read(text)
    assert found.settings["model.name"].value == "Qwen/Qwen3-4B"
    assert "no argument says what it optimizes" in _messages(found)
    assert name not in _messages(found)


def test_a_model_without_a_value_is_none(tmp_path: Path) -> None:
    """The switch that was left was taken for the model's name."""
    found = _read(f"{SWIFT} --model \\\n    --max_length 2048\n")
    assert "`model` has no value" in _messages(found)


def test_names_of_the_second_ms_swift_are_read() -> None:
    """A launch that names its model by ms-swift's own name alone was no config that memcheck knows."""
    text = f"{SWIFT} --model_type llama3-8b-instruct --dtype fp16 --lora_dropout_p 0.2 --max_length -1\n"
    assert detect("run.sh", text) == "ms-swift"
    found = _read(text)
    assert "`model_type: llama3-8b-instruct` is ms-swift's own name of a model" in _messages(found)
    assert "how long a sequence is" in _messages(found)
    values = {key: each.value for key, each in found.settings.items()}
    assert (values["training.precision.recipe"], values["training.lora.dropout"]) == ("fp16-mixed", 0.2)


def test_a_command_of_a_fork_is_refused() -> None:
    """What a fork trains with a command of its own is not what the command that it is called after trains."""
    found = _read(f"{SWIFT.replace(' sft ', ' sft-own ')} --model Qwen/Qwen3-4B --max_length 2048\n")
    assert "`swift sft-own` is no command of ms-swift" in _messages(found)
    assert "sft-own" not in _messages(_read(f"# swift sft-own\n{SWIFT} --model Qwen/Qwen3-4B --max_length 2048\n"))


def test_what_a_plugin_registers_is_said() -> None:
    """It may hold another model or another loss."""
    found = _read(f"{SWIFT} --model Qwen/Qwen3-4B --max_length 2048 --external_plugins plugin.py\n")
    assert any("`external_plugins`" in each.message for each in found.notes)


def test_an_argument_of_what_cancels_a_job_hangs_on_nothing() -> None:
    """The script was refused for the branch in which `scancel` stands."""
    text = f"{LAUNCH} --bf16 True\nif [ -f exit ]; then\n  scancel --jobname mine\nfi\n"
    assert "which branch runs" not in _messages(_read(text))


def test_the_engines_precision_counts_where_the_script_is_silent(tmp_path: Path) -> None:
    """It was asked for, and what was answered could differ from the file."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}')
    found = _read(f"{LAUNCH} --deepspeed ds.json\n", str(tmp_path / "run.sh"))
    assert found.settings["training.precision.recipe"].value == "fp16-mixed"
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "fp16": {"enabled": "auto"}}')
    assert "the precision" in _messages(_read(f"{LAUNCH} --deepspeed ds.json\n", str(tmp_path / "run.sh")))


def test_the_engines_accumulation_counts_where_the_script_is_silent(tmp_path: Path) -> None:
    """A default of TrainingArguments went before what the engine's file states."""
    steps = "training.gradient_accumulation_steps"
    silent = LAUNCH.replace(" --gradient_accumulation_steps 4", "") + " --bf16 True --deepspeed ds.json\n"
    (tmp_path / "ds.json").write_text('{"gradient_accumulation_steps": 8, "zero_optimization": {"stage": 2}}')
    assert _read(silent, str(tmp_path / "run.sh")).settings[steps].value == 8
    said = _read(f"{LAUNCH} --bf16 True --deepspeed ds.json\n", str(tmp_path / "run.sh"))
    assert said.settings[steps].value == 4
    assert any("is 8 by the engine's file and 4 by the arguments" in each.message for each in said.notes)
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": 48, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}'
    )
    assert _read(silent, str(tmp_path / "run.sh")).settings[steps].value == 3


def test_an_evaluation_batch_of_somebodys_own_script_is_told() -> None:
    """Scripts in the way of DeepSpeed-Chat's evaluate every epoch without being asked to."""
    script = f"{LAUNCH} --bf16 True --per_device_eval_batch_size 64"
    key = "training.evaluation.micro_batch_size"
    assert any(f"--set {key}=64" in each.message for each in _read(script + "\n").notes)
    never = _read(f"{script} --eval_strategy no\n")
    assert not any(key in each.message for each in never.notes)
    asked = _read(f"{script} --eval_strategy steps\n")
    assert asked.settings[key].value == 64
    assert not any(key in each.message for each in asked.notes)


def test_a_rank_beside_no_switch_is_no_longer_lost() -> None:
    """With the method stated alone, the plan took a rank of its own."""
    found = _read(f"{LAUNCH} --bf16 True --lora_dim 128\n", training__method="lora")
    assert found.settings["training.lora.rank"].value == 128
    asked = _read(f"{LAUNCH} --bf16 True --lora_dim 128\n")
    assert any("--set training.method=lora" in each.help for each in asked.problems)


def test_a_length_of_torchtunes_data_is_read() -> None:
    """Before 0.3 the dataset cuts the rows; a shorter length that is stated is the longest row, and no row is longer."""
    text = (
        "model: {_component_: torchtune.models.llama3.llama3_8b}\ntokenizer: {_component_: torchtune.models.llama3.llama3"
        "_tokenizer}\ndataset: {_component_: torchtune.datasets.chat_dataset, max_seq_len: 8192}\nbatch_size: 2\n"
        "optimizer: {_component_: torch.optim.AdamW}\nloss: {_component_: torch.nn.CrossEntropyLoss}\ndtype: bf16\n"
    )
    found = _read(text, "recipe.yaml", hardware__gpus_per_node=8)
    assert found.settings["training.sequence_length"].value == 8192
    assert "8192" in _messages(_read(text, "recipe.yaml", hardware__gpus_per_node=8, training__sequence_length=9000))
    found = _read(text, "recipe.yaml", hardware__gpus_per_node=8, training__sequence_length=2048)
    assert found.settings["training.longest_row"].value == 2048


def test_what_hangs_on_an_if_and_is_no_key_is_told_once() -> None:
    """A script that reports the run, in an ``if`` behind it, kept its arguments' job from being read."""
    found = _read(f"{SWIFT} --model Qwen/Qwen3-4B --max_length 64\nif [ -f x ]; then\n  mine --logging_jsonl a\nfi\n")
    assert not found.problems
    assert any("`logging_jsonl`" in each.message for each in found.notes)


@pytest.mark.parametrize("sourced", ["$(conda info --base)/etc/profile.d/conda.sh", "~/.bashrc", "/opt/x/activate a"])
def test_a_sourced_environment_is_no_place_of_arguments(sourced: str) -> None:
    """Its name stood in the message in place of the file of arguments."""
    with pytest.raises(ConfigError, match=r"a\.yaml"):
        _read(f"source {sourced}\nswift sft a.yaml\n")


def test_what_a_folder_calls_its_recipe_counts_wherever_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from beside it, a recipe of ORPO was one of DPO, with a reference that it does not hold."""
    folder = tmp_path / "orpo"
    folder.mkdir()
    text = "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 1\nbeta: 0.1\nmax_prompt_length: 64\n"
    monkeypatch.chdir(folder)
    found = _read(f"{text}max_length: 128\nbf16: true\n", path="config_full.yaml", hardware__gpus_per_node=8)
    assert found.settings["training.objective.name"].value == "orpo"


def test_the_rank_of_the_first_scripts_of_trl_counts() -> None:
    """The default stood in for it."""
    text = "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 1\nuse_peft: true\npeft_lora_r: 4\n"
    found = _read(f"{text}max_length: 128\nbf16: true\n", path="sft.yaml", hardware__gpus_per_node=8)
    assert found.settings["training.lora.rank"].value == 4


@pytest.mark.parametrize("switch", ["--q_lora False", "--qlora False", "--use_qlora False"])
def test_a_switch_of_quantization_that_is_off_says_nothing_of_adapters(switch: str) -> None:
    """A script that always trains adapters trained everything."""
    found = _read(f"{LAUNCH} --bf16 True --lora_r 8 {switch}\n")
    assert "whether adapters are trained" in _messages(found)
    plain = _read(f"{LAUNCH} --bf16 True {switch}\n")
    assert "whether it trains all weights or adapters" in _messages(plain)
    both = _read(f"{LAUNCH} --bf16 True --use_lora False {switch}\n")
    assert both.settings["training.method"].value == "full"


def test_a_launch_of_somebodys_own_loop_is_told_what_to_state() -> None:
    """It was told of the formats that it is none of."""
    with pytest.raises(ConfigError, match=r"they are inside `main\.py`") as raised:
        _read("torchrun --nproc_per_node 8 main.py --lr 0.1 --total_batch 512\n")
    assert "--from transformers" in raised.value.help


@pytest.mark.parametrize("switch", ["--quantization_bit 4", "--w_bits $1", "--lora_enabled true", "--apply_adapter"])
def test_what_asks_for_the_method_is_told_once_it_is_stated(switch: str) -> None:
    """It was passed over without a word where the method stood beside it."""
    found = _read(f"{LAUNCH} --bf16 True {switch}\n", training__method="lora", training__objective="sft")
    name = switch.split(maxsplit=1)[0].removeprefix("--")
    assert any(f"`{name}`: state what it turns on with the method" in each.message for each in found.notes)


def test_adapters_of_a_method_that_is_stated_are_read() -> None:
    """What they are was passed over with the question."""
    adapters = "--lora_r 8 --lora_dropout 0.1 --lora_target_modules q_proj --lora_modules_to_save lm_head"
    found = _read(f"{LAUNCH} --bf16 True {adapters}\n", training__method="lora", training__objective="sft")
    keys = ("rank", "dropout", "target_modules", "modules_to_save")
    assert [found.settings[f"training.lora.{key}"].value for key in keys] == [8, 0.1, ["q_proj"], ["lm_head"]]


@pytest.mark.parametrize("name", ["...", "---", "=", "-"])
def test_a_name_that_yaml_has_another_use_for_is_a_name(name: str) -> None:
    """A model called `...` until somebody names it was a defect of memcheck."""
    found = _read(LAUNCH.replace("Qwen/Qwen3-4B", f'"{name}"'), training__method="full", training__objective="sft")
    assert found.settings["model.name"].value == name
    assert found.text


def test_a_quantized_base_of_somebodys_own_script_is_stated_with_its_method() -> None:
    """It stayed an error, whatever stood beside it."""
    line = f"{LAUNCH} --fp16 True --lora_r 8 --load_in_4bit\n"
    assert "a quantized base is not trained whole" in _messages(_read(line))
    keys = {"training__method": "qlora", "training__objective": "sft", "training__precision__params": "bf16"}
    found = _read(line, **keys)
    assert not found.problems
    assert not any("`load_in_4bit`" in each.message for each in found.notes)


def test_a_script_that_trains_without_being_told_to_is_stated_with_its_objective() -> None:
    """It was refused as one that evaluates."""
    line = f"{LAUNCH} --bf16 True --do_eval\n"
    assert "trains nothing" in _messages(_read(line))
    assert "trains nothing" not in _messages(_read(line, training__method="full", training__objective="sft"))


def test_what_a_command_prints_has_no_arguments_of_the_job() -> None:
    """``nvidia-smi --query-gpu`` in front of a launch was one of its script's."""
    found = _read(f"GPUS=$(nvidia-smi --query-gpu=name --format=csv | wc -l)\nnvcc --version\n{LAUNCH} --bf16 True\n")
    assert not {"query-gpu", "query_gpu", "format", "version"} & set(_messages(found).split("`"))


def test_jobs_that_differ_in_their_models_are_several() -> None:
    """Four were the last one of them, where their script names the model in its own way."""
    line = "accelerate launch --num_processes 8 train.py --per_device_train_batch_size 2 --pretrained_model a/b-1b"
    found = _read(f"{line}\n{line.replace('1b', '3b')}\n", training__objective="sft", model="llama-3.1-8b")
    assert "the script starts 2 jobs, at lines 1 and 2, which differ in `pretrained_model`" in _messages(found)
    told = _read(f"{line} --corpus a\n{line} --corpus b\n", training__objective="sft", model="llama-3.1-8b")
    assert "starts 2 jobs" not in _messages(told)
    assert any("which differ in `corpus`: the last one's are read" in each.message for each in told.notes)


@pytest.mark.parametrize("name", ["pretrained_model_name_or_path", "base_model", "model_path"])
def test_a_model_by_another_name_is_the_model(name: str) -> None:
    """It was asked for beside the argument that names it."""
    found = _read(LAUNCH.replace("model_name_or_path", name))
    assert found.settings["model.name"].value == "Qwen/Qwen3-4B"


@pytest.mark.parametrize("line", [LAUNCH, f"{SWIFT} --model Qwen/Qwen3-4B --max_length 64"])
def test_a_dtype_in_a_variable_is_asked_for(line: str) -> None:
    """It was no dtype, in small letters."""
    found = _read(f"{line} --torch_dtype $DTYPE\n")
    (problem,) = [each for each in found.problems if "DTYPE" in each.message]
    assert problem.message == "`torch_dtype`: `$DTYPE` is not set in the script"
    assert problem.help == "say what its caller does: --define DTYPE=bfloat16"


def test_what_ms_swift_sees_is_how_many_it_uses() -> None:
    """Eight GPUs that were stated stood in for the one that it sees."""
    line = f"{SWIFT.partition(' ')[2]} --model Qwen/Qwen3-4B --max_length 64"
    assert _read(f"CUDA_VISIBLE_DEVICES=0 {line}\n").settings["hardware.gpus_per_node"].value == 1
    assert _read(f"CUDA_VISIBLE_DEVICES=0,1 {line}\n").settings["hardware.gpus_per_node"].value == 2
    both = _read(f"CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 {line}\n")
    assert both.settings["hardware.gpus_per_node"].value == 2


def test_the_first_llama_factory_is_known_by_its_stage() -> None:
    """Without a model its PPO was asked about as somebody's own script."""
    line = "python ../src/train_bash.py --stage ppo --do_train --finetuning_type lora --per_device_train_batch_size 2"
    found = _read(f"{line}\n", model="llama-3.1-8b")
    assert found.format == "llamafactory"
    assert "`stage: ppo` generates between its steps" in _messages(found)


@pytest.mark.parametrize("switch", ["--fix_vit False", "--freeze_vision_tower False", "--tune_vision False"])
def test_a_tower_that_is_said_to_train_is_there(switch: str) -> None:
    """What is off of it was taken for a tower that is not there, without a word."""
    assert "trains on images or sound" in _messages(_read(f"{LAUNCH} --bf16 True {switch}\n"))
    told = _read(f"{LAUNCH} --bf16 True --use_vision False\n")
    assert any("`use_vision`" in each.message for each in told.notes)
