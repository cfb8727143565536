"""Unquoted scalars of a valid plan that mean different things to different YAML readers, or no number at all.

Text is never a trap: ``name: 1e-5`` is a name. Inside ``architecture``, ``overrides`` and ``options`` the schema does
not know what a key takes, so that a text that looks like a number is taken for a mistake.
"""

from __future__ import annotations

import math

from memcheck.plan import finding as codes
from memcheck.plan.compose import LARGEST, ODD_WORDS, WORDS, looks_numeric, number
from memcheck.plan.finding import Edit, Finding
from memcheck.plan.mend import plain_number
from memcheck.plan.places import Document, tokens
from memcheck.plan.schema import Schema, is_plain, key_path, schema_at, shorten, text_at, types, value_at


def traps(document: Document, schema: Schema) -> list[Finding]:
    """Return the findings about odd scalars, in the order of the text."""
    findings = []
    for pointer in document.marks:
        finding = _trap(document, pointer, schema)
        if finding is not None:
            findings.append(finding)
    return sorted(findings, key=lambda finding: (finding.location.path != document.path, finding.location.span))


def _trap(document: Document, pointer: str, schema: Schema) -> Finding | None:
    """Return the finding on a scalar that YAML reads as something else than what is meant; None if there is none."""
    path = tokens(pointer)
    value = value_at(document.values, path)
    if value.__class__ not in {bool, int, float, str} or document.is_changed(pointer):
        return None
    mark = document.marks[pointer]
    text = text_at(document, mark.value)
    what = schema_at(document.values, path, schema)
    if what is None:
        return None  # below an unknown key, which is reported
    allowed = types(what, schema)
    found = _of_number(value, text, path) if value.__class__ in {int, float} else None
    if found is None and is_plain(text):
        found = _of_word(value, text, path) if value.__class__ in {bool, str} else _of_reading(value, text, path)
        if found is not None and value.__class__ is str and allowed:
            found = None
    if found is None:
        return None
    code, message, help, better = found
    fix = (Edit(mark.value.span, better),) if better and mark.value.path == document.path else ()
    return code.at(document.locate(pointer), message, help=help, pointer=pointer, fix=fix)


_Found = tuple[codes.Code, str, str, str]


def _of_number(value: object, text: str, path: list[str]) -> _Found | None:
    """Return numbers that are none, or that no size can be."""
    shown = shorten(text or str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return codes.INVALID_VALUE, f"{key_path(path)} must be a finite number, not `{shown}`", "", ""
    if isinstance(value, (int, float)) and abs(value) > LARGEST:
        return codes.INVALID_VALUE, f"{key_path(path)} is `{shown}`, more than any size can be", "", ""
    return None


def _of_reading(value: object, text: str, path: list[str]) -> _Found | None:
    """Return the finding on a number that YAML 1.1 reads as octal or sexagesimal, so that the value is not what is
    written.
    """
    if text != str(value) and number(text) == (value, True):
        plain = f"{value:g}" if isinstance(value, float) else str(value)
        other = (
            "text"
            if ":" in text
            else f"`{int(text.replace('_', ''))}`"
            if text.strip("+-_0123456789") == ""
            else "text"
        )
        message = f"{key_path(path)} is `{text}`, which is `{plain}` to YAML 1.1 and {other} to YAML 1.2"
        choice = f"write `{plain}`" if other == "text" else f"write `{plain}` or {other}"
        return codes.NUMBER_TRAP, message, choice, ""
    return None


def _of_word(value: object, text: str, path: list[str]) -> _Found | None:
    """Return booleans that are words elsewhere, and words that look like numbers."""
    if isinstance(value, bool):
        if text not in ODD_WORDS or WORDS[text] is not value:
            return None
        better = "true" if value else "false"
        message = f"{key_path(path)} is `{text}`, which is `{better}` to YAML 1.1 and text to YAML 1.2"
        return codes.BOOLEAN_TRAP, message, f"write `{better}`", better
    if text == value and looks_numeric(text):
        better = plain_number(text)
        message = f"{key_path(path)} looks like a number, and YAML reads `{text}` as text"
        return codes.NUMBER_TRAP, message, f"write `{better}`, or quote it if text is meant", better
    return None
