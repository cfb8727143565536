"""Chooses plans for ``benchmarks.figures``: those of the benchmarks, drawn ones, and each with some keys changed.

A plan is kept for a line or a branch of the engine that no plan before it ran. Needs Python 3.12 (``sys.monitoring``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from pathlib import Path
from random import Random
from types import CodeType
from typing import Any

import memcheck
from benchmarks import base_cases, deepspeed_cases, drawn, families, heads, measured, objective_cases, outcomes, traced
from benchmarks.cases import Case
from benchmarks.engine_speed import forget
from benchmarks.figures import Plan, said
from benchmarks.hostile_draw import KINDS, draw_value, schema
from memcheck.catalog.gpus import gpu_names
from memcheck.frameworks.registry import FRAMEWORKS

ENGINE = tuple(
    str(Path(memcheck.__file__).parent / room)
    for room in ("accounts", "autograd", "frameworks", "job", "memory", "models", "rules", "timing")
)
LONGEST = 1200
"""Characters of a plan."""


class Unseen:
    """Lines and branches of the engine that run for the first time."""

    def __init__(self) -> None:
        """Watch from now on."""
        self.found = 0
        self._branches: dict[tuple[CodeType, int], set[int]] = {}
        self._watch = watch = sys.monitoring  # type: ignore[attr-defined]  # from Python 3.12 on
        watch.use_tool_id(watch.COVERAGE_ID, "figures")
        watch.register_callback(watch.COVERAGE_ID, watch.events.LINE, self._line)
        watch.register_callback(watch.COVERAGE_ID, watch.events.BRANCH, self._branch)
        watch.set_events(watch.COVERAGE_ID, watch.events.LINE | watch.events.BRANCH)

    def _line(self, code: CodeType, _line: int) -> object:
        self.found += code.co_filename.startswith(ENGINE)
        return self._watch.DISABLE

    def _branch(self, code: CodeType, offset: int, target: int) -> object:
        if not code.co_filename.startswith(ENGINE):
            return self._watch.DISABLE
        seen = self._branches.setdefault((code, offset), set())
        self.found += target not in seen
        seen.add(target)
        return self._watch.DISABLE if len(seen) > 1 else None

    def any_in(self, plan: Plan) -> bool:
        """Whether the plan runs something new, from an engine that remembers nothing."""
        forget()
        before = self.found
        said(plan)
        return self.found > before

    def again(self) -> None:
        """Everything is new again."""
        self._branches.clear()
        self._watch.restart_events()

    def end(self) -> None:
        """Watch no more."""
        self._watch.free_tool_id(self._watch.COVERAGE_ID)


def written() -> list[Plan]:
    """The plans that the benchmarks hold against traced and measured steps."""
    rooms: tuple[Callable[[], Any], ...] = tuple(
        module.cases for module in (base_cases, deepspeed_cases, drawn, measured, objective_cases, traced)
    )
    found: list[Plan] = [case.plan for cases in rooms for case in cases() if isinstance(case, Case) and case.plan]
    found += [job.plan for job in outcomes.outcomes()]
    return [*found, *families.plans().values(), *heads.plans().values()]


def candidates(seed: int) -> Iterator[Plan]:
    """Plans without end: of the benchmarks, of the schema, and either with other values of a few keys."""
    chance = Random(f"figures {seed}")  # noqa: S311 - nothing is secret
    known = [plan for plan in written() if len(json.dumps(plan)) < LONGEST]
    chance.shuffle(known)
    for plan in known:
        yield plan
        yield varied(chance, chance.choice(known))
    while True:
        yield varied(chance, chance.choice(known))
        yield json.loads(json.dumps(drawn_of_schema(chance)))


def drawn_of_schema(chance: Random) -> Plan:
    """A plan that the schema takes."""
    import yaml

    found: Plan = yaml.safe_load(KINDS["plan"](chance).files["plan.yaml"])
    return found


def varied(chance: Random, plan: Plan) -> Plan:
    """The plan with other values of one to four keys, mostly those that its framework has."""
    plan = deepcopy(plan)
    for _ in range(chance.randint(1, 4)):
        section = chance.choice(("training", "training", "training", "parallelism", "hardware"))
        values = plan.setdefault(section, {}) if section in plan or "training" in plan else plan["inference"]
        if section == "hardware":
            values |= {"gpu": chance.choice(gpu_names()), "nodes": chance.choice((1, 1, 2, 4, 8))}
        elif "training" in plan:
            keys = schema()["definitions"][section]["properties"]
            key = chance.choice(sorted(keys))
            values[key] = chance.choice(sorted(FRAMEWORKS)) if key == "framework" else draw_value(chance, keys[key])
    return plan


def chosen(before: dict[str, Plan], seed: int, count: int) -> dict[str, Plan]:
    """The plans that are kept, and of so many candidates those that run what no other does."""
    unseen = Unseen()
    try:
        found = [plan for plan in before.values() if unseen.any_in(plan)]
        for plan in islice(candidates(seed), count):
            plan.pop("name", None)
            if len(json.dumps(plan)) < LONGEST and unseen.any_in(plan):
                found.append(plan)
        for order in (reversed, _shortest_first):  # what came last is rarest, and may make those before it idle
            unseen.again()
            found = [plan for plan in order(found) if unseen.any_in(plan)]
    finally:
        unseen.end()
    return {str(number): plan for number, plan in enumerate(found)}


def _shortest_first(found: list[Plan]) -> list[Plan]:
    return sorted(found, key=lambda plan: len(json.dumps(plan)))
