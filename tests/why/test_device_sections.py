"""What is shown of a snapshot: its failure, live blocks with and without a plan, growth, and lost history."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from memcheck.edge.screen import Screen
from memcheck.verify.replay.allocator import OutOfMemory
from memcheck.why.answer import Diagnosis, as_data, render_html, render_text
from memcheck.why.run import answer
from tests.verify.plans import plan, subject, write
from tests.why.written import BACKWARD, FORWARD, KEPT, STEP, TORCH, Recorded, frames

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "why.schema.json").read_text(encoding="utf-8"))
MIB = 2**20
PLAN = plan(model="llama-3.2-1b", sequence_length=2048)
OPTIMIZER = [*frames(("_init_group", TORCH + "optim/adamw.py", 184)), *STEP]
LOADED = [*frames(("convert", TORCH + "nn/modules/module.py", 1329), ("_apply", TORCH + "nn/modules/module.py", 900))]


def told(path: str, **options: Any) -> Diagnosis:
    """The answer to a snapshot, whose document follows the schema."""
    found = answer((path,), stdin=lambda _: b"", **options)
    jsonschema.validate(as_data(found), SCHEMA)
    return found


def leaking(steps: int = 8) -> Recorded:
    """A run of a plan's own tensors that keeps a tensor of each step, until there is no room."""
    ledger = subject(PLAN).estimate.ranks[0].ledger
    stacks = {"parameters": LOADED, "optimizer_states": OPTIMIZER}
    found = Recorded(capacity=14000 * MIB)
    name = 0
    for row in ledger:
        for _ in range(row.copies if row.component in stacks else 0):
            found.make(name := name + 1, row.bytes // row.copies, stacks[row.component])
    for _ in range(steps):
        for size in (64, 64, 700):
            found.make(name := name + 1, size * MIB, FORWARD)
        found.make(name := name + 1, 90 * MIB, BACKWARD)
        for each in range(name - 3, name + 1):
            found.drop(each)
        found.make(name := name + 1, 96 * MIB, KEPT)
    with pytest.raises(OutOfMemory):
        found.make(name + 1, 13000 * MIB, FORWARD)
    return found


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a run that leaks."""
    path = tmp_path_factory.mktemp("why") / "s.pickle"
    path.write_bytes(pickle.dumps(leaking().snapshot()))
    return str(path)


def test_without_a_plan(snapshot: str) -> None:
    """The failure to the byte, the blocks by frame, what steps leave behind, and the peak."""
    text = render_text(told(snapshot), Screen())
    assert text.startswith("The GPU ran out of memory.")
    assert "12.70 GiB exactly" in text
    assert "on_step_end (callbacks.py:41)" in text
    assert "never freed over" in text
    assert "component" in text
    assert "not in the plan" not in text


def test_with_a_plan(snapshot: str, tmp_path: Path) -> None:
    """What the plan does not have comes first, and growth is the cause."""
    found = told(snapshot, plan=str(write(tmp_path, PLAN)))
    assert found.mapped is not None
    assert found.mapped.rows[0].where == "on_step_end (callbacks.py:41)"
    assert not found.mapped.rows[0].tensor
    assert found.mapped.unknown_bytes == 8 * 96 * MIB
    assert found.explained is not None
    assert found.explained.causes[0].id == "leak"
    assert "not in the plan" in render_text(found, Screen())
    assert "on_step_end" in render_html(found)
    live = as_data(found)["devices"][0]["live"]
    assert live[0]["tensor"] is None
    assert all(row["tensor"] for row in live[1:])


def test_without_a_failure(tmp_path: Path) -> None:
    """A snapshot of a run that lives is no death: its peak is shown, and lost history is stated."""
    found = Recorded(entries=3)
    for name in range(6):
        found.make(name, 50 * MIB, FORWARD)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(found.snapshot()))
    shown = told(str(path))
    text = render_text(shown, Screen())
    assert text.startswith("The snapshot holds no allocation that failed")
    assert "at least 300.00 MiB" in text
    assert "earlier events are lost" in text
    assert not shown.is_explained


def test_names_of_a_snapshot_cannot_drive_a_page(tmp_path: Path) -> None:
    """Frames are escaped in HTML, and escape sequences are visible in text."""
    hostile = frames(("<script>alert(1)</script>\x1b[2J", "</table>", 1))
    found = Recorded()
    found.make(1, 50 * MIB, hostile)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(found.snapshot()))
    shown = told(str(path))
    assert "<script>alert" not in render_html(shown)
    assert "\x1b[2J" not in render_text(shown, Screen())
