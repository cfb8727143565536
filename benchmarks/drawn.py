"""Steps of plans drawn at random (``data/drawn.json``), priced again without PyTorch, moment by moment.

python -m benchmarks.drawn --keep FILE...   # add what ``benchmarks.fuzz --out`` wrote, and write the table
python -m benchmarks.drawn --write          # the table of today's predictions: DRAWN.md
python -m benchmarks.drawn --check          # whether it is of today, and no moment is further off than it says
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.cases import HERE, Case, load
from benchmarks.page import write_or_check
from memcheck.plan.read import load_documents
from memcheck.verify.subject import Subject, load_subject

HIGH, LOW = 0.01, -0.005
"""How far a moment may be predicted above and below the traced one."""
FILE = os.path.join(HERE, "data", "drawn.json")
TABLE = os.path.join(HERE, "DRAWN.md")
GROUP = "traced (drawn)"
MOMENTS = ("init", "forward", "loss", "backward", "optimizer")
VERSIONS = "traces of torch 2.13, transformers 5.23, peft 0.21"

Instants = dict[str, int]


def records() -> list[dict[str, Any]]:
    """Every kept step: its id, its plan, and per pipeline rank the traced bytes of each instant."""
    found: list[dict[str, Any]] = load("drawn.json")["steps"]
    return found


def cases() -> list[Case]:
    """The peak of each step's fullest rank."""
    found = []
    for record in records():
        rank, instants = max(record["ranks"].items(), key=lambda item: max(item[1].values()))
        phase = max(instants, key=instants.__getitem__)
        found.append(
            Case(
                id=f"drawn.{record['id']}",
                group=GROUP,
                plan=record["plan"],
                truth_bytes=instants[phase],
                metric="allocated",
                phase=phase,
                pipeline_rank=int(rank),
                source=VERSIONS,
            )
        )
    return found


def predicted(plan: dict[str, Any]) -> dict[str, Instants]:
    """The highest bytes of each instant, by pipeline rank."""
    (document,) = load_documents(f"{plan['name']}.yaml", json.dumps(plan).encode())
    subject = load_subject(document)
    if not isinstance(subject, Subject):
        raise TypeError(f"{plan['name']}: " + "; ".join(f.message for f in subject.findings))
    found: dict[str, Instants] = {}
    for rank in subject.estimate.ranks:
        of = found.setdefault(str(rank.pipeline_rank), {})
        for instant in rank.instants:
            of[instant.name] = max(of.get(instant.name, 0), instant.allocated_bytes)
    return found


def gaps(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Predicted over traced, minus one: by pipeline rank and instant."""
    said = predicted(record["plan"])
    return {
        rank: {name: said[rank][name] / seen - 1 for name, seen in instants.items() if name in said[rank]}
        for rank, instants in record["ranks"].items()
    }


def wide(of: dict[str, float]) -> dict[str, float]:
    """Those that are too far off."""
    return {name: gap for name, gap in of.items() if not LOW <= gap <= HIGH}


def brief(plan: dict[str, Any]) -> str:
    """One line that says what a plan is."""
    said = {**plan["parallelism"], **plan["training"]}
    said.pop("torch_version", None)
    ranks = plan["hardware"]["gpus_per_node"] * plan["hardware"]["nodes"]
    model = plan["model"]
    named = "name" in model
    what = f"{model['name']} {json.dumps(model['overrides'])}" if named else model["architecture"]["model_type"]
    return f"{what} x{ranks} {json.dumps(said)}"


def keep(paths: list[str]) -> None:
    """Add the traced plans of some runs, and replace those that were traced before."""
    known = {r["id"]: r for r in records()} if os.path.exists(FILE) else {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        for row in rows:
            if "refused" not in row:
                ranks = {
                    str(r["pipeline_rank"]): {name: seen for name, (_, seen) in r["instants"].items()}
                    for r in row["ranks"]
                }
                known[row["id"]] = {"id": row["id"], "plan": row["plan"], "ranks": ranks}
    steps = [known[name] for name in sorted(known, key=lambda n: tuple(map(int, n.split("."))))]
    with open(FILE, "w", encoding="utf-8") as file:
        file.write('{"steps": [\n' + ",\n".join(json.dumps(step) for step in steps) + "\n]}\n")


def table() -> str:
    """The page."""
    found = [(record, gaps(record)) for record in records()]
    every = sorted(abs(g) for _, ranks in found for of in ranks.values() for g in of.values())
    off = sum(any(wide(of) for of in ranks.values()) for _, ranks in found)
    lines = [
        "# Plans drawn at random",
        "",
        "<!-- Written by `python -m benchmarks.drawn --write`; `--check` compares with today's predictions. -->",
        "",
        f"{len(found)} plans that `benchmarks.draw` made up and `python -m benchmarks.fuzz` could trace, and how far",
        "each moment of their steps is predicted from the traced one. `python -m benchmarks.fuzz --again ID` traces",
        "one again; from seed 11 on, `--seed` and `--first` draw it again (those before were drawn by other odds).",
        f"Of {len(every)} moments, half are within {every[len(every) // 2]:.3%}, 95 % within",
        f"{every[len(every) * 95 // 100]:.2%}; the furthest is off by {every[-1]:.2%}. {off} plans have a moment more",
        f"than {HIGH:.0%} too high or {-LOW:.1%} too low, in bold.",
        "",
        "| plan | rank | init | forward | loss | backward | optimizer | |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for record, ranks in found:
        for rank, of in ranks.items():
            cells = [_cell(of[name]) if name in of else "" for name in MOMENTS]
            lines.append(f"| {record['id']} | {rank} | {' | '.join(cells)} | {brief(record['plan'])} |")
    return "\n".join(lines) + "\n"


def _cell(gap: float) -> str:
    said = f"{gap:+.2%}"
    return f"**{said}**" if wide({"": gap}) else said


def main(arguments: list[str]) -> int:
    """Keep, write or check."""
    if "--keep" in arguments:
        keep([a for a in arguments if not a.startswith("-")])
    return write_or_check(TABLE, table(), "python -m benchmarks.drawn --write", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
