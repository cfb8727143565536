"""``explain`` and ``list``: pages and catalogs, found by what people type."""

from __future__ import annotations

import json

import pytest

from memcheck.__main__ import main
from memcheck.families.registry import FAMILIES, WRAPPERS
from memcheck.rules.registry import RULES

Capture = pytest.CaptureFixture[str]


def test_every_rule_has_a_page(capsys: Capture) -> None:
    """A rule's page is found by code, in any case, and by name; it fits the screen except for its code."""
    for rule in RULES:
        assert main(["explain", rule.code.lower()]) == 0, rule.code
        page = capsys.readouterr().out
        assert page.startswith(f"{rule.code} {rule.name}\n"), rule.code
        assert "Why it matters" in page, rule.code
        assert max(len(line) for line in page.splitlines() if not line.startswith("    ")) <= 100, rule.code
        assert main(["explain", rule.name]) == 0, rule.code
        assert capsys.readouterr().out == page, rule.code


def test_unknown_rule_gets_a_suggestion(capsys: Capture) -> None:
    """A misspelt name is corrected."""
    assert main(["explain", "exceds-capacity"]) == 2
    assert "did you mean exceeds-capacity?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ("oom", ["MEM101"]),
        ("out of memory", ["MEM101"]),
        ("101", ["MEM101"]),
        ("Exceeds_Capacity", ["MEM101"]),
        ("exceeds capacity", ["MEM101"]),
        ("MEM20x", ["MEM201", "MEM202", "MEM203"]),
        ("mem5", ["MEM501", "MEM502"]),
        ("kv heads", ["MEM203", "MEM704"]),
        ("layers", ["MEM206", "MEM410"]),
    ],
)
def test_rules_are_found_by_what_people_type(capsys: Capture, words: str, codes: list[str]) -> None:
    """One rule that is meant is explained; several are listed, by family or by words in their titles."""
    assert main(["explain", *words.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line.split()[0] for line in lines if line.startswith("MEM")]
    assert found[: len(codes)] == codes
    assert lines[0].split()[0] == (codes[0] if len(codes) == 1 else "code")


@pytest.mark.parametrize(
    ("catalog", "entry"),
    [
        ("models", "llama-3.1-8b"),
        ("gpus", "h100-80gb"),
        ("rules", "exceeds-capacity"),
        ("frameworks", "torchtitan"),
        ("architectures", "qwen3_moe"),
    ],
)
def test_catalogs_are_listed(capsys: Capture, monkeypatch: pytest.MonkeyPatch, catalog: str, entry: str) -> None:
    """As a table that fits the screen, and as records with the same entries."""
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["list", catalog]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(entry in line.split() for line in lines[1:])
    assert main(["list", catalog, "--format", "json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert any(record["name"] == entry for record in records)
    assert len(records) <= len(lines) - 1


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["models", "qwen3", "30b"], {"qwen3-30b-a3b", "qwen3-30b-a3b-2507"}),
        (
            ["model", "NEMOTRON 3"],
            {"nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b"},
        ),
        (["gpu", "rtx", "40"], {"rtx-4090", "rtx-4080", "rtx-a4000"}),
        (["archs", "gemma"], {"gemma", "gemma2", "gemma3_text"}),
    ],
)
def test_lists_are_searched(capsys: Capture, arguments: list[str], names: set[str]) -> None:
    """Words behind the catalog leave the entries that have all of them, in any case; singulars are understood."""
    assert main(["list", *arguments, "--format", "json"]) == 0
    found = {record["name"] for record in json.loads(capsys.readouterr().out)}
    assert names <= found
    assert all(word in json.dumps(sorted(found)) for word in arguments[1].lower().split())


def test_a_search_without_a_hit_is_an_error(capsys: Capture) -> None:
    """Nothing found is exit code 2 with what is close, not an empty table."""
    assert main(["list", "models", "qwen9-8b"]) == 2
    error = capsys.readouterr().err
    assert "none of the" in error
    assert "did you mean qwen3-8b" in error


def test_no_architecture_is_without_a_word_on_who_builds_it(capsys: Capture) -> None:
    """Of a model with a tower that the catalog has none of, its config alone says what its parts are."""
    assert main(["list", "architectures"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert rows["aya_vision"].endswith("depends on its config.json")
    assert "huggingface" in rows["qwen3_moe"]
    assert not [line for line in rows.values() if len(line.split()) < 3]


def test_architectures_say_who_builds_them(capsys: Capture) -> None:
    """Each model_type that is read has its models and its frameworks."""
    assert main(["list", "architectures", "--format", "json"]) == 0
    records = {record["name"]: record for record in json.loads(capsys.readouterr().out)}
    assert set(records) == {*FAMILIES, *WRAPPERS}
    assert "llama-3.1-8b" in records["llama"]["models"]
    assert {"huggingface", "torchtitan"} <= set(records["llama"]["frameworks"])
    assert "torchtitan" not in records["bloom"]["frameworks"]


@pytest.mark.slow
@pytest.mark.parametrize("catalog", ["models", "gpus", "rules", "frameworks", "architectures"])
def test_a_piped_row_is_one_line(catalog: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """``list models | grep Qwen/`` finds whole ids; on a screen the last column is wrapped."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["list", catalog, "--format", "json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert main(["list", catalog]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(records)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["list", catalog]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60
