"""A finding on one screen: how many lines, and which of the things that are known."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from statistics import median

import pytest

from benchmarks.over_budget import plans
from memcheck.__main__ import main
from memcheck.edge.screen import Screen
from memcheck.judge import Gate, check_file
from memcheck.report.full import render
from memcheck.rules.result import PASSED, PlanResult, Report
from memcheck.what_if import with_remedies
from tests.cli.plans import write, write_broken, write_over
from tests.examples.rendered import NAMES, results
from tests.report import samples
from tests.report.failing import judged

Capture = pytest.CaptureFixture[str]
ONE_SCREEN = 22
LONGEST = 24
"""Lines of a plan with one finding: three of four remedies' keys, or four lines of message, are more than most."""
HOST = 27
"""Where a node lacks memory: the bar of the node, then that of the GPU."""


def lines(plan: PlanResult, columns: int) -> int:
    """How many lines ``check`` prints of one plan, with all that stands below it."""
    return render(Report("0.1.0", (plan,)), Screen(columns)).count("\n")


def assert_one_screen(failing: list[PlanResult]) -> None:
    for columns in (80, 100, 120):
        assert median(lines(plan, columns) for plan in failing) <= ONE_SCREEN, columns
    for plan in failing:
        if len(plan.findings) == 1:
            assert lines(plan, 100) <= (HOST if plan.findings[0].code == "MEM106" else LONGEST), plan.path


def test_examples_that_fail_take_one_screen() -> None:
    """Half of them at most 22 lines; none with one finding much more."""
    found = [plan for name in NAMES for plan in results(name) if plan.status != PASSED]
    assert len(found) > 15
    assert_one_screen(found)


@pytest.mark.slow
def test_plans_over_their_budget_take_one_screen() -> None:
    """Dense, mixtures, adapters, long context, serving, on 1 to 2,048 GPUs; every one of them with a remedy's line."""
    found = []
    for name, text in plans().items():
        judged, traces = check_file(f"plans/{name}.yaml", text.encode(), Gate(remedies=with_remedies))
        assert not traces
        found += judged
    assert len(found) > 35
    assert all(plan.status != PASSED for plan in found)
    assert_one_screen(found)
    assert max(lines(plan, 100) for plan in found) <= LONGEST


def test_what_is_left_out_is_in_the_long_form() -> None:
    """``-v`` adds the budget, the tensors, the assumptions and all remedies to what one screen says."""
    plan = samples.result("failed", (samples.over(),), estimate=samples.estimate())
    short, long = (render(samples.report(plan), Screen(100, verbose=verbose)) for verbose in (False, True))
    for part in ("memory of one GPU", "largest live tensors", "assumed:", "interval: "):
        assert part not in short
        assert part in long
    assert len(short.splitlines()) < len(long.splitlines()) / 2


def test_remedies_give_way_to_the_length_of_the_screen() -> None:
    """At most three; fewer where they are long, never none, and the title says how many more there are."""
    (remedy, *_) = samples.over().remedies
    for keys, shown in ((1, 3), (8, 1)):
        long = remedy._replace(set={f"training.options.some_rather_long_name_{i}": i for i in range(keys)})
        plan = samples.result("failed", (samples.over()._replace(remedies=(long,) * 5),), estimate=samples.estimate())
        text = render(samples.report(plan), Screen(100))
        assert len(re.findall(r"^  \d\. ", text, re.MULTILINE)) == shown
        assert f"change; {5 - shown} more with -v\n" in text


def test_a_node_s_memory_has_a_bar_of_its_own() -> None:
    """What a node needs stands beside what it has, once."""
    text = render(Report("0.1.0", (judged("host-load"),)), Screen(100))
    assert len(re.findall(r"GiB of a node's memory", text)) == 1
    assert "host memory of a node:" not in text


def test_what_is_said_twice_is_shown_once() -> None:
    """A line whose label another line has already is left out, and so is what the finding's own line says."""
    over = samples.over()
    label, where = over.related[0]
    again = where._replace(span=where.span._replace(line=where.span.line + 1, end_line=where.span.line + 1))
    plan = samples.result(
        "failed", (over._replace(related=((label, where), (label, again))),), estimate=samples.estimate()
    )
    assert render(samples.report(plan), Screen(100)).count(label) == 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository to stand in."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_marked_is_what_fix_makes(root: Path, folder: Path, capsys: Capture) -> None:
    """The summary counts the marks, and ``--fix`` makes as many."""
    for code in ("MEM003", "MEM011", "MEM016"):
        shutil.copy(root / "docs" / "rules" / "examples" / f"{code}.bad.yaml", folder)
    for form in ("full", "concise"):
        assert main(["check", ".", "--format", form]) == 1
        out = capsys.readouterr().out
        assert out.endswith("\n[*] 5 of 6 findings can be fixed with --fix\n")
        assert out.count("[*]") == 5 + 1
    assert main(["check", ".", "--fix", "--format", "concise"]) == 1
    assert capsys.readouterr().err == "memcheck: fixed 5 findings in 2 files\n"


def test_remedies_that_would_be_written_are_counted_apart(folder: Path, capsys: Capture) -> None:
    """What ``--fix`` mends, then what ``--unsafe-fixes`` would; after both nothing is left."""
    write_broken(folder)
    write(folder, "over", gpu="a100-40gb", zero_stage="0")
    assert main(["check", "."]) == 1
    out = capsys.readouterr().out
    assert out.endswith("\n[*] 1 of 2 findings can be fixed with --fix, 1 more with --fix --unsafe-fixes\n")
    assert "help: `--fix --unsafe-fixes` writes remedy 1;" in out
    assert main(["check", ".", "--fix", "--unsafe-fixes"]) == 0
    assert "can be fixed" not in capsys.readouterr().out


def test_where_to_read_more_is_said_once_and_can_be_run(folder: Path, capsys: Capture) -> None:
    """One line for all rules of a run, and it is a command line."""
    write_over(folder)
    write_over(folder, "second")
    write_broken(folder)
    assert main(["check", "."]) == 1
    (line,) = re.findall(r"^more: (.*)$", capsys.readouterr().out, re.MULTILINE)
    words = shlex.split(line.partition(";")[0])
    assert words[:2] == ["memcheck", "explain"]
    assert len(words) == 4
    assert main(words[1:]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^{code} ", out, re.MULTILINE) for code in words[2:])


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_the_long_form_is_asked_for(folder: Path, capsys: Capture, option: str) -> None:
    """On the screen and in a file."""
    write_over(folder)
    assert main(["check", "over.yaml", option, "--format", "full", "--format", "full=long.txt"]) == 1
    out = capsys.readouterr().out
    assert "device memory needed" in out
    assert "device memory needed" in (folder / "long.txt").read_text(encoding="utf-8")
    assert main(["check", "over.yaml"]) == 1
    assert "device memory needed" not in capsys.readouterr().out


def test_a_long_note_is_cut_and_says_so() -> None:
    """A list of defaults does not push the finding off the screen; the long form has all of it."""
    (note,) = (samples.over()._replace(code="MEM504", severity="info", remedies=(), message="a default; " * 100),)
    plan = samples.result("passed", (note,))
    short, long = (render(samples.report(plan), Screen(100, verbose=verbose)) for verbose in (False, True))
    assert " ...\n" in short
    short, long = (" ".join(text.split()) for text in (short, long))
    assert 3 < short.count("a default;") < 7
    assert "-v shows" in short
    assert long.count("a default;") == 100
