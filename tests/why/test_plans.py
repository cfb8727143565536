"""Public messages against plans that say what their threads state: the cause that the thread shows comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.why.answer import as_data
from memcheck.why.run import answer

DATA = Path(__file__).parents[1] / "data" / "why"
MESSAGES = {c["id"]: c for c in yaml.safe_load((DATA / "messages.yaml").read_text(encoding="utf-8"))}
CASES: list[dict[str, Any]] = yaml.safe_load((DATA / "plans.yaml").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['cause']}")
def test_the_cause_of_the_thread_comes_first(case: dict[str, Any], tmp_path: Path) -> None:
    """No other cause is called likely. What was predicted has its moment and, on a device, a change that fits."""
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({"memcheck": 1, **case["plan"]}), encoding="utf-8")
    text = MESSAGES[case["id"]]["message"].encode()
    data = as_data(answer(("-",), stdin=lambda limit: text[:limit], plan=str(path)))
    first, *others = data["causes"]
    assert first["id"] == case["cause"]
    assert all(cause["certainty"] == "possible" for cause in others)
    if case["cause"] == "as-predicted":
        assert first["instant"]
        assert data["remedies"]
