"""Which rules count: those of a profile, and ``--select`` and ``--ignore`` by code, prefix of a code or name."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.errors import UsageError
from memcheck.rules.profiles import GATE, PROFILES


def known(selectors: Sequence[str]) -> tuple[str, ...]:
    """The selectors as codes or prefixes of codes.

    Raises:
        UsageError: one of them matches no rule.
    """
    if not selectors:
        return ()
    from memcheck.rules.registry import RULES

    codes = {rule.name: rule.code for rule in RULES}
    found = []
    for selector in selectors:
        prefix = codes.get(selector, selector.upper())
        if not any(code.startswith(prefix) for code in codes.values()):
            from memcheck.edge.closest import closest

            close = closest(prefix, codes.values()) + closest(selector, codes)
            hint = f"; did you mean {close[-1]}?" if close else ""
            raise UsageError(f"no rule matches {selector!r}{hint}", "memcheck list rules")
        found.append(prefix)
    return tuple(found)


def counts(code: str, select: Sequence[str], ignore: Sequence[str], profile: str = GATE, own: str = GATE) -> bool:
    """Whether findings of a rule are shown: the longest matching prefix decides, and ``ignore`` wins a tie.

    A rule whose ``own`` profile is beyond the chosen one counts only where it is named in full: a prefix picks among
    the rules of a profile, and brings in none that a later version adds to another.
    """
    if PROFILES.index(own) > PROFILES.index(profile) and code not in select:
        return False
    chosen = _longest(code, select) if select else 0
    return chosen >= 0 and chosen > _longest(code, ignore)


def _longest(code: str, prefixes: Sequence[str]) -> int:
    """Length of the longest prefix that matches; -1 if none does."""
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=-1)
