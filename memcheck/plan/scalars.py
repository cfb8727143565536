"""What an unquoted scalar means: YAML 1.1 as PyYAML reads it, dates excepted, which stay text as they are in JSON."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORDS: dict[str, object] = {
    "": None,
    **dict.fromkeys(("~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
"""The words that are no text."""

ODD_WORDS = frozenset(("yes", "Yes", "YES", "on", "On", "ON", "no", "No", "NO", "off", "Off", "OFF"))
"""Booleans of YAML 1.1 that are text in YAML 1.2."""

NUMBER_STARTS = frozenset("0123456789+-.")
NUMBER_CHARACTERS = NUMBER_STARTS | frozenset("_:abcdefxABCDEFinIN")
"""All characters of YAML 1.1's numbers, with those of hexadecimal digits, `.inf` and `.nan` in both cases."""

LARGEST = 2**63 - 1
"""No size in a plan is larger. A larger number is odd, and it is reported."""

DIGITS = 18
"""A decimal fraction with fewer characters is what it looks like, whatever else a number may be in YAML."""

LONGEST_BITS = 10_000
"""Python writes no integer with many more: 4,300 digits."""

_resolvers: dict[str, Any] = {}
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"


def number(text: str) -> tuple[object, bool]:
    """The value of an unquoted scalar that starts like a number, and whether it is odd.

    Odd: octal, sexagesimal, not finite, huge, or text that looks like a number (``1e-5``, ``0o17``).
    """
    whole, dot, part = text.partition(".")
    if dot and whole.isdecimal() and part.isdecimal() and text.isascii() and len(text) < DIGITS:
        return float(text), False
    if not NUMBER_CHARACTERS.issuperset(text):  # `90%` needs no patterns, which take long to load
        return text, looks_numeric(text)
    for tag, pattern in (_resolvers or _patterns()).get(text[0], ()):
        if tag in {_INT, _FLOAT} and pattern.match(text):
            try:
                return integer(text) if tag == _INT else floating(text)
            except (ValueError, OverflowError):
                return _oversized(text)
    return text, looks_numeric(text)


def _patterns() -> dict[str, Any]:
    """PyYAML's patterns of scalars by the first character, which most plans have no need for."""
    from memcheck.edge.patterns import late_patterns

    with late_patterns("yaml."):
        from yaml.resolver import Resolver
    _resolvers.update(Resolver.yaml_implicit_resolvers)
    return _resolvers


def looks_numeric(text: str) -> bool:
    """Text that a person, or YAML 1.2, takes for a number."""
    body = text.lstrip("+-")
    if body[:2] in {"0o", "0O"}:
        return bool(body[2:]) and set(body[2:]) <= set("01234567")
    mantissa, e, exponent = body.lower().partition("e")
    return bool(e) and mantissa.replace(".", "", 1).isdecimal() and exponent.lstrip("+-").isdecimal()


def integer(text: str) -> tuple[object, bool]:
    """An integer of YAML 1.1. Raises ValueError or OverflowError where Python cannot read it or write it again."""
    body = text.replace("_", "")
    sign = -1 if body[0] == "-" else 1
    body = body.lstrip("+-")
    odd = False
    if body[:2] in {"0b", "0x"}:
        value = int(body[2:], 2 if body[1] == "b" else 16)
    elif body[0] == "0" and body != "0":
        value, odd = int(body, 8), True
    elif ":" in body:
        value, odd = int(_sexagesimal(body)), True
    else:
        value = int(body)
    if value.bit_length() > LONGEST_BITS:
        raise OverflowError
    return sign * value, odd or value > LARGEST


def floating(text: str) -> tuple[object, bool]:
    """A float of YAML 1.1."""
    body = text.replace("_", "").lower()
    sign = -1.0 if body[0] == "-" else 1.0
    body = body.lstrip("+-")
    if ":" in body:
        return sign * _sexagesimal(body), True
    value = float(body[1:] if body in {".inf", ".nan"} else body)
    return sign * value, value != value or value > LARGEST  # noqa: PLR0124  # not a number is not itself


def _sexagesimal(body: str) -> float:
    value = 0.0
    for part in body.split(":"):
        value = value * 60 + float(part)
    return value


def _oversized(text: str) -> tuple[object, bool]:
    """Python refuses to read more than some thousand digits; `0_` and `0x_` hold none."""
    if sum(map(str.isalnum, text)) < 100:
        return text, False
    return float("-inf" if text[0] == "-" else "inf"), True
