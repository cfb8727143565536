"""What takes longer than a verdict: the same answers as the command line's, in steps between which a caller may stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memcheck.config.find import Gate
from memcheck.judge import check_file
from memcheck.live.form import USUAL
from memcheck.live.moves import moved
from memcheck.live.protocol import Session
from memcheck.plan.read import load_documents
from memcheck.plan.value_edits import edited
from memcheck.report.story.remedies import all_remedies
from memcheck.what_if import make_dossier, with_remedies
from memcheck.what_if.search import attach

EXAMPLES = Path(__file__).parents[2] / "examples"
FAILING = (EXAMPLES / "llama-3.1-8b-four-a100-40gb.yaml").read_text(encoding="utf-8")
FITTING = (EXAMPLES / "llama-3.1-8b-fsdp-8xh100.yaml").read_text(encoding="utf-8")


def more(text: str, *parts: str) -> list[dict[str, Any]]:
    """Every step of a search."""
    request = {"id": 1, "do": "more", "path": "plan.yaml", "text": text, "steps": list(parts)}
    return list(Session().handle(request if parts else {**request, "steps": None}))


def only(replies: list[dict[str, Any]], step: str) -> dict[str, Any]:
    """The one reply of a kind."""
    (found,) = (each for each in replies if each["step"] == step)
    return found


def needed(text: str) -> int:
    """The need of a plan's fullest GPU."""
    estimate = check_file("plan.yaml", text.encode(), Gate())[0][0].estimate
    assert estimate is not None
    return estimate.needed_bytes


def test_everything_is_searched_in_order() -> None:
    """Lines, remedies, other GPUs; a plan that cannot be estimated has none of them."""
    steps = [each["step"] for each in more(FITTING) if each["step"] != "searching"]
    assert steps == ["lines", "remedies", "gpus", "done"]
    assert [each["step"] for each in more("memcheck: 1\nmodel: nobody\n")] == ["done"]


@pytest.mark.parametrize("text", [FAILING, FITTING])
def test_bytes_of_a_line_are_those_of_the_plan_with_the_other_value(text: str) -> None:
    """Each figure is the difference between two whole estimates."""
    document = load_documents("plan.yaml", text.encode())[0]
    found = only(more(text, "lines"), "lines")["lines"]
    assert len(found) >= 5
    for each in found:
        made = moved(document, {each["key"]: each["other"]})
        other = edited(text.encode(), made[0].edits).decode()
        assert each["saved_bytes"] == needed(other) - needed(text), each
        assert each["key"].rpartition(".")[2] in text.splitlines()[each["place"]["line"] - 1]


def test_remedies_are_those_of_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same changes in the same order, whose edits give plans that fit; findings are where check has them."""
    monkeypatch.setattr(attach, "SEARCHES", attach.Searches())
    found = only(more(FAILING, "remedies"), "remedies")
    results, _ = check_file("plan.yaml", FAILING.encode(), Gate(remedies=with_remedies))
    expected = all_remedies(results[0])
    assert [each["changes"] for each in found["remedies"]] == [each.set for each in expected]
    assert [(each["code"], each["help"]) for each in found["diagnostics"]] == [
        (each.code, each.help) for each in results[0].findings
    ]
    ids = [each["id"] for each in found["remedies"]]
    assert len(set(ids)) == len(ids) >= 3
    for each in ids:
        assert f'data-remedy="{each}"' in found["sections"]["remedies"]
    lines = FAILING.splitlines(keepends=True)
    for remedy in found["remedies"]:
        (file,) = remedy["edits"]
        text = list(lines)
        for edit in sorted(file["edits"], key=lambda each: -each["start"]["line"]):
            start, end = edit["start"], edit["end"]
            assert start["line"] == end["line"]
            line = text[start["line"] - 1]
            text[start["line"] - 1] = line[: start["character"]] + edit["text"] + line[end["character"] :]
        changed = check_file("plan.yaml", "".join(text).encode(), Gate())[0][0]
        assert changed.status == "passed"


def test_a_search_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control comes back after each candidate: a caller that stops has paid for no more, and may ask again."""
    monkeypatch.setattr("memcheck.live.answer.SLICE_S", 0.0)
    monkeypatch.setattr(attach, "SEARCHES", attach.Searches())
    session = Session()
    steps = session.handle({"id": 1, "do": "more", "path": "plan.yaml", "text": FAILING, "steps": ["remedies"]})
    tried = [next(steps)["tried"] for _ in range(20)]
    steps.close()  # type: ignore[attr-defined]  # a generator
    assert tried[0] < tried[-1] < 50
    assert tried == sorted(tried)
    again = list(session.handle({"id": 2, "do": "more", "steps": ["remedies"]}))
    counts = [each["tried"] for each in again if each["step"] == "searching"]
    assert len(counts) > 20
    assert len(only(again, "remedies")["remedies"]) >= 3


def test_other_gpus_are_those_of_the_report() -> None:
    """The same figures as in the report to pass on, and those of the GPUs that only the form offers first."""
    found = only(more(FITTING, "gpus"), "gpus")
    results, _ = check_file("plan.yaml", FITTING.encode(), Gate(dossier=make_dossier))
    dossier = results[0].dossier
    assert dossier is not None
    assert [(each["gpu"], each["needed_bytes"]) for each in found["gpus"]] == [
        *((each.gpu, each.needed_bytes) for each in dossier.gpus),
        ("rtx-4090", found["gpus"][-1]["needed_bytes"]),
    ]
    assert {each["gpu"] for each in found["gpus"]} >= set(USUAL)
    assert [each["own"] for each in found["gpus"]].count(True) == 1
    assert "On other GPUs" in found["sections"]["gpus"]


def test_a_plan_that_fits_has_no_remedies() -> None:
    """The sections are empty, so that those of an earlier plan go away."""
    found = only(more(FITTING, "remedies"), "remedies")
    assert found["remedies"] == []
    assert found["sections"]["remedies"] == ""
    assert "certainty" in [each["id"] for each in found["order"]]
