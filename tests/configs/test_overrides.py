"""Words of a launch that change keys of its config, in every position and for every launcher that takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ConfigError, ReadSetting

TUNE = """\
model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}
batch_size: 1
optimizer: {_component_: torch.optim.AdamW}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
dtype: bf16
enable_activation_checkpointing: true
"""
FACTORY = """\
model_name_or_path: meta-llama/Llama-3.2-1B
stage: sft
do_train: true
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
"""
AXOLOTL = """\
base_model: meta-llama/Llama-3.2-1B
datasets: [{path: d.jsonl, type: alpaca}]
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: adamw_torch
bf16: true
"""
RUN = "tune run full_finetune_single_device --config c.yaml"
BATCH = "training.micro_batch_size"


def launch(folder: Path, script: str, **stated: object) -> Imported:
    """A script beside the configs that it may name."""
    for name, text in (("c.yaml", TUNE), ("f.yaml", FACTORY), ("a.yml", AXOLOTL)):
        (folder / name).write_text(text)
    answers = {"hardware.gpu": ReadSetting("h100-80gb", "test")}
    answers.update((key.replace("__", "."), ReadSetting(value, "test")) for key, value in stated.items())
    return import_config(str(folder / "run.sh"), script.encode(), answers)


def batch(found: Imported) -> object:
    """The micro-batch of a launch that can be read."""
    assert not found.problems, [each.message for each in found.problems]
    return found.settings[BATCH].value


@pytest.mark.parametrize(
    "script",
    [
        f"{RUN} batch_size=6",
        f"{RUN} \\\n  batch_size=6",
        f"{RUN} \\\n  epochs=2 \\\n  batch_size=6 \\\n  seed=1",
        f'{RUN} \\\n  "batch_size=6"',
        f"{RUN} batch_size='6'",
        f"{RUN} -- batch_size=6",
        f"{RUN} batch_size=2 batch_size=6",
        f"{RUN.replace('--config c.yaml', 'batch_size=6 --config c.yaml')}",
        f"{RUN.replace('--config c', '--config=c')} batch_size=6",
        f"N=6\n{RUN} \\\n  batch_size=$N",
        f'N=6\n{RUN} \\\n  batch_size="${{N}}"',
        f"{RUN} batch_size=${{N:-6}}",
        f"MORE=batch_size=6\n{RUN} $MORE",
        f'MORE="seed=1 batch_size=6"\n{RUN} $MORE',
        f"MORE=(batch_size=6 seed=1)\n{RUN} ${{MORE[@]}}",
        f'MORE=(\n  seed=1\n  batch_size=6\n)\n{RUN} "${{MORE[@]}}"',
        f'MORE="\n  seed=1\n  batch_size=6\n"\n{RUN} $MORE',
        f'srun bash -c "{RUN} batch_size=6"',
        f"srun bash -lc '{RUN} \\\n  batch_size=6'",
        f"batch_size=1 {RUN} batch_size=6 2>&1 | tee log.txt",
        f"{RUN} batch_size=6 > log.txt; echo batch_size=1",
    ],
)
def test_an_override_counts_wherever_it_stands(tmp_path: Path, script: str) -> None:
    """One that stood alone on the last of several lines was taken for a variable of the shell, and lost."""
    assert batch(launch(tmp_path, f"{script}\n")) == 6


@pytest.mark.parametrize(
    "script",
    [
        f"{RUN}\nbatch_size=6",
        f"batch_size=6 {RUN}",
        f"MORE=(\n  batch_size=6\n)\n{RUN}",
        f"echo done batch_size=6\n{RUN}",
    ],
)
def test_a_variable_of_the_shell_is_no_override(tmp_path: Path, script: str) -> None:
    """What stands before the program, or on a line of its own, is the shell's."""
    assert batch(launch(tmp_path, f"{script}\n")) == 1


def test_other_overrides_count_too(tmp_path: Path) -> None:
    """A dtype alone on the last line, a component, a list in quotes, and a key that is taken out."""
    found = launch(
        tmp_path,
        f"{RUN} ~enable_activation_checkpointing \\\n  model=torchtune.models.llama3_2.lora_llama3_2_1b \\\n"
        "  model.lora_attn_modules=['q_proj','v_proj'] \\\n  model.lora_rank=8 \\\n  dtype=fp32\n",
    )
    assert not found.problems
    assert found.settings["training.lora.target_modules"].value == ["q_proj", "v_proj"]
    assert found.settings["training.precision"].value == "fp32"
    assert found.settings["training.activation_checkpointing.mode"].value == "none"


@pytest.mark.parametrize("written", ["$BATCH_SIZE", "${BATCH_SIZE}", '"$BATCH_SIZE"'])
def test_a_variable_that_nothing_sets_is_asked_for_once(tmp_path: Path, written: str) -> None:
    """The place is the override's own line."""
    (problem,) = launch(tmp_path, f"{RUN} \\\n  batch_size={written}\n").problems
    assert "BATCH_SIZE" in problem.message
    assert problem.help == "say what its caller does: --define BATCH_SIZE=8"
    assert problem.location.span.line == 2


def test_a_variable_that_hangs_on_a_branch_is_asked_for(tmp_path: Path) -> None:
    """Which branch runs decides the batch."""
    script = f'if [ -n "$BIG" ]; then\n  N=6\nelse\n  N=1\nfi\n{RUN} batch_size=$N\n'
    (problem,) = launch(tmp_path, script).problems
    assert "`$N` is set in an `if`" in problem.message


@pytest.mark.parametrize(
    ("script", "size"),
    [
        ("llamafactory-cli train f.yaml", 1),
        ("llamafactory-cli train f.yaml per_device_train_batch_size=6", 6),
        ("FORCE_TORCHRUN=1 llamafactory-cli train f.yaml \\\n  per_device_train_batch_size=6", 6),
        ("torchrun --nproc_per_node 1 src/train.py f.yaml \\\n  bf16=true \\\n  per_device_train_batch_size=6", 6),
        ("axolotl train a.yml", 1),
        ("axolotl train a.yml \\\n  --micro-batch-size 6", 6),
        ("accelerate launch --num_processes 1 -m axolotl.cli.train a.yml --micro_batch_size=6", 6),
        ("CONFIG=a.yml\naxolotl train $CONFIG --micro-batch-size=6 --launcher torchrun", 6),
    ],
)
def test_a_launch_of_a_file_is_read_with_the_file(tmp_path: Path, script: str, size: int) -> None:
    """It was refused: the answer "name that file" left out what the launch changes of it."""
    assert batch(launch(tmp_path, f"{script}\n", hardware__gpus_per_node=1)) == size


def test_a_file_that_is_not_there_or_not_known_is_named(tmp_path: Path) -> None:
    """One error at the word, with what goes on."""
    with pytest.raises(ConfigError, match=r"run\.sh:1:24: .* `gone\.yaml`"):
        launch(tmp_path, "llamafactory-cli train gone.yaml a=1\n")
    with pytest.raises(ConfigError) as unknown:
        launch(tmp_path, "axolotl train $FILE\n")
    assert unknown.value.help == "say which file it is: --define FILE=train.yaml"


def test_an_override_of_a_script_is_its_argument(tmp_path: Path) -> None:
    """Hydra's way and argparse's say the same; what is not known is said like an argument that is not known."""
    line = "torchrun --nproc_per_node 1 mine.py --model_name_or_path meta-llama/Llama-3.2-1B --block_size 2048"
    script = f"{line} --bf16 True \\\n  per_device_train_batch_size=2 \\\n  +trainer.surprise=1\n"
    asked = launch(tmp_path, script).problems
    assert any("`trainer.surprise`" in each.message for each in asked)
    answers = {"training__objective": "sft", "training__method": "full", "training__precision__params": "bf16"}
    found = launch(tmp_path, script, **answers)
    assert batch(found) == 2
    assert any("`trainer.surprise`" in each.message for each in found.notes)
