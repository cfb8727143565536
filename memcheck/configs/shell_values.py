"""Values in a script: variables, defaults, arithmetic, lines that go on, and the branch that an ``if`` takes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from memcheck.configs.config_file import located
from memcheck.edge.screen import whole_number
from memcheck.plan.finding import Location, Span

_NAME = r"[A-Za-z_]\w*"
_VARIABLE = re.compile(rf"\$(?:\{{({_NAME}|\d+)(?::?[-=](.*))?\}}|({_NAME}|\d+))\Z")
_PART = re.compile(rf"\$(?:\{{({_NAME})\}}|({_NAME}))")
_DEFAULT = re.compile(rf"\s*:\s+[\"']?\$\{{({_NAME}):?=([^}}]*)\}}[\"']?\s*(?:#.*)?\Z")
_BASH = r"[\"']?(?:\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(?:\[0\])?(?::-\$0)?\})[\"']?"
_LINK = rf"(?:[\"']?\$\(\s*(?:readlink\s+-f|realpath)\s+(?:--\s+)?{_BASH}\s*\)[\"']?|{_BASH})"
_FOLDER = rf"[\"']?\$\(\s*dirname\s+(?:--\s+)?{_LINK}\s*\)[\"']?"
_PWD = r"[\"']?(?:\$PWD|\$\{PWD\}|\$\(\s*pwd\s*\)|`pwd`)[\"']?"
_QUIET = r"(?:\s*&?1?>\s*/dev/null)?(?:\s*2>\s*(?:&1|/dev/null))?"
_HELD = rf"[\"']?\$\{{?({_NAME})\}}?"
_CD = r"[\"']?\$\(\s*(?:cd|realpath|readlink\s+-f)\s+(?:--\s+)?"
_AND = rf"{_QUIET}\s*(?:(?:&&|;)\s*pwd(?:\s+-P)?\s*)?\)[\"']?"
_SET = rf"\s*(?:export\s+|local\s+|readonly\s+|declare\s+-r\s+)?({_NAME})="
_OF_SCRIPT = (
    re.compile(rf"{_SET}(?:{_CD}(?:{_FOLDER}|{_HELD})(/[./\w-]*)?[\"']?{_AND})\s*(?:#.*)?\Z"),
    re.compile(rf"{_SET}(?:{_FOLDER}|{_PWD})()(/[./\w-]*)?\s*(?:#.*)?\Z"),
    re.compile(rf"{_SET}[\"']?\$\(\s*dirname\s+(?:--\s+)?{_HELD}[\"']?\s*\)()[\"']?\s*(?:#.*)?\Z"),
)

_SBATCH = re.compile(
    r"#SBATCH\s+(?:--(nodes|ntasks-per-node)[=\s]|-(N)\s*|--(gres|gpus-per-node)[=\s](?:gpu:)?(?:[A-Za-z][\w.-]*:)?)"
    r"(\d{1,4})(?=\s|$)"
)
_SLURM = {
    "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
}
MOST, DEEPEST = 4000, 16
"""Characters of a word and of what variables add to it, and defaults of defaults, that are looked into."""


def resolved(word: str, variables: Mapping[str, str], deep: int = 0) -> str:
    """Variables that the same file sets to plain text; a word with any other stays as it is, and one that would be
    long, or whose defaults have many defaults of their own.
    """
    if len(word) > MOST or deep > DEEPEST:
        return word
    found = _VARIABLE.match(word)
    if found is None:
        if sum([len(variables.get(each[1] or each[2], "")) for each in _PART.finditer(word)]) > MOST:
            return word
        whole = _PART.sub(lambda each: variables.get(each[1] or each[2]) or each[0], word)
        return word if "$" in whole else whole
    value = variables.get(found[1] or found[3])
    if value is None:
        value = resolved((found[2] or "").strip("\"'"), variables, deep + 1)
    return value if value and "$" not in value else word


def hangs_on(word: str, branches: Collection[str]) -> str:
    """The first variable in a word that is set in a branch; empty where none is."""
    found = _VARIABLE.match(word.strip("\"'"))
    named = [found[1] or found[3]] if found is not None else [each[1] or each[2] for each in _PART.finditer(word)]
    return next((name for name in named if name in branches), "")


def with_default(line: str) -> tuple[str, str] | None:
    """``: "${NAME:=VALUE}"``: the variable, and what it holds where nothing has set it."""
    found = _DEFAULT.match(line)
    return None if found is None else (found[1], found[2].strip("\"'"))


def asked_of_slurm(lines: Iterable[str]) -> Iterator[tuple[str, int, re.Match[str]]]:
    """What a batch script's comments ask for: the option, its line from 1, and the match, whose last group counts."""
    for number, line in enumerate(lines, 1):
        asked = _SBATCH.match(line)
        if asked is not None:
            yield asked[1] or asked[2] or asked[3], number, asked


def scheduled(lines: Iterable[str]) -> dict[str, str]:
    """What Slurm sets for a batch script that asks for nodes, tasks and GPUs in its own comments."""
    return {name: asked[4] for option, _, asked in asked_of_slurm(lines) for name in _SLURM[option]}


def folder(line: str, variables: Mapping[str, str]) -> tuple[str, str] | None:
    """A variable that holds the script's own folder, or one that lies at a path from it; relative to the script."""
    if "dirname" not in line and "pwd" not in line.lower():
        return None
    for number, pattern in enumerate(_OF_SCRIPT):
        found = pattern.match(line)
        if found is None:
            continue
        base = variables.get(found[2], "") if found[2] else "."
        if not base.startswith("."):
            return None
        below = (found[3] or "") + ("/.." if number == len(_OF_SCRIPT) - 1 else "")
        return found[1], os.path.normpath(base + below)
    return None


_MOST = 120
"""Letters of one expression, and digits of all its numbers together: what is longer is no batch size."""
_OPENS = re.compile(r"(\$\(\(|\$\[|\$\(\s?(?=expr\s)|`\s?(?=expr\s))(?:expr\s)?")
_CLOSES = {"$((": "))", "$[": "]", "$(": ")", "`": "`"}
_ENDS = "\"'; \t\\"
_OPERAND = re.compile(r"\s*(?:(\d{1,18})|\$\{?([A-Za-z_]\w*)\}?|([A-Za-z_]\w*)|(\\?[-+*/()]))")
_LARGEST = 2**62


def worked_out(line: str, variables: Mapping[str, str], branches: Collection[str]) -> str:
    """The line with the value in place of each sum, as long as before; what hangs on a branch stays as it is."""
    if "expr" not in line and "$((" not in line and "$[" not in line:
        return line

    found, at = "", 0
    for start in _OPENS.finditer(line):
        if start.start() < at:
            continue
        closing = _CLOSES[start[1].rstrip()]
        end = line.find(closing, start.end(), start.end() + _MOST)
        while closing == "))" and line[end + 2 : end + 3] == ")" and end >= 0:
            end += 1  # of a bracket inside
        number = None if end < 0 else _value(line[start.end() : end], variables, branches)
        after = end + len(closing)
        if number is not None and (line[after : after + 1] or " ") in _ENDS:
            found += line[at : start.start()] + str(number).ljust(after - start.start())
            at = after
    return found + line[at:]


def _value(text: str, variables: Mapping[str, str], branches: Collection[str]) -> int | None:
    """A sum of whole numbers, divided as the shell does; None where it is none, or not known."""
    parts: list[str] = []
    at = 0
    while at < len(text) and text[at:].strip():
        found = _OPERAND.match(text, at)
        if found is None:
            return None
        at = found.end()
        name = found[2] or found[3]
        known = found[1] or (variables.get(name, "") if name and name not in branches else "")
        if known and not (known.isascii() and known.isdigit()):
            return None
        part = known or (found[4] or "").removeprefix("\\")
        if not part:
            return None
        parts.append(part)
    if not parts or sum(map(len, parts)) > _MOST:
        return None
    number, rest = _terms(parts)
    return None if rest or number is None or not 0 <= number < _LARGEST else number


Rest = list[str]


def _terms(parts: Rest) -> tuple[int | None, Rest]:
    return _chain(parts, {"+": int.__add__, "-": int.__sub__}, _factors)


def _factors(parts: Rest) -> tuple[int | None, Rest]:
    return _chain(parts, {"*": int.__mul__, "/": int.__floordiv__}, _atom)


def _chain(
    parts: Rest, signs: Mapping[str, Callable[[int, int], int]], inner: Callable[[Rest], tuple[int | None, Rest]]
) -> tuple[int | None, Rest]:
    """Numbers between signs of one rank, from left to right."""
    number, rest = inner(parts)
    while number is not None and rest and rest[0] in signs:
        other, after = inner(rest[1:])
        if other is None or (rest[0] == "/" and other == 0):
            return None, after
        number, rest = signs[rest[0]](number, other), after
        if number < 0:  # the shell rounds towards zero, and nothing that counts is below it
            return None, rest
    return number, rest


def _atom(parts: Rest) -> tuple[int | None, Rest]:
    if parts and parts[0] == "(":
        number, rest = _terms(parts[1:])
        return (number, rest[1:]) if rest[:1] == [")"] else (None, rest)
    if parts and parts[0].isdigit():
        return int(parts[0]), parts[1:]
    return None, parts


_IF = re.compile(r"\s*if\s[^;]*;\s*then\b")
_PARTS = re.compile(r";\s*(?=(?:then|elif|else|fi)\b)|(?<=\bthen\s)|(?<=\belse\s)")
_HEAD = re.compile(r"\s*(?:if|elif)\s")
_TESTED = re.compile(r"(\s*)(\[\[\s[^\[\]]+\s\]\]|\[\s[^\[\]]+\s\])\s*(&&|\|\|)\s*(?=[A-Za-z_]\w*(?:\[\w+\])?\+?=)")
_OTHERWISE = re.compile(r"\s*\|\|\s*(?=[A-Za-z_]\w*\+?=)")
LONGEST = 400
"""Characters of a line that is taken apart; one that is longer is left whole."""
_CLOSED = re.compile(r"\bfi\b\s*;?\s*(?=\S)")


def single(line: str) -> Iterator[str]:
    """The lines that a line stands for, in order; each has its words in the columns where they stand."""
    if len(line) > LONGEST:
        yield line
        return
    tested = _TESTED.match(line)
    if tested is not None:
        yield from _tested(line, tested)
        return
    opened = _IF.match(line)
    if opened is None or not line[opened.end() :].strip():
        yield line
        return
    closed = _CLOSED.search(line, opened.end())
    end = len(line) if closed is None else closed.end()
    yield from _parts(line[:end].rstrip(" \t;") if closed is not None else line)
    if closed is not None:
        yield from single(" " * end + line[end:])


def _parts(line: str) -> Iterator[str]:
    """``if A; then B; else C; fi``: a head, what it runs, and so on."""
    at = 0
    for cut in [*_PARTS.finditer(line), None]:
        end = len(line) if cut is None else cut.start()
        part = line[at:end]
        if part.strip() not in ("", "then"):
            yield " " * at + part + ("; then" if _HEAD.match(part) else "")
        at = len(line) if cut is None else cut.end()


def _tested(line: str, found: re.Match[str]) -> Iterator[str]:
    """``[ A ] && B``, ``[ A ] || B``, ``[ A ] && B || C``."""
    other = _OTHERWISE.search(line, found.end()) if found[3] == "&&" else None
    end = len(line) if other is None else other.start()
    yield f"{found[1]}if {found[2]}; then"
    if found[3] == "||":
        yield "else"
    yield " " * found.end() + line[found.end() : end]
    if other is not None:
        yield "else"
        yield " " * other.end() + line[other.end() :]
    yield "fi"


MOST_WORDS = 100_000
"""Words that variables stand for, wherever they are used. Each use counts."""
MOST_CHARACTERS = 4 << 20
"""Characters that variables add to values and arguments, wherever they are used."""
_HELP = "write the arguments where the command starts, each of them once"


class ScriptGrowth:
    """The budget of one script."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._words = 0
        self._characters = 0

    def words(self, name: str, line: int, count: int) -> None:
        """Count the words of a variable that is used.

        Raises:
            ConfigError: with those before, there are more than ``MOST_WORDS``.
        """
        self._words += count
        if self._words > MOST_WORDS:
            raise self._refused(name, line, f"more than {MOST_WORDS:,} words", f"{count:,} words")

    def characters(self, name: str, line: int, before: str, after: str) -> None:
        """Count what the text of a variable or an argument grew by.

        Raises:
            ConfigError: with those before, there are more than ``MOST_CHARACTERS``.
        """
        self._characters += max(0, len(after) - len(before))
        if self._characters > MOST_CHARACTERS:
            raise self._refused(name, line, f"more than {MOST_CHARACTERS:,} characters", f"{len(after):,} characters")

    def _refused(self, name: str, line: int, most: str, own: str) -> Exception:
        at = Location(self._path, Span(line, 1, line, 2))
        what = f"`{name}`" if name else "an argument"
        return located(at, f"the script's variables grow to {most}: {what} alone is {own} here", _HELP)


RUNS, SKIPPED, DONE, UNKNOWN = "runs", "skipped", "done", "unknown"
"""States of a branch: it runs; it does not run; an earlier branch of its ``if`` ran; its condition is not known."""
_BRANCH_OPENS = re.compile(r"(?:^|;|\bthen\b|\bdo\b|\belse\b)\s*(?:if|case)\b")
_BRANCH_CLOSES = re.compile(r"(?:^|[;\s])(?:fi|esac)\b")
_BRANCH_HEAD = re.compile(r"\s*(if|elif)\s+([^;]{1,400}?)\s*(?:;\s*then\s*)?\Z")
_JOINED = re.compile(r"\s*(\|\||&&)\s*")
_BRACKETS = re.compile(r"(?:\[\[\s+([^\[\]]+?)\s+\]\]|\[\s+([^\[\]]+?)\s+\])\Z")
_ELSE = re.compile(r"\s*(else|elif)\b")
_TEST = re.compile(r"(\S+)\s+(=|==|!=|-eq|-ne|-gt|-ge|-lt|-le)\s+(\S+)\Z|(-[zn])\s+(\S+)\Z")
_VALUE = re.compile(r"\$\{?([A-Za-z_]\w*|[1-9])(?::?-([^}]*))?\}?\Z")
_NAMED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_CALLERS = re.compile(r"\$\{?[1-9]\}?\Z")
"""An argument of the script's own. It is not known, but for a default: where the script asks whether it was given, it
was not, as in ``${1:-8}``.
"""


class Branches:
    """The branches that are open at a line."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        """State of each open branch, and a variable that its comparison depends on and that is not known."""
        self._unknown: list[str] = []
        """For each open branch in state UNKNOWN, the variable that its comparison depends on. This list and
        ``_unread`` save a pass over ``_open`` for every line."""
        self._unread = 0
        """Open branches that are SKIPPED or DONE."""

    @property
    def hanging(self) -> int:
        """How many of them hang on what is not known."""
        return len(self._unknown)

    @property
    def compared(self) -> str:
        """A variable on which the innermost of them hangs; empty where that is not plain."""
        return self._unknown[-1] if self._unknown else ""

    @property
    def skipped(self) -> bool:
        """Whether this line never runs."""
        return self._unread > 0

    def _push(self, state: str, name: str = "") -> None:
        self._open.append((state, name))
        if state == UNKNOWN:
            self._unknown.append(name)
        self._unread += state in (SKIPPED, DONE)

    def _pop(self) -> tuple[str, str]:
        state, name = self._open.pop()
        if state == UNKNOWN:
            self._unknown.pop()
        self._unread -= state in (SKIPPED, DONE)
        return state, name

    def line(self, code: str, variables: Mapping[str, str], branches: Collection[str]) -> None:
        """Open and close what the line does. ``branches``: variables whose value hangs on one."""
        head, other = _BRANCH_HEAD.match(code), _ELSE.match(code)
        holds = None if head is None else _holds(head[2], variables, branches)
        if head is not None and head[1] == "if":
            named = _NAMED.findall(head[2])
            self._push(_state(holds), next((name for name in named if name not in variables or name in branches), ""))
            return
        if other is not None and self._open:
            before, name = self._pop()
            if before in (RUNS, DONE):
                before = DONE
            elif before == SKIPPED:
                before = RUNS if other[1] == "else" else _state(holds)
            self._push(before, name)
            code = code[other.end() :] if other[1] == "else" else ""
        more = len(_BRANCH_OPENS.findall(code)) - len(_BRANCH_CLOSES.findall(code))
        for _ in range(min(-more, len(self._open))):
            self._pop()
        for _ in range(more):
            self._push(UNKNOWN)


def _state(holds: bool | None) -> str:
    return UNKNOWN if holds is None else RUNS if holds else SKIPPED


def _holds(text: str, variables: Mapping[str, str], branches: Collection[str]) -> bool | None:
    """Whether comparisons hold, joined by ``||`` and ``&&`` as the shell joins them; None where it is not known."""
    first, *rest = _JOINED.split(text)
    found = _compared(first, variables, branches)
    for joint, each in zip(rest[::2], rest[1::2], strict=True):
        other, decides = _compared(each, variables, branches), joint == "||"
        found = decides if decides in (found, other) else None if None in (found, other) else not decides
    return found


def _compared(text: str, variables: Mapping[str, str], branches: Collection[str]) -> bool | None:
    """Whether a comparison of two words holds; None where a word is not known, or the text is no comparison."""
    inside = _BRACKETS.match(text)
    found = None if inside is None else _TEST.match(inside[1] or inside[2])
    if found is None:
        return None
    if found[4]:
        word = _word(found[5], variables, branches, given=False)
        return None if word is None else (word == "") == (found[4] == "-z")
    given = all(found[side].strip("\"'") for side in (1, 3))
    left, right = (_word(found[side], variables, branches, given=given) for side in (1, 3))
    if left is None or right is None:
        return None
    if found[2] in ("=", "==", "!="):
        return (left == right) == (found[2] != "!=")
    a, b = whole_number(left), whole_number(right)
    if a is None or b is None:
        return None
    return {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}[found[2]]


def _word(text: str, variables: Mapping[str, str], branches: Collection[str], *, given: bool) -> str | None:
    """A word of a comparison: plain text, or a variable that the script sets to plain text outside of any branch.

    ``given``: whether an argument of the script's own counts, which is then not known; else it is empty.
    """
    plain = text.strip("\"'")
    if not set(plain) & set("$`*?"):
        return plain
    found = _VALUE.match(plain)
    if found is None or found[1] in branches:
        return None
    value = variables.get(found[1], None if found[2] is None else found[2].strip("\"'"))
    if not given and _CALLERS.match(plain if value is None else value):
        return ""
    return None if value is None or set(value) & set("$`") else value
