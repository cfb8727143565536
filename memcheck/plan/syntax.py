"""What the YAML parser's complaints mean, and where to look.

libyaml points at the character where it gave up; for something left open the place to show is where it was opened.
"""

from __future__ import annotations

from typing import Any

from memcheck.edge.libyaml import yaml
from memcheck.plan import finding as codes
from memcheck.plan.compose import SHALLOW, TOO_DEEP
from memcheck.plan.finding import Finding, Location, Span
from memcheck.plan.text import split_lines

# A part of libyaml's text; True: the start of the context is the place to show; what is wrong; what to do.
_KNOWN = (
    (
        "mapping values are not allowed",
        False,
        "a `:` makes no key here",
        "quote a value that contains `: `, and align the keys of one mapping",
    ),
    ("a tab character", False, "a tab cannot indent YAML", "indent with spaces"),
    (
        "alphabetic or numeric",
        False,
        "a `*` or `&` comes before the name of an anchor, and there is no name",
        "quote the value if it is text",
    ),
    (
        "comment or line break",
        False,
        "text cannot follow `|` or `>` on the same line",
        "start the text on the next line, indented, or quote a value that starts with such a sign",
    ),
    (
        "expected ',' or ']'",
        True,
        "the `[` opened here is not closed before the next line's structure",
        "close it with `]`, and separate items by commas",
    ),
    (
        "expected ',' or '}'",
        True,
        "the `{` opened here is not closed before the next line's structure",
        "close it with `}`, and separate entries by commas",
    ),
    (
        "unexpected end of stream",
        True,
        "the quote opened here is not closed",
        "close it, or double a quote inside the text",
    ),
    (
        "unexpected document indicator",
        True,
        "the quote opened here is not closed",
        "close it, or double a quote inside the text",
    ),
    ("could not find expected ':'", True, "this line has no `:`", "write `key: value`, with a space after the colon"),
    (
        "did not find expected key",
        False,
        "this line does not belong to the mapping above it",
        "align it with its neighbouring keys, using spaces",
    ),
    (
        "expected '-' indicator",
        False,
        "this line does not belong to the list above it",
        "start it with `- `, or outdent it",
    ),
    (
        "expected node content",
        False,
        "a value is missing here",
        "write one, or quote it if it is text that starts with a sign",
    ),
    (
        "unknown escape character",
        False,
        "this backslash escape does not exist",
        "double the backslash, or use single quotes",
    ),
    ("undefined tag handle", False, "a `!` starts a tag, and this one is not defined", "quote the value if it is text"),
    (
        "did not find expected <document start>",
        False,
        "something follows the end of the document",
        "start a new document with `---`",
    ),
    (
        "block sequence entries are not allowed",
        False,
        "a list cannot start here",
        "put `- ` on a line of its own, or write `[a, b]`",
    ),
)

# The words of PyYAML's own parser, where they are others, and libyaml's for the same mistake.
_PURE = (
    ("expected a comment or a line break", "did not find expected comment or line break"),
    ("expected chomping or indentation indicators", "did not find expected comment or line break"),
    ("expected indentation indicator in the range 1-9", "found an indentation indicator equal to 0"),
    ("expected the node content", "did not find expected node content"),
    ("expected '<document start>'", "did not find expected <document start>"),
    ("sequence entries are not allowed here", "block sequence entries are not allowed in this context"),
    ("mapping keys are not allowed here", "mapping keys are not allowed in this context"),
    ("found unexpected document separator", "found unexpected document indicator"),
    ("found incompatible YAML document", "found incompatible YAML document"),
    ("duplicate tag handle", "found duplicate %TAG directive"),
)


def explain(path: str, text: str, error: yaml.YAMLError) -> Finding:
    """Return the finding for a syntax error."""
    lines = split_lines(text)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return _explain_marked(path, lines, error)
    position = getattr(error, "position", None)
    if isinstance(position, int):
        before = split_lines(text[:position] + "x")
        line, column = len(before), len(before[-1])
        character = text[position : position + 1]
        message = (
            f"the control character U+{ord(character):04X} is not allowed" if character else "the text ends too early"
        )
        at = Location(path, Span(line, column, line, column + 1))
        return codes.INVALID_YAML.at(at, message, help="delete it")
    return codes.INVALID_YAML.at(Location(path, Span(1, 1, 1, 1)), str(error))


def _problem(error: Any) -> str:
    """Return what is wrong, in libyaml's words whichever parser found it."""
    found: str = error.problem
    if found.startswith("expected <block end>"):
        inside_list = error.context == "while parsing a block collection"
        return "did not find expected '-' indicator" if inside_list else "did not find expected key"
    return next((words for start, words in _PURE if found.startswith(start)), found)


def _explain_marked(path: str, lines: tuple[str, ...], error: Any) -> Finding:
    at = _at(path, lines, error.problem_mark)
    character = _character(lines, error.problem_mark)
    problem = _problem(error)
    if problem.startswith("found unknown escape character '"):  # PyYAML points after the backslash
        span = at.span
        at = Location(path, Span(span.line, span.column - 1, span.line, span.column))
    if "maximum nesting depth" in problem:  # libyaml 0.2.6 counts brackets before it gives an event
        return codes.TOO_COMPLEX.at(at, TOO_DEEP, help=SHALLOW)
    if "cannot start any token" in problem:
        return _bad_start(at, character)
    if "expected key" in problem and lines[at.span.line - 1][: at.span.column - 1].strip():
        return codes.INVALID_YAML.at(at, "something follows the end of the value", help="quote the whole value")
    for part, use_context, message, help in _KNOWN:
        if part in problem:
            if use_context and error.context_mark is not None:
                opened = _at(path, lines, error.context_mark)
                related = (("reading stopped here", at),) if at.span.line != opened.span.line else ()
                return codes.INVALID_YAML.at(opened, message, help=help, related=related)
            return codes.INVALID_YAML.at(at, message, help=help)
    context = f"{error.context}: " if error.context else ""
    return codes.INVALID_YAML.at(at, f"{context}{problem}")


def _bad_start(at: Location, character: str) -> Finding:
    if character == "\t":
        return codes.INVALID_YAML.at(at, "a tab cannot indent YAML", help="indent with spaces")
    return codes.INVALID_YAML.at(at, f"a value cannot start with `{character}`", help="quote the value if it is text")


def _character(lines: tuple[str, ...], mark: Any) -> str:
    return lines[mark.line][mark.column : mark.column + 1] if mark.line < len(lines) else ""


def _at(path: str, lines: tuple[str, ...], mark: Any) -> Location:
    """Return one character at a mark of the parser; the end of the last line if the mark is after the text."""
    line, column = mark.line, mark.column
    if lines and line >= len(lines):
        line, column = len(lines) - 1, len(lines[-1])
    return Location(path, Span(line + 1, column + 1, line + 1, column + 2))
