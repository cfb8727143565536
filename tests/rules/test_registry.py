"""The registry of rules is complete, ordered and documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from memcheck.plan import finding as codes
from memcheck.plan.finding import SEVERITIES
from memcheck.rules import GATE, PROFILES, when
from memcheck.rules.checks import BEYOND_GATE, CHECKS
from memcheck.rules.further import FURTHER
from memcheck.rules.registry import RULES
from memcheck.rules.types import MEASURED, PRECISIONS, PROVABLE

SECTIONS = ("What it does", "Why it matters", "Example", "How to fix", "Options", "Source")


def test_codes_are_unique_and_ordered() -> None:
    """Rules stand in the order of their codes, and no code or name is used twice."""
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_every_module_is_registered(root: Path) -> None:
    """A rule that is written is also named in the registry, and nothing that runs searches the folder."""
    modules = {path.name[:6].upper() for path in (root / "memcheck" / "rules").glob("mem[0-9]*.py")}
    assert modules == {rule.code for rule in RULES if rule.check is not None}
    for name in ("further", "registry"):
        imported = {
            node.module
            for node in ast.walk(ast.parse((root / "memcheck" / "rules" / f"{name}.py").read_text()))
            if isinstance(node, ast.ImportFrom)
        }
        assert imported == {"__future__", "memcheck.rules", "memcheck.rules.types"}


def test_every_file_code_has_a_page() -> None:
    """What the reader of files reports can be explained, under the same name and severity."""
    rules = {rule.code: rule for rule in RULES}
    for code in (each for each in vars(codes).values() if isinstance(each, codes.Code)):
        rule = rules[code.code]
        assert (rule.name, rule.severity, rule.summary) == (code.name, code.severity, code.summary)
        assert rule.check is None


def test_checks_are_the_rules_with_a_check() -> None:
    """What a check may load is exactly what can run, and what is known of a rule before that is its own."""
    checks = [rule for rule in RULES if rule.check is not None]
    assert [rule for rule in checks if rule.profile == GATE] == [each.rule for each in CHECKS]
    for each in CHECKS:
        marks = ("code", "needs_estimate", "blocking", "batch")
        assert [getattr(each, mark) for mark in marks] == [getattr(each.rule, mark) for mark in marks]
        assert each.when is (each.rule.when or when.always)
    assert [rule for rule in checks if rule.profile != GATE] == list(FURTHER)
    assert {rule.code: rule.profile for rule in FURTHER} == BEYOND_GATE


def test_the_gate_has_no_rule_of_thumb() -> None:
    """Who runs memcheck without options meets what is provable, and predictions whose error was measured."""
    assert {rule.precision for rule in RULES if rule.profile == GATE} == {PROVABLE, MEASURED}
    assert {rule.code for rule in RULES if rule.precision == MEASURED and rule.profile == GATE} == {
        rule.code for rule in RULES if rule.needs_estimate and rule.profile == GATE
    }


def test_only_the_gate_blocks() -> None:
    """What keeps a job from starting has to be known in every profile, or its memory would be predicted all the same."""
    assert [rule.code for rule in FURTHER if rule.blocking or rule.severity == "error"] == []


def test_rules_have_their_form() -> None:
    """Code, name, severity and summary have the form that configuration and reports rely on."""
    for rule in RULES:
        assert re.fullmatch(r"MEM[0-7]\d\d", rule.code)
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name), rule.code
        assert rule.severity in SEVERITIES, rule.code
        assert rule.summary.endswith("."), rule.code
        assert rule.precision in PRECISIONS, rule.code
        assert rule.profile in PROFILES, rule.code


def test_pages_have_every_section() -> None:
    """A rule's page has the same sections everywhere, none of them empty, and says its precision and profile in words."""
    for rule in RULES:
        page = rule.explain()
        assert page.startswith(f"# {rule.code} {rule.name}\n")
        assert f"Precision: {rule.precision}; {PRECISIONS[rule.precision]}." in page, rule.code
        assert f"Profile: `{rule.profile}`, " in page, rule.code
        parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
        assert tuple(parts[1::2]) == SECTIONS, rule.code
        assert all(text.strip() for text in parts[2::2]), rule.code


def test_a_module_holds_the_rule_it_is_named_after(root: Path) -> None:
    """The file name carries the code and the name, so that a rule is found without a search."""
    stems = {rule.code: f"{rule.code.lower()}_{rule.name.replace('-', '_')}" for rule in RULES}
    for path in (root / "memcheck" / "rules").glob("mem[0-9]*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert path.stem == stems[path.name[:6].upper()]
