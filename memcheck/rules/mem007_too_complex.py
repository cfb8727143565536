"""The file is too large, too deep or expands to too much.

## What it does

Reports files beyond the size limit or with more documents than the limit, nesting beyond the depth limit, and aliases
that multiply ("billion laughs").

## Why it matters

A gate must answer in bounded time and memory for every content of the repository.

## Example

    # a file of 50 MB, or a chain of aliases of aliases

## How to fix

Split the file. No plan comes near the limits.

## Options

None.

## Source

The limits are those of `memcheck/plan`.
"""

from __future__ import annotations

from memcheck.plan.codes import TOO_COMPLEX
from memcheck.rules.file_rule import file_rule

RULE = file_rule(TOO_COMPLEX, __doc__)
