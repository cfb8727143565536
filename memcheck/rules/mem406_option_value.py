"""An option of the framework has a value that it does not take.

## What it does

Checks the types, the signs, and where upstream lists them the words, of the values under `training.options`.

## Why it matters

The framework refuses the value, or reads it as something else.

## Example

    training: {framework: megatron, options: {recompute_method: blocks}}      # uniform or block

## How to fix

Write one of the values that the finding lists.

## Options

None.

## Source

The frameworks' own arguments, under their upstream names.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import close_to, listed, shown
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import states_options

WORDS = {bool: "true or false", int: "a whole number from 0", float: "a number from 0", str: "a word", list: "a list"}


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per value of the wrong kind."""
    framework, job = context.framework, context.training
    if framework is None or job is None:
        return
    for name, value in job.options:
        types, choices = framework.options[name], framework.choices.get(name, ())
        each = value if isinstance(value, (tuple, list)) else (value,)
        wrong_word = any(v not in choices and any(type(v) is type(choice) for choice in choices) for v in each)
        if _is_one_of(value, types) and not wrong_word and not _is_negative(name, value):
            continue
        kinds = [WORDS[t] for t in types if not any(isinstance(choice, t) for choice in choices)]
        expected = listed([*map(str, choices), *kinds], "or")
        yield RULE.finding(
            context,
            f"{framework.name}'s `{name}` takes {expected}, not {shown(value)}",
            f"/training/options/{name}",
            help=close_to(value, tuple(map(str, choices))) if isinstance(value, str) else "",
        )


def _is_negative(name: str, value: object) -> bool:
    """Sizes and counts are not; -1 is DeepSpeed's own word for "no MiCS"."""
    return isinstance(value, (int, float)) and value < 0 and (name, value) != ("mics_shard_size", -1)


def _is_one_of(value: object, types: tuple[type, ...]) -> bool:
    """Return ``isinstance``, except that true is no number, a tuple is a list, and a list holds no mappings."""
    if isinstance(value, bool):
        return bool in types
    if isinstance(value, tuple):
        return list in types and all(_is_one_of(each, (bool, int, float, str, list)) for each in value)
    return isinstance(value, types)


RULE = Rule(
    code="MEM406",
    name="option-value",
    severity="error",
    summary="An option has a value that the framework does not take.",
    doc=__doc__,
    check=check,
    when=states_options,
    blocking=True,
)
