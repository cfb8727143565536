"""What the rules say just beside every rule's example: of each value one more, one less, any other, none.

A rule's own example shows that it speaks and its other one that it can be silent. Where between the two it begins to
speak, with which words and at which key, is seen from plans that differ from them in one value. Only rules that need no
estimate are asked. ``python -m benchmarks.figures --write`` keeps a digest for each value of each example
(``data/figures_rules.json``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from zlib import crc32

from benchmarks.hostile_draw import schema
from memcheck.configs.documents import load_plans
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.plan.finding import Finding
from memcheck.plan.read import read_plan
from memcheck.rules.run import check_layout, make_context, rules_for
from memcheck.rules.types import Governance, LockedLimits, located

Plan = dict[str, Any]
EXAMPLES = Path(__file__).parent.parent / "docs" / "rules" / "examples"
POLICY = Governance(locked=True, allowed_gpus=("h100-*", "a100*"), max_gpus=16)
"""What a configuration lays down, so that rules about policies have something to say."""
LIMITS = LockedLimits(0.9, 0.85)
GPUS = ("v100-32gb", "a100-40gb", "b200")
"""Those that lack most, and those that lack least."""


def examples() -> Iterator[tuple[str, Plan]]:
    """The pages' examples of rules about plans, by name: one that breaks it and one that does not."""
    import yaml

    for path in sorted(EXAMPLES.glob("MEM[1-46]*.yaml")):  # those before are about files that cannot be read
        plan = json.loads(json.dumps(yaml.safe_load(path.read_bytes())))
        if isinstance(plan, dict) and not {"extends", "source"} & set(plan):
            yield path.name.removesuffix(".yaml"), plan


def leaves(values: Plan, at: str = "") -> Iterator[tuple[Plan, str, Any, str]]:
    """Every value that is no mapping, with what holds it, and its dotted key."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{at}{key}.")
        else:
            yield values, key, value, f"{at}{key}"


def beside(plan: Plan) -> Iterator[tuple[str, list[Plan]]]:
    """Each key, with the plans that differ in its value alone."""
    plan = deepcopy(plan)
    for holder, key, value, at in list(leaves(plan)):
        found = []
        for other in _others(at, value):
            holder[key] = other
            found.append(deepcopy(plan))
        if holder is not plan:
            del holder[key]
            found.append(deepcopy(plan))
        holder[key] = value
        yield at, found


def _others(at: str, value: Any) -> Iterator[Any]:
    """What may stand there instead: for a word every other one that the schema has for its key."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 2 * value)
    elif at == "hardware.gpu":
        yield from (name for name in GPUS if name != value)
    else:
        section, _, key = at.partition(".")
        keys = schema()["definitions"].get(section, {}).get("properties", {})
        yield from (word for word in keys.get(key, {}).get("enum", ()) if word != value)


def findings(plan: Plan) -> list[Finding]:
    """What the rules say that need no estimate, or why there is no job to ask them about."""
    (document,) = load_plans("plan.yaml", json.dumps(plan, indent=1).encode(), {}, {})
    spec, found = read_plan(document)
    if spec is None:
        return found
    try:
        resolved = resolve(spec, FRAMEWORKS, base_dir="")
    except (ResolutionError, UnsupportedError) as error:
        return [*found, *located(error, document)]
    context = make_context(spec, document, resolved, fail_above=LIMITS.fail_above, warn_above=LIMITS.warn_above)
    context = context._replace(governance=POLICY, limits=LIMITS, stated=spec.policy)
    try:
        return [*found, *check_layout(context, rules_for(lambda _: True))[0]]
    except UnsupportedError as error:
        return [*found, *located(error, document)]


def said() -> dict[str, dict[str, str]]:
    """What is said beside each example, by its name."""
    return {name: said_beside(plan) for name, plan in examples()}


def said_beside(plan: Plan) -> dict[str, str]:
    """For each of its values the codes of what is found beside it, and a digest of their words and places."""
    rows = {}
    for at, plans in (("itself", [plan]), *beside(plan)):
        found = [findings(each) for each in plans]
        codes = sorted({finding.code for some in found for finding in some})
        rows[at] = " ".join([*codes, f"{crc32(repr(found).encode()):08x}"])
    return rows
