"""The framework has no such option that moves memory.

## What it does

Compares the names under `training.options` with the knobs that memcheck knows of that framework.

## Why it matters

An option that is not read changes nothing in the prediction; a typo would pass silently.

## Example

    training: {framework: deepspeed, options: {reduce_buckets_size: 50000000}}

## How to fix

Correct the name, or move the option out of the plan if it does not bear on memory.

## Options

None.

## Source

The frameworks' own arguments, under their upstream names.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.plan.finding import CONFIG_DISAGREES, Finding
from memcheck.plan.foreign import answered
from memcheck.rules.budget import close_to, listed
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import unknown_options

FRAMEWORK = "/training/framework"
MOST = 4
"""The most names that one message lists."""


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per unknown option, and one for all that another framework has."""
    framework, stated = context.framework, context.plan.training
    if framework is None or stated is None:
        return
    unknown = [name for name in stated.options or {} if name not in framework.options]
    if not unknown:
        return
    foreign = [name for name in unknown if any(name in f.options for f in FRAMEWORKS.values())]
    owners = [f.name for f in FRAMEWORKS.values() if foreign and all(name in f.options for name in foreign)]
    if len(foreign) > 1 and owners:
        yield _foreign(context, framework.name, foreign, owners)
        unknown = [name for name in unknown if name not in foreign]
    for name in unknown:
        others = [f.name for f in FRAMEWORKS.values() if name in f.options]
        help = close_to(name, framework.options)
        if others:
            help = f"it is an option of {listed(others)}"
        elif told := answered(name, [], (stated.options or {})[name]):
            help = told
        yield RULE.finding(
            context,
            f"{framework.name} has no option `{name}` that memcheck knows",
            f"/training/options/{name}",
            help=help or f"known: {listed(sorted(framework.options)[:8])}, ...",
            related=(("the framework", "/training/framework"),),
        )


def _foreign(context: RuleContext, framework: str, names: list[str], owners: list[str]) -> Finding:
    """Return options that all belong to another framework: one mistake, about the framework.

    Where the config that they come from was found to disagree about it, this is a note of that error.
    """
    more = [f"{len(names) - MOST} more"] if len(names) > MOST else []
    shown = listed([*(f"`{name}`" for name in names[:MOST]), *more])
    said = any(f.code == CONFIG_DISAGREES.code and f.pointer == FRAMEWORK for f in context.document.findings)
    return RULE.finding(
        context,
        f"{framework} has no options {shown}: they are {listed(owners)}'s",
        f"/training/options/{names[0]}",
        help=f"write `framework: {owners[0]}`, or leave them out",
        related=(
            ("the framework", FRAMEWORK),
            *(("another one", f"/training/options/{name}") for name in names[1:]),
        ),
        severity="info" if said else "",
    )


RULE = Rule(
    code="MEM404",
    name="unknown-option",
    severity="error",
    summary="The framework has no such option.",
    doc=__doc__,
    check=check,
    when=unknown_options,
)
