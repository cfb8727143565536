"""Writes ``plan/foreign.json``: how a plan answers the keys of other tools.

Run ``python -m memcheck.configs.foreign_words`` after a change. The tables of the readers are the source, so that a
reader and a plan say the same about a key. A table is known by the type of its values or by its name.
``foreign_words.yaml`` has the keys that readers take in code, and those of tools that no reader reads.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from memcheck import configs
from memcheck.configs import trainer_keys
from memcheck.configs.trainer_adapters import AdapterKeys
from memcheck.configs.types import KeyRow
from memcheck.edge.libyaml import yaml
from memcheck.edge.streams import put
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
    text = _words_file()
    tables = {
        **text["words"],
        "attentions": trainer_keys.ATTENTIONS,
        "optimizers": {name: _optimizer(*meant) for name, meant in trainer_keys.OPTIMIZERS.items()},
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


def modules() -> list[str]:
    """The names of the room's modules."""
    return sorted(module.name for module in pkgutil.iter_modules(configs.__path__))


def of_tables() -> Iterator[tuple[str, ForeignKey]]:
    """Every key of the readers' tables; a name that ends with a dot is everything below it."""
    tools = _words_file()["tools"]
    order = list(tools)
    own_modules = [each for each in modules() if _first(each) in tools]
    for module in sorted(own_modules, key=lambda each: order.index(_first(each))):
        title = tools[_first(module)]
        own = importlib.import_module(f"memcheck.configs.{module}")
        for name, table in vars(own).items():
            if name.strip("_").isupper():
                yield from _of_table(name.strip("_"), table, title)


def _first(module: str) -> str:
    return module.partition("_")[0]


def _of_table(name: str, table: object, title: str) -> Iterator[tuple[str, ForeignKey]]:
    if isinstance(table, AdapterKeys):
        yield from _of_adapters(table, title)
    for row in (table,) if isinstance(table, KeyRow) else table if isinstance(table, tuple) else ():
        if isinstance(row, KeyRow) and row.key:
            for path in (row.path, *row.aliases):
                yield path, ForeignKey(title, KEY, row.key, words=_words(row))
    if name.endswith(("HARMLESS", "HARMLESS_SECTIONS", "IRRELEVANT")):
        if isinstance(table, dict):
            for reason, keys in table.items():
                yield from _each(keys, ForeignKey(title, NONE, reason))
        elif isinstance(table, (tuple, frozenset)):
            yield from _each(sorted(table), ForeignKey(title, NONE, ""))
    elif isinstance(table, dict) and name == "UNMODELLED":
        for path, (_, reason) in table.items():
            yield path, ForeignKey(title, LACKS, reason)
    elif isinstance(table, dict) and name in ("REFUSED", "UPPER"):
        for path, what in table.items():
            yield path, ForeignKey(title, LACKS, what)
    elif isinstance(table, dict) and name == "LAUNCHER":
        for path, key in table.items():
            yield path, ForeignKey("torchrun", KEY, key)


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


def main() -> int:
    """Write the index file of foreign words, and return exit code 0."""
    text = render()
    with open(INDEX, "w", encoding="utf-8") as stream:
        stream.write(text)
    put(sys.stdout, f"{os.path.basename(INDEX)}: {text.count(chr(10)) - 2} keys\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
