"""The rows of the memory budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memcheck.accounts.estimate import COMPONENTS
from memcheck.edge.screen import Screen, words
from memcheck.report import text_blocks
from memcheck.report.story.memory import ledger
from memcheck.report.story.summary import gauge
from memcheck.report.text import bar as drawn
from tests.report import samples

GIB = 2**30
SIZES = st.lists(st.integers(0, 200 * GIB), min_size=len(COMPONENTS), max_size=len(COMPONENTS))


def rows(sizes: list[int], capacity: int, columns: int = 100) -> list[str]:
    """The budget of an estimate with these components, in the order of the report."""
    components = dict(zip(COMPONENTS, sizes, strict=True))
    estimate = samples.estimate()._replace(
        components_bytes=components, device_bytes=sum(sizes), capacity_bytes=capacity
    )
    return text_blocks.ledger(ledger(samples.result("failed", estimate=estimate), estimate), Screen(columns))


def bar(row: str) -> str:
    """The drawing of a row: what stands behind its percentage."""
    return row.partition("%")[2]


@given(SIZES, st.integers(GIB, 300 * GIB), st.sampled_from([60, 80, 100, 120]))
def test_every_component_is_drawn_inside_the_total(sizes: list[int], capacity: int, columns: int) -> None:
    """Whatever the sizes: one row per component that holds memory, each with a bar that ends where the total does."""
    lines = rows(sizes, capacity, columns)
    held = [words(name) for name, size in zip(COMPONENTS, sizes, strict=True) if size]
    components = lines[1 : 1 + len(held)]
    assert [line[: len(label)] for line, label in zip(components, held, strict=True)] == held
    needed = next(line for line in lines if line.startswith("device memory needed"))
    last = max((index for index, char in enumerate(bar(needed)) if char in "█│"), default=0)
    for line in components:
        assert "█" in bar(line) or bar(line).count("│") == 1
        assert bar(line).rstrip().rfind("█") <= last
    assert all(len(line) <= columns for line in lines)


def test_a_component_that_just_crosses_the_line_is_red_behind_it() -> None:
    """The part of a bar behind the capacity line has another colour than the part before it."""
    components = {"activations": 60 * GIB}
    estimate = samples.estimate()._replace(components_bytes=components, device_bytes=60 * GIB, capacity_bytes=40 * GIB)
    plan = samples.result("failed", estimate=estimate)
    row = next(
        r for r in text_blocks.ledger(ledger(plan, estimate), Screen(100, color=True)) if r.startswith("activations")
    )
    before, _, behind = row.partition("│")
    assert "\x1b[36m█" in before
    assert "\x1b[31m█" in behind


def test_verdict_of_the_rows() -> None:
    """What is left or missing is capacity minus need, in GiB and as a share."""
    assert rows([10 * GIB] + [0] * 11, 40 * GIB)[-1].split() == ["left", "30.00", "75.0%"]
    assert rows([50 * GIB] + [0] * 11, 40 * GIB)[-1].split() == ["missing", "10.00", "25.0%"]


@given(st.floats(0, 50), st.sampled_from([12, 36, 40]))
def test_gauge_has_its_width(used: float, cells: int) -> None:
    """The bar of a plan is as wide as it should be; its mark stands before what is too much, and behind what is not."""
    plan = samples.result(estimate=samples.estimate(used), fail_above=0.9)
    text = drawn(gauge(plan, plan.estimate), cells, Screen())
    assert len(text) == cells
    before, mark, behind = text.partition("│")
    assert mark
    if plan.estimate.utilization < 0.85:
        assert "█" not in behind
    if plan.estimate.utilization > 1.1:
        assert set(before) == {"█"}
        assert behind.startswith("█")
