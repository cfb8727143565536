"""What encoders and decoders end in, traced moment by moment and priced again without PyTorch.

python -m benchmarks.heads --trace [WORD]   # trace what is not kept yet, or has WORD in its name: needs `verify`
python -m benchmarks.heads --write          # the table of today's predictions: HEADS.md
python -m benchmarks.heads --check          # whether it is of today
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
from benchmarks.small import SMALL, small_plan

FILE = os.path.join(HERE, "data", "heads.json")
TABLE = os.path.join(HERE, "HEADS.md")
LOW, WIDE = -0.003, 0.01
"""How far below the traced one a moment may be predicted, and how far above it is worth bold type."""
ENCODERS = (
    "bert", "roberta", "roberta-prelayernorm", "distilbert", "electra", "deberta-v2", "modernbert", "nomic_bert",
    "eurobert",
)  # fmt: skip
ALIKE = ("camembert", "data2vec-text", "ernie", "xlm-roberta")
"""Encoders with another's layers and heads under other names: a single plan each."""
DECODERS = ("gemma", "gpt2", "llama grouped", "mistral windowed", "qwen2", "qwen3")
HEADS: dict[str, Any] = {
    "masked words": "lm",
    "classification": {"kind": "classification", "labels": 3},
    "token-classification": {"kind": "token-classification", "labels": 3},
    "embedding": "embedding",
    "reward": "reward",
}
FULL = ("sdpa", "full", "bf16-mixed")
WHOLE = ("sdpa", "none", "bf16-mixed")
PURE = ("sdpa", "none", "bf16-pure")
ADAPTED = (("sdpa", "full", "bf16-lora"), ("sdpa", "none", "autocast-lora"))
STOPPED = ("distilbert",)
"""Where peft 0.21 stops: its targets and the layers it trains whole beside labels have one in common."""
WAYS = {
    "masked words": (FULL,),
    "classification": (FULL, PURE),
    "token-classification": (WHOLE, FULL),
    "embedding": (FULL, PURE),
}
"""Attention, recompute and recipe of each head's plans."""


def plans() -> dict[str, dict[str, Any]]:
    """Every plan, by name."""
    chosen = [(kind, head, way) for kind in ENCODERS for head, ways in WAYS.items() for way in ways]
    chosen += [(kind, "classification", FULL) for kind in ALIKE]
    chosen += [(kind, "classification", way) for kind in DECODERS for way in (FULL, PURE)]
    chosen += [(kind, "token-classification", FULL) for kind in DECODERS]
    chosen += [("qwen3", "embedding", way) for way in (FULL, PURE)]
    chosen += [(kind, "classification", way) for kind in ENCODERS if kind not in STOPPED for way in ADAPTED]
    chosen += [(kind, "reward", way) for kind in DECODERS for way in (PURE, *ADAPTED)]
    chosen += [(kind, "embedding", way) for kind in ("bert", "qwen3") for way in ADAPTED]
    return {", ".join((kind, head, *way)): _plan(kind, head, way) for kind, head, way in chosen}


def _plan(kind: str, head: str, way: tuple[str, str, str]) -> dict[str, Any]:
    small = {label: (model, keys) for label, model, keys in SMALL}
    plan = small_plan(", ".join((kind, head, *way)), small.get(kind, ("", {})), *way)
    if kind not in small:
        plan["model"] = {"architecture": added.added()[kind]["config"]}
    plan["training"]["head"] = HEADS[head]
    return plan


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


def trace(word: str | None) -> int:
    """Trace, and keep what was seen after each plan; 1 when one could not be traced."""
    from benchmarks.fuzz import run

    rows, known, failed = records() if os.path.exists(FILE) else {}, plans(), 0
    for name, plan in known.items():
        if name in rows if word is None else word not in name:
            continue
        row = run(plan, 300)
        if "refused" in row:
            failed = 1
            print(f"{name}: {row['refused']}", flush=True)
            continue
        found = row["ranks"][0]["instants"]
        rows[name] = {moment: seen for moment, (_, seen) in found.items()}
        print(name, " ".join(f"{m} {said / seen - 1:+.2%}" for m, (said, seen) in found.items()), flush=True)
        lines = [f"{json.dumps(n)}: {json.dumps(rows[n])}" for n in known if n in rows]
        with open(FILE, "w", encoding="utf-8") as file:
            file.write("{\n" + ",\n".join(lines) + "\n}\n")
    return failed


def table() -> str:
    """The page."""
    found = gaps()
    every = sorted(abs(g) for of in found.values() for g in of.values())
    lines = [
        "# What models end in",
        "",
        "<!-- Written by `python -m benchmarks.heads --write`; `--check` compares with today's predictions. -->",
        "",
        f"{len(found)} steps of small encoders and decoders with heads for words, labels, rewards and embeddings",
        "(`benchmarks/heads.py`), traced with torch 2.13 and transformers 5.23; rewards and adapters with 5.24 and",
        "peft 0.21. Pairs of texts are embedded by a forward pass each, as sentence-transformers does it, under an",
        "autocast of its own. Adapters (lora) are of all linear layers, beside a copy of what peft trains whole for",
        "labels.",
        f"Of {len(every)} moments, half are within {every[len(every) // 2]:.3%}, 95 % within",
        f"{every[len(every) * 95 // 100]:.2%}; none may be more than {-LOW:.1%} too low.",
        f"More than {WIDE:.0%} too high is in bold.",
        "",
        f"| model, head, attention, recompute, recipe | {' | '.join(MOMENTS)} |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, of in found.items():
        cells = [f"**{of[m]:+.2%}**" if of[m] > WIDE else f"{of[m]:+.2%}" for m in MOMENTS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Trace, write or check."""
    if "--trace" in arguments:
        words = [a for a in arguments if not a.startswith("-")]
        return trace(words[0] if words else None)
    return write_or_check(TABLE, table(), "python -m benchmarks.heads --write", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
