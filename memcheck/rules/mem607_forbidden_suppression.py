"""A comment hides a finding that the policy forbids to hide.

## What it does

Under `[policy] locked = true`, reports comments on rules of `locked-rules` (memory and policy, MEM1 and MEM6, unless
stated otherwise), and under `forbid-suppressions = true` every suppressing comment. Such a comment hides nothing.

## Why it matters

The author of a pull request writes its comments, and could hide any finding with them.

## Example

    memcheck: 1  # memcheck: ignore[MEM101] it will be fine     # memcheck.toml: [policy] locked = true

## How to fix

Remove the comment, and mend what it was to hide; or have the finding accepted in the baseline, by who owns that.

## Options

`[policy] locked`, `locked-rules`, `forbid-suppressions`.

## Source

The repository's configuration: [a policy that holds](../ci.md#a-policy-that-holds).
"""

from __future__ import annotations

from memcheck.plan.codes import FORBIDDEN_SUPPRESSION
from memcheck.rules.file_rule import file_rule

RULE = file_rule(FORBIDDEN_SUPPRESSION, __doc__)
