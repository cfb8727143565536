"""Observations kept in a file, and what moved between versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.accounts.estimate import Instant
from memcheck.edge.screen import Screen
from memcheck.errors import UsageError
from memcheck.verify.compare import MEASURED, TRACED, Observation, RankObservation, compare
from memcheck.verify.recording import append, changed_versions, drifts, read, records, render
from tests.verify.plans import plan, subject

OLD = {"memcheck": "0.1.0", "python": "3.11.1", "torch": "2.12.0", "peft": "0.20"}
NEW = {"memcheck": "0.1.0", "python": "3.12.2", "torch": "2.13.0", "peft": "0.20"}


def record(versions: dict[str, str], factor: float = 1.0, **measured: Any) -> list[dict[str, Any]]:
    """What a run whose peak is ``factor`` times the prediction leaves behind."""
    found = subject(plan())
    predicted = found.estimate.ranks[0]
    peak = predicted.peak
    seen = Instant(peak.name, "", int(peak.allocated_bytes * factor), peak.components_bytes)
    rank = RankObservation(0, 0, (seen,), 1, **measured)
    mode = MEASURED if measured else TRACED
    observation = Observation(mode, versions, (rank,), device="GPU" if measured else "")
    return list(records(found, observation, (compare(predicted, rank),)))


def test_a_trace_is_one_record() -> None:
    """With the plan, the versions and what was predicted; the fields of a benchmark case carry its names."""
    (found,) = record(OLD)
    assert found["truth_bytes"] == found["predicted_bytes"]
    assert found["plan"]["name"] == found["id"] == "tiny"
    assert found["versions"] == OLD
    assert "torch 2.12.0" in found["source"]
    assert set(found) >= {
        "id",
        "group",
        "plan",
        "truth_bytes",
        "metric",
        "source",
        "phase",
        "pipeline_rank",
        "confidence",
    }
    json.dumps(found)


def test_the_version_of_pytorch_is_among_the_versions() -> None:
    """Not in the plan, whose records follow it through versions; today's price is for the version of the record."""
    found = plan(gpus=2, parallelism={"pipeline": 2}, gradient_accumulation_steps=4, torch_version="2.15.0")
    request = subject(found)
    seen = [RankObservation(r.pipeline_rank, 0, r.instants, 1) for r in request.estimate.ranks]
    compared = tuple(compare(p, s) for p, s in zip(request.estimate.ranks, seen, strict=True))
    for version, same in (("2.15.0", True), ("2.13.0", False)):
        versions = {**NEW, "torch": version}
        kept = list(records(request, Observation(TRACED, versions, tuple(seen)), compared))
        assert all("torch_version" not in k["plan"]["training"] for k in kept)
        assert (drifts(kept, ".")[0].now_bytes == kept[0]["predicted_bytes"]) is same


def test_a_measurement_is_one_record_per_quantity() -> None:
    """Allocated, reserved and device memory are compared with different predictions."""
    found = record(OLD, reserved_bytes=5, device_bytes=6)
    assert [(r["metric"], r["group"], r["device"]) for r in found] == [
        ("allocated", "measured (verify)", "GPU"),
        ("reserved", "measured (verify)", "GPU"),
        ("device", "measured (verify)", "GPU"),
    ]
    assert [r["truth_bytes"] for r in found[1:]] == [5, 6]


def test_records_are_appended_and_read(tmp_path: Path) -> None:
    """A file grows by one line per record; empty lines do no harm."""
    path = tmp_path / "runs.jsonl"
    assert append(str(path), iter(record(OLD))) == 1
    with path.open("a", encoding="utf-8") as file:
        file.write("\n")
    append(str(path), iter(record(NEW)))
    assert [r["versions"]["torch"] for r in read(str(path))] == ["2.12.0", "2.13.0"]


@pytest.mark.parametrize("text", ["not json\n", "[]\n", '{"record": 99}\n', "[" * 200_000 + "\n"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """With the line that is wrong."""
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(record(OLD)[0]) + "\n" + text, encoding="utf-8")
    with pytest.raises(UsageError, match=":2: "):
        read(str(path))


def test_unwritable_and_missing_files(tmp_path: Path) -> None:
    """Usage errors, not tracebacks."""
    with pytest.raises(UsageError, match="cannot write"):
        append(str(tmp_path), iter(record(OLD)))
    with pytest.raises(UsageError, match="cannot read"):
        read(str(tmp_path / "missing"))


def test_versions_that_changed() -> None:
    """Python's own version moves no memory."""
    assert changed_versions(OLD, NEW) == "torch 2.12.0 -> 2.13.0"
    assert changed_versions(OLD, {**OLD, "transformers": "5.0"}) == "transformers absent -> 5.0"
    assert changed_versions(OLD, OLD) == ""


def test_drift_of_a_plan() -> None:
    """Two versions, one plan: how far the step moved, and how far off today's prediction is."""
    found = record(OLD) + record(NEW, 1.10)
    (drift,) = drifts(found, ".")
    assert drift.moved == pytest.approx(0.10, abs=1e-6)
    assert drift.error == pytest.approx(1 / 1.10 - 1, abs=1e-6)
    text = render([drift], 0.015, Screen(100, color=False, unicode=False))
    assert "+10.00%: torch 2.12.0 -> 2.13.0" in text
    assert "1 observed plan: 1 moved by more than 1.5%, 1 predicted more than 1.5% off today" in text
    assert max(map(len, text.splitlines())) <= 100


def test_other_plans_metrics_and_devices_are_kept_apart() -> None:
    """Only runs of the same thing are compared."""
    measured = record(OLD, reserved_bytes=5, device_bytes=6)
    other = [{**record(OLD)[0], "plan": plan(micro_batch_size=1)}]
    assert len(drifts(record(OLD) + other + measured, ".")) == 5


def test_a_plan_that_cannot_be_priced_any_more() -> None:
    """Its observations are still shown."""
    broken = [{**record(OLD)[0], "plan": {"memcheck": 1}}]
    (drift,) = drifts(broken, ".")
    assert (drift.now_bytes, drift.error) == (None, None)


def test_exit_code_says_whether_predictions_still_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 when the latest observation is predicted, 1 when it is not, 2 for an empty file."""
    monkeypatch.setenv("NO_COLOR", "1")
    path = tmp_path / "runs.jsonl"
    append(str(path), iter(record(OLD)))
    assert main(["verify", "--drift", str(path)]) == 0
    append(str(path), iter(record(NEW, 1.10)))
    assert main(["verify", "--drift", str(path)]) == 1
    assert main(["verify", "--drift", str(path), "--tolerance", "20%", "--format", "json"]) == 0
    path.write_text("", encoding="utf-8")
    assert main(["verify", "--drift", str(path)]) == 2
    capsys.readouterr()
