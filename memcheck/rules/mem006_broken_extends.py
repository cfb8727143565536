"""The plan that this one extends cannot be used.

## What it does

Reports an `extends:` file that is missing, is no plan, extends itself in a circle, or lies outside of the repository.

## Why it matters

The values that it was to provide are missing; anything computed without them would be another plan.

## Example

    extends: ./no-such-base.yaml

## How to fix

Correct the path; it is relative to the extending file.

## Options

None.

## Source

The plan format.
"""

from __future__ import annotations

from memcheck.plan.codes import BROKEN_EXTENDS
from memcheck.rules.file_rule import file_rule

RULE = file_rule(BROKEN_EXTENDS, __doc__)
