"""A call of vLLM's ``LLM`` or of its engine arguments in Python, as the command line of the same server."""

from __future__ import annotations

import ast
import json
import re
import shlex

from memcheck.catalog.names import AmbiguousNameError, UnknownNameError, find_gpu
from memcheck.configs.python_code import code_of, place, walked
from memcheck.job.engines.vllm.defaults import offline_tokens
from memcheck.record import Record

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
