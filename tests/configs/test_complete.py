"""A format of configs is complete: a reader has all that belongs to it, and nothing belongs to no reader.

Each check says what is missing and where it goes. CONTRIBUTING.md has the same list.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.configs.config_file import flat
from memcheck.configs.documents import load_plans
from memcheck.configs.formats import FORMATS
from memcheck.configs.importing import import_config
from memcheck.configs.key_table import KeyTable, formats, key_table
from memcheck.configs.types import ConfigError, ReadSetting
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.plan.read import load_documents, read_plan

ROOT = Path(__file__).parents[2]
SCHEMA = "schemas/plan.schema.json"
PAGE = "docs/reference/configs.md"
SECTIONS = ("Example", "Read", "Assumed", "Not modelled")
"""Sections of a page that tests run: ``test_pages.py`` puts each line of their tables into the example."""
STATED: dict[str, object] = {
    "model": "llama-3.1-8b",
    "hardware.gpu": "h100-80gb",
    "hardware.gpus_per_node": 8,
    "training.sequence_length": 4096,
    "training.micro_batch_size": 1,
}
"""What an example that is half of a job leaves open."""


def module(name: str) -> str:
    """The stem of a format's modules."""
    return name.replace("-", "_")


def rows(root: Path) -> dict[str, str]:
    """The registry's rows: each format's name and title."""
    text = (root / "memcheck/configs/formats.py").read_text(encoding="utf-8")
    return dict(re.findall(r'^ +Format\("([\w-]+)", "([^"]+)"', text, re.MULTILINE))


def schema_words(root: Path) -> set[str]:
    """The formats that ``source`` of a plan may name."""
    schema = json.loads((root / SCHEMA).read_text(encoding="utf-8"))
    return set(schema["definitions"]["source"]["properties"])


def lacks(root: Path, name: str) -> Iterator[str]:
    """What belongs to a format and is missing below ``root``; each with the file that gets it."""
    reader, table = root / f"memcheck/configs/read_{module(name)}.py", root / f"memcheck/configs/keys/{name}.yaml"
    if not reader.is_file() or "\nREADER = Reader(" not in reader.read_text(encoding="utf-8"):
        yield f"{name}: no reader: READER = Reader(...) in memcheck/configs/{reader.name}"
    if not table.is_file():
        yield f"{name}: no table of keys: memcheck/configs/keys/{table.name}"
    else:
        found = yaml.safe_load(table.read_text(encoding="utf-8"))
        if not found.get("title"):
            yield f"{name}: no title in memcheck/configs/keys/{table.name}"
        if not all(found.get("irrelevant", {})):
            yield f"{name}: irrelevant keys without a reason in memcheck/configs/keys/{table.name}"
    if name not in schema_words(root):
        yield f"{name}: no word in `source` of {SCHEMA}"
    page = root / f"docs/internals/configs/{name}.md"
    if not page.is_file():
        yield f"{name}: no page: docs/internals/configs/{name}.md"
    else:
        text = page.read_text(encoding="utf-8")
        yield from (
            f"{name}: no `## {each}` in docs/internals/configs/{name}.md"
            for each in SECTIONS
            if f"\n## {each}\n" not in text
        )
    reading, _, writing = (root / PAGE).read_text(encoding="utf-8").partition("| `export --to` |")
    if not re.search(rf"^\|[^|\n]*`{name}`", reading, re.MULTILINE):
        yield f"{name}: no row among the files that are read in {PAGE}"
    writer = root / f"memcheck/configs/write_{module(name)}.py"
    if writer.is_file() and f"| `{name}` |" not in writing:
        yield f"{name}: no row below `export --to` in {PAGE}, and memcheck/configs/{writer.name} writes it"


def unregistered(root: Path) -> Iterator[str]:
    """Parts of a format that no row of the registry has."""
    known = rows(root)
    found = {
        "memcheck/configs/read_{}.py": {
            path.stem.removeprefix("read_") for path in (root / "memcheck/configs").glob("read_*.py")
        },
        "memcheck/configs/keys/{}.yaml": {path.stem for path in (root / "memcheck/configs/keys").glob("*.yaml")},
        "docs/internals/configs/{}.md": {path.stem for path in (root / "docs/internals/configs").glob("*.md")},
        f"the word {{}} of `source` in {SCHEMA}": schema_words(root),
    }
    for what, names in found.items():
        registered = {module(name) for name in known} if what.endswith(".py") else set(known)
        yield from (
            f"no row in memcheck/configs/formats.py for {what.format(name)}" for name in sorted(names - registered)
        )


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_complete(name: str) -> None:
    """Each has its reader, table, schema word, page and rows."""
    assert list(lacks(ROOT, name)) == []


def test_nothing_is_unregistered() -> None:
    """A reader, a table, a page and a schema word without a row of the registry are never asked."""
    assert list(unregistered(ROOT)) == []
    assert rows(ROOT) == {name: each.title for name, each in FORMATS.items()}
    assert set(formats()) == set(FORMATS), "run python -m memcheck.configs.key_index"


ASKED = re.compile(r"""\b(\w+|key_table\("([\w-]+)"\))\.(names|words|rows|inside|adapters)\[["'](\w+)["']\]""")
"""A list or a table of words that code asks a key table for."""


def test_what_code_asks_of_a_table_is_there() -> None:
    """A type checker does not know the names inside the tables."""
    for path in sorted((ROOT / "memcheck/configs").glob("*.py")):
        loaded = vars(importlib.import_module(f"memcheck.configs.{path.stem}"))
        for found in ASKED.finditer(path.read_text(encoding="utf-8")):
            table = key_table(found[2]) if found[2] else loaded.get(found[1])
            if isinstance(table, KeyTable):
                assert found[4] in getattr(table, found[3]), found[0]


PARTS = {
    "memcheck/configs/read_nanotron.py": "no reader",
    "memcheck/configs/keys/nanotron.yaml": "no table of keys",
    "docs/internals/configs/nanotron.md": "no page",
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with what the checks look at."""
    for folder in ("memcheck/configs", "docs/internals/configs", "schemas"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / PAGE).parent.mkdir()
    shutil.copy(ROOT / PAGE, tmp_path / PAGE)
    return tmp_path


@pytest.mark.parametrize(("path", "said"), PARTS.items())
def test_a_missing_part_is_told(copy: Path, path: str, said: str) -> None:
    """Without its file a format fails, by the name of the file."""
    (copy / path).unlink()
    (told,) = lacks(copy, "nanotron")
    assert said in told
    assert path.rpartition("/")[2] in told


@pytest.mark.parametrize(
    ("path", "before", "after", "said"),
    [
        ("memcheck/configs/read_nanotron.py", "\nREADER = ", "\n_READER = ", "no reader"),
        (SCHEMA, '"nanotron": {', '"nanotron3": {', "no word in `source`"),
        (PAGE, "| `nanotron` |", "| `other` |", "no row among the files that are read"),
        ("memcheck/configs/keys/nanotron.yaml", "title: nanotron", "called: nanotron", "no title"),
        ("memcheck/configs/keys/nanotron.yaml", "  schedules: ", "  '': ", "without a reason"),
        ("docs/internals/configs/nanotron.md", "## Assumed", "## Taken", "no `## Assumed`"),
    ],
)
def test_a_missing_line_is_told(copy: Path, path: str, before: str, after: str, said: str) -> None:
    """Without its word, its row or a section of its page a format fails, by what is missing."""
    text = (copy / path).read_text(encoding="utf-8")
    assert before in text
    (copy / path).write_text(text.replace(before, after), encoding="utf-8")
    (told,) = lacks(copy, "nanotron")
    assert said in told


def test_a_part_without_a_row_is_told(copy: Path) -> None:
    """A fifteenth reader that was forgotten in the registry fails in each of its parts."""
    registry = copy / "memcheck/configs/formats.py"
    text = registry.read_text(encoding="utf-8")
    registry.write_text(re.sub(r'^ +Format\("nanotron".*\n', "", text, flags=re.MULTILINE), encoding="utf-8")
    told = list(unregistered(copy))
    assert len(told) == 4
    assert all("no row in memcheck/configs/formats.py" in each and "nanotron" in each for each in told)


def example(name: str) -> tuple[str, str]:
    """The name of a file and the text of a page's example."""
    text = (ROOT / f"docs/internals/configs/{name}.md").read_text(encoding="utf-8")
    found = re.search(r"^## Example\n+```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/internals/configs/{name}.md has no example"
    return f"config.{found[1]}", found[2]


def stated(name: str, file: str, text: str) -> dict[str, ReadSetting]:
    """The values that an example asks for."""
    given: dict[str, ReadSetting] = {}
    for _ in STATED:
        asked = [key for each in import_config(file, text.encode(), given, name).problems for key in each.keys]
        more = [key for key in asked if key in STATED and key not in given]
        if not more:
            break
        given.update((key, ReadSetting(STATED[key], "test")) for key in more)
    return given


@pytest.mark.parametrize("name", FORMATS)
def test_an_import_and_a_source_are_one_job(name: str, tmp_path: Path) -> None:
    """The plan that `import` writes of a page's example is the job of a plan that names the example as its source."""
    file, text = example(name)
    given = stated(name, file, text)
    (tmp_path / file).write_text(text, encoding="utf-8")
    imported = import_config(str(tmp_path / file), text.encode(), given, name)
    assert imported.problems == ()
    values: dict[str, Any] = {"memcheck": 1, "source": {name: file}}
    for key, setting in {**given, "hardware.nodes": imported.settings["hardware.nodes"]}.items():
        section, _, rest = key.partition(".")
        if rest:
            values.setdefault(section, {})[rest] = setting.value
        else:
            values[section] = setting.value
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(values), encoding="utf-8")
    (sourced,) = load_plans(str(plan), plan.read_bytes())
    (written,) = load_documents("plan.yaml", imported.text.encode())
    jobs = []
    for document in (sourced, written):
        found, findings = read_plan(document)
        assert found is not None, findings
        jobs.append(resolve(found, FRAMEWORKS, base_dir=str(tmp_path)).job)
    assert jobs[0] == jobs[1]


LONG = "x" * 3000
HOSTILE: tuple[object, ...] = (
    LONG,
    "\x1b[31m\x07",
    -1,
    10**30,
    1.5,
    float("nan"),
    True,
    [LONG] * 3,
    [[1]],
    "$(A)" * 50,
    "../../etc",
    "",
)


def attacked(name: str) -> Iterator[bytes]:
    """A page's example with one value replaced by a hostile one, cut in half, and with keys that are none."""
    file, text = example(name)
    yield text[: len(text) // 2].encode()
    yield b"\xff\xfe" + text.encode()
    if file.endswith(".sh"):
        for match in list(re.finditer(r"(--[\w-]+)[ =]([^\s-][^\s]*)", text))[:40]:
            for value in ("x" * 3000, "-1", "1e400", "'\x1b[31m'", "$UNSET", ""):
                yield f"{text[: match.start(2)]}{value}{text[match.end(2) :]}".encode()
        return
    if file.endswith(".py"):
        for match in re.finditer(r"(\w+=)([^,()]+)(?=[,)])", text):
            for value in ('"' + LONG + '"', "-1", "1e400", "[[1]]", '""', "(" * 300, "x" * 3000, "'a' * 10**9"):
                yield f"{text[: match.start(2)]}{value}{text[match.end(2) :]}".encode()
        return
    if file.endswith(".toml"):
        for match in re.finditer(r"^(\w+ = )(.+)$", text, re.MULTILINE):
            for value in ('"' + LONG + '"', "-1", "1e400", "[[1]]", '""'):
                yield f"{text[: match.start(2)]}{value}{text[match.end(2) :]}".encode()
        return
    values = yaml.safe_load(text)
    for key, _ in list(flat(values))[:40]:
        for value in HOSTILE:
            changed = json.loads(json.dumps(values))
            *sections, last = key.split(".")
            below = changed
            for section in sections:
                below = below[section]
            below[last] = value
            yield (json.dumps(changed) if file.endswith(".json") else yaml.safe_dump(changed)).encode()


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_values_end_in_an_answer(name: str) -> None:
    """Whatever stands at a key of the example, the reader answers: with a plan, or with problems no longer than it."""
    file, text = example(name)
    given = stated(name, file, text)
    started, count, longest = time.process_time(), 0, 3 * len(LONG) + 500
    for data in attacked(name):
        count += 1
        try:
            found = import_config(file, data, dict(given), name)
        except ConfigError as error:
            said = [error.message, error.help]
        else:
            said = [part for each in found.problems for part in (each.message, each.help)]
            said += [each.message for each in found.notes]
        assert all(len(each) < longest for each in said), said
    assert count > 10, (
        f"docs/internals/configs/{name}.md: an example of several keys is what hostile values are put into"
    )
    assert time.process_time() - started < count * 0.5
