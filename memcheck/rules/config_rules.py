"""Rules about suppressions and about the config that a plan comes from: found while these are read, without a check."""

from __future__ import annotations

from memcheck.plan.finding import (
    CONFIG_DEFAULT,
    CONFIG_DISAGREES,
    CONFIG_KEY_NOT_CARRIED,
    EXPIRED_SUPPRESSION,
    FORBIDDEN_SUPPRESSION,
    INVALID_SUPPRESSION,
    UNUSABLE_SOURCE,
    UNUSED_SUPPRESSION,
)
from memcheck.rules.types import file_rule

MEM030 = file_rule(
    INVALID_SUPPRESSION,
    """A suppressing comment lacks a reason or names no rule.

## What it does

Reports `# memcheck: ignore` without rules in brackets, with a rule that does not exist, without a reason after the
bracket, or with an `until:` that is no date. Such a comment hides nothing.

## Why it matters

A finding that was accepted without a reason cannot be reviewed. Later readers do not dare to remove the comment.

## Example

    zero_stage: 3   # memcheck: ignore[MEM208]

## How to fix

Write `# memcheck: ignore[MEM208] why this is accepted`, on the line of the finding or on the line above it. Several
rules are separated by commas. With `until: 2026-12-31` after the reason, the comment hides nothing after that day.

## Options

None.

## Source

`memcheck/config/suppressions.py`.
""",
)

MEM031 = file_rule(
    UNUSED_SUPPRESSION,
    """A suppressing comment hides nothing.

## What it does

Warns about a rule named in `# memcheck: ignore[...]` that finds nothing on that line. Only plans that were judged as
they are written count: not with `--gpu` or thresholds on the command line, not for rules that were not selected.

## Why it matters

The comment would hide the next finding on that line, which no reviewer has accepted.

## Example

    zero_stage: 0   # memcheck: ignore[MEM208] one GPU until the cluster is back

## How to fix

Remove it; `--fix` does.

## Options

None.

## Source

`memcheck/config/suppressions.py`.
""",
)

MEM032 = file_rule(
    EXPIRED_SUPPRESSION,
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
""",
)

MEM501 = file_rule(
    CONFIG_DISAGREES,
    """The plan and the framework config that is its source say different things.

## What it does

Compares every value that a plan with `source:` states itself with the config's value, and the configs with each other.

## Why it matters

One of them runs and the other one was checked. A plan may add what a config cannot say (the GPUs, the model of a
DeepSpeed job); what the config does say, it says for both.

## Example

    source: {deepspeed: ./ds.json}     # "stage": 3
    parallelism: {zero_stage: 2}

## How to fix

Leave the value out of the plan, or mend the config. Both places are shown.

## Options

None.

## Source

The config, at the line shown; which key means what is in docs/reference/configs.md.
""",
)

MEM502 = file_rule(
    CONFIG_KEY_NOT_CARRIED,
    """A key of the framework config moves memory and is not carried over.

## What it does

Names keys of a plan's `source` that have no place in a plan, or that memcheck does not know.

## Why it matters

The estimate is made without the key. A key that is known to move memory, such as ZenFlow's buffers, makes it too low.
An unknown key may be a new feature of the framework, or a misspelt key that the framework ignores.

## Example

    source: {deepspeed: ./ds.json}     # "zenflow": {"topk_ratio": 0.1}

## How to fix

Leave the key out of the config, or accept the finding with a reason and keep room for it.

## Options

None.

## Source

The config, at the line shown.
""",
)

MEM503 = file_rule(
    UNUSABLE_SOURCE,
    """The framework config that is the plan's source cannot be used.

## What it does

Reports a `source` that memcheck cannot use:

- the file is missing, cannot be parsed or lies outside the repository;
- memcheck does not read the configs of this framework;
- the config leaves something open that the plan does not state either.

A file of another kind is named: a job of reinforcement learning, a Kubernetes Job, a vLLM server, Python. The help
has the command that goes on.

## Why it matters

Without the config the plan is half of a job, and nothing is estimated.

## Example

    source: {deepspeed: ./gone.json}

## How to fix

Correct the path, or state in the plan what the message asks for. The configs that are read:
docs/reference/configs.md.

## Options

None.

## Source

The config, at the line shown; docs/reference/configs.md says what is read.
""",
)

MEM504 = file_rule(
    CONFIG_DEFAULT,
    """The framework config leaves values to its framework.

## What it does

Lists the values that neither the plan nor its `source` says, and whose default was taken.

## Why it matters

A config that is silent still decides: torchtitan recomputes every second layer unless told otherwise, DeepSpeed trains
in fp32. With a DeepSpeed config, the default of the trainer may not be what the script sets.

## Example

    source: {deepspeed: ./ds.json}     # nothing about gradient_clipping

## How to fix

Nothing, if the defaults are what runs; otherwise state the value in the plan or in the config.

## Options

None.

## Source

The framework's own defaults, at the releases that docs/reference/configs.md names.
""",
)

MEM607 = file_rule(
    FORBIDDEN_SUPPRESSION,
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
""",
)
