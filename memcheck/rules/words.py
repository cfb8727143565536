"""Numbers and names as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt

from memcheck.edge.closest import closest

GIB = 2**30


def gib(count: int) -> str:
    """Bytes as GiB: ``12.34 GiB``."""
    return f"{count / GIB:,.2f} GiB"


def percent(fraction: float) -> str:
    """A fraction as a percentage with one decimal: ``97.1%``."""
    return f"{fraction * 100:.1f}%"


def component(name: str) -> str:
    """A component of the estimate: ``optimizer states``, ``KV cache``."""
    return {"kv_cache": "KV cache", "context_and_nccl": "context and NCCL"}.get(name, name.replace("_", " "))


def listed(words: Iterable[object], last: str = "and") -> str:
    """Return ``a, b and c``."""
    items = [str(w) for w in words]
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def shown(value: object) -> str:
    """Return a value as the plan writes it, cut where it is long."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def divisors(number: int, most: int) -> tuple[int, ...]:
    """Return the divisors of a number up to ``most``, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(d for d in sorted({*small, *(number // d for d in small)}) if d <= most)


def multiples(number: int, of: int) -> str:
    """Return the nearest multiples of ``of`` around a number that is none: ``24 or 32``."""
    below = number // of * of
    return f"{below} or {below + of}" if below else str(of)


def close_to(word: str, known: Iterable[str]) -> str:
    """Return a did-you-mean for a misspelt word, or an empty string."""
    found = closest(word, known, 3)
    return f"did you mean {listed((f'`{f}`' for f in found), 'or')}?" if found else ""
