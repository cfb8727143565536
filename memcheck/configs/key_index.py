"""Writes ``keys/index.json``, all key tables, and ``plan/foreign.json``, what a plan answers to their keys.

Run ``python -m memcheck.configs.key_index`` after a change of a table. The files of ``keys/`` are the source, so that
readers and plans say the same about a key.
``foreign_words.yaml`` has the keys that readers take in code, and those of tools that no reader reads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from memcheck.configs import read_megatron as megatron_keys
from memcheck.configs import read_megatron_swift as megatron_swift_keys
from memcheck.configs.key_table import FOLDER, KeyTable, from_sections, key_table
from memcheck.configs.key_table import INDEX as KEYS
from memcheck.configs.types import AdapterKeys, KeyRow
from memcheck.edge.libyaml import yaml
from memcheck.edge.screen import put
from memcheck.plan.foreign import INDEX, KEY, LACKS, NONE, SAID, ForeignKey, plain
from memcheck.plan.text import read_bytes

GENERIC = frozenset({"enabled", "name", "type", "path", "params", "target", "_component_", "_target_", "config"})
"""Last words of dotted keys that say nothing without the section before them."""
WORDS = os.path.join(os.path.dirname(__file__), "foreign_words.yaml")
_ADAPTERS = {
    "rank": "training.lora.rank",
    "dropout": "training.lora.dropout",
    "saved": "training.lora.modules_to_save",
    "dora": "training.lora.dora",
}


def answers() -> dict[str, list[ForeignKey]]:
    """Every key, in snake case, with what is answered; several answers where tools mean different things by it."""
    found: dict[str, list[ForeignKey]] = {}
    for name, answer in (*of_tables(), *_by_hand()):
        path = plain(name.rstrip("."))
        short = path.rpartition(".")[2]
        for key in (path,) if short in GENERIC or not short.isidentifier() else (path, short):
            _add(found.setdefault(key, []), answer)
    sections: dict[str, list[ForeignKey]] = {}
    for path, listed in found.items():
        for parent in _parents(path):
            if parent not in found:
                sections.setdefault(parent, []).extend(listed)
    for section, below in sections.items():
        found[section] = _section(below)
    return {key: found[key] for key in sorted(found)}


def _add(listed: list[ForeignKey], answer: ForeignKey) -> None:
    """Keep the best answer of several tools. Keys of the plan go before anything else, and may be several."""
    best = RANKS.index(listed[0].kind) if listed else len(RANKS)
    rank = RANKS.index(answer.kind)
    if rank < best:
        listed[:] = [answer]
    elif (
        rank == best and answer.kind == KEY and len(listed) < MOST and answer.text not in {each.text for each in listed}
    ):
        listed.append(answer)


RANKS = (KEY, SAID, LACKS, NONE)
MOST = 3
"""Plan keys that are told for one key."""


def _parents(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _section(below: list[ForeignKey]) -> list[ForeignKey]:
    """What is answered to a section: the plan keys of what stands in it."""
    kept: list[ForeignKey] = []
    for each in below:
        _add(kept, each._replace(words={}))
    return kept


def _words_file() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(read_bytes(WORDS), Loader=yaml.SafeLoader)
    return found


def _by_hand() -> Iterator[tuple[str, ForeignKey]]:
    text, known = _words_file(), key_table("transformers").words
    tables = {
        **text["words"],
        "attentions": known["attentions"],
        "optimizers": {name: _optimizer(*meant) for name, meant in known["optimizers"].items()},
    }
    for row in text["keys"]:
        kind = next(each for each in (KEY, SAID, LACKS, NONE) if each in row)
        words = row.get("words", {})
        words = tables[words] if isinstance(words, str) else words
        answer = ForeignKey(
            row["tool"], kind, row[kind], words={word: _written(value) for word, value in words.items()}
        )
        for name in row["names"].split():
            yield name, answer


def _optimizer(name: str, implementation: str) -> str:
    return f"{{name: {name}, implementation: {implementation}}}" if implementation else name


def tables() -> dict[str, dict[str, Any]]:
    """The sections of every file of ``keys/``, by the format's name."""
    names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".yaml"))
    return {
        name.removesuffix(".yaml"): yaml.load(read_bytes(os.path.join(FOLDER, name)), Loader=yaml.SafeLoader)
        for name in names
    }


def of_tables() -> Iterator[tuple[str, ForeignKey]]:
    """Every key of the formats' tables; a name that ends with a dot is everything below it."""
    found = tables()
    for name in _words_file()["order"].split():
        yield from _of_table(from_sections(found[name]), COMPUTED.get(name, ()))


COMPUTED = {
    "megatron": (*megatron_keys.DIMENSIONS, *megatron_keys.OPTIONS),
    "megatron-swift": megatron_swift_keys.OPTIONS,
}
"""Rows that are made of Megatron's options, which its profile has."""


def _of_table(table: KeyTable, computed: tuple[KeyRow, ...]) -> Iterator[tuple[str, ForeignKey]]:
    title = table.title
    for adapters in table.adapters.values():
        yield from _of_adapters(adapters, title)
    for row in (*(row for rows in table.rows.values() for row in rows), *computed):
        for path in (row.path, *row.aliases):
            yield path, ForeignKey(title, KEY, row.key, words=_words(row))
    for path, key in table.words.get("launcher", {}).items():
        yield path, ForeignKey("torchrun", KEY, key)
    for reason, keys in table.irrelevant.items():
        yield from _each(keys, ForeignKey(title, NONE, reason))
    yield from _each((key for keys in table.inside.values() for key in keys), ForeignKey(title, NONE, ""))
    for path, (_, reason) in table.unmodelled.items():
        yield path, ForeignKey(title, LACKS, reason)
    for path, what in (*table.refused.items(), *table.upper.items()):
        yield path, ForeignKey(title, LACKS, what)


def _each(keys: Iterable[str], answer: ForeignKey) -> Iterator[tuple[str, ForeignKey]]:
    for key in keys:
        yield key, answer


def _of_adapters(keys: AdapterKeys, title: str) -> Iterator[tuple[str, ForeignKey]]:
    for field, key in _ADAPTERS.items():
        path = getattr(keys, field)
        if path:
            yield path, ForeignKey(title, KEY, key)
    for path in keys.targets:
        yield path, ForeignKey(title, KEY, "training.lora.target_modules")


def _words(row: KeyRow) -> dict[str, str]:
    return {str(word).lower(): _written(value) for word, value in row.words.items()}


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def render() -> str:
    """The text of the file: one key per line."""
    lines = []
    for key, listed in answers().items():
        rows = [[each.tool, each.kind, each.text, *([each.words] if each.words else [])] for each in listed]
        lines.append(f"{json.dumps(key)}: {json.dumps(rows, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def render_tables() -> str:
    """The text of ``keys/index.json``: one table per line."""
    lines = [f"{json.dumps(name)}: {json.dumps(sections, ensure_ascii=False)}" for name, sections in tables().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Write both index files, and return exit code 0."""
    for path, render_file in ((KEYS, render_tables), (INDEX, render)):
        text = render_file()
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        put(sys.stdout, f"{os.path.basename(path)}: {text.count(chr(10)) - 2} lines\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
