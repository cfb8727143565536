"""``memcheck verify``, run as a command on real PyTorch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from memcheck.__main__ import main  # noqa: E402
from tests.verify.plans import TINY, plan, write  # noqa: E402

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, one hundred columns, no colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def verify(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON answer."""
    assert main(["verify", *arguments, "--format", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_text_names_everything(tmp_path: Path, capsys: Capture) -> None:
    """Stand-ins, instants, components, the largest difference, tensors and the verdict, within the screen."""
    path = write(tmp_path, plan(attention="flash", gradient_accumulation_steps=8))
    assert main(["verify", str(path)]) == 0
    printed = capsys.readouterr()
    for part in (
        "traced on fake tensors: torch ",
        "3 of 8 micro-batches were run",
        "training.attention: flash -> sdpa",
        "allocated at each instant of a step, rank 0 (GiB)",
        "components in ",
        "largest difference: ",
        "largest traced tensors at the peak (GiB)",
        "agrees: ",
    ):
        assert part in printed.out
    assert max(map(len, printed.out.splitlines())) <= 100
    assert "step 2 of 3" in printed.err


def test_json_has_every_term(tmp_path: Path, capsys: Capture) -> None:
    """Both sides' instants with components, the terms, and what was alive."""
    found = verify(capsys, str(write(tmp_path, plan())))
    assert (found["verify"], found["mode"], found["agrees"]) == (1, "traced", True)
    assert found["versions"]["torch"] == importlib.metadata.version("torch")
    (rank,) = found["ranks"]
    for side in ("predicted", "observed"):
        names = [i["name"] for i in rank[side]["instants"]]
        assert names == ["init", "forward", "loss", "backward", "optimizer"]
    assert rank["observed"]["operators"] > 100
    assert rank["observed"]["largest_tensors"][0]["bytes"] > 0
    assert {t["component"] for t in rank["terms"]} >= {"parameters", "optimizer_states", "activations", "gradients"}
    assert all(t["difference_bytes"] == t["predicted_bytes"] - t["observed_bytes"] for t in rank["terms"])


def test_a_difference_beyond_the_tolerance_fails(tmp_path: Path, capsys: Capture) -> None:
    """Exit code 1, and the sentence on the largest difference; nothing is equal to the byte."""
    found = verify(capsys, str(write(tmp_path, plan())), "--tolerance", "0.0000001", code=1)
    assert not found["agrees"]
    assert found["ranks"][0]["sentence"]


def test_fewer_layers_and_other_values(tmp_path: Path, capsys: Capture) -> None:
    """--layers and --set change prediction and run alike."""
    path = str(write(tmp_path, plan()))
    whole = verify(capsys, path)["ranks"][0]["observed"]["parameters"]
    less = verify(capsys, path, "--layers", "1", "--set", "training.sequence_length=64")["ranks"][0]
    assert less["observed"]["parameters"] < whole
    assert less["agrees"]


def test_pipeline_ranks_one_by_one(tmp_path: Path, capsys: Capture) -> None:
    """The one that is predicted to be fullest, or those that were asked for; another number is a usage error."""
    found = plan(gpus=2, parallelism={"pipeline": 2}, gradient_accumulation_steps=4)
    path = str(write(tmp_path, found))
    both = verify(capsys, path, "--rank", "0", "--rank", "1")
    assert [r["pipeline_rank"] for r in both["ranks"]] == [0, 1]
    assert not any("--rank" in note for note in both["notes"])
    alone = verify(capsys, path)
    fullest = max(both["ranks"], key=lambda r: max(i["allocated_bytes"] for i in r["predicted"]["instants"]))
    assert [r["pipeline_rank"] for r in alone["ranks"]] == [fullest["pipeline_rank"]]
    assert f"pipeline rank {fullest['pipeline_rank']} of 2 traced" in " ".join(alone["notes"])
    assert main(["verify", path, "--rank", "2"]) == 2
    assert "ranks are 0 to 1" in capsys.readouterr().err


def test_a_record_can_be_priced_again(tmp_path: Path, capsys: Capture) -> None:
    """--record appends one JSON line per run, with versions; --drift reads them and prices the plan anew."""
    path, file = str(write(tmp_path, plan(optimizer="adamw-8bit"))), tmp_path / "runs.jsonl"
    for _ in range(2):
        verify(capsys, path, "--record", str(file))
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 2
    first = lines[0]
    assert first["plan"]["training"]["optimizer"]["name"] == "adamw"
    assert (first["metric"], first["group"], first["phase"]) == ("allocated", "traced (verify)", "backward")
    assert set(first["versions"]) >= {"memcheck", "torch", "transformers", "peft", "python"}
    assert first["truth_bytes"] == lines[1]["truth_bytes"]
    assert main(["verify", "--drift", str(file), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["plans"]
    assert (row["moved"], len(row["sights"])) == (0, 2)
    assert row["now_bytes"] == first["predicted_bytes"]


def test_a_step_that_pytorch_refuses(tmp_path: Path, capsys: Capture) -> None:
    """Exit code 2 with the library, the reason and what to try; no traceback."""
    odd = {"architecture": {**TINY, "num_key_value_heads": 1}}
    path = write(tmp_path, plan(model=odd, gpus=2, parallelism={"tensor": 2}, attention="eager"))
    code = main(["verify", str(path)])
    printed = capsys.readouterr()
    assert code in {1, 2}
    assert "Traceback" not in printed.err + printed.out


def test_a_plan_that_is_not_valid_is_shown(tmp_path: Path, capsys: Capture) -> None:
    """Exit code 1 with its findings, as everywhere."""
    path = write(tmp_path, plan(micro_batch_size="many"))
    assert main(["verify", str(path)]) == 1
    assert "MEM013" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [(), ("p.yaml", "--drift", "r.jsonl"), ("missing.yaml",), ("--drift", "missing")])
def test_wrong_command_lines(arguments: tuple[str, ...], capsys: Capture) -> None:
    """Exit code 2."""
    assert main(["verify", *arguments]) == 2
    assert capsys.readouterr().err.startswith("memcheck: error: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_measuring_needs_a_gpu(tmp_path: Path, capsys: Capture) -> None:
    """Exit code 2, and the way to verify without one."""
    assert main(["verify", str(write(tmp_path, plan())), "--measure"]) == 2
    printed = capsys.readouterr().err
    assert "needs a GPU" in printed
    assert "--trace" in printed


@pytest.mark.slow
def test_an_interrupt_ends_it_cleanly(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a step: exit code 130, one line, no traceback, no record."""
    path = write(tmp_path, plan(model="llama-3.2-1b", gradient_accumulation_steps=64))
    record = tmp_path / "r.jsonl"
    command = [sys.executable, "-m", "memcheck", "verify", str(path), "--record", str(record)]
    errors = tmp_path / "stderr"
    with errors.open("w") as stream, subprocess.Popen(command, stderr=stream, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while "step 1 of 3" not in errors.read_text() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=60)
    said = errors.read_text()
    assert code == 130, said
    assert "memcheck: error: interrupted" in said
    assert "Traceback" not in said
    assert not os.path.exists(record)
