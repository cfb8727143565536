"""What memcheck says of some hundred plans that together run nearly all of the engine, figure by figure.

    python -m benchmarks.figures --write    # data/figures.json, of today: after a change that moves figures
    python -m benchmarks.figures --check    # whether it is of today, and what moved

Nothing here is a truth: those are the traced and the measured steps. It shows what a change moved, whether that was
meant or not, down to the byte. The plans are kept beside it (``data/figures_plans.json``), so that a new model, or
other dice, move none. How they are chosen: ``benchmarks.probes``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

from benchmarks import boundaries
from benchmarks.cases import HERE, kept
from benchmarks.engine_speed import forget
from benchmarks.watched import digest, watched
from memcheck.accounts.estimate import Estimate
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding
from memcheck.plan.read import build_plan
from memcheck.timing.serving import decode_time
from memcheck.timing.step import step_time

Plan = dict[str, Any]
Figures = dict[str, Any]
PLANS = os.path.join(HERE, "data", "figures_plans.json")
FILE = os.path.join(HERE, "data", "figures.json")
PROFILES = os.path.join(HERE, "data", "figures_profiles.json")
RULES = os.path.join(HERE, "data", "figures_rules.json")
COMMAND = "python -m benchmarks.figures --write"
EVERYTHING = Gate(profile="research", inventory=True)
"""All rules; the tensors of every peak."""
REDUNDANT = "MEM017"
"""The rule about keys that could be left out, of which drawn plans are full: its findings are not listed one by one."""
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def plans() -> dict[str, Plan]:
    """The kept plans, by number."""
    found: dict[str, Plan] = kept(PLANS)
    return found


def recorded() -> dict[str, Figures]:
    """What was said of each when the record was written."""
    found: dict[str, Figures] = kept(FILE)
    return found


def said(plan: Plan) -> Figures:
    """What memcheck says of a plan today, by an engine that remembers nothing."""
    forget()
    with watched() as made:
        (result,), traces = check_file("plan.yaml", json.dumps(plan, indent=1).encode(), EVERYTHING)
    if traces:
        raise AssertionError("\n".join(traces))
    says = [_finding(each) for each in result.findings if each.code != REDUNDANT]
    words = f"{crc32(repr(([_words(each) for each in result.findings], result.assumptions)).encode()):08x}"
    found: Figures = {"status": result.status, "says": says, "words": words}
    found |= {name: digest(some) for name, some in made.items() if some}
    answer = result.estimate
    return found if answer is None else {**found, **_estimated(answer), **_timed(plan)}


def _finding(finding: Finding) -> str:
    """Which rule, on which key, with which numbers: what can be read where its words are a digest."""
    numbers = NUMBER.findall(f"{finding.message} {finding.help}")
    return " ".join([finding.code, finding.severity[0], finding.pointer, *numbers])


def _words(finding: Finding) -> Any:
    """All that it says and where. Its remedies without their seconds, whose last digits are the C library's."""
    return finding._replace(remedies=()), [(remedy.title, remedy.set, remedy.edits) for remedy in finding.remedies]


def _estimated(answer: Estimate) -> Figures:
    """The bytes: of the worst rank moment by moment, of all ranks together, and a digest of what they are made of."""
    worst = max(answer.ranks, key=lambda rank: rank.peak.allocated_bytes)
    made_of = [(r, list(r.pools)) for r in answer.ranks], answer.components_bytes, answer.largest, answer.host_moments
    return {
        "needed": answer.needed_bytes,
        "ends": list(answer.needed_interval_bytes),
        "seen": answer.device_bytes,
        "moments": {instant.name: instant.allocated_bytes for instant in worst.instants},
        "ranks": sum(instant.allocated_bytes for rank in answer.ranks for instant in rank.instants),
        "parameters": [answer.parameters, answer.trainable_parameters],
        "host": {moment.name: moment.bytes for moment in answer.host_moments},
        "made of": f"{crc32(repr(made_of).encode()):08x}",
    }


def _timed(plan: Plan) -> Figures:
    """The seconds of a step, to six digits: the last ones are the C library's."""
    resolved = resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    job = resolved.job
    try:
        step = step_time(job, resolved.gpu) if isinstance(job, TrainingJob) else decode_time(job, resolved.gpu)
    except UnsupportedError:
        return {}
    parts = [*step[:6], step.model_flops_share, step.recompute_share, step.exchanges.seconds, step.prefill_seconds]
    return {"seconds": [float(f"{part:.6g}") for part in parts]}


def profiles() -> dict[str, str]:
    """A digest of what each framework's profile states: defaults that plans are judged by and none here may show."""
    return {name: f"{crc32(repr(_plain(profile)).encode()):08x}" for name, profile in FRAMEWORKS.items()}


BESIDE: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "profiles": (PROFILES, profiles),
    "rules": (RULES, boundaries.said),
}
"""What is kept besides the plans, each in a file of its own."""


def _plain(value: Any) -> Any:
    """The value with sets in an order that is always the same."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, dict):
        return [(key, _plain(each)) for key, each in value.items()]
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def moved(before: Figures, now: Figures) -> Iterator[str]:
    """Each figure that is another one, from what to what."""
    for name in dict.fromkeys([*before, *now]):
        was, says = before.get(name), now.get(name)
        if isinstance(was, dict) and isinstance(says, dict):
            yield from (f"{name} {line}" for line in moved(was, says))
        elif was != says:
            yield f"{name}: {was} -> {says}"


def written(rows: dict[str, Any]) -> str:
    """A file with a plan a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in rows.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path: str, rows: dict[str, Any]) -> None:
    """Write one of the files."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(written(rows))


def stale(only: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The plans of which a figure moved, with what moved. ``only``: look at these; empty: at all."""
    before, known = recorded(), plans()
    for name in [name for name in only if name in known] or (() if only else known):
        lines = list(moved(before.get(name, {}), said(known[name])))
        if lines:
            yield name, lines
    for name, (path, now) in BESIDE.items():
        lines = list(moved(kept(path), now())) if not only or name in only else []
        if lines:
            yield name, lines


def check(only: list[str], first: bool = False) -> int:
    """Print what moved, or only of the first plan of which anything did; 1 where it did."""
    fresh = True
    for name, lines in stale(only):
        fresh = False
        print(f"{name}: " + "\n  ".join(lines))
        if first:
            return 1
    print("figures.json is of today" if fresh else f"stale: benchmarks/data/figures.json ({COMMAND})")
    return not fresh


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--first", action="store_true", help="look for the first plan of which a figure moved")
    parser.add_argument("plans", nargs="*", metavar="NUMBER", help="check these alone")
    options = parser.parse_args()
    if options.write:
        write(FILE, {name: said(plan) for name, plan in plans().items()})
        for path, now in BESIDE.values():
            write(path, now())
    return check(options.plans, options.first) if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
