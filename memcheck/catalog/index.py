"""Writes the index files of the catalog's records: run ``python -m memcheck.catalog.index`` after changing a record.

Per kind the index of its names, and for GPUs a table of the figures that they are chosen by.

An alias that two records claim, or that is another record's name, is an error. A name that several records share
(``shared_names``: ``A100`` is a card of 40 GB and one of 80 GB) leads to all of them, so that a lookup can say so.
"""

from __future__ import annotations

import json
import os
import sys

from memcheck.catalog.names import DATA, SIZES, GpuSize, canonical_names, find_gpu, normal, read_record
from memcheck.edge.screen import put
from memcheck.errors import ConfigurationError

KINDS = ("model", "gpu")


def build_index(kind: str) -> dict[str, str | list[str]]:
    """Name or alias (as compared) -> record, or records that share it, from the records of ``kind``.

    Raises:
        ConfigurationError: two records claim one name.
    """
    folder = os.path.join(DATA, kind + "s")
    index: dict[str, str] = {}
    shared: dict[str, list[str]] = {}
    for file in sorted(os.listdir(folder)):
        canonical, extension = os.path.splitext(file)
        if extension != ".yaml":
            continue
        record = read_record(os.path.join(folder, file))
        names = [canonical, *([record["id"]] if "id" in record else []), *record.get("aliases", ())]
        for name in record.get("shared_names", ()):
            shared.setdefault(normal(name), []).append(canonical)
        for name in {normal(n): None for n in names}:
            other = index.setdefault(name, canonical)
            if other != canonical:
                raise ConfigurationError(f"{kind} {name!r} is claimed by {other} and {canonical}", "remove one alias")
    for name, records in shared.items():
        if name in index or len(records) == 1:
            others = index.get(name, "nothing else")
            raise ConfigurationError(f"{kind} {name!r} is shared by {', '.join(records)} and {others}", "mend one")
    every: dict[str, str | list[str]] = {**index, **shared}
    return dict(sorted(every.items()))


def render_index(kind: str) -> str:
    """The text of ``index.json``: one name per line."""
    return json.dumps(build_index(kind), indent=0, ensure_ascii=False) + "\n"


def render_sizes() -> str:
    """The text of ``sizes.json``: one GPU per line, by name."""
    rows = [find_gpu(name) for name in canonical_names("gpu")]
    lines = [json.dumps([getattr(gpu, field) for field in GpuSize._fields]) for gpu in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> int:
    """Write the index of every kind, and the table of GPUs."""
    for kind in KINDS:
        path = os.path.join(DATA, kind + "s", "index.json")
        text = render_index(kind)  # an error in the records leaves the file as it is
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        put(sys.stdout, f"{path}: {len(build_index(kind))} names\n")
    text = render_sizes()
    with open(SIZES, "w", encoding="utf-8") as stream:
        stream.write(text)
    put(sys.stdout, f"{SIZES}: {len(text.splitlines()) - 2} GPUs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
