"""Rules about a file's text and YAML: they are found while the file is read, and have no check of their own."""

from __future__ import annotations

from memcheck.plan.finding import (
    BOOLEAN_TRAP,
    BROKEN_EXTENDS,
    DUPLICATE_KEY,
    INVALID_YAML,
    NUMBER_TRAP,
    TOO_COMPLEX,
    UNREADABLE_FILE,
)
from memcheck.rules.types import file_rule

MEM001 = file_rule(
    UNREADABLE_FILE,
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
""",
)

MEM002 = file_rule(
    INVALID_YAML,
    r"""The file is not valid YAML.

## What it does

Reports the place at which the YAML parser gave up: an unclosed bracket, a tab in the indentation, a colon without a
space, an undefined anchor.

## Why it matters

A plan that cannot be parsed cannot be checked, and must not pass unchecked.

## Example

    training:
      \tmicro_batch_size: 1      # indented by a tab

## How to fix

Mend the line that the finding names; the fault may be on the line above.

## Options

None.

## Source

YAML 1.1, as PyYAML and libyaml read it.
""",
)

MEM003 = file_rule(
    DUPLICATE_KEY,
    """A mapping states the same key twice.

## What it does

Reports the second occurrence of a key in one mapping, and names the first.

## Why it matters

YAML readers keep the last value and drop the first without a word: the plan is not what its author reads.

## Example

    training:
      micro_batch_size: 1
      sequence_length: 4096
      micro_batch_size: 8

## How to fix

Remove one of the two.

## Options

None.

## Source

YAML 1.2 section 3.2.1.1: the keys of a mapping are unique.
""",
)

MEM004 = file_rule(
    NUMBER_TRAP,
    """YAML reads a number differently from what it looks like.

## What it does

Reports `1e-5` and `1e5` (text to YAML 1.1: no dot), `012` (octal 10), `1:30` (sexagesimal 90) and the like where a
number stands.

## Why it matters

The value is silently another one, or text where a number belongs.

## Example

    training: {sequence_length: 010000}      # 4096

## How to fix

Write the number plainly: `1.0e-5`, `12`, `90`. `--fix` does it where only one reading makes sense.

## Options

None.

## Source

YAML 1.1 types int and float; PyYAML `resolver.py`.
""",
)

MEM005 = file_rule(
    BOOLEAN_TRAP,
    """An unquoted word that only some YAML readers take for a boolean.

## What it does

Reports `yes`, `no`, `on` and `off` in place of true or false.

## Why it matters

YAML 1.1 readers make booleans of them, YAML 1.2 readers text.

## Example

    training: {compile: on}

## How to fix

Write `true` or `false`. `--fix` does it.

## Options

None.

## Source

YAML 1.1 type bool against YAML 1.2 section 10.3.2.
""",
)

MEM006 = file_rule(
    BROKEN_EXTENDS,
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
""",
)

MEM007 = file_rule(
    TOO_COMPLEX,
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
""",
)
