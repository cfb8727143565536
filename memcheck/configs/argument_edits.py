"""Arguments of a script as edits of its text; everything else of the file stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcheck.configs.arguments import YAML_SECTION, load_arguments
from memcheck.configs.key_table import key_table
from memcheck.configs.megatron_keys import DIMENSIONS, LISTS
from memcheck.configs.sheet import spelled
from memcheck.configs.tree_edits import edit_argument_yaml
from memcheck.configs.types import REMOVED
from memcheck.finding import Edit, Span
from memcheck.plan.text import split_lines

ANCHORS = tuple(row.path for row in (*key_table("megatron").rows["layout"], *DIMENSIONS))
"""Arguments of the training script, never of the launcher before it. New arguments are put before one of these."""
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'()#;|&<>\\])+""")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?\Z")


def edit_arguments(path: str, text: str, values: Mapping[str, object]) -> tuple[Edit, ...]:
    """Edits that give arguments these values; empty when one of them has no certain place.

    True is a switch, False and ``REMOVED`` are an argument that is not there.
    """
    if re.search(rf"^{YAML_SECTION}\s*:", text, re.MULTILINE):
        return edit_argument_yaml(path, text, values, YAML_SECTION)
    lines = split_lines(text)
    config = load_arguments(path, text, LISTS)
    found: list[Edit] = []
    new: list[str] = []
    for name, value in values.items():
        gone = value is REMOVED or value is False
        if name not in config.values:
            new += [] if gone else [_spelling(name, value)]
            continue
        flag = config.at(name).span
        edit = _removal(lines, flag, name) if gone else _replacement(lines, flag, name, value)
        if edit is None:
            return ()
        found.append(edit)
    if new:
        anchor = next((name for name in ANCHORS if name in config.values and name not in values), "")
        anchor = anchor or next((name for name in ANCHORS if name in config.values and values[name] is not REMOVED), "")
        if not anchor:
            return ()
        at = config.at(anchor).span
        found.append(Edit(Span(at.line, at.column, at.line, at.column), "".join(f"{each} " for each in new)))
    return tuple(sorted(found))


def _spelling(name: str, value: object) -> str:
    return f"--{name}" if value is True else f"--{name} {_word(value)}"


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(_word, value))
    text = spelled(value)
    return f'"{text}"' if set(text) & set("()|*[]{}$;&<> ") else text


def _replacement(lines: tuple[str, ...], flag: Span, name: str, value: object) -> Edit | None:
    """The argument's value in its place, or in that of the variable which is used for nothing else."""
    line = lines[flag.line - 1]
    start, end = flag.column - 1, flag.end_column - 1
    if "=" in line[start:end]:
        start += line[start:end].index("=") + 1
    elif value is True:
        return None if name in LISTS else Edit(flag, f"--{name}")
    else:
        following = list(_values(line, end))
        if len(following) != 1 and not (name in LISTS and following):
            return None
        start, end = following[0][0], following[-1][1]
    return _assignment(lines, line[start:end], value) or Edit(_span(flag.line, start, end), _word(value))


def _values(line: str, end: int) -> list[tuple[int, int]]:
    """Start and end columns of the words after an argument on its line, up to the next argument. ``end``: its end."""
    code = re.sub(r"(^|\s)#.*", lambda comment: " " * len(comment[0]), line)
    found: list[tuple[int, int]] = []
    for word in _WORD.finditer(code, end):
        between = code[found[-1][1] if found else end : word.start()]
        if word[0].startswith("--") or re.search(r"[()#;|&<>\\]", between):
            break
        found.append((word.start(), word.end()))
    return found


def _assignment(lines: tuple[str, ...], word: str, value: object) -> Edit | None:
    """Where a variable gets its value, if the file uses it once and sets it once."""
    variable = _VARIABLE.match(word.strip("\"'"))
    if variable is None:
        return None
    name = variable[1]
    if sum(len(re.findall(rf"\$\{{?{name}\b", line)) for line in lines) != 1:
        return None
    settings = [
        (number, match)
        for number, line in enumerate(lines, 1)
        if (match := re.match(rf"\s*(?:export\s+)?{name}=([^\s()\"'#]+)\s*(?:#.*)?\Z", line))
    ]
    if len(settings) != 1:
        return None
    ((number, match),) = settings
    return Edit(_span(number, match.start(1), match.end(1)), _word(value))


def _removal(lines: tuple[str, ...], flag: Span, name: str) -> Edit | None:
    """The edit that removes an argument, its value and the space after them. The line and its continuation stay.

    None for an argument of one value that several words follow.
    """
    line = lines[flag.line - 1]
    start, end = flag.column - 1, flag.end_column - 1
    if "=" not in line[start:end]:
        following = _values(line, end)
        if len(following) > 1 and name not in LISTS:
            return None
        end = following[-1][1] if following else end
    end += len(line[end:]) - len(line[end:].lstrip(" ")) if line[end:].strip() else 0
    return Edit(_span(flag.line, start, end), "")


def _span(line: int, start: int, end: int) -> Span:
    return Span(line, start + 1, line, end + 1)
