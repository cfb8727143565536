"""Trace plans that nobody chose, and compare every moment of their steps: needs the extra ``verify``.

    python -m benchmarks.fuzz --seed N [--count M] [--first I] [--limit SECONDS] [--out FILE]
    python -m benchmarks.fuzz --families [WORD] ...   # of every family that was added, or of some (``family_draw``)
    python -m benchmarks.fuzz --again ID...     # plans that benchmarks/data/drawn.json keeps

Plan ``I`` of seed ``N`` is always the same (``benchmarks.draw``). A plan passes when the largest bytes of each of the
step's instants (forward, loss, backward, optimizer), not of the peak alone, are within 1 % of the traced ones, and not
more than 0.5 % below them: a gap that another tensor hides here is the peak of another plan. What PyTorch or a
library refuses to run is counted, with its reason.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.asked import request_of, trace_of
from benchmarks.draw import draw
from benchmarks.drawn import brief, records, wide
from benchmarks.family_draw import draw_family, families
from memcheck.errors import MemcheckError
from memcheck.verify.compare import RankComparison, instants
from memcheck.verify.observe import Request, compare_all


class TooLongError(MemcheckError):
    """A trace did not end in its time."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Give up after that long."""

    def stop(*_: object) -> None:
        raise TooLongError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def trace(plan: dict[str, Any]) -> tuple[Request, tuple[RankComparison, ...]]:
    """Trace every pipeline rank of a plan.

    Raises:
        MemcheckError: it is not valid, or cannot be run as it stands.
    """
    request = request_of(plan["name"], plan)
    return request, compare_all(request, trace_of(request))


def moments(comparison: RankComparison) -> dict[str, tuple[int, int]]:
    """Predicted and traced bytes of each instant of the step."""
    return {name: (said, seen) for name, said, seen, _ in instants(comparison) if said is not None and seen}


def off(found: dict[str, tuple[int, int]]) -> dict[str, float]:
    """The moments that are too far off."""
    return wide({name: said / seen - 1 for name, (said, seen) in found.items()})


def run(plan: dict[str, Any], limit: int) -> dict[str, Any]:
    """Trace one plan."""
    row: dict[str, Any] = {"id": plan["name"], "plan": plan}
    start = time.monotonic()
    try:
        with at_most(limit):
            _, comparisons = trace(plan)
    except MemcheckError as problem:
        return {**row, "refused": str(problem)}
    row["seconds"] = round(time.monotonic() - start)
    row["ranks"] = [
        {"pipeline_rank": c.observed.pipeline_rank, "instants": moments(c), "parameters": c.observed.parameters}
        for c in comparisons
    ]
    return row


def main(arguments: list[str]) -> int:
    """Trace, print one line per plan; 1 when a moment is too far off."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", nargs="+", metavar="ID", help="trace kept plans again")
    parser.add_argument("--families", nargs="?", const="", metavar="WORD", help="draw among added families")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--limit", type=int, default=300, help="seconds for one plan")
    parser.add_argument("--out", help="append each plan and its figures to this file, as JSON lines")
    given = parser.parse_args(arguments)
    numbers = range(given.first, given.first + given.count)
    if given.families is None:
        plans = [draw(given.seed, index) for index in numbers]
    elif not any(given.families in kind for kind in families()):
        parser.error(f"no family that was added has {given.families!r} in its name")
    else:
        plans = [draw_family(given.seed, index, given.families) for index in numbers]
    if given.again:
        plans = [record["plan"] for record in records() if record["id"] in given.again]
    traced = far = 0
    for plan in plans:
        row = run(plan, given.limit)
        if given.out:
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        if "refused" in row:
            print(f"-    {row['id']} {row['refused'][:150]} | {brief(row['plan'])}", flush=True)
            continue
        traced += 1
        bad = {r["pipeline_rank"]: found for r in row["ranks"] if (found := off(r["instants"]))}
        far += bool(bad)
        said = "; ".join(f"rank {r}: " + ", ".join(f"{n} {g:+.2%}" for n, g in g_.items()) for r, g_ in bad.items())
        print(f"{'OFF ' + said if bad else 'ok  '} {row['id']} {row['seconds']} s | {brief(row['plan'])}", flush=True)
    print(f"{len(plans)} drawn, {traced} traced, {far} with a moment off")
    return bool(far)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
