"""Draws plans for ``benchmarks.figures``, and chooses among them by what ``benchmarks.probes`` tell of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from benchmarks import base_cases, deepspeed_cases, drawn, families, heads, measured, objective_cases, outcomes, traced
from benchmarks.boundaries import examples, leaves
from benchmarks.cases import Case
from benchmarks.figures import Plan, said
from benchmarks.hostile_draw import KINDS, SMALL, draw_value, schema
from memcheck.catalog.names import gpu_names, model_names
from memcheck.frameworks.registry import FRAMEWORKS

LONGEST = 900
"""Characters of a plan."""
FIGURES = 430
"""Characters that its figures have, on average."""
MOST = 390_000
"""Characters of all plans and their figures."""
Shown = Callable[[Callable[[], object]], int]
Told = tuple[Plan, int]
"""A plan, and what probes tell of it, as bits."""


def written() -> list[Plan]:
    """The plans that the benchmarks hold against traced and measured steps, and those that show a rule."""
    rooms: tuple[Callable[[], Any], ...] = tuple(
        module.cases for module in (base_cases, deepspeed_cases, drawn, measured, objective_cases, traced)
    )
    found: list[Plan] = [case.plan for cases in rooms for case in cases() if isinstance(case, Case) and case.plan]
    found += [job.plan for job in outcomes.outcomes()]
    return [*found, *families.plans().values(), *heads.plans().values(), *dict(examples()).values()]


def candidates(chance: Random, before: list[Plan], found: list[Told]) -> Iterator[Plan]:
    """Plans without end: of every model, of the benchmarks, of the schema, variants of these and of what was ``found``.

    ``before``: those that are kept already.
    """
    known = [plan for plan in written() if len(dumped(plan)) < LONGEST]
    names = list(model_names())
    chance.shuffle(known)
    chance.shuffle(names)
    for name in names:
        yield from of_model(chance, name, chance.choice(before or known))
    yield from known
    while True:
        yield json.loads(json.dumps(drawn_of_schema(chance)))
        for parents in (known, before, [plan for plan, _ in found], [plan for plan, _ in found[-200:]]):
            if parents:
                yield varied(chance, chance.choice(parents), chance.choice(parents))


def of_model(chance: Random, name: str, other: Plan) -> Iterator[Plan]:
    """A model of the catalog as transformers builds it, in any other framework, on pictures, and trained as another."""
    plain = {"memcheck": 1, "model": name, "hardware": {"gpu": "h100-80gb"}}
    training: Plan = {"micro_batch_size": 2, "sequence_length": 1000, "framework": "pytorch"}
    yield {**plain, "training": training}
    yield {**plain, "training": {**training, "framework": chance.choice(sorted(FRAMEWORKS))}}
    yield {**plain, "training": {**training, "images": {"width": 640, "height": 480}}}
    yield varied(chance, {**deepcopy(other), "model": name}, other)


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
    """Another GPU or model, any value of any key of the schema, or an option that the plan's framework knows."""
    room = "training" if "training" in plan or "inference" not in plan else "inference"
    section = chance.choice((room, room, room, "parallelism", "hardware", "policy", "model", "options"))
    if section == "model":
        plan["model"] = chance.choice(model_names())
    elif section == "options":
        training = plan.setdefault("training", {})
        profile = FRAMEWORKS.get(training.get("framework"), FRAMEWORKS["pytorch"])
        name = chance.choice(sorted(profile.options))
        values = profile.choices.get(name) or [_option(chance, kind) for kind in profile.options[name]]
        training["options"] = {**training.get("options", {}), name: chance.choice(values)}
    elif section == "hardware" and chance.random() < 0.8:
        plan.setdefault("hardware", {}).update(gpu=chance.choice(gpu_names()), nodes=chance.choice((1, 1, 2, 4, 8)))
    else:
        keys = schema()["definitions"][section]["properties"]
        key = chance.choice(sorted(keys))
        value = chance.choice(sorted(FRAMEWORKS)) if key == "framework" else draw_value(chance, keys[key])
        plan.setdefault(section, {})[key] = value


def _option(chance: Random, kind: type) -> Any:
    """A value of an option."""
    drawn: dict[type, Any] = {bool: chance.random() < 0.5, int: chance.choice(SMALL), float: 0.5, list: ["layers.0"]}
    return drawn.get(kind, "full")


def _with_neighbour(chance: Random, plan: Plan, _other: Plan) -> None:
    """A number one up or down, doubled, halved or as small as can be; the other truth; nothing at all."""
    holder, key, value, _ = chance.choice(list(leaves(plan)))
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


def chosen(before: dict[str, Plan], shown: Shown, seed: int, count: int) -> dict[str, Plan]:
    """The plans that are kept, and behind them, of so many candidates, those that show most in the room that is left.

    ``shown``: what the probes tell of a plan, as bits. What is kept stays as it is, so that its figures do.
    """
    chance = Random(f"figures {seed}")  # noqa: S311 - nothing is secret
    found: list[Told] = []
    told_before = 0
    for plan in before.values():
        told_before |= shown(partial(said, plan))
    every = told_before
    for plan in islice(candidates(chance, list(before.values()), found), count):
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
    room = MOST - sum(len(dumped(plan)) + FIGURES for plan in before.values())
    kept = _shortened(_covering(found, told_before, room), told_before, shown)
    return before | {str(number): plan for number, plan in enumerate(kept, len(before))}


def _covering(found: list[Told], every: int, room: int) -> list[Told]:
    """Those that show most by their length of what neither ``every`` has nor any before them, in so many characters."""
    left, kept = list(found), []
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


def _shortened(kept: list[Told], every: int, shown: Shown) -> Iterator[Plan]:
    """Each without the values that it does not need for what it alone shows and ``every`` has not."""
    counts = Counter(bit for _, told in kept for bit in _bits(told & ~every))
    for plan, told in kept:
        alone = told & ~every
        for holder, key, value, _ in list(leaves(plan)):
            del holder[key]
            instead = shown(partial(said, plan)) & ~every
            if any(counts[bit] < 2 for bit in _bits(alone & ~instead)):
                holder[key] = value
                continue
            counts.subtract(_bits(alone))
            counts.update(_bits(instead))
            alone = instead
        yield plan


def _bits(number: int) -> Iterator[int]:
    """The places of its ones."""
    return (place for place, bit in enumerate(reversed(bin(number))) if bit == "1")


def dumped(plan: Plan) -> str:
    """As it is kept."""
    return json.dumps(plan, separators=(",", ":"))
