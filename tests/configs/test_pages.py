"""The page of each format is true: every line of its tables is put into its example, and read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from memcheck.configs.config_file import flat
from memcheck.configs.formats import FORMATS
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

FOLDER = Path(__file__).parents[2] / "docs" / "internals" / "configs"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
REST: dict[str, object] = {
    "model": "llama-3.1-8b",
    "hardware.gpu": "h100-80gb",
    "hardware.gpus_per_node": 8,
    "training.sequence_length": 4096,
    "training.micro_batch_size": 1,
}
"""What an example that is half of a job leaves open; stated only where its reading asks for it."""


class Line(NamedTuple):
    """A line of a table."""

    page: str
    section: str
    first: str
    second: str


def lines(section: str) -> list[Line]:
    """Every line of one section's tables, over all pages."""
    found = []
    for page in PAGES:
        text = (FOLDER / f"{page}.md").read_text()
        part = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert part is not None, f"{page} says nothing about what is {section.lower()}"
        rows = re.findall(r"^\| *`([^`]+)` *\| *(.+?) *\|", part[1], re.MULTILINE)
        found += [Line(page, section, *row) for row in rows]
    return found


def example(page: str) -> tuple[str, str]:
    """The example of a page: its language and its text."""
    pattern = re.compile(r"^## Example\n+```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    found = pattern.search((FOLDER / f"{page}.md").read_text())
    assert found is not None, f"{page} has no example"
    return found[1], found[2]


def with_key(page: str, written: str) -> tuple[str, bytes]:
    """The example with one more key, or with another value of one that it has."""
    language, text = example(page)
    key, _, value = written.partition(": ")
    if language == "sh":
        flag = f"--{key}" if value == "true" else f"--{key} {value}"
        return "config.sh", f"{text.rstrip()} {flag}\n".encode()
    if language == "py":
        more, found = f"{key}={yaml.safe_load(value)!r}", re.search(rf"\b{key}=[^,)]+", text)
        if found is not None:
            return "config.py", f"{text[: found.start()]}{more}{text[found.end() :]}".encode()
        return "config.py", text.replace("SFTConfig(", f"SFTConfig({more}, ").encode()
    values: dict[str, Any] = yaml.safe_load(text) if language in ("yaml", "json") else _toml(text)
    *sections, name = key.split(".")
    table = values
    for each in sections:
        below = table.setdefault(each, {})
        if not isinstance(below, dict):
            table[each] = below = {}
        table = below
    table[name] = yaml.safe_load(value)
    if language == "toml":
        return "config.toml", "".join(f"{each} = {json.dumps(found)}\n" for each, found in flat(values)).encode()
    return f"config.{language}", (
        json.dumps(values, indent=1) if language == "json" else yaml.safe_dump(values)
    ).encode()


def _toml(text: str) -> dict[str, Any]:
    from memcheck.edge.toml import parse_toml

    return parse_toml(text)


def read(page: str, name: str, data: bytes) -> Imported:
    """The import of an example, with what it asks for beside it."""
    stated: dict[str, ReadSetting] = {}
    found = import_config(name, data, stated, page)
    for _ in REST:
        asked = [key for each in found.problems for key in each.keys if key in REST and key not in stated]
        if not asked:
            break
        stated.update((key, ReadSetting(REST[key], "test")) for key in asked)
        found = import_config(name, data, stated, page)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_example_becomes_a_plan(page: str) -> None:
    """The example of a page is read without a problem and without a note, and recognised by its content."""
    language, text = example(page)
    found = read(page, f"config.{language}", text.encode())
    assert (found.problems, found.notes) == ((), ())
    assert FORMATS[page].recognise(FORMATS[page].load(f"config.{language}", text))


@pytest.mark.slow
def test_what_is_read() -> None:
    """A line of the config becomes the plan's key and value beside it, and names its place."""
    for line in lines("Read"):
        found = read(line.page, *with_key(line.page, line.first))
        assert found.problems == (), line
        for written in re.findall(r"`([^`]+)`", line.second):
            key, _, value = written.partition(": ")
            assert (key, found.settings[key].value) == (key, yaml.safe_load(value)), line
            assert found.settings[key].location is not None, line


def test_what_is_assumed() -> None:
    """What the example leaves to its framework is in the plan, marked as nobody's statement."""
    for line in lines("Assumed"):
        language, text = example(line.page)
        found = read(line.page, f"config.{language}", text.encode())
        key, _, value = line.first.partition(": ")
        setting = found.settings[key]
        assert (setting.value, setting.location, setting.assumed) == (yaml.safe_load(value), None, True), line


@pytest.mark.slow
def test_what_is_not_modelled() -> None:
    """A key without a place in a plan is a note or a refusal at that key: never silence."""
    for line in lines("Not modelled"):
        name, data = with_key(line.page, line.first)
        alone, found = import_config(name, data, {}, line.page), read(line.page, name, data)
        said = [each.message for each in (*alone.problems, *found.problems) if line.second.startswith("refused")]
        said += [each.message for each in found.notes if line.second.startswith("a note")]
        key = line.first.partition(":")[0]
        assert any(
            key in each or key.rpartition(".")[2] in each or line.first.partition(": ")[2] in each for each in said
        ), line
