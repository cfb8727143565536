"""Replay torch's caching allocator over traced steps: python -m benchmarks.allocator [--redo] [ID...]

Needs the extra ``verify``; torchtitan's cases need one that can be imported. Steps are those of ``data/traced.json``
and ``data/allocator_plans.json``. Without IDs: every step that ``data/allocator.json`` has no line of yet; ``--redo``:
those that it has, too. Each is traced with ``memcheck verify``'s tracer, three steps from a fresh process, stream by
stream, and replayed with and without expandable segments (``memcheck/verify/replay``): with memory to spare, and on
ever smaller GPUs. ``python -m benchmarks.accuracy --write`` makes the allocator's shares from the file.
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

from benchmarks.cases import HERE, Case, load
from benchmarks.replayed import steps
from memcheck.errors import MemcheckError
from memcheck.plan.load import load_documents
from memcheck.verify.observe import observe
from memcheck.verify.progress import Progress
from memcheck.verify.replay.held import HeldMemory, held
from memcheck.verify.request import runnable
from memcheck.verify.subject import Subject, load_subject
from memcheck.verify.types import TRACED, RankObservation

FILE = os.path.join(HERE, "data", "allocator.json")
SETTINGS = {"default": False, "expandable": True}


def traced(case: Case) -> RankObservation:
    """The rank that a case is about, traced.

    Raises:
        MemcheckError: it cannot be priced or run.
    """
    (document,) = load_documents(f"{case.id}.yaml", json.dumps(case.plan).encode())
    subject = load_subject(document)
    if not isinstance(subject, Subject):
        raise MemcheckError("; ".join(f.message for f in subject.findings))
    ranks = () if case.pipeline_rank is None else (case.pipeline_rank,)
    return observe(runnable(subject), TRACED, Progress(io.StringIO(), terminal=False), ranks).ranks[0]


def line(case: Case) -> dict[str, Any]:
    """One step's line of the file.

    Raises:
        MemcheckError: it cannot be priced or run.
    """
    events = list(traced(case).events)
    both = {name: held(events, expandable=expandable) for name, expandable in SETTINGS.items()}
    first = both["default"]
    return {
        "id": case.id,
        "allocated": first.allocated,
        "streams": list(first.streams),
        **{name: ratios(found) for name, found in both.items()},
    }


def ratios(found: HeldMemory) -> list[float]:
    """Reserved, and the smallest memory, over what is live."""
    return [round(found.reserved / found.allocated, 4), round(found.needed / found.allocated, 4)]


def write(lines: list[dict[str, Any]]) -> None:
    """Put lines into the file, in place of those of the same steps."""
    data = load("allocator.json")
    new = {row["id"]: row for row in lines}
    rows = [new.pop(row["id"], row) for row in data["steps"]]
    text = ",\n".join(f"  {json.dumps(row)}" for row in [*rows, *new.values()])
    with open(FILE, "w", encoding="utf-8") as file:
        file.write(f'{{\n "source": {json.dumps(data["source"])},\n "steps": [\n{text}\n ]\n}}\n')


def attempt(case: Case) -> dict[str, Any] | str:
    """A step's line, or why there is none."""
    try:
        return line(case)
    except MemcheckError as error:
        return str(error)


def main(arguments: list[str]) -> int:
    """The command."""
    known = steps()
    done = set() if "--redo" in arguments else {row["id"] for row in load("allocator.json")["steps"]}
    chosen = [a for a in arguments if not a.startswith("-")] or [name for name in known if name not in done]
    failed = 0
    for name in chosen:
        found = attempt(known[name])
        print(f"{name} {found}", flush=True)
        if isinstance(found, str):
            failed += 1
        else:
            write([found])
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
