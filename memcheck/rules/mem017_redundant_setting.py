"""A key states its own default.

## What it does

Reports a key whose value is the default of the plan format. The plan is resolved without the key as well, and both
jobs have to be equal. `framework` is never reported, because a plan should say whose code runs.

## Why it matters

A reader looks for the reason for every line. Twenty lines that change nothing hide the three that do.

## Example

    parallelism: {tensor: 1, pipeline: 1, zero_stage: 3}      # only zero_stage says something

## How to fix

Remove the line. `--fix` does it, unless a comment belongs to the line or nothing else is left in its section. To keep
it on purpose, write `# memcheck: ignore[MEM017]` and the reason.

## Options

None. Plans with `extends` or merge keys are left alone: there a default may take back what was brought in.

## Source

`default` in `schemas/plan.schema.json`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.plan.finding import Edit, Finding, Span
from memcheck.plan.places import Document, tokens
from memcheck.plan.read import build_plan
from memcheck.plan.schema import branch, conforms, load_schema, resolved, schema_at, value_at
from memcheck.rules import REVIEW
from memcheck.rules.budget import shown
from memcheck.rules.types import PROVABLE, Rule, RuleContext

KEPT = {"/memcheck", "/training/framework"}
MERGE = re.compile(r"^\s*(?:- )?[\"']?<<[\"']?\s*:|[{,]\s*<<\s*:")
_BETWEEN = re.compile(r"\s*:\s+")


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per key that could go."""
    document = context.document
    lines = document.sources.get(document.path, ())
    if len(document.sources) > 1 or document.findings or any(map(MERGE.search, lines)):
        return  # what is brought in, or stands twice, may be what the default takes back
    for pointer in document.marks:
        if pointer in KEPT or not _states_default(document, pointer) or not _is_same_without(context, pointer):
            continue
        finding = RULE.finding(
            context,
            f"`{pointer[1:].replace('/', '.')}` is {shown(value_at(document.values, tokens(pointer)))} by default: "
            "the plan without this line is the same job",
            pointer,
            help="remove it",
        )
        edit = _removal(document, pointer, lines)
        yield finding if edit is None else finding._replace(fix=(edit,))


def _states_default(document: Document, pointer: str) -> bool:
    """Say whether the value of a key, written in place, is the one that the format gives it."""
    mark = document.marks[pointer]
    path = tokens(pointer)
    if mark.key is None or mark.used_at is not None or document.is_changed(pointer):
        return False
    root = load_schema()
    above = branch(schema_at(document.values, path[:-1], root), value_at(document.values, path[:-1]), root)
    schema = ((above or {}).get("properties") or {}).get(path[-1])
    if schema is None:
        return False
    default = schema.get("default", resolved(schema, root).get("default"))
    value = value_at(document.values, path)
    return default is not None and value.__class__ is default.__class__ and value == default


def _is_same_without(context: RuleContext, pointer: str) -> bool:
    """Say whether the plan conforms without the key, and resolves to the same job on the same hardware."""
    values = _without(context.document.values, tokens(pointer))
    root = load_schema()
    if not conforms(values, root, root):
        return False
    try:
        plan = build_plan(values)._replace(policy=context.plan.policy)
        other = resolve(plan, FRAMEWORKS, base_dir=os.path.dirname(context.document.path))
    except ResolutionError:
        return False
    mine = context.resolved
    return (other.job, other.gpu, other.overhead) == (mine.job, mine.gpu, mine.overhead)


def _without(values: Any, path: list[str]) -> Any:
    """Return the values without one key; what is not on the way to it is shared."""
    if len(path) == 1:
        return {name: item for name, item in values.items() if name != path[0]}
    if isinstance(values, list):
        return [_without(item, path[1:]) if str(place) == path[0] else item for place, item in enumerate(values)]
    return {name: _without(item, path[1:]) if name == path[0] else item for name, item in values.items()}


def _removal(document: Document, pointer: str, lines: tuple[str, ...]) -> Edit | None:
    """Return the edit that takes a key out: its line, or its part of a flow mapping. None where it is not alone
    there.
    """
    mark = document.marks[pointer]
    if mark.key is None or len(_mapping(document, pointer)) < 2:
        return None
    start, end = mark.key.span, mark.value.span
    if not start.line == start.end_line == end.line == end.end_line or end.column <= start.end_column:
        return None
    line = lines[start.line - 1]
    before, between, after = (
        line[: start.column - 1],
        line[start.end_column - 1 : end.column - 1],
        line[end.end_column - 1 :],
    )
    if not _BETWEEN.fullmatch(between):
        return None  # an anchor or a tag
    if not before.strip() and not after.strip():
        if start.line > 1 and lines[start.line - 2].lstrip().startswith("#"):
            return None  # the comment above may be about this line
        following = (start.line + 1, 1) if start.line < len(lines) else (start.line, len(line) + 1)
        return Edit(Span(start.line, 1, *following), "")
    if after.lstrip().startswith(","):
        size = len(after) - len(after.lstrip()[1:].lstrip())
        return Edit(Span(start.line, start.column, end.line, end.end_column + size), "")
    if before.rstrip().endswith(",") and after.lstrip().startswith("}"):
        return Edit(Span(start.line, len(before.rstrip()[:-1].rstrip()) + 1, end.line, end.end_column), "")
    return None


def _mapping(document: Document, pointer: str) -> dict[str, Any]:
    """Return the mapping that has the key at ``pointer``; empty where the value above is no mapping."""
    above = value_at(document.values, tokens(pointer)[:-1])
    return above if isinstance(above, dict) else {}


RULE = Rule(
    code="MEM017",
    name="redundant-setting",
    severity="info",
    summary="A key states its own default.",
    doc=__doc__,
    check=check,
    precision=PROVABLE,
    profile=REVIEW,
)
