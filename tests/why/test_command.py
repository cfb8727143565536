"""``memcheck why``: evidence from files, stdin and the command line; answers with and without a plan; exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from memcheck.__main__ import main
from memcheck.edge.screen import Screen
from memcheck.errors import UsageError
from memcheck.why.answer import Diagnosis, as_data, headline, render_html, render_text
from memcheck.why.run import answer

ROOT = Path(__file__).parents[2]
CASES = {c["id"]: c for c in yaml.safe_load((ROOT / "tests/data/why/messages.yaml").read_text(encoding="utf-8"))}
SCHEMA = json.loads((ROOT / "schemas/why.schema.json").read_text(encoding="utf-8"))
PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 3}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 8192, activation_checkpointing: full,
  optimizer: adamw, precision: bf16-mixed, attention: flash, gradient_accumulation_steps: 1}
"""
MESSAGE = (
    "[rank3]:     logits = self.lm_head(h).float()\n"
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 3 has a total capacity of "
    "{total} of which 2.02 GiB is free. Including non-PyTorch memory, this process has {own} memory in use. Of the "
    "allocated memory {allocated} is allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated.\n"
)


def why(text: str, **options: Any) -> Diagnosis:
    """The answer to a text on stdin."""
    return answer(("-",), stdin=lambda limit: text.encode()[:limit], **options)


def message(
    tried: str, allocated: str, unused: str = "0.20 GiB", total: str = "79.11 GiB", own: str = "77.00 GiB"
) -> str:
    """An error of rank 3 in the loss."""
    return MESSAGE.format(tried=tried, allocated=allocated, unused=unused, total=total, own=own)


@pytest.fixture
def plan(tmp_path: Path) -> str:
    """A plan that fits."""
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN, encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_every_answer_is_as_its_schema_says() -> None:
    """Each public message has an answer on one screen, as JSON of the schema, and as a page."""
    for name in CASES:
        found = why(CASES[name]["message"])
        data = as_data(found)
        jsonschema.validate(data, SCHEMA)
        assert data["kind"] == CASES[name]["kind"], name
        text = render_text(found, Screen(width=100))
        assert text.splitlines()[0] in headline(found), name
        assert len(text.splitlines()) <= 40, name
        assert "memcheck" not in text.splitlines()[0].lower(), name
        assert "\x1b" not in text, name


def test_a_page_draws_the_gpu() -> None:
    """The page has the bar of the GPU, and the text of the message is escaped."""
    page = render_html(why(message("1.00 GiB", "70.00 GiB") + "<script>"))
    assert "<svg" in page
    assert "<script>" not in page


def test_a_larger_micro_batch_is_found(plan: str) -> None:
    """Logits of twice the tokens: a larger micro-batch or a longer row, and neither is called likely alone."""
    text = message("15.66 GiB", "58.00 GiB").replace("logits = self.lm_head(h).float()", "loss.backward()")
    data = as_data(why(text, plan=plan))
    assert data["causes"][0]["id"] == "larger-micro-batch"
    assert data["causes"][0]["set"] == {"training.micro_batch_size": 4}
    assert {c["certainty"] for c in data["causes"]} == {"possible"}
    assert data["remedies"]
    jsonschema.validate(data, SCHEMA)


def test_a_smaller_gpu_is_found(plan: str) -> None:
    """The message prints a GPU that is smaller than the plan's, and too small for it."""
    data = as_data(why(message("1.96 GiB", "20.00 GiB", total="23.69 GiB", own="21.60 GiB"), plan=plan))
    assert data["causes"][0]["id"] == "smaller-card"
    assert data["causes"][0]["certainty"] == "likely"


def test_another_process_is_found(plan: str) -> None:
    """Most of the GPU is held by nothing of this process."""
    text = message("3.91 GiB", "20.00 GiB", own="21.60 GiB").replace(
        "Including non-PyTorch", "Process 77 has 55.00 GiB memory in use. Including non-PyTorch"
    )
    data = as_data(why(text, plan=plan))
    assert (data["causes"][0]["id"], data["causes"][0]["certainty"]) == ("other-process", "likely")
    assert data["figures"]["other_process_bytes"] == 55 * 2**30


def test_fragmentation_is_found(plan: str) -> None:
    """As much is reserved and unused as was asked for, and the plan needs less than the GPU has."""
    data = as_data(why(message("3.91 GiB", "20.00 GiB", unused="50.00 GiB"), plan=plan))
    assert data["causes"][0]["id"] == "fragmentation"


def test_as_predicted(plan: str) -> None:
    """A plan that does not fit: as predicted, with the moment and remedies that fit."""
    changes = {"training.micro_batch_size": 8}
    data = as_data(why(message("31.31 GiB", "60.00 GiB"), plan=plan, settings=changes))
    cause = data["causes"][0]
    assert (cause["id"], cause["certainty"]) == ("as-predicted", "likely")
    assert cause["instant"] == "backward"
    assert all(r["needed_bytes"] <= 79.11 * 2**30 for r in data["remedies"])
    assert data["remedies"]


def test_a_plan_is_drafted_from_the_log() -> None:
    """The command in a log is read as ``import`` reads it; what it does not say is assumed aloud."""
    line = (
        "+ torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B "
        '--per_device_train_batch_size 4 --bf16 True --gradient_checkpointing True --fsdp "full_shard auto_wrap" '
        "--max_seq_length 8192 --output_dir out\n"
    )
    data = as_data(why(line + message("15.66 GiB", "72.00 GiB"), gpu="h100-80gb"))
    drafted = {row["key"]: (row["value"], row["line"]) for row in data["drafted"]}
    assert drafted["training.micro_batch_size"] == (4, 1)
    assert data["readings"][0]["shape"] == [4, 8192, 128256]
    assert any("objective" in each for each in data["missing"])


def test_the_model_names_the_tensor() -> None:
    """With a model every reading of the size is listed, with the number that it needs."""
    data = as_data(why(CASES["t15-transformers-3360"]["message"], model="gpt2"))
    assert [4, 1024, 50257] not in [r["shape"] for r in data["readings"]]
    assert any(r["tensor"] == "logits" and r["free_range"][0] <= 4096 <= r["free_range"][1] for r in data["readings"])


@pytest.mark.parametrize("name", ["t15-transformers-6375", "t26-taggui-188"])
def test_the_smallest_segment_names_no_tensor(name: str) -> None:
    """20.00 MiB is what the allocator asks for, whatever the tensor."""
    data = as_data(why(CASES[name]["message"], model="gpt2"))
    assert data["readings"] == []
    assert "no-tensor-size" in {s["id"] for s in data["statements"]}


def test_ranks_that_interleave_are_kept_apart() -> None:
    """64 ranks print their lines in turns: each message has its own figures, and the first one counts."""
    lines = [
        f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {rank + 1}.00 GiB. GPU {rank % 8} has "
        f"a total capacity of 79.11 GiB of which {rank}.50 GiB is free.\n"
        for rank in range(64)
    ]
    found = why("".join(lines))
    assert len(found.log.messages) == 64
    for rank, each in enumerate(found.log.messages):
        assert (each.rank, each.gpu_index) == (rank, rank % 8)
        assert each.figures["tried_bytes"].bytes == (rank + 1) * 2**30
    assert found.log.first is not None
    assert (found.log.first.rank, found.log.echoes) == (0, 63)


@pytest.mark.parametrize(
    ("evidence", "options", "words"),
    [
        ("nothing.out", {}, "no file"),
        ("-", {"model": "no-such-model"}, "no-such-model"),
        ("-", {"model": "gpt2", "plan": "x.yaml"}, "--model in addition to --plan"),
    ],
)
def test_wrong_arguments(evidence: str, options: dict[str, str], words: str) -> None:
    """A file that is not there, an unknown model, and two models are errors with what to do."""
    text = CASES["t15-transformers-3360"]["message"].encode()
    with pytest.raises(UsageError, match=words):
        answer((evidence,), stdin=lambda limit: text[:limit], **options)


@pytest.mark.parametrize(
    ("name", "code"), [("t15-transformers-3360", 0), ("host-knet-30", 0), ("no-flash-124", 1), ("viscpm-3", 1)]
)
def test_exit_codes(name: str, code: int, tmp_path: Path) -> None:
    """0: a lack of memory is explained; 1: nothing is, or memory was not the reason."""
    path = tmp_path / "job.out"
    path.write_text(CASES[name]["message"], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "memcheck", "why", str(path)], capture_output=True, check=False, cwd=ROOT
    )
    assert done.returncode == code, done.stderr


def test_without_arguments_it_says_what_it_takes(tmp_path: Path) -> None:
    """Nothing on stdin and no argument: the answer says that there is nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "memcheck", "why"], capture_output=True, check=False, cwd=ROOT, input=b"", text=False
    )
    assert done.returncode == 1
    assert b"does not say why" in done.stdout


def test_a_config_is_a_plan() -> None:
    """A framework's own config takes its hardware from options; without them the answer says what is missing."""
    config = str(ROOT / "examples" / "configs" / "axolotl-llama-3.1-8b-lora.yml")
    text = message("15.66 GiB", "20.00 GiB", total="44.34 GiB", own="42.00 GiB")
    data = as_data(why(text, plan=config))
    assert data["causes"] == []
    assert any("which GPU" in each for each in data["missing"])
    stated = {"hardware.gpus_per_node": 1}
    assert as_data(why(text, plan=config, gpu="l40s", settings=stated))["causes"][0]["id"] == "as-predicted"


@pytest.mark.slow
def test_what_does_not_fit_the_plan_may_fit_the_gpu_of_the_run(plan: str) -> None:
    """The message prints a larger GPU than the plan's: nothing is as predicted that fits it."""
    found = why(message("1.96 GiB", "60.00 GiB"), plan=plan, gpu="rtx-4090")
    assert found.explained is not None
    assert found.explained.plan.verdict == "does_not_fit"
    assert as_data(found)["causes"][0]["id"] != "as-predicted"


def test_the_gpu_of_the_message_is_drafted() -> None:
    """A log with its command and no GPU takes the one of the catalog whose memory the message prints."""
    line = (
        "+ torchrun --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Llama-3.2-1B --block_size 4096 "
        "--per_device_train_batch_size 4 --bf16 True\n"
    )
    data = as_data(why(line + message("7.83 GiB", "34.20 GiB", total="39.38 GiB", own="37.30 GiB")))
    assert {"key": "hardware.gpu", "value": "a100-40gb", "line": 3} in data["drafted"]
    assert (data["causes"][0]["id"], data["causes"][0]["certainty"]) == ("as-predicted", "likely")
    assert data["remedies"]


def test_a_plan_named_with_the_log_is_the_plan(tmp_path: Path, plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file named like a plan or a script is no log: it is compared with the log, or there is no log to read."""
    log = tmp_path / "job.out"
    log.write_text(message("31.31 GiB", "60.00 GiB"), encoding="utf-8")
    main(["why", str(log), plan])
    assert "Compared with the plan" in capsys.readouterr().out
    for words in ([plan], [str(log), plan, "--plan", plan]):
        assert main(["why", *words]) == 2
        assert "is a plan or a script, and no log" in capsys.readouterr().err


def test_rows_at_their_limit_are_as_predicted(tmp_path: Path) -> None:
    """A plan that fits only with short rows died at its limit: as predicted, with the changes that fit there."""
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("micro_batch_size: 1", "micro_batch_size: 8, sequences: padded"), encoding="utf-8")
    data = as_data(why(message("31.31 GiB", "60.00 GiB"), plan=str(path)))
    assert (data["causes"][0]["id"], data["causes"][0]["certainty"]) == ("as-predicted", "likely")
    assert data["remedies"]
