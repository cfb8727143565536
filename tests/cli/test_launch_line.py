"""``check -- COMMAND``: the gate over a command that launches a job, and the paths that ``--`` may introduce."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.inside import memcheck

LINE = ["torchrun", "--nproc_per_node", "8", "sft.py", "--model_name_or_path", "Qwen/Qwen2.5-7B"]
LINE += ["--max_length", "2048", "--per_device_train_batch_size", "4"]
SMALL = [word.replace("7B", "0.5B") for word in LINE]


def test_a_command_passes_or_fails(tmp_path: Path) -> None:
    """A command has the verdict and the exit code of a plan."""
    failed = memcheck(tmp_path, "check", "--gpu", "a100-80gb", "--", *LINE)
    assert (failed.returncode, "MEM101" in failed.stdout) == (1, True)
    passed = memcheck(tmp_path, "check", "--gpu", "h200", "--format", "json", "--", *SMALL)
    assert passed.returncode == 0
    (plan,) = json.loads(passed.stdout)["plans"]
    assert plan["status"] == "passed"
    estimated = memcheck(tmp_path, "estimate", "--gpu", "h200", "--format", "json", "--", *SMALL)
    assert plan["estimate"]["needed_bytes"] == json.loads(estimated.stdout)["plans"][0]["estimate"]["needed_bytes"]


@pytest.mark.slow
def test_a_server_needs_no_option(tmp_path: Path) -> None:
    """``vllm serve MODEL`` is a command, although every word of it could be a path."""
    line = ("--gpu", "h100-80gb", "--", "vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct")
    for command in ("check", "estimate"):
        answered = memcheck(tmp_path, command, *line)
        assert "cannot read" not in answered.stderr, command
        assert "vllm" in answered.stdout, command
        assert answered.returncode == 0, command


@pytest.mark.slow
def test_what_a_server_lacks_is_said_in_gib(tmp_path: Path) -> None:
    """What would have to happen, and how to settle it; how much is missing; that shorter requests serve less."""
    serve = ("vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len")
    open_ = " ".join(memcheck(tmp_path, "check", "--gpu", "h100-80gb", "--", *serve, "8192").stdout.split())
    assert "boots unless CUDA graphs take more than 5" in open_
    assert "`--set inference.graphs_gib=N`" in open_
    small = memcheck(tmp_path, "check", "--gpu", "rtx-4090", "--", *serve, "8192", "--gpu-memory-utilization", "0.15")
    told = " ".join(small.stdout.split())
    assert "nothing is left for the KV cache: 11" in told
    assert "0.00 GiB" not in told
    long = memcheck(tmp_path, "check", "--gpu", "rtx-4090", "--", *serve, "131072").stdout
    assert "--max-model-len 49152 (serves less" in long
    plan = "{memcheck: 1, model: llama-3.1-8b, hardware: {gpu: rtx-4090}, inference: {engine: vllm, max_model_len: 131072}}"
    (tmp_path / "plan.yaml").write_text(plan)
    suggested = memcheck(tmp_path, "suggest", "plan.yaml", "--top", "9").stdout
    assert "max_model_len: 131072 -> " in suggested
    assert "same results; changes what can be served" not in suggested


def test_a_command_is_in_place_of_the_folder(tmp_path: Path) -> None:
    """Plans of the working directory are not checked with it."""
    (tmp_path / "broken.yaml").write_text("memcheck: 1\n")
    assert "checked 1 plan: 1 passed" in memcheck(tmp_path, "check", "--gpu", "h200", "--", *SMALL).stdout


def test_words_after_dashes_may_be_paths(tmp_path: Path) -> None:
    """What exists, what ends like a plan, and one word alone are paths, as they were."""
    (tmp_path / "a.yaml").write_text("memcheck: 1\n")
    (tmp_path / "-b").write_text("memcheck: 1\n")
    assert "2 plans" in memcheck(tmp_path, "check", "--", "a.yaml", "-b").stdout
    for words in (["absent"], ["absent.yaml", "--odd"], ["-x", "train"]):
        result = memcheck(tmp_path, "check", "--", *words)
        assert result.returncode == 2
        assert f"cannot read {min(words)}" in result.stderr, words


SCRIPT = """\
from trl import SFTConfig, SFTTrainer
SFTTrainer("Qwen/Qwen2.5-0.5B", SFTConfig(per_device_train_batch_size=1, max_length=512)).train()
"""


@pytest.mark.parametrize("start", ["python", "python3", "torchrun", "accelerate launch"])
def test_a_script_without_options_is_a_command(tmp_path: Path, start: str) -> None:
    """What starts a script is no path."""
    (tmp_path / "train.py").write_text(SCRIPT)
    result = memcheck(tmp_path, "check", "--gpu", "h200", "--", *start.split(), "train.py")
    assert (result.returncode, "pass" in result.stdout) == (0, True), result.stdout + result.stderr


def test_a_script_is_compared_as_it_runs_on_each_gpu(tmp_path: Path) -> None:
    """The script asks the GPU for its precision, and `--gpu` says which GPUs."""
    asks = "import torch\nb = torch.cuda.is_bf16_supported()\n"
    (tmp_path / "train.py").write_text(asks + SCRIPT.replace("max_length", "bf16=b, fp16=not b, max_length"))
    result = memcheck(tmp_path, "compare", "train.py", "--gpu", "t4,h200", "--format", "json")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [row["gpu"] for row in json.loads(result.stdout)["rows"]] == ["t4", "h200"]
    assert not any(row["as_written"] for row in json.loads(result.stdout)["rows"])


@pytest.mark.parametrize("named", [["train.py"], ["--", "python", "train.py"]], ids=["a file", "a command"])
def test_one_job_of_several_is_chosen_as_the_message_says(tmp_path: Path, named: list[str]) -> None:
    """The printed option is taken."""
    (tmp_path / "train.py").write_text(SCRIPT + SCRIPT.replace("0.5B", "1.5B"))
    asked = memcheck(tmp_path, "check", "--gpu", "h200", *named)
    assert "--define job=2" in asked.stdout
    chosen = memcheck(tmp_path, "check", "--gpu", "h200", "--define", "job=2", *named)
    assert chosen.returncode == 0, chosen.stdout + chosen.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.yaml"], "a.yaml and a command after --"),
        (["--fix"], "--fix works on files"),
        (["--diff"], "--diff works on files"),
        (["--from-ref", "main"], "--from-ref works on files"),
        (["--shard", "1/2"], "--shard works on files"),
        (["--stdin-filename", "x.yaml"], "--stdin-filename works on files"),
    ],
    ids=str,
)
def test_options_about_files_are_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    """What a command has no use for is an error, not left out."""
    result = memcheck(tmp_path, "check", *arguments, "--", *LINE)
    assert result.returncode == 2
    assert said in result.stderr


def test_a_command_is_named_once(tmp_path: Path) -> None:
    """It has no file, whose name would follow its own."""
    for result in (
        memcheck(tmp_path, "check", "--gpu", "h200", "--", *SMALL),
        memcheck(tmp_path, "estimate", "--gpu", "h200", "--", *SMALL),
    ):
        assert result.returncode == 0
        assert "<command>" in result.stdout
        assert "<command>  <command>" not in result.stdout
