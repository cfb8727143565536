"""`accelerate launch`: its file or its arguments say how a trainer's job is split, where the trainer's do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting
from tests.configs.test_trainers import FSDP, values

SWIFT = (
    "swift/cli/sft.py --model Qwen/Qwen3-8B --tuner_type lora --max_length 1200 --per_device_train_batch_size 2"
    " --torch_dtype bfloat16 --attn_impl flash_attention_2 --packing true\n"
)
FACTORY = (
    "src/train.py --stage sft --do_train --model_name_or_path Qwen/Qwen3-8B --finetuning_type lora --cutoff_len 1200"
    " --per_device_train_batch_size 2 --bf16\n"
)


@pytest.mark.parametrize("line", [SWIFT, FACTORY], ids=["ms-swift", "LLaMA-Factory"])
@pytest.mark.parametrize("command", ["--config_file fsdp.yaml", "--config_file=fsdp.yaml"])
def test_the_launchers_file_says_how_a_job_is_split(tmp_path: Path, line: str, command: str) -> None:
    """GPUs, sharding and the kind of FSDP come from there: without it, every GPU would hold the whole state."""
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    path = tmp_path / "run.sh"
    text = f"accelerate launch {command} {line}"
    found = import_config(str(path), text.encode(), {"hardware.gpu": ReadSetting("h100-80gb", "test")})
    assert not found.problems
    values = {key: each.value for key, each in found.settings.items()}
    assert (values["hardware.gpus_per_node"], values["parallelism.zero_stage"]) == (8, 3)
    assert values["training.options.fsdp_version"] == 2
    assert not [each for each in found.notes if "config_file" in each.message]


TRL = (
    "trl/scripts/sft.py --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name a/b --max_length 2048"
    " --gradient_checkpointing --learning_rate 2e-5"
)


GPUS = "--num_processes 8"


def _launched(folder: Path, said: str, script: str = TRL) -> Imported:
    settings = {"hardware.gpu": ReadSetting("h100-80gb", "test")}
    return import_config(str(folder / "run.sh"), f"accelerate launch {said} {script}\n".encode(), settings)


def test_arguments_of_the_launcher_say_how_a_job_is_split(tmp_path: Path) -> None:
    """`--use_deepspeed` and `--use_fsdp` with the keys of Accelerate's config: no whole copy on every GPU."""
    (tmp_path / "ds.conf").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    engine = "--use_deepspeed --num_processes 8 --zero_stage 2 --offload_optimizer_device cpu"
    found = values(_launched(tmp_path, engine))
    assert (found["training.framework"], found["parallelism.zero_stage"]) == ("deepspeed", 2)
    assert found["training.optimizer.offload"] == "cpu"
    named = values(_launched(tmp_path, "--use_deepspeed --num_processes 8 --deepspeed_config_file ds.conf"))
    assert named["parallelism.zero_stage"] == 3
    sharded = _launched(tmp_path, "--use_fsdp --num_processes 8 --fsdp_version 2 --fsdp_offload_params true")
    found = values(sharded)
    assert (found["parallelism.zero_stage"], found["training.options.fsdp_version"]) == (3, 2)
    assert found["training.offload.parameters"] == "cpu"
    assert not sharded.problems


def test_an_engine_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """An error of the launcher's own file that names no key of a plan is not dropped."""
    (problem,) = _launched(tmp_path, "--use_deepspeed --num_processes 8 --deepspeed_config_file gone.json").problems
    assert "gone.json" in problem.message


@pytest.mark.parametrize(
    ("said", "nodes", "gpus"),
    [("--num_machines 2 --num_processes 16", 2, 8), ("--num_nodes 16 --num_processes 8", 16, 8)],
)
def test_processes_are_those_of_all_machines_that_accelerate_knows(
    tmp_path: Path, said: str, nodes: int, gpus: int
) -> None:
    """A job launcher around it (`mason.py --num_nodes 16`) starts as many on each node."""
    found = values(_launched(tmp_path, said))
    assert (found["hardware.nodes"], found["hardware.gpus_per_node"]) == (nodes, gpus)


def test_processes_that_do_not_divide_are_an_error(tmp_path: Path) -> None:
    """Eight processes on sixteen machines are no GPU each."""
    problems = _launched(tmp_path, "--num_machines 16 --num_processes 8").problems
    assert any("do not divide" in each.message for each in problems)


def test_autocast_of_the_launcher_is_the_trainers(tmp_path: Path) -> None:
    """`--mixed_precision` reaches the Trainer, whose own arguments are silent (transformers training_args.py)."""
    script = (
        "run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name a/b --block_size 2048 --do_train"
        " --per_device_train_batch_size 1 --learning_rate 2e-5"
    )
    found = values(_launched(tmp_path, "--mixed_precision bf16", script))
    assert found["training.precision.recipe"] == "bf16-mixed"


def test_json_in_an_argument_is_read_as_its_keys(tmp_path: Path) -> None:
    """`--gradient_checkpointing_kwargs '{"use_reentrant": true}'` says what the mapping in YAML says."""
    for script in (TRL, SWIFT.strip()):
        said = f"{script} --gradient_checkpointing_kwargs '{{\"use_reentrant\": true}}'"
        found = values(_launched(tmp_path, "", said))
        assert found["training.activation_checkpointing.reentrant"] is True


def test_a_smoothed_loss_is_refused(tmp_path: Path) -> None:
    """It is computed on whole logits by the Trainer's own function, and no other loss stands in for it."""
    for script in (TRL, SWIFT.strip(), FACTORY.strip()):
        problems = _launched(tmp_path, GPUS, f"{script} --label_smoothing_factor 0.1").problems
        assert any("label_smoothing_factor" in each.message for each in problems)
        assert not _launched(tmp_path, GPUS, f"{script} --label_smoothing_factor 0.0").problems


def test_a_models_name_that_is_a_variable_is_no_folder(tmp_path: Path) -> None:
    """What is missing is the name, and not a config.json."""
    (problem,) = _launched(tmp_path, GPUS, TRL.replace("meta-llama/Llama-3.1-8B", "$MODEL")).problems
    assert "variable" in problem.message


@pytest.mark.parametrize("quote", ['"', "'"])
def test_a_value_between_quotes_behind_its_argument(tmp_path: Path, quote: str) -> None:
    """`--max_length="4096"` and `--num_processes="${NPROC}"`, as shells have them."""
    line = f"--num_processes={quote}8{quote}"
    found = values(_launched(tmp_path, line, TRL.replace("--max_length 2048", f"--max_length={quote}4096{quote}")))
    assert (found["hardware.gpus_per_node"], found["training.sequence_length"]) == (8, 4096)
    script = f'NPROC="${{NPROC:-4}}"\naccelerate launch --num_processes="${{NPROC}}" {TRL}\n'
    imported = import_config("run.sh", script.encode(), {"hardware.gpu": ReadSetting("h100-80gb", "test")})
    assert values(imported)["hardware.gpus_per_node"] == 4
