"""GPUs of a node that a launch uses, where no argument of its launcher says how many."""

from __future__ import annotations

import pytest

from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

ARGUMENTS = "mine.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --max_length 512 --bf16 True\n"
ANSWERS = {"training.objective": "sft", "training.method": "full", "training.precision.params": "bf16"}
GPUS = "hardware.gpus_per_node"


def _read(text: str, **stated: object) -> Imported:
    keys = {"hardware.gpu": "h100-80gb", **ANSWERS, **{key.replace("__", "."): each for key, each in stated.items()}}
    return import_config("run.sh", text.encode(), {key: ReadSetting(each, "test") for key, each in keys.items()})


@pytest.mark.parametrize(
    ("launch", "gpus"),
    [
        ("CUDA_VISIBLE_DEVICES=3 python", 1),
        ("CUDA_VISIBLE_DEVICES=0,1,2 deepspeed", 3),
        ("export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed", 2),
        ("ids=0,1,2,3\nCUDA_VISIBLE_DEVICES=$ids accelerate launch", 4),
        ("CUDA_VISIBLE_DEVICES=7 python data.py --many 1\nCUDA_VISIBLE_DEVICES=0,1 deepspeed", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 1", 1),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun", 1),
        ("#SBATCH --gres=gpu:a100:4\nsrun deepspeed", 4),
        ("#SBATCH --gpus-per-node=2\npython", 2),
        ("python -m torch.distributed.run", 1),
    ],
)
def test_the_launch_says_how_many(launch: str, gpus: int) -> None:
    """Eight that were stated stood in for each of them; torchrun starts one process, whatever it sees."""
    found = _read(f"{launch} {ARGUMENTS}")
    assert found.settings[GPUS].value == gpus
    assert not found.problems
    (problem,) = _read(f"{launch} {ARGUMENTS}", hardware__gpus_per_node=8).problems
    assert f"`{GPUS}` is {gpus} here, and {GPUS}=8 was stated as well" in problem.message


@pytest.mark.parametrize(
    "launch",
    [
        "CUDA_VISIBLE_DEVICES=$1 deepspeed",
        "CUDA_VISIBLE_DEVICES=0 deepspeed other.py --learning_rate 1\nCUDA_VISIBLE_DEVICES=0,1 deepspeed",
        "torchrun --standalone $ARGS",
        "torchrun --nproc_per_node $N",
        "deepspeed",
    ],
)
def test_what_it_does_not_say_is_asked_for(launch: str) -> None:
    """A number of the caller's, and two jobs that see different ones."""
    assert GPUS not in _read(f"{launch} {ARGUMENTS}").settings


def test_one_process_on_several_gpus_is_told() -> None:
    """Which is DataParallel, and was estimated as a process for each GPU without a word."""
    found = _read(f"CUDA_VISIBLE_DEVICES=0,1 python {ARGUMENTS}")
    assert found.settings[GPUS].value == 2
    assert any("DataParallel" in each.message for each in found.notes)
    stated = _read(f"python {ARGUMENTS}", hardware__gpus_per_node=8)
    assert "of which the script starts one" in stated.settings["parallelism.zero_stage"].why
    assert (
        "starts one"
        not in _read(f"python {ARGUMENTS}", hardware__gpus_per_node=1).settings["parallelism.zero_stage"].why
    )


def test_a_name_that_no_catalog_has_gives_way_to_a_stated_model() -> None:
    """It was contradicted by what its own remedy asks for."""
    text = f"deepspeed {ARGUMENTS}".replace("Qwen/Qwen3-4B", "ours/mine-7b-base")
    (problem,) = _read(text, hardware__gpus_per_node=8).problems
    assert "unknown model" in problem.message
    assert "--model NAME" in problem.help
    assert not _read(text, hardware__gpus_per_node=8, model="llama-3.1-8b").problems
    other = _read(f"deepspeed {ARGUMENTS}", hardware__gpus_per_node=8, model="llama-3.1-8b")
    assert "`model.name` is Qwen/Qwen3-4B here" in other.problems[0].message


@pytest.mark.parametrize(
    ("script", "nodes"),
    [
        (f"#SBATCH --nodes=2\nsrun deepspeed {ARGUMENTS}", 2),
        (f"#SBATCH -N 4\nsrun accelerate launch {ARGUMENTS}", 4),
        (f"#SBATCH --nodes=2\ndeepspeed {ARGUMENTS}", 1),
        (f"#SBATCH --nodes=2\nsrun torchrun --nproc_per_node 8 {ARGUMENTS}", 1),
        (f"#SBATCH --nodes=2\nsrun torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES {ARGUMENTS}", 2),
    ],
)
def test_slurm_starts_the_job_on_every_node(script: str, nodes: int) -> None:
    """One was assumed beside a batch script that asks for several."""
    assert _read(script, hardware__gpus_per_node=8).settings["hardware.nodes"].value == nodes


def test_megatron_runs_on_what_slurm_is_asked_for() -> None:
    """Eight GPUs of one node stood in for four nodes of four."""
    arguments = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1"
    text = f"#SBATCH --nodes=4\n#SBATCH --gpus-per-node=4\nsrun python pretrain_gpt.py {arguments} --bf16\n"
    found = import_config("run.sh", text.encode(), {"hardware.gpu": ReadSetting("h100-80gb", "test")})
    assert (found.settings[GPUS].value, found.settings["hardware.nodes"].value) == (4, 4)


@pytest.mark.parametrize(("nnodes", "nodes"), [("2:2", 2), ("1:4", None)])
def test_torchruns_least_and_most_nodes(nnodes: str, nodes: int | None) -> None:
    """As many as at most are as many as they say; of others it is not known."""
    found = _read(f"torchrun --nnodes {nnodes} --nproc_per_node 8 {ARGUMENTS}")
    assert [each.message for each in found.problems] == (
        [] if nodes else ["`nnodes: 1:4` has no counterpart in a plan"]
    )
    assert nodes is None or found.settings["hardware.nodes"].value == nodes
