"""SARIF: valid by the official schema, complete by GitHub's list, and stable from run to run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from memcheck.plan.finding import Edit, Finding, Span
from memcheck.report import sarif
from memcheck.report.sarif import document, line_hashes, one_line, uri
from memcheck.rules.registry import RULES
from memcheck.rules.result import Report
from tests.report import samples
from tests.report.formats import NAMES, rendered, report, schema
from tests.report.rule_reports import CODES, ROOT, at_root

HASH = re.compile(r"[0-9a-f]{1,16}:[1-9]\d*")
IDENTITY = re.compile(r"[0-9a-f]{32}")


def log(name: str) -> dict:
    """A report as SARIF."""
    return json.loads(rendered("sarif", name))


def results(name: str) -> list[dict]:
    """The results of a report's only run."""
    (run,) = log(name)["runs"]
    return run["results"]


def region(result: dict) -> dict[str, int]:
    """The primary region."""
    return result["locations"][0]["physicalLocation"]["region"]


@pytest.mark.parametrize("name", NAMES)
def test_log_follows_the_official_schema(name: str) -> None:
    """Clean or not, empty, unreadable, hostile, or one finding of every rule."""
    official = schema("sarif-schema-2.1.0.json")
    validator = jsonschema.Draft4Validator(official, format_checker=jsonschema.FormatChecker())
    assert [error.message for error in validator.iter_errors(log(name))] == []


def test_official_schema_notices() -> None:
    """A region from column 0, a level that does not exist and an unknown property are errors to that schema."""
    validator = jsonschema.Draft4Validator(schema("sarif-schema-2.1.0.json"))
    for spoil in (
        {"level": "fatal"},
        {"line": 1},
        {"locations": [{"physicalLocation": {"region": {"startColumn": 0}}}]},
    ):
        spoilt = log("mixed")
        spoilt["runs"][0]["results"][0].update(spoil)
        assert not validator.is_valid(spoilt)


@pytest.mark.parametrize("name", NAMES)
def test_github_finds_what_it_requires(name: str) -> None:
    """Every property that code scanning marks as required is there, is not empty, and is short enough."""
    found = log(name)
    assert found["$schema"]
    assert found["version"] == "2.1.0"
    (run,) = found["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "memcheck"
    assert driver["version"] == driver["semanticVersion"] == "0.1.0"
    assert isinstance(run["results"], list)
    for rule in driver["rules"]:
        assert rule["id"]
        assert len(rule["name"]) <= 255
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert rule["help"]["text"]
        assert rule["help"]["markdown"]
        assert rule["defaultConfiguration"]["level"] in {"error", "warning", "note"}
        assert 0 < len(rule["properties"]["tags"]) <= 10
        assert rule["properties"]["precision"] in {"very-high", "high", "medium", "low"}
        assert rule["properties"]["problem.severity"] in {"error", "warning", "recommendation"}
        assert "security-severity" not in rule["properties"]
    for result in run["results"]:
        assert result["message"]["text"]
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert len(result["locations"]) == 1
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"]
        assert not place["artifactLocation"]["uri"].startswith("/")
        assert set(place["region"]) >= {"startLine", "startColumn", "endLine", "endColumn"}
        assert HASH.fullmatch(result["partialFingerprints"]["primaryLocationLineHash"])
        assert IDENTITY.fullmatch(result["partialFingerprints"]["memcheck/v1"])


@pytest.mark.parametrize("name", NAMES)
def test_regions_are_on_one_line(name: str) -> None:
    """An alert is shown in a pull request only if all its lines are in the diff; columns count from 1, the end is behind."""
    for result in results(name):
        found = region(result)
        assert found["startLine"] == found["endLine"] >= 1
        assert 1 <= found["startColumn"] < found["endColumn"]


def test_text_comes_along() -> None:
    """What is underlined, and the lines around it, for readers who do not have the file."""
    place = results("mixed")[0]["locations"][0]["physicalLocation"]
    assert place["region"]["snippet"]["text"] == "micro_batch_size: 4"
    around = place["contextRegion"]
    assert (around["startLine"], around["endLine"]) == (9, 13)
    assert around["snippet"]["text"] == "\n".join(samples.SOURCE.splitlines()[8:13])


def test_region_over_lines_or_of_nothing_becomes_one_character() -> None:
    """The place to look at is its beginning."""
    expected = {"startLine": 3, "startColumn": 5, "endLine": 3, "endColumn": 6}
    assert one_line(Span(3, 5, 7, 2)) == one_line(Span(3, 5, 3, 5)) == expected


def test_results_are_there_when_clean() -> None:
    """A run without findings closes the alerts of the last one, and says that it has looked."""
    (run,) = log("clean")["runs"]
    assert run["results"] == run["tool"]["driver"]["rules"] == []
    assert run["invocations"] == [{"executionSuccessful": True}]


def test_unreadable_paths_are_notifications() -> None:
    """What could not be checked is no result; the run says so."""
    ((invocation,),) = (run["invocations"] for run in log("unreadable")["runs"])
    assert invocation["executionSuccessful"] is False
    (note,) = invocation["toolExecutionNotifications"]
    assert note["message"]["text"] == "cannot read a.yaml: Permission denied"


def test_help_is_the_rule_s_page() -> None:
    """One docstring: `memcheck explain`, the documentation and the alert say the same."""
    (run,) = log("rules")["runs"]
    pages = {rule["id"]: rule["help"]["markdown"] for rule in run["tool"]["driver"]["rules"]}
    assert pages == {rule.code: rule.explain() for rule in RULES}
    assert list(pages) == CODES


def test_line_hash_is_that_of_the_file() -> None:
    """What GitHub computes from the checkout and what is uploaded are the same, or its action warns about each result."""
    found = results("rules")
    assert len(found) >= len(CODES)
    for result in found:
        place = result["locations"][0]["physicalLocation"]
        text = (ROOT / place["artifactLocation"]["uri"]).read_bytes().decode("utf-8", "replace")
        expected = line_hashes(text)[place["region"]["startLine"] - 1]
        assert result["partialFingerprints"]["primaryLocationLineHash"] == expected


def test_identity_has_no_line_numbers() -> None:
    """Lines added above a finding leave its own key alone; another key, plan or rule has another one."""
    layout = samples.over()._replace(code="MEM203")
    moved = layout._replace(location=samples.at(90, 3, 22))
    other = layout._replace(pointer="/training/sequence_length")

    def identity(finding: Finding, **changes: object) -> str:
        plan = samples.result("failed", (finding,), **changes)
        (result,) = document(samples.report(plan))["runs"][0]["results"]
        return result["partialFingerprints"]["memcheck/v1"]

    assert identity(layout) == identity(moved)
    others = identity(other), identity(layout, name="b"), identity(layout._replace(code="MEM202"))
    assert len({identity(layout), *others}) == 4
    # What is about the plan as a whole points at the key that is cheapest to change, whichever that is today.
    assert identity(samples.over()) == identity(samples.over()._replace(pointer="/parallelism/zero_stage"))


def test_findings_alike_have_keys_of_their_own() -> None:
    """The same rule at the same key twice is two alerts."""
    plan = samples.result("failed", (samples.over(), samples.over()))
    found = document(samples.report(plan, plan._replace(path="b.yaml")))["runs"][0]["results"]
    assert len({result["partialFingerprints"]["memcheck/v1"] for result in found}) == 4


def test_fixes_are_edits_of_the_file() -> None:
    """The one right correction, and each remedy that can be written, with what it does to the memory."""
    fix = Edit(Span(11, 3, 11, 19), "micro_batch_size")
    plan = samples.result("failed", (samples.over()._replace(fix=(fix,)),), estimate=samples.estimate())
    (result,) = document(samples.report(plan))["runs"][0]["results"]
    correction, remedy = result["fixes"]
    (change,) = correction["artifactChanges"]
    assert change["artifactLocation"]["uri"] == samples.PATH
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": 11, "startColumn": 3, "endLine": 11, "endColumn": 19},
            "insertedContent": {"text": "micro_batch_size"},
        }
    ]
    assert remedy["description"]["text"].startswith("Recompute every layer's activations in backward: ")
    assert remedy["description"]["text"].endswith("137.9% -> 79.2%; time +31%")
    assert remedy["artifactChanges"][0]["replacements"][0]["insertedContent"]["text"] == "full"


def test_related_places_are_labelled() -> None:
    """The other keys that take part, each with its part and its provenance."""
    over = samples.over()
    related = (("39.38 GiB usable", samples.at(3, 1, 4, path="bases/a.yaml", note="from bases/a.yaml")),)
    plan = samples.result("failed", (over._replace(related=related),))
    (result,) = document(samples.report(plan))["runs"][0]["results"]
    (place,) = result["relatedLocations"]
    assert place["message"]["text"] == "39.38 GiB usable (from bases/a.yaml)"
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "bases/a.yaml"


def test_text_of_a_plan_is_no_link() -> None:
    """Brackets that SARIF would read as a link are escaped; other brackets stay."""
    (result,) = results("evil")
    assert r"\[x](http://evil)" in result["message"]["text"]
    assert "\x1b" not in json.dumps(result["message"])
    assert sarif.message(samples.result(), samples.over()._replace(message="a[1] b")).startswith("a[1] b")


def test_paths_are_those_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command runs: relative to the repository's root, percent-encoded; outside of it, in full."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "team a").mkdir()
    with at_root():
        monkeypatch.chdir(tmp_path / "team a")
        assert uri("./x y.yaml") == "team%20a/x%20y.yaml"
        assert uri("../plans/ü#1.yaml") == "plans/%C3%BC%231.yaml"
        assert uri("/elsewhere/a.yaml").startswith("file://")
        assert uri("/elsewhere/a.yaml").endswith("/elsewhere/a.yaml")
        assert document(samples.report())["runs"][0]["automationDetails"] == {"id": "memcheck/team%20a/"}
        monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "team a"))
        assert uri("x.yaml") == "x.yaml"
        assert document(samples.report())["runs"][0]["automationDetails"] == {"id": "memcheck/"}


def test_page_on_the_web_is_named_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules have a ``helpUri`` where somebody has said where the pages are published."""
    mixed = report("mixed")
    assert "helpUri" not in document(mixed)["runs"][0]["tool"]["driver"]["rules"][0]
    monkeypatch.setenv("MEMCHECK_DOCS_URL", "https://example.org/rules/")
    driver = document(mixed)["runs"][0]["tool"]["driver"]
    rules = driver["rules"]
    assert driver["informationUri"] == "https://example.org/rules"
    assert [rule["helpUri"] for rule in rules] == [
        f"https://example.org/rules/{rule['id'][:4]}xx.md#{rule['id'].lower()}" for rule in rules
    ]


def test_defect_of_memcheck_is_described() -> None:
    """A finding that belongs to no rule has a descriptor all the same, since an upload without one is refused."""
    finding = Finding("MEM000", "defect", "error", "memcheck failed", samples.at(1, 1, 2))
    (run,) = document(samples.report(samples.result("error", (finding,), estimate=None)))["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    assert rule["id"] == "MEM000"
    assert "defect" in rule["help"]["text"]


def test_no_more_results_than_github_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with too many is refused as a whole: the gravest are kept, and the run says how many are left out."""
    monkeypatch.setattr(sarif, "MOST_RESULTS", 3)
    mild = samples.over()._replace(severity="warning")
    plan = samples.result("failed", (mild,) * 4 + (samples.over(),))
    (run,) = document(Report("0.1.0", (plan,)))["runs"]
    assert [result["level"] for result in run["results"]] == ["error", "warning", "warning"]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"] == "2 more findings are left out"


@pytest.mark.slow
def test_many_results_are_written_short(tmp_path: Path) -> None:
    """On one long line with thousands of findings none repeats the line, and the gravest are as many as GitHub shows."""
    from memcheck.judge import Gate, check_file
    from memcheck.rules.result import Report

    options = ", ".join(f"o{number}: yes" for number in range(5000))
    text = "memcheck: 1\nmodel: gpt2\nhardware: {gpu: h100-80gb}\ntraining: {micro_batch_size: 1, "
    text += f"sequence_length: 128, options: {{{options}}}}}\n"
    results, _ = check_file("p.yaml", text.encode(), Gate())
    log = sarif.render(Report("0", tuple(results)))
    (run,) = json.loads(log)["runs"]
    assert len(run["results"]) == sarif.MOST_RESULTS
    assert "5,000 more findings are left out" in log
    assert len(log) < 100 * len(text)
