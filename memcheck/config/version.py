"""``required-version``: the versions of memcheck that a project accepts."""

from __future__ import annotations

import operator
import re

OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
RELEASE = re.compile(r"v?\d{1,9}(\.\d{1,9}){0,9}[A-Za-z0-9.+-]{0,40}")
CLAUSE = re.compile(r"\s*(==|!=|>=|<=|>|<|)\s*(\d+(?:\.\d+)*)\s*$")


def is_release(written: str) -> bool:
    """Whether a text is a release of some framework: ``4.57``, ``0.2.2.dev1``."""
    return RELEASE.fullmatch(written) is not None


def accepts(requirement: str, version: str) -> bool:
    """Whether a version satisfies ``>=0.1,<0.2`` or, without an operator, is exactly the one named.

    Raises:
        ValueError: the requirement cannot be read.
    """
    clauses = [_clause(part, version) for part in requirement.split(",")]  # all of them, so that each is validated
    return all(clauses)


def _clause(text: str, version: str) -> bool:
    match = CLAUSE.match(text)
    if not match:
        raise ValueError(f"{text.strip()!r} is not a version requirement such as >=0.1 or ==0.1.0")
    mine, wanted = _parts(version), _parts(match[2])
    size = max(len(mine), len(wanted))
    compare = OPERATORS[match[1] or "=="]
    return bool(compare(mine + (0,) * (size - len(mine)), wanted + (0,) * (size - len(wanted))))


def _parts(version: str) -> tuple[int, ...]:
    """The release numbers; what follows them (``.dev1``, ``rc2``) does not count."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
