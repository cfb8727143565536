"""The plan states a milder limit than the configuration locks.

## What it does

Under `[policy] locked = true`, compares the plan's `policy.fail_above` and `policy.warn_above` with the
configuration's, or the defaults. Also reports an `overhead` of the plan's own, and `uncertain: warn` where the
configuration says `fail`. The configured values apply; stricter ones of the plan are taken.

## Why it matters

The author of a pull request writes the plan. A gate that reads its limit from the plan is open.

## Example

    policy: {fail_above: 99%, overhead: 0%}     # memcheck.toml: [policy] locked = true

## How to fix

Leave the key out, or change the configuration, in a pull request of its own.

## Options

`[policy] locked`, `fail-above`, `warn-above`, `overhead`, `uncertain` of the configuration.

## Source

The repository's configuration: [a policy that holds](../ci.md#a-policy-that-holds).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import percent, shown
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import locked


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for each limit that is milder, and one for an overhead."""
    limits, stated = context.limits, context.stated
    if limits is None:
        return
    help = "leave it out: the configuration has the say"
    for key, written, most in (
        ("fail_above", stated.fail_above, limits.fail_above),
        ("warn_above", stated.warn_above, limits.warn_above),
    ):
        if written is not None and written > most:
            message = f"`{key}: {percent(written)}` is above the {percent(most)} that the policy locks"
            yield RULE.finding(context, message, f"/policy/{key}", help=help)
    for key, chosen, least in (
        ("uncertain", stated.uncertain, limits.uncertain),
        ("unpacked", stated.unpacked, limits.unpacked),
    ):
        if chosen is not None and chosen != least == "fail":
            message = f"`{key}: {chosen}` is milder than the `fail` that the policy locks"
            yield RULE.finding(context, message, f"/policy/{key}", help=help)
    if stated.overhead is not None and stated.overhead != (limits.overhead or "modeled"):
        configured = "as modeled" if limits.overhead in (None, "modeled") else shown(limits.overhead)
        message = f"the plan states an overhead of its own; the policy locks it {configured}"
        yield RULE.finding(context, message, "/policy/overhead", help=help)


RULE = Rule(
    code="MEM602",
    name="loosened-limit",
    severity="error",
    summary="The plan states a milder limit than the configuration locks.",
    doc=__doc__,
    check=check,
    when=locked,
)
