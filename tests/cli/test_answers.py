"""What is asked for is answered the same way on every command, and in a plan; what a file says is not asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.configs.importing import import_config
from memcheck.configs.types import ReadSetting

Capture = pytest.CaptureFixture[str]
OWN = "mine.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 --max_length 512 --bf16 True --torch_dtype bfloat16"
LORA = ["--set", "training.objective=sft", "--set", "training.method=lora", "--set", "training.lora.rank=64"]
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --fp16 "
    "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 8 --global-batch-size 64 "
    "--tokenizer-type GPT2BPETokenizer"
)
MIXTRAL = """\
base_model: mistralai/Mixtral-8x7B-v0.1
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_target_linear: true
datasets: [{path: d.jsonl, type: alpaca}]
sequence_len: 2048
sample_packing: true
micro_batch_size: 1
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
flash_attention: true
deepspeed: deepspeed_configs/zero2.json
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bytes_of(line: list[str], capsys: Capture) -> int:
    """The allocated bytes of an estimate."""
    code = main(
        ["estimate", *line, "--format", "json"] if "--" not in line else ["estimate", "--format", "json", *line]
    )
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    plans: list[dict[str, Any]] = json.loads(said.out)["plans"]
    return int(plans[0]["estimate"]["allocated_bytes"])


def everywhere(file: str, answers: list[str], capsys: Capture) -> int:
    """The bytes that `estimate` says, once `check` and a plan of `import` have agreed."""
    found = bytes_of([file, *answers], capsys)
    main(["check", file, *answers, "--format", "json"])
    (checked,) = json.loads(capsys.readouterr().out)["plans"]
    assert checked["estimate"]["allocated_bytes"] == found
    assert main(["import", file, *answers, "--output", "imported.yaml"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert bytes_of(["imported.yaml"], capsys) == found
    Path("imported.yaml").unlink()
    return found


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_a_method_is_stated_beside_a_rank_of_the_file(method: str, capsys: Capture) -> None:
    """The answer that was asked for was asked for again."""
    rank = "" if method == "full" else " --lora_rank 64"
    Path("run.sh").write_text(f"torchrun --nproc_per_node 1 {OWN}{rank}\n")
    weights = [] if method == "full" else LORA[4:]
    answers = ["--gpu", "a100-80gb", "--set", "training.objective=sft", "--set", f"training.method={method}", *weights]
    found = everywhere("run.sh", answers, capsys)
    assert bytes_of([*answers, "--", *Path("run.sh").read_text().split()], capsys) == found


def test_a_key_of_an_architecture_joins_what_the_script_says(capsys: Capture) -> None:
    """Beside the script, and in a plan that has it as its source."""
    Path("launch.sh").write_text(f"{MEGATRON}\n")
    found = everywhere("launch.sh", ["--gpu", "a100-80gb", "--set", "model.architecture.vocab_size=50257"], capsys)
    Path("plan.yaml").write_text(
        "memcheck: 1\nsource: {megatron: ./launch.sh}\nmodel: {architecture: {vocab_size: 50257}}\n"
        "hardware: {gpu: a100-80gb}\n"
    )
    assert bytes_of(["plan.yaml"], capsys) == found
    larger = ["--gpu", "a100-80gb", "--set", "model.architecture.vocab_size=128000"]
    assert everywhere("launch.sh", larger, capsys) > found


def test_a_plan_with_one_key_of_an_architecture_is_asked_for_the_others(capsys: Capture) -> None:
    """The key that it has is no answer to another one."""
    Path("launch.sh").write_text(f"{MEGATRON}\n")
    Path("plan.yaml").write_text(
        "memcheck: 1\nsource: {megatron: ./launch.sh}\nmodel: {architecture: {tie_word_embeddings: true}}\n"
        "hardware: {gpu: a100-80gb}\n"
    )
    assert main(["check", "plan.yaml"]) == 1
    assert "vocab_size" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "estimate", "import"])
def test_a_variable_of_the_caller_is_one_error_and_defined_everywhere(command: str, capsys: Capture) -> None:
    """There were three errors, and two of the commands had no such option."""
    Path("run.sh").write_text(
        "accelerate launch --num_processes $(( 4 * $NODES )) --num_machines $NODES --multi_gpu --mixed_precision bf16 "
        "run_clm.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 --block_size 512 --bf16 True\n"
    )
    answers = ["--gpu", "b300", "--set", "training.objective=sft", "--set", "training.method=full"]
    answers += ["--set", "training.precision.params=bf16"]
    assert main([command, "run.sh", *answers]) == 1
    said = capsys.readouterr()
    assert (said.out + said.err).count("--define NODES=8") == 1
    assert "whole number" not in said.out + said.err
    assert main([command, "run.sh", *answers, "--define", "NODES=2"]) == 0, capsys.readouterr()


def test_a_release_counts_beside_an_engine(capsys: Capture) -> None:
    """transformers' release decides how experts are held, whatever shards them."""
    Path("train.yml").write_text(MIXTRAL)
    where = ["--gpu", "a100-80gb", "--gpus-per-node", "2"]
    assert main(["estimate", "train.yml", *where]) == 0
    assert "the experts stay in 16 bits, which transformers 4 quantises" in " ".join(capsys.readouterr().out.split())
    new, old = (bytes_of(["train.yml", *where, *more], capsys) for more in ([], ["--framework-version", "4.40"]))
    assert new > old + 50 * 2**30
    assert everywhere("train.yml", [*where, "--framework-version", "4.40"], capsys) == old
    assert bytes_of(["train.yml", *where, "--set", "training.options.transformers_version=4.40"], capsys) == old


def test_a_text_stays_a_text(capsys: Capture) -> None:
    """4.40 was the number 4.4, and an error."""
    Path("train.yml").write_text(MIXTRAL.replace("deepspeed: deepspeed_configs/zero2.json\n", ""))
    where = ["train.yml", "--gpu", "a100-80gb"]
    release = ["--set", "training.framework_version=4.40"]
    found = bytes_of([*where, "--gpus", "1", *release], capsys)
    assert found == bytes_of([*where, "--gpus", "1", "--framework-version", "4.40"], capsys)


def test_the_format_of_a_config_is_named_everywhere(capsys: Capture) -> None:
    """A file that no key proves."""
    Path("args.yaml").write_text("per_device_train_batch_size: 1\nbf16: true\noutput_dir: o\n")
    answers = ["--gpu", "h100-80gb", "--gpus", "1", "--from", "transformers", "--model", "qwen3-4b"]
    answers += ["--sequence-length", "512", "--set", "training.objective=sft", "--set", "training.method=full"]
    assert everywhere("args.yaml", [*answers, "--set", "training.precision.params=bf16"], capsys) > 2**30


def test_gpus_are_counted_over_nodes(capsys: Capture) -> None:
    """`--gpus 16` is two nodes of eight, of a plan as of a config."""
    plan = "memcheck: 1\nmodel: qwen3-4b\nhardware: {gpu: h100-80gb}\nparallelism: {zero_stage: 3}\n"
    Path("plan.yaml").write_text(f"{plan}training: {{micro_batch_size: 1, sequence_length: 512}}\n")
    assert main(["check", "plan.yaml", "--gpus", "16", "--format", "json"]) in (0, 1)
    (found,) = json.loads(capsys.readouterr().out)["plans"]
    assert found["gpus"] == 16
    same = ["plan.yaml", "--gpus-per-node", "8", "--nodes", "2"]
    assert bytes_of(["plan.yaml", "--gpus", "16"], capsys) == bytes_of(same, capsys)
    assert main(["check", "plan.yaml", "--gpus", "12", "--gpus-per-node", "8"]) == 2
    assert "12 GPUs do not fill nodes of 8" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["job.yml", "plan.yaml"])
def test_host_memory_is_stated_beside_configs_and_plans(name: str, capsys: Capture) -> None:
    """A node with too little of it is an error."""
    Path("job.yml").write_text(MIXTRAL.replace("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-4B"))
    Path("plan.yaml").write_text(
        "memcheck: 1\nmodel: qwen3-4b\nhardware: {gpu: h100-80gb}\n"
        "parallelism: {zero_stage: 2}\ntraining: {micro_batch_size: 1, sequence_length: 512, optimizer: {name: adamw, offload: cpu}, framework: deepspeed}\n"
    )
    where = [name, "--gpu", "h100-80gb", "--gpus", "2"]
    main(["check", *where, "--host-memory", "0.1"])
    assert "MEM106" in capsys.readouterr().out
    main(["check", *where, "--host-memory", "4000"])
    assert "MEM106" not in capsys.readouterr().out
    Path("memcheck.toml").write_text('[[configs]]\npath = "job.yml"\nhost-memory = 0.1\n')
    main(["check", "job.yml", "--gpu", "h100-80gb", "--gpus", "2"])
    assert "MEM106" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "gpu", "count"),
    [
        ("#SBATCH --gres=gpu:h100:4", "h100-80gb", 4),
        ("#SBATCH --gres gpu:H100:4", "h100-80gb", 4),
        ("#SBATCH --gres=shard:1,gpu:l40s:2(S:0-1)", "l40s", 2),
        ("#SBATCH --gpus-per-node=h200:8", "h200", 8),
        ("#SBATCH --gpus=h200:8", "h200", 8),
        ("#SBATCH -G b200:4", "b200", 4),
        ("#SBATCH --nodes=2\n#SBATCH --gpus=h200:16", "h200", 8),
        ("#SBATCH --gpus-per-task=h200:1\n#SBATCH --ntasks-per-node=4", "h200", 4),
        ("#SBATCH --gres=gpu:nvidia_h100_nvl:2", "h100-nvl-94gb", 2),
    ],
)
def test_a_scheduler_is_asked_for_gpus_of_a_kind(asked: str, gpu: str, count: int) -> None:
    """Their name and number stand in the file."""
    script = f"#!/bin/bash\n{asked}\nsrun deepspeed run_sft.py {OWN.partition(' ')[2]}\n"
    found = import_config("job.sh", script.encode(), {})
    assert found.settings["hardware.gpu"].value == gpu
    assert found.settings["hardware.gpus_per_node"].value == count
    assert not any("hardware.gpu" in key for each in found.problems for key in each.keys)


def test_a_kind_that_several_gpus_have_is_asked_for(capsys: Capture) -> None:
    """With the candidates; what is stated then goes before what the script asks for."""
    Path("job.sh").write_text(f"#SBATCH --gres=gpu:a100:4\nsrun deepspeed {OWN}\n")
    answers = [*LORA[:4], "--set", "training.lora.rank=8", "--set", "training.lora.target_modules=all-linear"]
    assert main(["check", "job.sh", *answers]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "a100-40gb or a100-80gb" in said
    assert "--gpu a100-40gb" in said
    everywhere("job.sh", [*answers, "--gpu", "a100-80gb"], capsys)
    everywhere("job.sh", [*answers, "--gpu", "h200"], capsys)


def test_a_cloud_s_key_names_gpus(capsys: Capture) -> None:
    """`accelerators: H100:8` beside the keys of a config."""
    Path("train.yml").write_text(f"{MIXTRAL}accelerators: H100:8\n")
    found = import_config("train.yml", Path("train.yml").read_bytes(), {})
    assert found.settings["hardware.gpu"].value == "h100-80gb"
    assert found.settings["hardware.gpus_per_node"].value == 8
    assert not any("accelerators" in each.message for each in found.notes)


def test_one_process_of_ms_swift_is_one_gpu() -> None:
    """Without NPROC_PER_NODE it starts one."""
    line = "swift sft --model Qwen/Qwen3-4B --train_type lora --max_length 512 --torch_dtype bfloat16\n"
    found = import_config("run.sh", line.encode(), {})
    assert found.settings["hardware.gpus_per_node"].value == 1
    assert [each.keys for each in found.problems] == [("hardware.gpu",)]


PEFT = (
    "--modules_to_save embed_tokens,lm_head",
    "--lora_modules_to_save embed_tokens lm_head",
    "--additional_target embed_tokens,lm_head",
)


@pytest.mark.parametrize("saved", PEFT)
@pytest.mark.parametrize(
    "launcher", ["torchrun --nproc_per_node 1", "accelerate launch --num_processes 1", "deepspeed --num_gpus 1"]
)
def test_peft_s_own_names_are_read_where_the_method_is_stated(saved: str, launcher: str, capsys: Capture) -> None:
    """They were notes, and the estimate lacked whole copies of the embedding and the head."""
    own = f"{launcher} {OWN} --lora_rank 32 --lora_dropout 0.1 --target_modules q_proj,v_proj --lora_alpha 8"
    Path("plain.sh").write_text(f"{own}\n")
    Path("saved.sh").write_text(f"{own} {saved}\n")
    answers = ["--gpu", "b300", *LORA[:4]]
    plain = everywhere("plain.sh", answers, capsys)
    whole = everywhere("saved.sh", answers, capsys)
    assert whole > plain + 4 * 2**30
    stated = {"training.method": "lora", "training.objective": "sft", "hardware.gpu": "b300"}
    settings = {key: ReadSetting(value, "test") for key, value in stated.items()}
    found = import_config("saved.sh", Path("saved.sh").read_bytes(), settings)
    assert found.settings["training.lora.rank"].value == 32
    assert found.settings["training.lora.dropout"].value == 0.1
    assert found.settings["training.lora.target_modules"].value == ["q_proj", "v_proj"]
    assert found.settings["training.lora.modules_to_save"].value == ["embed_tokens", "lm_head"]
    assert not found.notes


@pytest.mark.parametrize("name", ["modules_to_save", "target_modules", "lora_rank"])
def test_a_variable_in_a_name_of_peft_is_asked_for(name: str, capsys: Capture) -> None:
    """It was a module of that name."""
    Path("run.sh").write_text(f"torchrun --nproc_per_node 1 {OWN} --{name} $THESE\n")
    assert main(["check", "run.sh", "--gpu", "b300", *LORA[:4]]) == 1
    assert "--define THESE=8" in " ".join(capsys.readouterr().out.split())


def test_four_bits_beside_a_stated_method_are_asked_for(capsys: Capture) -> None:
    """`--load_in_4bit` and lora are qlora."""
    Path("run.sh").write_text(f"torchrun --nproc_per_node 1 {OWN} --lora_rank 8 --load_in_4bit True\n")
    answers = ["--gpu", "b300", "--set", "training.objective=sft", "--set", "training.method=lora"]
    assert main(["check", "run.sh", *answers]) == 1
    assert "--set training.method=qlora" in " ".join(capsys.readouterr().out.split())
    everywhere("run.sh", [*answers[:4], "--set", "training.method=qlora"], capsys)


@pytest.mark.parametrize(
    "line", ["python train.py", "accelerate launch train.py", "python -m mine.train", "deepspeed train.py"]
)
def test_a_launch_without_arguments_is_one_question(line: str, capsys: Capture) -> None:
    """Each of its words was a file that could not be read."""
    assert main(["estimate", "--gpu", "a100-80gb", "--gpus", "1", "--", *line.split()]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "the command names no model and no batch" in said
    assert "train" in said
    answers = said.partition("state what it does: ")[2].partition(" more:")[0].split()
    assert main(["estimate", "--gpu", "b300", "--gpus", "1", *answers, "--", *line.split()]) == 0


def test_a_launch_and_a_file_are_not_both_estimated(capsys: Capture) -> None:
    """One of them is meant."""
    assert main(["estimate", "plan.yaml", "--", "python", "train.py"]) == 2
    assert "a command after --" in capsys.readouterr().err


PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 3}
training: {framework: huggingface, micro_batch_size: 1, sequence_length: 4096, SEQUENCES}
"""
SERVES = (
    "memcheck: 1\nmodel: llama-3.1-8b\nhardware: {gpu: h100-80gb}\ninference: {batch_size: 2, context_length: 4096}\n"
)


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        (["--sequence-length", "8192"], "training.sequence_length=8192"),
        (["--micro-batch-size", "3"], "training.micro_batch_size=3"),
        (["--framework", "torchtitan"], "training.framework=torchtitan"),
    ],
)
def test_a_plan_takes_an_answer_as_it_takes_a_set(answer: list[str], key: str, capsys: Capture) -> None:
    """The option was ignored, and the plan passed as it was written."""
    Path("plan.yaml").write_text(PLAN.replace(", SEQUENCES", ""))
    found = bytes_of(["plan.yaml", *answer], capsys)
    assert found == bytes_of(["plan.yaml", "--set", key], capsys)
    assert found != bytes_of(["plan.yaml"], capsys)
    main(["check", "plan.yaml", *answer, "--format", "json"])
    (checked,) = json.loads(capsys.readouterr().out)["plans"]
    assert checked["estimate"]["allocated_bytes"] == found


def test_a_plan_takes_a_release(capsys: Capture) -> None:
    """Its defaults move what the process needs, though not what this model allocates."""

    def needed(*more: str) -> int:
        assert main(["estimate", "plan.yaml", "--format", "json", *more]) == 0
        plans: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["plans"]
        return int(plans[0]["estimate"]["needed_bytes"])

    Path("plan.yaml").write_text(PLAN.replace(", SEQUENCES", ""))
    found = needed("--framework-version", "4.40")
    assert found == needed("--set", "training.framework_version=4.40") != needed()


def test_a_stated_length_below_the_plans_is_that_of_its_longest_row(capsys: Capture) -> None:
    """As it is of a config: rows that are not packed have the plan's length as their limit."""
    Path("plan.yaml").write_text(PLAN.replace("SEQUENCES", "sequences: padded"))
    stated = bytes_of(["plan.yaml", "--sequence-length", "1024"], capsys)
    assert stated == bytes_of(["plan.yaml", "--set", "training.longest_row=1024"], capsys)


def test_a_plan_that_serves_says_that_it_takes_no_answer_about_training(capsys: Capture) -> None:
    """In a folder of both kinds the other plans take it."""
    Path("serves.yaml").write_text(SERVES)
    assert main(["check", "serves.yaml", "--sequence-length", "1024"]) == 0
    assert "--sequence-length is for training, and this plan serves" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["check", "estimate"])
@pytest.mark.parametrize("answer", [["--from", "trl"], ["--define", "TP=8"]])
def test_an_answer_that_reaches_no_file_is_an_error(command: str, answer: list[str], capsys: Capture) -> None:
    """A plan has no format and no variables, nor has a model's name."""
    Path("plan.yaml").write_text(PLAN.replace(", SEQUENCES", ""))
    assert main([command, "plan.yaml", *answer]) == 2
    assert "reaches no file" in capsys.readouterr().err
    assert main(["estimate", "llama-3.1-8b", "--gpu", "h200", *answer]) == 2


def test_a_variable_that_no_script_names_is_an_error(capsys: Capture) -> None:
    """A part of another name is not the name; a plan's ``source`` may name it."""
    Path("run.sh").write_text(
        "accelerate launch --num_processes $NODES --mixed_precision bf16 trl sft --model_name_or_path Qwen/Qwen3-4B "
        "--dtype bfloat16 --per_device_train_batch_size 1 --max_length 512 --bf16 True\n"
    )
    Path("plan.yaml").write_text("memcheck: 1\nsource: {trl: run.sh}\nhardware: {gpu: h100-80gb}\n")
    line = ["run.sh", "--gpu", "h100-80gb", "--define", "NODES=8"]
    assert main(["check", *line]) == main(["check", "plan.yaml", "--define", "NODES=8"]) == 0
    for command in ("check", "estimate", "import"):
        capsys.readouterr()
        assert main([command, *line, "--define", "NODE=8"]) == 2
        assert "no script names `NODE`" in capsys.readouterr().err


def test_pictures_that_a_config_cannot_take_are_a_warning(capsys: Capture) -> None:
    """They were ignored where the model has no tower."""
    Path("run.sh").write_text(
        "accelerate launch --num_processes 8 --mixed_precision bf16 trl sft --model_name_or_path Qwen/Qwen3-4B "
        "--dtype bfloat16 --per_device_train_batch_size 1 --max_length 512 --bf16 True\n"
    )
    pictures = ["--images", "per_sample: 2, width: 640, height: 480"]
    assert main(["check", "run.sh", "--gpu", "h100-80gb", *pictures]) == 0
    assert "--images was given" in " ".join(capsys.readouterr().out.split())
