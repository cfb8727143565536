"""Predicted against published speeds, and published layouts among all that a search would try.

    python -m benchmarks.throughput            # tables
    python -m benchmarks.throughput --write    # and benchmarks/throughput.md

Nothing in the model was fitted to these rows: they are the test, not the source, of its rates.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.cases import HERE, load
from memcheck.judge import Gate
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents
from memcheck.what_if.points import Evaluator, Point

LEAST = 0.8
"""Rank correlation of predicted and measured speeds that the torchtitan tables have to reach."""


class Row(NamedTuple):
    """One published speed beside the prediction."""

    id: str
    table: str
    measured: float
    """Tokens per second and GPU."""
    point: Point
    reread: bool
    """The measured figure was found again in a source at hand; one that was not decides nothing."""

    @property
    def predicted(self) -> float:
        """Tokens per second and GPU."""
        if self.point.step is None:
            raise ValueError(f"{self.id} has no time: {self.point.problems or self.point.untimed}")
        return self.point.step.tokens_per_second_per_gpu


class Published(NamedTuple):
    """One published layout."""

    title: str
    document: Document
    point: Point
    note: str


def document_of(name: str, plan: Mapping[str, Any]) -> Document:
    """A plan's values as a document."""
    (document,) = load_documents(name, json.dumps({"memcheck": 1, "name": name, **plan}).encode())
    return document


def rows() -> list[Row]:
    """Every published row with its prediction."""
    found = []
    for record in load("throughput.json")["rows"]:
        point = Evaluator(document_of(record["id"], record["plan"]), Gate()).point({})
        measured = record["tokens_per_second_per_gpu"]
        found.append(Row(record["id"], record["table"], measured, point, record["reread"]))
    return found


def layouts() -> list[Published]:
    """Every published layout, judged."""
    facts = load("throughput.json")
    plans = {record["id"]: record["plan"] for record in facts["rows"]}
    found = []
    for record in facts["layouts"]:
        plan = with_set(plans[record["row"]], record["set"])
        document = document_of(record["row"], plan)
        found.append(
            Published(record["title"], document, Evaluator(document, Gate()).point({}), record.get("note", ""))
        )
    return found


def with_set(plan: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a plan with dotted keys set."""
    copy: dict[str, Any] = json.loads(json.dumps(plan))
    for key, value in changes.items():
        *sections, last = key.split(".")
        table = copy
        for section in sections:
            table = table.setdefault(section, {})
        table[last] = value
    return copy


def ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            found[place] = (start + 1 + end) / 2
        start = end
    return found


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Correlation of two rankings; 1 = the same order."""
    a, b = ranks(one), ranks(other)
    mean = (len(a) + 1) / 2
    spread = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return float(sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True)) / spread**0.5) if spread else 1.0


def groups(every: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """All torchtitan rows, those of its tables 1 to 6 (Llama 3.1 on H100), each table with more than two rows, then
    everything; of figures that were read again.
    """
    sure = [row for row in every if row.reread]
    yield "torchtitan, all tables", [row for row in sure if row.table.startswith("torchtitan")]
    yield "torchtitan 1 to 6", [row for row in sure if row.id.startswith("tt2412-")]
    for table in dict.fromkeys(row.table for row in sure):
        members = [row for row in sure if row.table == table]
        if len(members) > 2:
            yield table, members
    yield "all rows", sure


def orders(every: Sequence[Row]) -> list[tuple[str, int, float, int, int]]:
    """Per group: rows, rank correlation, pairs in the measured order, pairs."""
    found = []
    for name, members in groups(every):
        pairs = [(a, b) for i, a in enumerate(members) for b in members[i + 1 :] if a.measured != b.measured]
        right = sum((a.predicted < b.predicted) == (a.measured < b.measured) for a, b in pairs)
        correlation = spearman([r.predicted for r in members], [r.measured for r in members])
        found.append((name, len(members), correlation, right, len(pairs)))
    return found


def tables(every: Sequence[Row], published: Sequence[Published], placed: Mapping[str, Mapping[str, str]]) -> str:
    """The page."""
    lines = [
        "# Predicted and published speeds",
        "",
        "Written by `python -m benchmarks.throughput --write`. Tokens per second and GPU; plans and sources are in",
        "`data/throughput.json`. The model ranks: nothing in it was fitted to these rows. Real steps are slower.",
        "",
        "## Order",
        "",
        "Of the figures that were found again in a source at hand; the others are marked below and decide nothing.",
        "",
        "| rows | number | rank correlation (Spearman) | pairs in the measured order |",
        "|---|---:|---:|---:|",
    ]
    for name, count, correlation, right, pairs in orders(every):
        lines.append(f"| {name} | {count} | {correlation:.3f} | {right} of {pairs} |")
    lines += [
        "",
        "## Rows",
        "",
        "| row | table | measured | predicted | predicted / measured |",
        "|---|---|---:|---:|---:|",
    ]
    for row in every:
        figures = f"{row.measured:,.0f} | {row.predicted:,.0f} | {row.predicted / row.measured:.2f}"
        lines.append(f"| {row.id}{'' if row.reread else ' (not read again)'} | {row.table} | {figures} |")
    lines += [
        "",
        "## Layouts",
        "",
        "Rank among all that `suggest --goal throughput` searches, by `python -m benchmarks.layout_ranks`: one more",
        "than the number of legal plans that fit and are predicted to be strictly faster, with the same global batch.",
        "A published table gives the layout of a stated recipe, so the rank with the **recipe kept** (`--keep` of what",
        "the authors chose under `training`) answers whether it is among the best twenty. **Free**: micro-batch,",
        "recompute, loss and offloading vary, too; precision, optimizer and model never do. **Layouts**: the same,",
        "with every layout counted once, at its fastest settings that fit, the published one's too. **Suggested**: of",
        "layouts with the same degrees only the fastest, as `suggest` lists them: schedule, virtual stages, ZeRO stage",
        "and sharding group are settings, too.",
        "",
        "| layout | verdict | of capacity | rank, recipe kept | rank, free | layouts | suggested | note |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for layout in published:
        point, rank = layout.point, placed.get(layout.title, {})
        ranks_of = " | ".join(rank.get(name, "") for name in ("recipe kept", "free", "layouts", "suggested"))
        used = f"{point.utilization:.0%} | {ranks_of}"
        lines.append(f"| {layout.title} | {point.verdict} | {used} | {layout.note} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Print the page; fail if the order is worse than it has to be."""
    every, published = rows(), layouts()
    text = tables(every, published, load("layout_ranks.json"))
    print(text, end="")
    if "--write" in arguments:
        with open(os.path.join(HERE, "throughput.md"), "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    return 0 if orders(every)[0][2] >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
