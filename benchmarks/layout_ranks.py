"""Where a published layout ranks among all that ``suggest --goal throughput`` searches on the same GPUs.

    python -m benchmarks.layout_ranks [WORD]      # of the layouts whose titles contain WORD; minutes

What it finds is recorded in ``data/layout_ranks.json``, which ``benchmarks/throughput.md`` shows.
``free``: layout, micro-batch, recompute and optimizer's place vary, the global batch stays. ``recipe kept``: only the
layout varies; what the authors chose under ``training`` stays.
"""

from __future__ import annotations

import json
import os
import sys
import time

from benchmarks.cases import HERE, load
from memcheck.check import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE
from memcheck.errors import UsageError
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import read_plan
from memcheck.remedies.price import Pricer
from memcheck.rules.run import make_context
from memcheck.search.goals import search
from memcheck.source.types import Document

RECORDED = "layout_ranks.json"
ENOUGH = 20
"""Places that are looked at."""
RECIPE = ("training.micro_batch_size", "training.activation_checkpointing", "training.optimizer", "training.options")


def place(document: Document, keep: tuple[str, ...] = ()) -> str:
    """The rank of the plan as written among the fastest that fit, of how many that were considered.

    Raises:
        UsageError: the document is no plan.
    """
    plan, _ = read_plan(document)
    if plan is None:
        raise UsageError("no plan")
    resolved = resolve(plan, base_dir=".")
    answer = estimate(resolved.job, resolved.gpu, resolved.overhead)
    context = make_context(plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE)
    pricer = Pricer(context._replace(estimate=answer), keep)
    found = search(pricer, "throughput", ENOUGH)
    ranked = sorted(found.found, key=lambda p: round(p.slowdown or 0.0, 4))
    rank = next((n for n, priced in enumerate(ranked, 1) if not priced.changes), None)
    considered = f"{found.tally.considered:,}"
    return f"{rank} of {considered}" if rank is not None else f"below {ENOUGH} of {considered}"


def main(words: list[str]) -> int:
    """Print a line per layout."""
    from benchmarks.throughput import layouts

    recorded = load(RECORDED)
    for layout in layouts():
        if words and words[0] not in layout.title:
            continue
        start = time.monotonic()
        free, kept = place(layout.document), place(layout.document, RECIPE)
        seconds = time.monotonic() - start
        print(f"{layout.title}: free {free}; recipe kept {kept} ({seconds:.0f} s)", flush=True)
        recorded[layout.title] = {"free": free, "recipe kept": kept}
        with open(os.path.join(HERE, "data", RECORDED), "w", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(recorded, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
