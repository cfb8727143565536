"""Scalars with an explicit tag, such as ``!!str 012``."""

from __future__ import annotations

from typing import Any

from memcheck.plan import codes
from memcheck.plan.compose import ComposeProblem, shown_tag
from memcheck.plan.scalars import WORDS, floating, integer

_KNOWN = "tag:yaml.org,2002:"


def tagged(event: Any) -> tuple[object, ComposeProblem | None]:
    """The value of a tagged scalar; with a problem, its text."""
    tag, text = shown_tag(event.tag), event.value
    try:
        if tag in {"!!str", "!!timestamp"}:
            return text, None
        if tag == "!!int":
            return integer(text)[0], None
        if tag == "!!float":
            return floating(text)[0], None
        if tag in {"!!bool", "!!null"} and isinstance(WORDS.get(text, text), bool if tag == "!!bool" else type(None)):
            return WORDS[text], None
    except (ValueError, IndexError):
        pass
    if tag in {"!!int", "!!float", "!!bool", "!!null"}:
        return text, ComposeProblem(
            codes.INVALID_YAML, f"`{text}` cannot be read as `{tag}`", event, help="remove the tag"
        )
    return text, ComposeProblem(
        codes.INVALID_YAML, f"the tag `{tag}` has no meaning in a plan", event, help="remove the tag"
    )
