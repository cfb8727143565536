"""Lines that start vLLM, as one command without the rest of their file: in shell scripts and Dockerfiles.

The normal form is the text of the file with blanks in place of everything that does not count. Every word keeps its
line and column. What stays: the command from ``vllm serve``, the module or the image on, and variables that it names.

A call of vLLM's ``LLM`` or of its engine arguments in Python, as the command line of the same server.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator

from memcheck.catalog.names import AmbiguousNameError, UnknownNameError, find_gpu
from memcheck.configs.launch_lines import Command, commands_of
from memcheck.configs.python_code import code_of, place, walked
from memcheck.job.engines.vllm.versions import offline_tokens
from memcheck.record import Record

STARTS = re.compile(
    r"(?:^|[\s;&|\"'(=/])(?P<program>vllm\s+serve\b|-m\s+vllm\.entrypoints\.[\w.]*(?:api_server|serve)\b"
    r"|[\w.:/-]*vllm[\w.-]*/[\w.-]*vllm[\w.-]*openai[\w.-]*(?::[\w.-]+)?)(?=[\s\"'\\]|$)"
)
"""How a server starts: the program, its module, or an image whose entry point is the program."""
IMAGE = re.compile(r"vllm[\w./-]*:v?(\d\.\d{1,3}(?:\.\d{1,3})?)(?!\d)")
"""The version in the tag of an image."""
_ENDS = re.compile(r"\s(?:&&|\|\||;|\||&(?=\s|$)|\d?>{1,2}|&>)|;")
_HOLDS = re.compile(
    r"\s*(?:export\s+|local\s+|readonly\s+|declare\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)\+?=(?P<value>.*)", re.DOTALL
)
_DEFAULT = re.compile(r"\s*:\s+[\"']?\$\{")
_OPTION = re.compile(r"(?:^|[\s\"'(])--?[A-Za-z]")
_CONTROL = re.compile(
    r"\s*(?:if|then|elif|else|fi|case|esac|for|while|do|done)\b|\s*(?:source|\.)\s|[^()]*\)\s*$|\s*[)}\"']"
)
_OPENED = re.compile(r"[A-Za-z_]\w*\+?=(\(|[\"'])")
_CLOSES = {"(": ")", '"': '"', "'": "'"}
_USED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_INSTRUCTION = re.compile(r"\s*(FROM|ENTRYPOINT|CMD|ENV|ARG)(?=\s)", re.IGNORECASE)
TAGGED = "#ROM "
"""Start of a Dockerfile's ``FROM`` in the normal form, where only its tag counts."""
MOST = 8000
"""Characters of a command in which the program is looked for."""


def is_dockerfile(text: str) -> bool:
    """Whether a text is a Dockerfile: its first instruction is ``FROM`` or ``ARG``."""
    for line in text.split("\n", 200)[:200]:
        if line.strip() and not line.lstrip().startswith("#"):
            return re.match(r"\s*(?:FROM|ARG)\s+[\w$./:={}\"-]+", line) is not None and "\nFROM " in f"\n{text}"
    return False


def servers_in(lines: tuple[str, ...] | list[str]) -> list[tuple[Command, int, int]]:
    """The commands that start vLLM, each with the places where its program begins and its arguments end."""
    found = []
    for command in commands_of(lines):
        head = command.text[:MOST]
        starts = list(STARTS.finditer(head))
        if not starts:
            continue
        start = starts[-1].start("program")
        ends = _ENDS.search(command.text, starts[-1].end())
        found.append((command, start, len(command.text) if ends is None else ends.start()))
    return found


def serving_alone(text: str) -> str:
    """The normal form of a script or a Dockerfile: the commands that start vLLM, and the variables that they name.

    Of several equal commands the first is left. A text without such a command stays as it is.
    """
    text = _script_of(text) if is_dockerfile(text) else text
    lines = text.split("\n")
    found = servers_in(lines)
    if not found:
        return text
    found = _different(found)
    names = {name for command, start, end in found for name in _USED.findall(command.text[start:end])}
    kept: dict[int, str] = {}
    for command, start, end in found:
        kept.update(_cut(lines, command, start, end))
    for number, line in _variables(lines, names):
        kept.setdefault(number, line)
    return "\n".join(kept.get(number, "") for number in range(1, len(lines) + 1))


def _different(found: list[tuple[Command, int, int]]) -> list[tuple[Command, int, int]]:
    """The commands without those that only have another name, port or host."""
    kept: dict[str, tuple[Command, int, int]] = {}
    for each in found:
        said = re.sub(
            r"--(?:port|host|served[-_]model[-_]name|api[-_]key)[\s=]+\S+", " ", each[0].text[each[1] : each[2]]
        )
        kept.setdefault(" ".join(said.split()), each)
    return list(kept.values())


def _cut(lines: list[str], command: Command, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Each line of a command with blanks before the program and after the arguments; its comments stay outside."""
    ends = [each for each, _ in command.lines[1:]] + [len(command.text)]
    for (begin, number), until in zip(command.lines, ends, strict=True):
        first, last = max(start, begin) - begin, min(end, until) - begin
        text = lines[number - 1]
        goes_on = text.rstrip().endswith("\\") and until <= end and until < len(command.text)
        if first < last:
            yield number, " " * first + text[first:last].rstrip("\\") + (" \\" if goes_on else "")


def _variables(lines: list[str], names: set[str]) -> Iterator[tuple[int, str]]:
    """Lines that set variables or decide about them, and what a scheduler is asked for. Arguments that no server names
    are left out.
    """
    closing, keeps = "", False
    for number, line in enumerate(lines, 1):
        if closing:
            if keeps:
                yield number, line
            closing = "" if closing in line else closing
            continue
        if line.lstrip().startswith("#"):
            if line.startswith(("#SBATCH", TAGGED)):
                yield number, line
            continue
        held = _HOLDS.match(line[:MOST])
        if held is not None:
            opened = _OPENED.search(line[held.start(1) :])
            open_end = _CLOSES[opened[1]] if opened is not None else ""
            value = held["value"]
            keeps = held[1] in names or not (_OPTION.search(value) or open_end == ")")
            if opened is not None and open_end not in value[1:]:
                closing = open_end
            if keeps and not STARTS.search(line[:MOST]):
                names.update(_USED.findall(value))
                yield number, line
        elif _DEFAULT.match(line) or (_CONTROL.match(line) and not _OPTION.search(line)):
            yield number, line


def _script_of(text: str) -> str:
    """A Dockerfile as a script: the program and its arguments on lines that go on, ``ENV`` and ``ARG`` as variables."""
    lines = text.split("\n")
    commands = {each.lines[0][1]: each for each in commands_of(lines)}
    image = entry = start = tagged = 0
    found = [""] * len(lines)
    for number, command in commands.items():
        kind = _INSTRUCTION.match(command.text)
        if kind is None:
            continue
        word = kind[1].upper()
        if word == "FROM":
            found = [
                line if line.lstrip().startswith(("ENV", "ARG")) is False and "=" in line else "" for line in found
            ]
            image, entry, start = (number, 0, 0) if STARTS.search(command.text) else (0, 0, 0)
            tagged = number
        elif word in ("ENTRYPOINT", "CMD"):
            entry, start = (number, 0) if word == "ENTRYPOINT" else (entry, number)
        else:
            line = lines[number - 1]
            value = re.sub(
                r"^(\s*)(?:ENV|ARG)(\s+[A-Za-z_]\w*)[= ]",
                lambda each: f"{each[1]}   {each[2]}=",
                line,
                flags=re.IGNORECASE,
            )
            found[number - 1] = value if "=" in value else ""
    parts = [part for part in ((image if not entry else 0), entry, start) if part]
    if not parts:
        return "\n".join(found)
    if tagged and tagged not in parts:
        found[tagged - 1] = TAGGED + lines[tagged - 1].strip()[len(TAGGED) :]
    last = commands[parts[-1]].lines[-1][1]
    for number in range(parts[0], last + 1):
        found[number - 1] = " \\" if number < last else ""
    for part in parts:
        for _, number in commands[part].lines:
            line = re.sub(r"--platform=\S+", lambda each: " " * len(each[0]), _plain(lines[number - 1]))
            line = re.sub(r"(?i)\s+AS\s+\w+\s*$", "", line) if part == image else line
            found[number - 1] = line.rstrip().removesuffix("\\") + (" \\" if number < last else "")
    return "\n".join(found)


def _plain(line: str) -> str:
    """An instruction's line without its word; of its JSON form the words, each in its place."""
    line = _INSTRUCTION.sub(lambda each: " " * len(each[0]), line)
    if not re.match(r"\s*[\[\"]", line):
        return line
    return re.sub(
        r"\"((?:[^\"\\]|\\.)*)\"|[\[\],]",
        lambda each: " " if each[1] is None else f" {each[1]} " if not re.search(r"[\s{]", each[1]) else f"'{each[1]}'",
        line,
    )


def version_in(text: str) -> str:
    """The version that an image's tag in a text names; empty without one."""
    found = IMAGE.search(text)
    return "" if found is None else found[1]


CLASSES = ("LLM", "EngineArgs", "AsyncEngineArgs")


class ServeCall(Record):
    """A call of vLLM's classes in Python, as a command line."""

    line: int
    words: tuple[str, ...]
    offline: bool
    """Whether it is ``LLM``, which has other defaults than a server."""


def call_of(text: str) -> ServeCall | None:
    """The only call of ``LLM`` or of vLLM's engine arguments in a Python file or a notebook; None without one.

    A value that is no constant becomes a variable of its name, which a user may define.
    """
    if "vllm" not in text:
        return None
    code = code_of("serve.py", text)
    trees = [(cell, cell.tree) for cell in code.cells if cell.tree is not None]
    nodes = [(cell, node) for cell, tree in trees for node in walked(tree)]
    constants = {
        node.targets[0].id: node.value
        for _, tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    names = {
        each.asname or each.name: each.name
        for _, node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm"
        for each in node.names
    }
    found = []
    for cell, node in nodes:
        if isinstance(node, ast.Call):
            own = node.func.id if isinstance(node.func, ast.Name) else ""
            of_module = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "vllm"
            name = node.func.attr if of_module and isinstance(node.func, ast.Attribute) else names.get(own, "")
            if name in CLASSES:
                found.append((name, node, place(cell, node).span.line))
    if len(found) != 1:
        return None
    ((name, call, line),) = found
    words = ["vllm", "serve"]
    if call.args:
        words += _word(call.args[0], "model", constants)
    for each in call.keywords:
        value = _word(each.value, each.arg or "options", constants)
        if each.arg is None:
            words += value
        elif value == ["True"]:
            words.append(f"--{each.arg}")
        elif value == ["False"]:
            words.append(f"--no-{each.arg}")
        elif value != ["None"]:
            words.append(f"--{each.arg}={value[0]}")
    return ServeCall(line, tuple(words), offline=name == CLASSES[0])


def _word(value: ast.expr, name: str, constants: dict[str, ast.expr]) -> list[str]:
    """A constant as an argument has it; ``$NAME`` for any other value."""
    if isinstance(value, ast.Name) and value.id in constants:
        name, value = value.id, constants[value.id]
    elif isinstance(value, ast.Name):
        name = value.id
    try:
        said = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return [f"${name}"]
    if isinstance(said, (dict, list)):
        try:
            return [json.dumps(said)]
        except (TypeError, ValueError):
            return [f"${name}"]
    return [str(said)]


def as_text(call: ServeCall, gpu: str) -> str:
    """The command line of a call. Variables stay variables.

    ``LLM`` takes more tokens per pass than a server, by the GPU: that default of the class is an argument of the line.
    """
    tokens = _tokens(gpu) if call.offline else 0
    stated = any(re.match(r"--max[_-]num[_-]batched[_-]tokens", word) for word in call.words)
    more = [f"--max-num-batched-tokens={tokens}"] if tokens and not stated else []
    plain = re.compile(r"(?:--[\w.-]+=)?\$\w+")
    return " ".join(word if plain.fullmatch(word) else shlex.quote(word) for word in (*call.words, *more))


def _tokens(gpu: str) -> int:
    """``max_num_batched_tokens`` of ``LLM`` on a GPU of that name; 0 for an unknown one."""
    try:
        return offline_tokens(find_gpu(gpu)) if gpu else 0
    except (AmbiguousNameError, UnknownNameError):
        return 0
