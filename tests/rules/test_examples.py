"""Every rule's bad example shows it, and its good example does not."""

from __future__ import annotations

from pathlib import Path

from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding
from memcheck.rules.registry import RULES
from tests.rules.configured import settings_of

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "rules" / "examples"
BAD = sorted(EXAMPLES.glob("*.bad.yaml"))
GOOD = sorted(EXAMPLES.glob("*.good.yaml"))


def findings(path: Path) -> list[Finding]:
    """What is found in one example, without the search for remedies."""
    data = path.read_bytes()
    results, traces = check_file(str(path), data, Gate(profile="research", settings=settings_of(data)))
    assert traces == []
    return [f for result in results for f in result.findings]


def name(path: Path) -> str:
    """An example by its rule's code."""
    return path.name.partition(".")[0]


def test_every_rule_has_both_examples() -> None:
    """There is one bad and one good example for each code of the registry, and no others."""
    codes = {rule.code for rule in RULES}
    assert {name(path) for path in BAD} == {name(path) for path in GOOD} == codes


def test_bad_example_is_found_at_its_line() -> None:
    """The bad example has a finding of its code on a line of its own text, underlined on that line alone."""
    for path in BAD:
        code = name(path)
        mine = [f for f in findings(path) if f.code == code]
        assert mine, [f"{f.code}: {f.message}" for f in findings(path)]
        lines = path.read_bytes().splitlines()
        for finding in mine:
            span = finding.location.span
            assert finding.location.path == str(path), path
            assert 1 <= span.line <= len(lines), path
            assert span.line == span.end_line, path
            assert 1 <= span.column < span.end_column <= len(lines[span.line - 1]) + 1, path
            assert finding.message, path


def test_bad_example_is_bad_in_one_way() -> None:
    """No error of another rule hides in a bad example."""
    for path in BAD:
        others = [f"{f.code}: {f.message}" for f in findings(path) if f.severity == "error" and f.code != name(path)]
        assert others == [], path


def test_good_example_is_clean() -> None:
    """The good example has no finding of its code and no error at all."""
    for path in GOOD:
        found = findings(path)
        assert [f.message for f in found if f.code == name(path)] == [], path
        assert [f"{f.code}: {f.message}" for f in found if f.severity == "error"] == [], path


def test_example_says_what_it_teaches() -> None:
    """The first line of an example is a comment for people."""
    for path in [*BAD, *GOOD]:
        assert path.read_bytes().startswith(b"# "), path
