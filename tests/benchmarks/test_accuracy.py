"""The accuracy benchmark: every known case, its recorded figures, and what is generated from it."""

from __future__ import annotations

import json

import pytest

from benchmarks import accuracy, outcomes, peers, report
from benchmarks.cases import load
from benchmarks.summary import by_group, difference, figures, spread, tables

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def done() -> accuracy.Run:
    """One run for all tests."""
    return accuracy.run()


def test_every_case_is_priced(done: accuracy.Run) -> None:
    """What cannot be priced is listed with its reason; nothing fails on the way."""
    assert [f"{f.case.id}: {f.problem}" for f in done.failed] == []
    assert all(record.reason for record in done.unpriced)


def test_published_rows_of_kinds_apart_calibrate_nothing(done: accuracy.Run) -> None:
    """They are priced and listed, each with what is not known, and are no case of any group."""
    assert done.apart
    assert all(what for what, _ in done.apart)
    assert {row.case.id for _, row in done.apart}.isdisjoint(row.case.id for row in done.rows)
    assert all(f"`{row.case.id}`" in line for (_, row), line in zip(done.apart, report.apart(done.apart), strict=True))


def test_no_group_is_worse_than_recorded(done: accuracy.Run) -> None:
    """Median, 95th percentile, worst, truths above the interval, moments."""
    groups = {name: figures(rows) for name, rows in by_group(done.rows).items()}
    assert accuracy.regressions(groups, outcomes.by_kind(done.verdicts)) == []


def test_no_truth_lies_above_its_interval(done: accuracy.Run) -> None:
    """A plan that is called safe is safe, on everything that is known.

    Only a plan that assumes what its source does not say, and says what another answer would add, may be below.
    """
    assert [row.case.id for row in done.rows if row.unsafe and not row.case.assumption] == []


def test_published_figures_lie_within_the_interval(done: accuracy.Run) -> None:
    """At least 95 % of those with a full configuration and a named counter."""
    rows = [r for r in done.rows if r.case.confidence == "high" and r.case.group not in report.TRACED]
    assert sum(r.inside for r in rows) >= 0.95 * len(rows)


def test_published_readings_lie_within_the_interval(done: accuracy.Run) -> None:
    """At least 95 %, whatever their confidence; 90 % against intervals that no reading of the same source has made."""
    read = [row for row in done.rows if row.case.published]
    assert sum(row.inside for row in read) >= 0.95 * len(read)
    sources = accuracy.leave_one_source_out(done.rows, accuracy.kept(), accuracy.ratios(accuracy.outside()))
    assert sum(each.n for each in sources) == len(read)
    assert sum(each.inside for each in sources) >= 0.9 * len(read)


def test_kinds_with_traces_alone_are_widened(done: accuracy.Run) -> None:
    """All traces of a kind are one piece of evidence: its interval is that of its widest neighbour with readings."""
    made = tables(done.rows, accuracy.kept(), []).allocated
    own, lender = made["deepspeed/sharded"], made["huggingface/qlora"]
    assert own.low <= lender.low < lender.high <= own.high


def test_traced_cases_that_are_off_are_explained(done: accuracy.Run) -> None:
    """Every one beyond 1 %, and no explanation is left over."""
    far = report.far(done.rows)
    assert [r.case.id for r in far if report.explanation(r.case.id) is None] == []
    patterns = load("explanations.json")["cases"]
    assert {p for p in patterns if not any(report.explanation(r.case.id) == patterns[p] for r in far)} == set()


def test_generated_files_are_fresh(done: accuracy.Run) -> None:
    """Tables, plots, recorded figures and the residuals that intervals use."""
    files = {accuracy.RESIDUALS: accuracy.made_residuals(done), **accuracy.written(done)}
    assert accuracy.stale(files) == []


def test_differences_from_careful_tools_are_explained() -> None:
    """Beyond 5 % from SimuMax, mbridge and torch's own trackers."""
    assert peers.unexplained(peers.table()) == []


def test_left_out_families_are_covered(done: accuracy.Run) -> None:
    """Intervals made without a model family hold 95 % of its cases."""
    steps = accuracy.kept()
    found = accuracy.leave_one_family_out(done.rows, steps, accuracy.ratios(accuracy.outside()))
    assert sum(f.inside for f in found) >= 0.95 * sum(f.n for f in found)


def test_a_worse_group_is_reported() -> None:
    """Each recorded figure is compared."""
    with open(accuracy.RECORDED, encoding="utf-8") as file:
        name, old = next(iter(json.load(file).items()))
    same = accuracy.Figures(
        old["n"],
        old["median"],
        old["p95"],
        old["worst"],
        old["unsafe"],
        old["inside"],
        old["moments"][1],
        old["moments"][0],
    )
    for worse in (
        same._replace(median=same.median + 0.01),
        same._replace(p95=same.p95 + 0.01),
        same._replace(worst=same.worst + 0.01),
        same._replace(unsafe=same.unsafe + 1),
        same._replace(agree=same.agree - 1),
        same._replace(n=same.n - 1),
    ):
        assert [p for p in accuracy.regressions({name: worse}, {}) if p.startswith(f"{name}:")] != []
    assert [p for p in accuracy.regressions({name: same}, {}) if p.startswith(f"{name}:")] == []


def test_spread_covers_what_it_was_made_of() -> None:
    """The largest ratio is never above the upper end."""
    ratios = [1.0, 1.01, 0.99, 1.02, 1.0, 1.0, 0.98, 1.0, 1.01, 1.4]
    found = spread(ratios)
    assert found.low <= min(ratios)
    assert found.high >= max(ratios)
    assert spread([1.1]).high == 1.1


def test_differences_of_small_jobs_are_relative_to_a_few_gib() -> None:
    """Half a GiB on one is not fifty percent."""
    assert difference(1.5 * 2**30, 2**30) == 1 + 0.5 / 8
    assert difference(33 * 2**30, 30 * 2**30) == pytest.approx(1.1)
