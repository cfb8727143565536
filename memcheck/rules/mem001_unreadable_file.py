"""The file is not UTF-8 text.

## What it does

Reports a file that cannot be decoded: another encoding, or binary content under a YAML name. Also a file that is not
read at all: a link that leads out of the repository or back to itself, a device, a pipe, or what lies inside `.git`.
Under `[policy] forbid-unseen`, and with `--config-from-ref`, also a plan in a folder that a search leaves out.

## Why it matters

A plan that cannot be read cannot be checked, and must not pass unchecked.

## Example

    # a plan saved as UTF-16 or Latin-1

## How to fix

Save the file as UTF-8; commit the file itself instead of a link. Move a plan out of a folder that is left out, or name
that folder in the paths to check.

## Options

`[policy] forbid-unseen`.

## Source

YAML 1.2 section 5.2 (character encodings).
"""

from __future__ import annotations

from memcheck.plan.codes import UNREADABLE_FILE
from memcheck.rules.file_rule import file_rule

RULE = file_rule(UNREADABLE_FILE, __doc__)
