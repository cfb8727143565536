"""Every family's layer, moment by moment: small models traced (``benchmarks.small``), priced again without PyTorch.

python -m benchmarks.families --add TYPE...    # a small model of a family as transformers writes it, and its traces
python -m benchmarks.families --trace [WORD]   # trace what is not kept yet, or has WORD in its name: needs `verify`
python -m benchmarks.families --write          # the table of today's predictions: FAMILIES.md
python -m benchmarks.families --check          # whether it is of today
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from typing import Any

from benchmarks import added
from benchmarks.cases import HERE, kept
from benchmarks.drawn import MOMENTS, predicted
from benchmarks.page import write_or_check
from benchmarks.small import small_plans

FILE = os.path.join(HERE, "data", "families.json")
TABLE = os.path.join(HERE, "FAMILIES.md")
LOW = -0.003
"""How far below the traced one a moment may be predicted."""
OPEN = {
    "gemma3n_text added, eager, full, bf16-mixed": -0.004,
    "jamba added, sdpa, none, bf16-mixed": -0.006,
    "minimax, sdpa, full, bf16-mixed": -0.005,
    "minimax, sdpa, none, bf16-mixed": -0.006,
    "modernbert added, sdpa, full, autocast-lora": -0.005,
    "zamba2 added, eager, full, bf16-mixed": -0.004,
    "zamba2 added, sdpa, full, bf16-mixed": -0.004,
    "zamba2 added, sdpa, full, bf16-pure": -0.006,
    "zamba2 added, sdpa, none, bf16-lora": -0.009,
}
"""Plans with a moment whose missing tensor is not found yet, or not counted, and how low it is: Zamba 2's gradient of
the embedding is a view, which holds the concatenated rows' to the next hybrid layer."""
WIDE = 0.01
"""How far above it is worth bold type."""


def records() -> dict[str, dict[str, int]]:
    """The traced bytes of each instant, by the plan's name."""
    found: dict[str, dict[str, int]] = kept(FILE)
    return found


@cache
def gaps() -> dict[str, dict[str, float]]:
    """Predicted over traced, minus one, by plan and instant."""
    found, known = {}, plans()
    for name, traced in records().items():
        (said,) = predicted(known[name]).values()
        found[name] = {moment: said[moment] / seen - 1 for moment, seen in traced.items()}
    return found


def plans() -> dict[str, dict[str, Any]]:
    """Those by hand, and those of families that were added."""
    return small_plans() | added.added_plans()


def add(kinds: list[str]) -> int:
    """Keep a small model of each family, and trace its plans; 1 when one could not be traced."""
    failed = 0
    for kind in kinds:
        added.keep({**added.added(), kind: added.record(kind)})
        failed |= trace(f"{kind} added, ")
    return failed


def trace(word: str | None) -> int:
    """Trace, and keep what was seen after each plan; 1 when one could not be traced."""
    from benchmarks.fuzz import run

    kept, failed = records(), 0
    known = plans()
    for name, plan in known.items():
        if name in kept if word is None else not _asked(word, name):
            continue
        row = run(plan, 300)
        if "refused" in row:
            failed = 1
            print(f"{name}: {row['refused']}", flush=True)
            continue
        kept[name] = {moment: seen for moment, (_, seen) in row["ranks"][0]["instants"].items()}
        print(name, " ".join(f"{m} {said / seen - 1:+.2%}" for m, (said, seen) in row["ranks"][0]["instants"].items()))
        keep({n: kept[n] for n in known if n in kept})
    return failed


def _asked(word: str, name: str) -> bool:
    """A family that was added is asked for by the start of its name: one name may end in another."""
    return name.startswith(word) if word.endswith(" added, ") else word in name


def keep(rows: dict[str, dict[str, int]]) -> None:
    """Write the file: one plan a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    with open(FILE, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def table() -> str:
    """The page."""
    found = gaps()
    every = sorted(abs(g) for of in found.values() for g in of.values())
    lowest = min(g for of in found.values() for g in of.values())
    lines = [
        "# Every family's layer",
        "",
        "<!-- Written by `python -m benchmarks.families --write`; `--check` compares with today's predictions. -->",
        "",
        f"{len(found)} steps of small models (`benchmarks/small.py`), traced with torch 2.13 and transformers 5.23:",
        "every family of softmax attention (*added*: as transformers writes it), eager and through",
        "scaled_dot_product_attention, with and without",
        "recompute, under autocast, in bf16, in fp32 and under adapters of all linear layers (lora). Of",
        f"{len(every)} moments, half are within {every[len(every) // 2]:.3%}, 95 % within",
        f"{every[len(every) * 95 // 100]:.2%}. The lowest is predicted",
        f"{-lowest:.2%} too low; none may be more than {-LOW:.1%}. More than {WIDE:.0%} too high is in bold.",
        "",
        f"| model, attention, recompute, recipe | {' | '.join(MOMENTS)} |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, of in found.items():
        cells = [f"**{of[m]:+.2%}**" if of[m] > WIDE else f"{of[m]:+.2%}" for m in MOMENTS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Add, trace, write or check."""
    if "--add" in arguments:
        return add([a for a in arguments if not a.startswith("-")])
    if "--trace" in arguments:
        words = [a for a in arguments if not a.startswith("-")]
        return trace(words[0] if words else None)
    return write_or_check(TABLE, table(), "python -m benchmarks.families --write", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
