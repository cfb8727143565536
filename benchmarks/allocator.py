"""Replay torch's caching allocator over traced steps: python -m benchmarks.allocator [--redo] [ID...]

Needs the extra ``verify``; torchtitan's cases need one that can be imported. Steps are those of ``data/traced.json``
and ``data/allocator_plans.json``. Without IDs: every step that ``data/allocator.json`` has no line of yet; ``--redo``:
those that it has, too. Each is traced with ``memcheck verify``'s tracer, three steps from a fresh process, stream by
stream (adapters over a 4-bit base by ``benchmarks.base_trace``, which needs bitsandbytes), and replayed with and
without expandable segments (``memcheck/verify/replay``): with memory to spare, and on
ever smaller GPUs. A plan with ``lengths`` is traced at two of them, and run at all of them.
``python -m benchmarks.accuracy --write`` makes the allocator's shares from the file.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.asked import request_of, trace_of
from benchmarks.cases import HERE, Case, load
from benchmarks.replayed import lengths, steps
from memcheck.errors import MemcheckError
from memcheck.verify.compare import RankObservation
from memcheck.verify.replay.runs import Event, HeldMemory, TwoLengths, alike, held, phase_of, varied

FILE = os.path.join(HERE, "data", "allocator.json")
SHORT = 0.25
"""Of the two lengths that a run of varying ones is made from, the short one over the long one."""
SETTINGS = {"default": False, "expandable": True}
Phases = tuple[tuple[int, str], ...]


def traced(case: Case) -> RankObservation:
    """The rank that a case is about, traced.

    Raises:
        MemcheckError: it cannot be priced or run.
    """
    ranks = () if case.pipeline_rank is None else (case.pipeline_rank,)
    return trace_of(request_of(case.id, case.plan), *ranks).ranks[0]


def run_of(case: Case) -> tuple[list[Event], Phases]:
    """Every block of a run, of three equal steps, or of as many as a case has lengths; and the parts of equal steps.

    Raises:
        MemcheckError: it cannot be priced or run, or its steps are not the same at another length.
    """
    wanted = lengths().get(case.id)
    if wanted is None:
        found = followed(case)
        return list(found.events), tuple(found.phases)
    long, short = (followed(_of_length(case, share)) for share in (1.0, SHORT))
    if not alike(tuple(long.events), tuple(short.events), tuple(long.steps), tuple(short.steps)):
        raise MemcheckError("its steps ask for other blocks at another length")
    steps_at = long.steps[0], long.steps[1]
    two = TwoLengths(long=tuple(long.events), short=tuple(short.events), steps=steps_at, share=SHORT)
    return varied(two, wanted), ()


def followed(case: Case) -> Any:
    """The events, the steps and their parts of a case's run: adapters over 4 bits are traced by ``base_trace``."""
    if case.plan["training"].get("method") != "qlora":
        return traced(case)
    from benchmarks import base_trace

    return base_trace.run(case.plan)[1]


def _of_length(case: Case, share: float) -> Case:
    """The case with full rows of a share of its length."""
    training = {key: value for key, value in case.plan["training"].items() if key != "sequences"}
    training["sequence_length"] = int(training["sequence_length"] * share)
    return case._replace(plan={**case.plan, "training": training})


def line(case: Case) -> dict[str, Any]:
    """One step's line of the file.

    Raises:
        MemcheckError: it cannot be priced or run.
    """
    events, phases = run_of(case)
    both = {name: held(events, expandable=expandable) for name, expandable in SETTINGS.items()}
    first = both["default"]
    fails = {name: phase_of(phases, found.fails_at) for name, found in both.items()}
    return {
        "id": case.id,
        "allocated": first.allocated,
        "streams": list(first.streams),
        **{name: ratios(found) for name, found in both.items()},
        **({"fails": fails} if phases else {}),
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
