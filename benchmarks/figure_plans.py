"""Draws plans for ``benchmarks.figures``, and chooses among them by what ``benchmarks.probes`` tell of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import chain, islice
from random import Random
from typing import Any

from benchmarks import base_cases, deepspeed_cases, drawn, families, heads, measured, objective_cases, outcomes, traced
from benchmarks.cases import Case
from benchmarks.figures import Plan, said
from benchmarks.hostile_draw import KINDS, draw_value, schema
from memcheck.catalog.gpus import gpu_names
from memcheck.frameworks.registry import FRAMEWORKS

LONGEST = 900
"""Characters of a plan."""
FIGURES = 380
"""Characters that its figures have, on average."""
MOST = 390_000
"""Characters of all plans and their figures."""
Shown = Callable[[Callable[[], object]], int]
Told = tuple[Plan, int]
"""A plan, and what probes tell of it, as bits."""


def written() -> list[Plan]:
    """The plans that the benchmarks hold against traced and measured steps."""
    rooms: tuple[Callable[[], Any], ...] = tuple(
        module.cases for module in (base_cases, deepspeed_cases, drawn, measured, objective_cases, traced)
    )
    found: list[Plan] = [case.plan for cases in rooms for case in cases() if isinstance(case, Case) and case.plan]
    found += [job.plan for job in outcomes.outcomes()]
    return [*found, *families.plans().values(), *heads.plans().values()]


def candidates(chance: Random, found: list[Told]) -> Iterator[Plan]:
    """Plans without end: of the benchmarks, of the schema, and variants of both and of what was ``found`` by then."""
    known = [plan for plan in written() if len(dumped(plan)) < LONGEST]
    chance.shuffle(known)
    yield from known
    while True:
        yield json.loads(json.dumps(drawn_of_schema(chance)))
        for parents in (known, [plan for plan, _ in found], [plan for plan, _ in found[-200:]]):
            yield varied(chance, chance.choice(parents), chance.choice(parents))


def drawn_of_schema(chance: Random) -> Plan:
    """A plan that the schema takes."""
    import yaml

    found: Plan = yaml.safe_load(KINDS["plan"](chance).files["plan.yaml"])
    return found


def varied(chance: Random, plan: Plan, other: Plan) -> Plan:
    """The plan with other values of one to three keys: of the schema, of another plan, or next to what they are."""
    plan = deepcopy(plan)
    for _ in range(chance.randint(1, 3)):
        chance.choice((_with_key, _with_neighbour, _with_others))(chance, plan, other)
    return plan


def _with_key(chance: Random, plan: Plan, _other: Plan) -> None:
    """Another GPU, or any value of any key of the schema."""
    section = chance.choice(("training", "training", "training", "parallelism", "hardware"))
    values = plan.setdefault(section, {}) if section in plan or "training" in plan else plan["inference"]
    if section == "hardware":
        values |= {"gpu": chance.choice(gpu_names()), "nodes": chance.choice((1, 1, 2, 4, 8))}
    elif "training" in plan:
        keys = schema()["definitions"][section]["properties"]
        key = chance.choice(sorted(keys))
        values[key] = chance.choice(sorted(FRAMEWORKS)) if key == "framework" else draw_value(chance, keys[key])


def _with_neighbour(chance: Random, plan: Plan, _other: Plan) -> None:
    """A number one up or down, doubled, halved or as small as can be; the other truth; nothing at all."""
    holder, key, value = chance.choice(list(_leaves(plan)))
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = chance.choice((value + 1, value - 1, value * 2, value // 2, 1, 2, 4))
    elif holder is not plan:
        del holder[key]


def _with_others(chance: Random, plan: Plan, other: Plan) -> None:
    """A value as the other plan has it, or its whole section."""
    section = chance.choice([name for name in other if name in plan])
    mine, theirs = plan[section], other[section]
    if isinstance(mine, dict) and isinstance(theirs, dict) and theirs and chance.random() < 0.8:
        key = chance.choice(sorted(theirs))
        mine[key] = deepcopy(theirs[key])
    else:
        plan[section] = deepcopy(theirs)


def _leaves(values: Plan) -> Iterator[tuple[Plan, str, Any]]:
    """Every value that is no mapping, with what holds it."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value)
        else:
            yield values, key, value


def chosen(before: dict[str, Plan], shown: Shown, seed: int, count: int) -> dict[str, Plan]:
    """Of the plans that are kept and of so many candidates those that show most, in as few bytes as ``MOST``.

    ``shown``: what the probes tell of a plan, as bits.
    """
    chance = Random(f"figures {seed}")  # noqa: S311 - nothing is secret
    found: list[Told] = []
    every = 0
    for plan in chain(before.values(), islice(candidates(chance, found), count)):
        plan.pop("name", None)
        if len(dumped(plan)) >= LONGEST:
            continue
        try:
            told = shown(partial(said, plan))
        except AssertionError as error:
            print(f"a defect, at {dumped(plan)}: {str(error).splitlines()[-1]}", flush=True)
            continue
        if told & ~every:
            found.append((plan, told))
        every |= told
    kept = _covering(found)
    return {str(number): plan for number, plan in enumerate(_shortened(kept, shown))}


def _covering(found: list[Told]) -> list[Told]:
    """Those that show most by their length of what none before them shows."""
    left, kept, every, room = list(found), [], 0, MOST
    while left:
        worth = [(told & ~every).bit_count() / (len(dumped(plan)) + FIGURES) for plan, told in left]
        plan, told = best = left.pop(worth.index(max(worth)))
        room -= len(dumped(plan)) + FIGURES
        if room < 0 or not max(worth):
            break
        kept.append(best)
        every |= told
        left = [each for each in left if each[1] & ~every]
    return kept


def _shortened(kept: list[Told], shown: Shown) -> Iterator[Plan]:
    """Each without the values that it does not need for what it alone shows."""
    counts = Counter(bit for _, told in kept for bit in _bits(told))
    for plan, told in kept:
        for holder, key, value in list(_leaves(plan)):
            del holder[key]
            instead = shown(partial(said, plan))
            if any(counts[bit] < 2 for bit in _bits(told & ~instead)):
                holder[key] = value
                continue
            counts.subtract(_bits(told))
            counts.update(_bits(instead))
            told = instead
        yield plan


def _bits(number: int) -> Iterator[int]:
    """The places of its ones."""
    return (place for place, bit in enumerate(reversed(bin(number))) if bit == "1")


def dumped(plan: Plan) -> str:
    """As it is kept."""
    return json.dumps(plan, separators=(",", ":"))
