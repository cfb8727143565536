"""The job summary."""

from __future__ import annotations

import pytest

from memcheck.report.markdown import BYTE_LIMIT, summary
from memcheck.rules.result import Report, Unreadable
from tests.report import samples


def test_table_shows_the_fullest_plan_first() -> None:
    """One row per plan: verdict, need, capacity, share, peak; plans without an estimate on top."""
    rows = [line for line in summary(samples.mixed()).splitlines() if line.startswith("| ")][1:5]
    assert ["Not estimated" in rows[0], "137.9%" in rows[1], "86.3%" in rows[2], "71.4%" in rows[3]] == [True] * 4
    assert "54.31 GiB | 39.38 GiB<br>4 x a100-40gb | 137.9%" in rows[1]
    assert [row.split("|")[1].strip() for row in rows] == ["❌", "❌", "⚠️", "✅"]


def test_failed_plan_is_explained_in_a_fold() -> None:
    """Finding, remedies with their effect, budget and assumptions are in the folded part."""
    text = summary(samples.mixed())
    assert text.count("<details>") == text.count("</details>") == 3
    assert "**error MEM101** exceeds-capacity at <code>plans/llama-3.1-8b-docs-sft.yaml:11:3</code>" in text
    assert "| <code>training.activation&#95;checkpointing: none -&#62; full</code> | 137.9% → 79.2% | +31% |" in text
    assert "| activations | 24.44 | 62.1% |" in text


def test_headline_is_the_verdict() -> None:
    """The first line says how it went; an unreadable path is no success."""
    assert summary(samples.report(samples.result())).startswith("### ✅ memcheck: checked 1 plan: 1 passed, 0 failed\n")
    text = summary(Report("0.1.0", (samples.result(),), (Unreadable("b.yaml", "Permission denied"),)))
    assert text.startswith("### ❌ memcheck: ")
    assert "- could not read <code>b.yaml</code>: Permission denied" in text


def test_user_text_is_text() -> None:
    """HTML, markup, table bars and mentions of a plan do not reach the page."""
    evil = "</code></details><script>x</script> | @octocat **b** `c`"
    finding = samples.over()._replace(message=evil, help=evil)
    plan = samples.result("failed", (finding,), name=evil, path=evil, estimate=samples.estimate())
    text = summary(samples.report(plan))
    evil_code = text.partition("<code>")[2].partition("</code>")[0]
    assert "<script>" not in text
    assert "</details><" not in text
    assert "@octocat" not in text.replace(evil_code, "")
    assert "**b**" not in text
    assert "`" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| ❌")]
    assert row.count("|") == 8


@pytest.mark.slow
def test_summary_stays_below_the_limit_of_github() -> None:
    """Details that do not fit are left out and counted; the table and the verdict stay."""
    plans = [samples.result("failed", (samples.over(),), estimate=samples.estimate(), name=f"p{i}") for i in range(900)]
    text = summary(samples.report(*plans))
    assert len(text.encode()) <= BYTE_LIMIT + 200
    assert "plans not shown in detail" in text
    assert "**p899**" in text


@pytest.mark.slow
def test_a_summary_stays_below_githubs_limit() -> None:
    """Long names, many plans and many findings: whole plans are left out, and their number is said."""
    from memcheck.judge import Gate, check_file
    from memcheck.report.markdown import BYTE_LIMIT, summary
    from memcheck.rules.result import Report, Unreadable

    name = "\u6f22" * 20_000
    text = "memcheck: 1\nname: {}\nmodel: gpt2\n" + "".join(f"k{key}: {name[:200]}\n" for key in range(300))
    results, _ = check_file("p.yaml", text.format(name).encode(), Gate())
    plans = tuple(results[0]._replace(name=f"{number}{name}") for number in range(150))
    unread = tuple(Unreadable(f"{number}{name}", "no") for number in range(3000))
    shown = summary(Report("0", plans, unread))
    assert BYTE_LIMIT // 2 < len(shown.encode()) <= BYTE_LIMIT
    assert "plans not shown in detail" in shown
    assert "files more could not be read" in shown
    assert shown.count("<details>") == shown.count("</details>") > 0


def test_plans_that_fail_come_first() -> None:
    """Also one that fails by something else than memory, before a fuller one that passes."""
    full = samples.result("passed")._replace(name="full")
    empty = full._replace(name="other", status="failed", fail_above=1.0)
    rows = [line for line in summary(samples.report(full, empty)).splitlines() if line.startswith(("| ✅", "| ❌"))]
    assert ["other" in rows[0], "full" in rows[1]] == [True, True]
