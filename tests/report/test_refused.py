"""What is wrong with a plan or config that has no estimate: how many lines, and that nothing is lost."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
import yaml

from memcheck.edge.screen import Screen
from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding, Location, Span
from memcheck.record import Record
from memcheck.report.full import render
from memcheck.rules.result import PlanResult, Report
from tests.report import samples


class Mistaken(Record):
    """A file that holds mistakes, as people make them."""

    name: str
    path: str
    text: str
    stated: dict[str, object] = {}  # noqa: RUF012  # never changed
    """What the command line says beside it."""
    says: tuple[str, ...] = ()
    """Parts of what is printed."""


INPUTS = Path(__file__).with_name("mistaken_inputs.yaml")
MISTAKEN = [Mistaken(**{**each, "says": tuple(each.get("says", ()))}) for each in yaml.safe_load(INPUTS.read_text())]
EACH = pytest.mark.parametrize("case", MISTAKEN, ids=[each.name for each in MISTAKEN])
MOST, MEDIAN = 25, 12


def printed(result: PlanResult, columns: int = 100, *, verbose: bool = False) -> str:
    """All that ``check`` prints of one file."""
    return render(Report("0.1.0", (result,)), Screen(columns, verbose=verbose))


def judged(case: Mistaken) -> PlanResult:
    """The only result of a file, which has no estimate."""
    (result,), traces = check_file(case.path, case.text.encode(), Gate(hardware=dict(case.stated)))
    assert traces == []
    assert result.estimate is None, case.name
    return result


@EACH
def test_one_screen_holds_the_mistakes_of_a_file(case: Mistaken) -> None:
    """However many there are; the long form has each of them, and the short one says how many it leaves out."""
    result = judged(case)
    for columns in (100, 120):
        short = printed(result, columns)
        assert short.count("\n") <= MOST, short
        shown = len(re.findall(r"^(?:error|warning|info)\[", short, re.MULTILINE))
        left = re.search(r"^and (\d+) more finding", short, re.MULTILINE)
        assert shown + (int(left[1]) if left else 0) == len(result.findings)
        for part in case.says:
            assert part in " ".join(short.split()), short
    assert len(re.findall(r"^(?:error|warning|info)\[", printed(result, verbose=True), re.MULTILINE)) == len(
        result.findings
    )


def test_half_of_them_take_half_a_screen() -> None:
    """Over files with one mistake and with many."""
    lengths = [printed(judged(case)).count("\n") for case in MISTAKEN]
    assert len(lengths) >= 12
    assert statistics.median(lengths) <= MEDIAN, lengths


def mistakes(count: int, help: str = "", line: int = 0) -> PlanResult:
    """A file with so many errors, each on a line of its own unless ``line`` says one."""
    findings = tuple(
        Finding(
            "MEM503",
            "unusable-source",
            "error",
            f"`train.py` is a script, and no argument says whether it has {number} layers",
            Location(samples.PATH, Span(line or number + 1, 1, line or number + 1, 3)),
            help=help or f"give it {number}",
        )
        for number in range(count)
    )
    return samples.result("error", findings)._replace(estimate=None)


def test_errors_with_one_place_and_one_help_share_both() -> None:
    """The start of their messages, the source line and the help stand once."""
    text = printed(mistakes(3, help="say which", line=4))
    assert text.count("`train.py` is a script") == 1
    assert re.findall(r"^error\[MEM503\] unusable-source: (.*)$", text, re.MULTILINE)[1:] == [
        "... 1 layers",
        "... 2 layers",
    ]
    assert text.count("help: say which") == text.count("4 | hardware:") == 1
    apart = printed(mistakes(3, help="say which"))
    assert apart.count("`train.py` is a script") == apart.count("help: say which") == 3


@pytest.mark.parametrize("count", [1, 2, 5, 8, 40, 400])
def test_what_one_screen_does_not_hold_is_counted(count: int) -> None:
    """As many as there is room for, the first ones."""
    text = printed(mistakes(count))
    assert text.count("\n") <= MOST
    shown = text.count("help: give it")
    assert shown >= min(count, 6)
    assert (f"and {count - shown} more findings: -v shows all\n" in text) == (count > shown)


def test_a_file_as_a_whole_is_not_marked_beside_a_place() -> None:
    """Where a finding about a file has a place in it, that place is shown."""
    source = ("#!/bin/bash", "set -e", "x=1", "torchrun train.py --a 1")
    where = Location(samples.PATH, Span(4, 10, 4, 18))
    whole = Location(samples.PATH, Span(1, 1, 1, 1))
    finding = Finding("MEM503", "unusable-source", "error", "m " * 120, whole, help="h", related=(("here", where),))
    result = samples.result("error", (finding,))._replace(estimate=None, sources={samples.PATH: source})
    text = printed(result)
    assert f" --> {samples.PATH}:4:10\n4 | torchrun train.py --a 1\n" in text
    assert "#!/bin/bash" not in text
