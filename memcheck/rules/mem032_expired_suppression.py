"""The last day of a suppressing comment is over.

## What it does

Warns about `# memcheck: ignore[...] ... until: YYYY-MM-DD` after that day (in UTC). The comment no longer hides
anything, so that the report shows the finding again, in addition to this warning.

## Why it matters

The reviewer accepted the finding for a limited time.

## Example

    zero_stage: 3   # memcheck: ignore[MEM208] until the second node is here, until: 2020-01-31

## How to fix

Mend what the comment hid, or set a later day and say why.

## Options

None.

## Source

`memcheck/config/suppressions.py`.
"""

from __future__ import annotations

from memcheck.plan.codes import EXPIRED_SUPPRESSION
from memcheck.rules.file_rule import file_rule

RULE = file_rule(EXPIRED_SUPPRESSION, __doc__)
