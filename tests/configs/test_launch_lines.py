"""What the commands of a launch script start: one job or several, with a recipe, by another script."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

BATCH = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 True --max_length 512"
MODEL = "--model_name_or_path Qwen/Qwen3-4B"
RECIPE = """\
model_name_or_path: Qwen/Qwen3-4B
dataset_name: a/b
max_length: 32768
attn_implementation: flash_attention_2
gradient_checkpointing: false
do_eval: true
"""


def _read(text: str, path: str = "run.sh", **stated: object) -> Imported:
    keys = {"hardware.gpu": "h100-80gb", **{key.replace("__", "."): each for key, each in stated.items()}}
    return import_config(path, text.encode(), {key: ReadSetting(each, "test") for key, each in keys.items()})


def _messages(found: Imported) -> str:
    return " | ".join(each.message for each in found.problems)


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --num_processes 8 sft.py --config recipe.yaml --learning_rate 1e-5 --save_steps 9\n",
        "accelerate launch --num_processes 8 \\\n    sft.py \\\n    recipe.yaml \\\n    --learning_rate=1e-5\n",
        f"accelerate launch --num_processes 8 mine.py \\\n recipe.yaml {MODEL} --learning_rate=1e-5 --own_data x\n",
    ],
    ids=["named", "on a line of its own", "of an unknown script"],
)
def test_a_recipe_is_read_beside_a_learning_rate(tmp_path: Path, command: str) -> None:
    """Its keys were dropped wherever the line sets the learning rate, and defaults stood in for them."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    values = {key: each.value for key, each in _read(command, str(tmp_path / "run.sh")).settings.items()}
    assert values["training.sequence_length"] == 32768
    assert values["training.attention"] == "flash"
    assert values["training.activation_checkpointing.mode"] == "none"


@pytest.mark.parametrize(
    ("before", "named"),
    [("NAME=recipe\nFILE=$NAME.yaml\n", '"$FILE"'), ("FILE=recipe\n", "${FILE}.yaml"), ("", '"./recipe.yaml"')],
    ids=["in a variable", "in a part of one", "in quotes"],
)
def test_a_recipe_that_a_variable_names_is_read(tmp_path: Path, before: str, named: str) -> None:
    """Behind its script a recipe may stand in quotes, in a variable, or be put together of one."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    text = f"{before}torchrun --nproc_per_node 8 mine.py {named} {MODEL} --learning_rate=1e-5\n"
    assert _read(text, str(tmp_path / "run.sh")).settings["training.attention"].value == "flash"


@pytest.mark.parametrize("before", ["", "NAME=$(basename $1)\nCONFIG=recipes/$NAME.yaml\n"])
def test_a_recipe_that_cannot_be_known_is_asked_for(before: str) -> None:
    """The variable was passed over, and what transformers has by default stood in for its keys."""
    text = f'{before}torchrun --nproc_per_node 8 mine.py "$CONFIG" {MODEL} {BATCH} --learning_rate=1e-5\n'
    assert "`config: $CONFIG` is a variable whose value cannot be read" in _messages(_read(text))


def test_a_variable_within_a_word_is_read(tmp_path: Path) -> None:
    """A path or a name that is put together of variables was taken for one that nobody sets."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    text = (
        "SIZE=4B\nROOT=.\nGPUS=4,5\nDS=${ROOT}/ds.json\n"
        "deepspeed --include localhost:$GPUS mine.py --model_name_or_path Qwen/Qwen3-${SIZE} --deepspeed $DS"
        f" {BATCH} --learning_rate 1e-5\n"
    )
    values = {key: each.value for key, each in _read(text, str(tmp_path / "run.sh")).settings.items()}
    assert values["model.name"] == "Qwen/Qwen3-4B"
    assert values["parallelism.zero_stage"] == 3
    assert values["hardware.gpus_per_node"] == 2


def test_a_variable_within_a_word_hangs_on_its_branch() -> None:
    """What a branch sets is not known within a word, either."""
    text = (
        "SIZE=4B\nif $LARGE; then\n  SIZE=8B\nfi\ntorchrun --nproc_per_node 8 mine.py"
        f" --model_name_or_path Qwen/Qwen3-$SIZE {BATCH} --learning_rate 1e-5\n"
    )
    assert "`$SIZE` is set in an `if` of the script" in _messages(_read(text))


def test_what_the_caller_may_say_otherwise_is_what_stands_above() -> None:
    """`--stage=3` of the script's own arguments; called without any, it runs with what it sets itself."""
    text = (
        'NAME="Qwen/Qwen3-4B"\nwhile [[ "$#" -gt 0 ]]; do\n  arg="$1"\n  case "${arg}" in\n    --name=*)\n'
        '      NAME="${arg#*=}"\n      ;;\n  esac\ndone\ntorchrun --nproc_per_node 8 mine.py'
        f' --model_name_or_path "$NAME" {BATCH} --learning_rate 1e-5\n'
    )
    assert _read(text).settings["model.name"].value == "Qwen/Qwen3-4B"


def test_a_recipe_that_evaluates_trains_too(tmp_path: Path) -> None:
    """`do_eval` of a recipe is no launch that evaluates alone, even of a script that nobody knows."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    text = f"torchrun --nproc_per_node 8 mine.py recipe.yaml {MODEL} --learning_rate=1e-5\n"
    found = _read(text, str(tmp_path / "run.sh"))
    assert found.settings["training.attention"].value == "flash"
    assert "trains nothing" not in _messages(found)


def test_a_recipe_that_is_not_there_is_an_error() -> None:
    """A launch that sets the learning rate said nothing of it."""
    found = _read("accelerate launch --num_processes 8 sft.py --config gone.yaml --learning_rate 1e-5 --packing\n")
    assert "there is no `gone.yaml`" in _messages(found)


def test_a_script_that_starts_several_jobs_is_none_of_them() -> None:
    """The last of them won, with what the others say beside it."""
    small = f"torchrun --nproc_per_node 8 mine.py {MODEL} {BATCH} --learning_rate 1e-5\n"
    found = _read(small + small.replace("Qwen3-4B", "Qwen3-8B"))
    assert "the script starts 2 jobs, at lines 1 and 2, which differ in `model_name_or_path`" in _messages(found)
    assert "jobs" not in _messages(_read(small + small.replace("1e-5", "2e-5")))
    assert "jobs" not in _messages(_read(small))


def test_jobs_of_several_recipes_are_none_of_them(tmp_path: Path) -> None:
    """Launches that only name recipes are jobs, too."""
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(RECIPE)
    line = "accelerate launch --num_processes 8 sft.py --config {} --save_steps 9\n"
    found = _read(line.format("a.yaml") + line.format("b.yaml"), str(tmp_path / "run.sh"))
    assert "the script starts 2 jobs" in _messages(found)


def test_lines_that_a_comment_parts_are_one_job() -> None:
    """The shell stops at the comment, and who wrote it meant the rest, too."""
    text = (
        "torchrun --nproc_per_node 8 mine.py \\\n    --model_name_or_path Qwen/Qwen3-4B --learning_rate 1e-5 \\\n"
        f"    # --packing True \\\n    {BATCH}\n"
    )
    found = _read(text)
    assert "jobs" not in _messages(found)
    assert found.settings["training.micro_batch_size"].value == 2


def test_a_program_that_trains_nothing_says_nothing_of_the_job() -> None:
    """The rank and the length of an evaluation behind it were taken for the training's."""
    text = (
        f"torchrun --nproc_per_node 8 mine.py {MODEL} {BATCH} --learning_rate 1e-5\n"
        'python eval.py --model_name_or_path "$OUT" --max_length 8192 --per_device_eval_batch_size 64 --lora True\n'
    )
    found = _read(text)
    assert found.settings["training.sequence_length"].value == 512
    assert found.settings["model.name"].value == "Qwen/Qwen3-4B"
    assert "training.lora.rank" not in _messages(found)


def test_arguments_in_a_variable_are_the_jobs() -> None:
    """A program whose arguments stand elsewhere is no other program."""
    text = (
        f'ARGS="{MODEL} {BATCH} --learning_rate 1e-5"\n'
        "torchrun --nproc_per_node 8 mine.py --gradient_checkpointing True $ARGS\n"
    )
    assert _read(text).settings["training.activation_checkpointing.mode"].value == "full"


def test_how_another_script_splits_the_job_is_asked_for() -> None:
    """A batch script was taken to split nothing, and the GPUs that it asks for were not read."""
    text = f"sbatch --gres=gpu:4 train.slurm {MODEL} {BATCH} --learning_rate 1e-5\n"
    found = _read(text)
    assert "`train.slurm` starts the job, and how it splits it is not read from here" in _messages(found)
    assert "parallelism.zero_stage" not in found.settings
    assert found.settings["hardware.gpus_per_node"].value == 4
    assert "starts the job" not in _messages(_read(text, parallelism__zero_stage=3))


@pytest.mark.parametrize("named", ["--module mine.train", "--module=mine.train", "$SCRIPT"])
def test_a_launch_without_a_scripts_name_is_of_an_unknown_one(named: str) -> None:
    """A module of one's own was taken for transformers' own job, whatever it optimizes."""
    text = f"deepspeed --num_gpus 8 {named} {MODEL} {BATCH} --learning_rate 1e-5\n"
    assert "no argument says what it optimizes" in _messages(_read(text))


def test_a_stage_beside_an_engine_of_the_scripts_own_counts() -> None:
    """`--zero_stage` of scripts like DeepSpeed-Chat's: every GPU was taken to hold the whole state."""
    text = (
        f"ZERO_STAGE=3\ndeepspeed --num_gpus 8 --module mine.train {MODEL}"
        f' {BATCH} --learning_rate 1e-5 --zero_stage "${{ZERO_STAGE}}" --offload optimizer\n'
    )
    found = _read(text)
    assert found.settings["parallelism.zero_stage"].value == 3
    assert found.settings["training.framework"].value == "deepspeed"
    assert any("its offload and buckets are not known" in each.message for each in found.notes)


def test_a_scripts_own_switch_of_deepspeed_is_not_accelerates(tmp_path: Path) -> None:
    """The engine's file was left unread, and Accelerate's default stage stood in for it."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    line = f"deepspeed --num_gpus 8 mine.py {MODEL} {BATCH} --use_deepspeed true"
    found = _read(f"{line} --deepspeed ds.json\n", str(tmp_path / "run.sh"))
    assert found.settings["parallelism.zero_stage"].value == 3
    assert "`use_deepspeed`: the switch is the script's own" in _messages(_read(f"{line}\n"))
