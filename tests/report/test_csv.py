"""The table for spreadsheets."""

from __future__ import annotations

import csv
import io

import pytest

from memcheck.accounts.estimate import COMPONENTS
from memcheck.report.csv import COLUMNS, PARTS, cell, render
from tests.report import samples
from tests.report.formats import NAMES, rendered, report
from tests.report.forwarded import forwarded


def rows(name: str) -> list[dict[str, str]]:
    """A report's rows by column."""
    return list(csv.DictReader(io.StringIO(rendered("csv", name)), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_every_column(name: str) -> None:
    """One row per plan, finding and unreadable path, each on one line."""
    found = rows(name)
    assert len(rendered("csv", name).splitlines()) == len(found) + 1
    assert all(None not in row and None not in row.values() for row in found)
    kinds = [row["kind"] for row in found]
    findings = sum(len(plan.findings) for plan in report(name).plans)
    assert kinds.count("plan") == len(report(name).plans)
    assert kinds.count("finding") == findings
    assert kinds.count("unreadable") == len(report(name).unreadable)


def test_columns_are_frozen() -> None:
    """The names that spreadsheets and notebooks rely on: new ones may come, none may go or move."""
    assert COLUMNS[:9] == ("kind", "path", "document", "plan", "status", "model", "gpu", "gpus", "framework")
    assert COLUMNS[9:12] == ("utilization", "device_bytes", "capacity_bytes")
    assert set(COLUMNS) >= {f"{name}_bytes" for name in COMPONENTS}
    assert COLUMNS[-10:] == (
        "line",
        "column",
        "end_line",
        "end_column",
        "severity",
        "code",
        "name",
        "message",
        "help",
        "pointer",
    )
    assert tuple(rows("mixed")[0]) == COLUMNS


def test_plans_have_figures_and_findings_places() -> None:
    """Bytes are whole and untouched; a sum over a column counts each plan once."""
    plan, failed, finding, *_ = rows("mixed")
    estimate = samples.estimate(28.1)
    assert plan["device_bytes"] == str(estimate.device_bytes)
    assert sum(int(plan[f"{name}_bytes"]) for name in COMPONENTS) == estimate.device_bytes
    assert (plan["gpu"], plan["gpus"], plan["line"], plan["code"]) == ("a100-40gb", "4", "", "")
    assert (failed["kind"], failed["status"]) == ("plan", "failed")
    assert (finding["line"], finding["column"], finding["code"], finding["device_bytes"]) == ("11", "3", "MEM101", "")


def test_nothing_is_run_as_a_formula() -> None:
    """What a plan's author wrote cannot become a formula in somebody's spreadsheet; numbers stay numbers."""
    assert cell("=1+1") == "'=1+1"
    assert [cell(text) for text in ("+1", "-x", "@a", "a=b", "4 -> 8")] == ["'+1", "'-x", "'@a", "a=b", "4 -> 8"]
    assert cell(-5) == -5
    for row in rows("evil"):
        assert not any(value.startswith(("=", "+", "@", "\t")) for value in row.values())


def test_estimates_hold_what_the_page_shows() -> None:
    """Every instant, rank, tensor, remedy, GPU, assumption and formula is a row, and the bytes of each kind add up."""
    found = list(csv.DictReader(io.StringIO(render(forwarded(), checked=False)), strict=True))
    assert tuple(found[0]) == (*COLUMNS, *PARTS)
    for number, plan in enumerate(forwarded().plans[:-1]):
        start = [i for i, row in enumerate(found) if row["kind"] == "plan"]
        rows = found[start[number] : start[number + 1]]
        of = {kind: [row for row in rows if row["kind"] == kind] for kind in {row["kind"] for row in rows}}
        assert "finding" not in of
        estimate, dossier = plan.estimate, plan.dossier
        assert estimate is not None
        assert dossier is not None
        assert all(row["device_bytes"] == "" for row in rows[1:])
        for rank in dossier.ranks:
            assert _total(of["rank"], str(rank.pipeline_rank)) == rank.needed_bytes
        for instant in estimate.ranks[0].instants:
            assert _total(of["instant"], instant.name) == sum(instant.components_bytes.values())
        assert [row["item"] for row in of["tensor"]] == [group.name for group in estimate.largest]
        assert [int(row["item_bytes"]) for row in of["formula"]] == [each.bytes for each in estimate.formulas]
        assert [row["item"] for row in of["gpu"]] == [gpu.gpu for gpu in dossier.gpus]
        assert {row["value"] for row in of["gpu"]} >= {"Fits", "Not possible"}
        assert [row["detail"] for row in of["assumption"]] == [item.why for item in plan.assumptions]
        assert [row["count"] for row in of["interval"]] == ["8"]
        remedies = [remedy for finding in plan.findings for remedy in finding.remedies]
        assert [int(row["item_bytes"]) for row in of.get("remedy", [])] == [each.needed_bytes for each in remedies]
    assert [row["code"] for row in found if row["kind"] == "finding"] == ["MEM010"]


def _total(rows: list[dict[str, str]], item: str) -> int:
    return sum(int(row["item_bytes"]) for row in rows if row["item"] == item)
