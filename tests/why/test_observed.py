"""``memcheck verify PLAN --observed``: consistent or not, and what would explain it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.why.observed import stated
from tests.verify.plans import plan, subject, write

Capture = pytest.CaptureFixture[str]
GIB = 2**30
LARGE: dict[str, Any] = {"model": "llama-3.2-1b", "micro_batch_size": 4, "sequence_length": 4096}
"""A plan of some tens of GiB."""


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hundred columns without colours."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def observed(capsys: Capture, path: Path, text: str, code: int) -> dict[str, Any]:
    """The JSON answer."""
    assert main(["verify", str(path), "--observed", text, "--format", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def allocated(**training: Any) -> int:
    """What a run of that plan would read."""
    from memcheck.why.observed import predicted

    found = subject(plan(**{**LARGE, **training}))
    return predicted(found, found.estimate, "allocated")


def test_a_reading_near_the_prediction_is_consistent(tmp_path: Path, capsys: Capture) -> None:
    """Exit code 0 and no explanation for what needs none."""
    path = write(tmp_path, plan(**LARGE))
    found = observed(capsys, path, f"allocated={allocated() + 1000}B", 0)
    (row,) = found["readings"]
    assert found["consistent"]
    assert row["consistent"]
    assert row["explanations"] == []
    assert row["consistent_bytes"][0] <= row["observed_bytes"] <= row["consistent_bytes"][1]


@pytest.mark.parametrize(
    ("truth", "key", "value"),
    [
        ({"loss": {"kind": "standard", "upcast": False}}, "training.loss.upcast", False),
        ({"attention": "eager"}, "training.attention", "eager"),
        ({"activation_checkpointing": "full"}, "training.activation_checkpointing.mode", "full"),
        ({"precision": "fp32"}, "training.precision.recipe", "fp32"),
        ({"micro_batch_size": 8}, "training.micro_batch_size", 8),
    ],
)
def test_the_assumption_that_was_wrong_is_found(
    tmp_path: Path, capsys: Capture, truth: dict[str, Any], key: str, value: object
) -> None:
    """A run with another value is not consistent with the plan, and that value explains it best."""
    path = write(tmp_path, plan(**LARGE))
    found = observed(capsys, path, f"allocated={allocated(**truth)}B", 1)
    best = found["readings"][0]["explanations"][0]
    assert (best["key"], best["value"]) == (key, value)
    assert best["remaining_bytes"] == 0


def test_an_explanation_can_be_pasted(tmp_path: Path, capsys: Capture) -> None:
    """Its changes, set on the command line, make the reading consistent."""
    path = write(tmp_path, plan(**LARGE))
    reading = f"allocated={allocated(attention='eager')}B"
    best = observed(capsys, path, reading, 1)["readings"][0]["explanations"][0]
    settings = [part for k, v in best["set"].items() for part in ("--set", f"{k}={json.dumps(v)}")]
    assert main(["verify", str(path), "--observed", reading, *settings]) == 0
    capsys.readouterr()


def test_what_the_plan_says_and_what_it_does_not() -> None:
    """Words that stand for a mapping state its main field alone."""
    found = subject(plan(optimizer="adamw"))
    assert stated(found, "training.optimizer.name") == "adamw"
    assert stated(found, "training.optimizer.implementation") is None
    assert stated(found, "training.precision.recipe") == "bf16-pure"
    assert stated(found, "training.precision.reduce") is None
    assert stated(found, "training.micro_batch_size") == 2
    assert stated(found, "training.attention") is None


def test_text_for_people(tmp_path: Path, capsys: Capture) -> None:
    """TensorReading, prediction, verdict and explanations, within the screen."""
    path = write(tmp_path, plan(**LARGE))
    assert main(["verify", str(path), "--observed", f"device={allocated(attention='eager') / GIB:.2f}GiB"]) == 1
    out = capsys.readouterr().out
    for part in (
        "observed: device ",
        "predicted: device ",
        "not consistent",
        "training.attention: eager",
        "does not say",
    ):
        assert part in out
    assert max(map(len, out.splitlines())) <= 100


def test_nothing_explains_everything(tmp_path: Path, capsys: Capture) -> None:
    """A figure that no single change comes near gets no invented reason."""
    path = write(tmp_path, plan(**LARGE))
    assert main(["verify", str(path), "--observed", "allocated=90TiB"]) == 1
    assert "no single assumption" in capsys.readouterr().out


def test_an_out_of_memory_error_above_the_interval(tmp_path: Path, capsys: Capture) -> None:
    """A lower bound below the prediction is consistent with it, one above the interval is not."""
    path = write(tmp_path, plan(**LARGE))
    text = "Tried to allocate {} GiB. Of the allocated memory 1.00 GiB is allocated by PyTorch"
    assert observed(capsys, path, text.format("2.00"), 0)["consistent"]
    assert not observed(capsys, path, text.format("500.00"), 1)["consistent"]


def test_a_log_file_and_a_line(tmp_path: Path, capsys: Capture) -> None:
    """A file is read; a line works as well."""
    path = write(tmp_path, plan(**LARGE))
    line = "step: 10  loss: 2.0  memory: 30.00GiB(37.00%)  tps: 1"
    log = tmp_path / "train.log"
    log.write_text(f"starting\n{line}\n", encoding="utf-8")
    for text, source in ((line, "the command line"), (str(log), "train.log")):
        assert main(["verify", str(path), "--observed", text, "--format", "json"]) in {0, 1}
        (row,) = json.loads(capsys.readouterr().out)["readings"]
        assert (row["metric"], row["observed_bytes"]) == ("reserved", 30 * GIB)
        assert row["source"] == f"{source}, printed by torchtitan"


def test_nothing_to_read(tmp_path: Path, capsys: Capture) -> None:
    """Exit code 2 for a text or a file without any figure, and for a record of it."""
    path = write(tmp_path, plan())
    (tmp_path / "empty.log").write_text("nothing\n", encoding="utf-8")
    for text in ("nonsense", "61.3", str(tmp_path / "empty.log")):
        assert main(["verify", str(path), "--observed", text]) == 2
    assert main(["verify", str(path), "--observed", "1GiB", "--record", str(tmp_path / "r")]) == 2
    assert "no memory figure" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_serving_has_explanations_of_its_own(tmp_path: Path, capsys: Capture) -> None:
    """The dtype of the KV cache is what an inference plan may have wrong."""
    found = plan(model="llama-3.1-8b")
    del found["training"]
    found["inference"] = {"context_length": 32768, "batch_size": 8, "kv_cache": "bf16"}
    path = write(tmp_path, found)
    half = subject({**found, "inference": {**found["inference"], "kv_cache": "fp8"}}).estimate.allocated_bytes
    best = observed(capsys, path, f"allocated={half}B", 1)["readings"][0]["explanations"][0]
    assert (best["key"], best["value"]) == ("inference.kv_cache", "fp8")
