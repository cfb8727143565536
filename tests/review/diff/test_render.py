"""The comparison in words; rendering is a pure function of hand-made records."""

from __future__ import annotations

import re

import pytest

from memcheck.cli.review.diff.compare import PlanDiff, Side, amount, compare
from memcheck.cli.review.diff.report import LIMIT, full, markdown
from memcheck.edge.screen import Screen, width

GIB = 2**30


def side(name: str, activations: float, status: str = "passed", key: str = "") -> Side:
    """A plan on a GPU of 80 GiB with 20 GiB of parameters."""
    parts = {"parameters": 20 * GIB, "activations": int(activations * GIB)}
    device = sum(parts.values())
    path = key or f"plans/{name}.yaml"
    codes = ("MEM101 exceeds-capacity",) if status == "failed" else ()
    return Side(path, path, 0, name, status, device, 80 * GIB, device / (80 * GIB), parts, codes)


def moved() -> PlanDiff:
    """One plan that fails now, one that shrank, one that came, one that went, one in another place."""
    before = [side("a", 10), side("b", 30), side("gone", 5), side("m", 7, key="plans/m.yaml"), side("same", 1)]
    after = [
        side("a", 70, "failed"),
        side("b", 20.5),
        side("new", 15),
        side("m", 7, key="moved/m.yaml"),
        side("same", 1),
    ]
    return compare(before, after, ("main (merge base 0123abcd)", "the working tree"), unchanged=8)


FULL = """\
a  plans/a.yaml: changed, fails now
  device memory needed  30.00 ->  90.00  +60.00 GiB
  of capacity           37.5% -> 112.5%  +75.0 points
    activations         10.00 ->  70.00  +60.00
  MEM101 exceeds-capacity

new  plans/new.yaml: added
  35.00 GiB, 43.8% of capacity

m  moved/m.yaml: renamed from plans/m.yaml
  27.00 GiB, 33.8% of capacity

b  plans/b.yaml: changed
  device memory needed  50.00 -> 40.50  -9.50 GiB
  of capacity           62.5% -> 50.6%  -11.9 points
    activations         30.00 -> 20.50  -9.50

gone  plans/gone.yaml: removed
  25.00 GiB, 31.2% of capacity

1 plan fails now, 1 added, 1 removed, 1 renamed, 2 changed, 9 unchanged (main (merge base 0123abcd)
-> the working tree)
"""

MARKDOWN = """\
### ❌ memcheck: 1 plan fails now, 1 added, 1 removed, 1 renamed, 2 changed

| | Plan | Before | After | Change | Of capacity |
|---|---|---:|---:|---:|---|
| ✅ → ❌ | **a**<br><code>plans/a.yaml</code> | 30.00 GiB | 90.00 GiB | **+60.00 GiB**<br>fails now | 37.5% → 112.5%<br>+75.0 points |
| ✅ | **new**<br><code>plans/new.yaml</code> |  | 35.00 GiB | added | 43.8% |
| ✅ | **m**<br><code>moved/m.yaml</code><br>was <code>plans/m.yaml</code> | 27.00 GiB | 27.00 GiB | renamed | 33.8% |
| ✅ | **b**<br><code>plans/b.yaml</code> | 50.00 GiB | 40.50 GiB | **-9.50 GiB** | 62.5% → 50.6%<br>-11.9 points |
|  | **gone**<br><code>plans/gone.yaml</code> | 25.00 GiB |  | removed | 31.2% |

<details><summary><b>a</b></summary>

| Component | Before, GiB | After, GiB | Change |
|---|---:|---:|---:|
| activations | 10.00 | 70.00 | +60.00 |

Errors: <code>MEM101 exceeds-capacity</code>

</details>

<details><summary><b>b</b></summary>

| Component | Before, GiB | After, GiB | Change |
|---|---:|---:|---:|
| activations | 30.00 | 20.50 | -9.50 |

</details>

<sub>main (merge base 0123abcd) → the working tree. 9 unchanged.</sub>
"""


def test_full_golden() -> None:
    """The terminal shows a block per plan that moved, what fails now first, and one line that counts all."""
    assert full(moved(), Screen()) == FULL


def test_markdown_golden() -> None:
    """The summary and the comment show a table, then each plan's components folded."""
    assert markdown(moved()) == MARKDOWN


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_full_stays_within_the_screen(columns: int) -> None:
    """No line is wider than the screen."""
    assert all(width(line) <= columns for line in full(moved(), Screen(width=columns)).splitlines())


@pytest.mark.slow
def test_long_comparison_loses_its_middle() -> None:
    """Thousands of plans fit GitHub's limit: growth stays on top, shrinkage at the end, the rest is counted."""
    count = 3000
    before = [side(f"plan-{i}", 30) for i in range(count)]
    after = [side(f"plan-{i}", 30 + 20 * (count / 2 - i) / count) for i in range(count)]
    text = markdown(compare(before, after, ("main", "the working tree")))
    assert len(text) <= LIMIT
    rows = [line for line in text.splitlines() if line.startswith("| ✅")]
    assert "plan-0<" not in text
    assert "**plan-0**" in rows[0]
    assert f"**plan-{count - 1}**" in rows[-1]
    changed = count - 1  # the one in the middle is as it was
    assert f"… {changed - len(rows):,} more …" in text
    assert text.count("<details>") == text.count("</details>")


def test_details_give_way_before_rows() -> None:
    """With room for the rows alone every plan keeps its row, and the missing components are counted."""
    before, after = [side(f"p{i}", 30) for i in range(50)], [side(f"p{i}", 31 + i) for i in range(50)]
    text = markdown(compare(before, after, ("main", "now")), limit=12_000)
    assert len(text) <= 12_000
    assert sum(line.startswith("| ✅") for line in text.splitlines()) == 50
    assert "The components of" in text
    assert text.count("<details>") == text.count("</details>") < 50


def test_names_cannot_inject_markup() -> None:
    """A plan's name and path are text: no mention, no table cell, no HTML."""
    name = "@team | <img src=x> <!-- memcheck --> `x`\n### y"
    text = markdown(compare([], [side(name, 1)], ("a|b", "c")))
    assert "@team" not in re.sub("<code>.*?</code>", "", text)  # code mentions nobody
    assert "<img" not in text
    assert "<!--" not in text
    assert len([line for line in text.splitlines() if line.startswith("###")]) == 1


def test_small_steps_are_not_rounded_to_nothing() -> None:
    """A change of a few bytes is not shown as +0.00."""
    tiny = compare([side("a", 10)], [side("a", 10 + 1 / GIB)], ("x", "y"))
    assert "+0.00 GiB" not in full(tiny, Screen())
    assert "+0.000000001 GiB" in full(tiny, Screen())


def test_moving_files_alone_is_quiet_in_markdown() -> None:
    """A plan in another folder, with the memory it had, is no reason for a comment."""
    same = compare([side("a", 1, key="x/a.yaml")], [side("a", 1, key="y/a.yaml")], ("x", "y"))
    assert same.changes[0].kind == "renamed"
    assert markdown(same) == ""


def hosted(name: str, need: float, has: float | None = 512) -> Side:
    """A plan whose processes need so many GiB of a node's memory."""
    return side(name, 10)._replace(
        host_bytes=int(need * GIB), host_capacity_bytes=None if has is None else int(has * GIB)
    )


def test_host_memory_that_moved_is_a_change() -> None:
    """A plan that needs more of a node and nothing more of its GPU has changed, in every format and past a minimum."""
    before, after = [hosted("a", 200), hosted("b", 8)], [hosted("a", 300.5), hosted("b", 8)]
    found = compare(before, after, ("old", "new"), least=amount("1GiB"))
    assert [change.side.name for change in found.changes] == ["a"]
    (change,) = found.changes
    assert change.delta_bytes == 0
    assert change.delta_host_bytes == int(100.5 * GIB)
    assert "host memory of a node  200.00 of 512.00 -> 300.50 of 512.00  +100.50 GiB" in full(found, Screen())
    text = markdown(found)
    assert "host +100.50 GiB a node" in text
    assert "Host memory of a node, GiB: 200.00 of 512.00 → 300.50 of 512.00 (+100.50 GiB)." in text
    small = compare([hosted("a", 200)], [hosted("a", 200.5)], ("old", "new"), least=amount("1GiB"))
    assert (small.changes, small.minor) == ((), 1)


def test_host_memory_without_a_size_is_told_alone() -> None:
    """Where the plan does not say what a node has, the need stands alone."""
    found = compare([hosted("a", 1, None)], [hosted("a", 2, None)], ("old", "new"))
    assert "host memory of a node   1.00 ->  2.00  +1.00 GiB" in full(found, Screen())


def test_components_stand_below_the_device_memory() -> None:
    """Host memory comes after the components of the GPU's, which it is no sum of."""
    before, after = hosted("a", 200), side("a", 20)._replace(host_bytes=300 * GIB, host_capacity_bytes=512 * GIB)
    lines = full(compare([before], [after], ("old", "new")), Screen()).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["device", "of", "activations", "host"]
