"""The pages that are generated stay what their sources say; what pages tell people to type and to write is taken."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from docs.plan_format import MOST
from memcheck.cli.app import app
from memcheck.config.find import DEFAULT_FAIL_ABOVE
from memcheck.config.read import READERS, read_settings
from memcheck.judge import Gate, check_file
from tests.packaging.sentences import LONGEST, in_markdown
from tests.packaging.test_sentences import OURS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if "internals" not in page.parts
)
"""What people read: everything but the pages on internals."""
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
BASE = """
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 8}
training: {framework: huggingface, micro_batch_size: 1, sequence_length: 4096}
"""
"""What a part of a plan is merged over."""
ELSEWHERE = {"MEM503", "MEM024"}
"""Findings about a file that an example names and that is not here."""


def blocks(*languages: str) -> list[tuple[str, str]]:
    """The fenced blocks of some languages, and the page that each is on."""
    found = [(page, each) for page in PAGES for each in BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [(page.relative_to(ROOT).as_posix(), text) for page, (_, name, text) in found if name in languages]


@pytest.mark.slow
def test_generated_pages_are_fresh(root: Path) -> None:
    """The plan format and the rule pages are what docs.generate would write now."""
    command = [sys.executable, "-m", "docs.generate", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_configuration_example_is_complete(root: Path, tmp_path: Path) -> None:
    """The example configuration of docs/ci.md sets every key there is, and is accepted."""
    (example,) = re.findall(
        r"^```toml\n(.*?)^```$", (root / "docs" / "ci.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "memcheck.toml").write_text(example, encoding="utf-8")
    settings = read_settings(str(tmp_path / "memcheck.toml"))
    assert settings.fail_above == DEFAULT_FAIL_ABOVE
    assert set(re.findall(r"^([\w-]+) =", example, re.MULTILINE)) == set(READERS)


@pytest.mark.parametrize("text", [text for _, text in blocks("toml", "ini")])
def test_configurations_are_accepted(text: str, tmp_path: Path) -> None:
    """Every configuration that a page shows."""
    (tmp_path / "memcheck.toml").write_text(text, encoding="utf-8")
    read_settings(str(tmp_path / "memcheck.toml"))


def commands() -> list[str]:
    """Every memcheck command of the pages' shell blocks, without what a shell does with it."""
    lines = [line for _, text in blocks("sh") for line in re.sub(r"\\\n\s*", " ", text).splitlines()]
    parts = [part.strip() for line in lines for part in re.split(r"\s(?:&&|\||;|>)(?:\s|$)|\s#\s", f" {line} ")]
    return [
        part[part.index("memcheck ") :] for part in parts if re.match(r"(?:torchrun .* |\.venv/bin/)?memcheck ", part)
    ]


def test_commands_are_taken() -> None:
    """Each has a command and options that memcheck knows, with values that they take."""
    for line in sorted(set(commands())):
        name, *words = shlex.split(line)[1:]
        context = app.make_context("memcheck", [name, *words])
        command = app.get_command(context, name)
        assert command is not None, line
        if isinstance(command, click.Group):
            command = command.get_command(context, words.pop(0))
            assert command is not None, line
        command.make_context(name, words, parent=context)


def test_there_are_commands() -> None:
    """Nothing passes because nothing is found."""
    assert len(commands()) > 60


def merged(under: object, over: object) -> object:
    """A mapping with another one deep in it."""
    if isinstance(under, dict) and isinstance(over, dict):
        return {**under, **{key: merged(under.get(key), value) for key, value in over.items()}}
    return over


def plans() -> list[str]:
    """Every plan and every part of a plan that a page shows."""
    sections = set(yaml.safe_load(BASE)) | {"parallelism", "inference"}
    found = []
    for _, text in blocks("yaml"):
        for each in yaml.safe_load_all(text):
            if isinstance(each, dict) and set(each) <= sections | {"source", "name"} and "script" not in str(each):
                found.append(text)  # noqa: PERF401 - a file of several plans is one text
    return found


@pytest.mark.parametrize("text", plans())
def test_plans_are_read(text: str) -> None:
    """A plan, or a part of one put over a small plan, has no error but of memory, layout and files that are not here."""
    plan = merged(yaml.safe_load(BASE), yaml.safe_load(text))
    assert isinstance(plan, dict)
    if "inference" in plan:
        del plan["training"]
    if "architecture" in str(plan["model"]) or "config" in str(plan["model"]):
        plan["model"] = yaml.safe_load(text)["model"]
    results, traces = check_file("plan.yaml", yaml.safe_dump(plan).encode(), Gate())
    assert not traces
    wrong = {finding.code for result in results for finding in result.findings if finding.severity == "error"}
    assert {code for code in wrong if code[:4] == "MEM0"} - ELSEWHERE == set()


def test_the_keys_that_most_plans_need() -> None:
    """The plan format opens with a plan of 25 keys, which has no finding."""
    plan = yaml.safe_load(MOST)
    assert sum(len(value) if isinstance(value, dict) else 1 for value in plan.values()) == 25
    (result,), traces = check_file("plan.yaml", MOST.encode(), Gate())
    assert not traces
    assert (result.status, result.findings) == ("passed", ())


def test_sentences_are_short_and_plain() -> None:
    """On every page that is not about internals: at most thirty words, and none of our own."""
    found = [
        (page.relative_to(ROOT).as_posix(), each)
        for page in PAGES
        for each in in_markdown(page.read_text(encoding="utf-8"))
    ]
    assert [
        f"{page}:{each.line}: {each.words} words: {each.text}" for page, each in found if each.words > LONGEST
    ] == []
    assert [f"{page}:{each.line}: {each.text}" for page, each in found if OURS.search(each.text)] == []
