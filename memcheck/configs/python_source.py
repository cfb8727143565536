"""Python files and notebooks: named as Python, which is not run. What they say in literals goes into a command.

Other files that a Python file names in literal paths: its own modules, and YAML or JSON that it opens.

Like every file that a config names, they lie inside its repository, or its folder where there is none.
"""

from __future__ import annotations

import ast
import os
import re
from typing import Any

from memcheck.configs.config_file import ConfigFile, load_json, load_toml, load_yaml, parse_text
from memcheck.configs.launch_lines import commands_of, starts, trains
from memcheck.configs.next_command import LIKE, NO_MACHINE, Machine, model_named, of_command, of_model, of_serving
from memcheck.configs.python_code import PythonCode, code_of, place, walked
from memcheck.configs.python_values import PythonValue, placed
from memcheck.configs.trainer_script import script_of
from memcheck.configs.trainer_split import named_files
from memcheck.configs.types import ConfigError
from memcheck.configs.wrapper_command import asked
from memcheck.edge.opener import is_file, is_inside, real_path, repository
from memcheck.plan.text import shown_path

_BATCH = ("per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size", "micro_batch_size_per_gpu")
_LENGTH = ("max_seq_length", "max_length", "max_seq_len", "seq_length", "seq_len", "block_size", "model_max_length")
_MODEL = (
    "model_name",
    "model_name_or_path",
    "pretrained_model_name_or_path",
    "model_id",
    "base_model",
    "model",
    "model_path",
)
MOST_NAMES = 20
"""Names that are looked up in the catalog."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+\Z")
_ENGINES = frozenset({"vllm", "sglang"})
_TRAINERS = frozenset({"trl", "peft", "deepspeed", "accelerate", "unsloth", "lightning"})
_FOUR = ("load_in_4bit",)
_ADAPTERS = frozenset({"LoraConfig", "get_peft_model", "PeftConfig"})


class Literals:
    """What a module says in constants: keyword arguments and assignments, by name."""

    def __init__(self, code: PythonCode) -> None:
        self.values: dict[str, list[object]] = {}
        self.texts: list[str] = []
        self.adapted = False
        """Whether adapters are made."""
        self.serves = self.trains = False
        """Whether an engine is imported, and no trainer."""
        self.lists: list[tuple[int, list[str]]] = []
        """Lists of words, by line: the commands of launchers that a script starts."""
        trees = [(cell, cell.tree) for cell in code.cells if cell.tree is not None]
        constants: dict[str, object] = {
            node.targets[0].id: node.value.value
            for _, tree in trees
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for cell, tree in trees:
            for node in walked(tree):
                self._node(node, constants, place(cell, node).span.line)

    def _node(self, node: ast.AST, constants: dict[str, object], line: int) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._imported(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 2000:
            self.texts.append(node.value)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self._take(node.targets[0].id, node.value, constants)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            self._take(node.arg, node.value, constants)
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            self.adapted |= name in _ADAPTERS
            if name == "from_pretrained" and node.args:
                self._take("model_name", node.args[0], constants)
        elif isinstance(node, ast.List) and node.elts:
            words = [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if len(words) == len(node.elts):
                self.lists.append((line, words))

    def _imported(self, node: ast.Import | ast.ImportFrom) -> None:
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        packages = {name.partition(".")[0] for name in names}
        self.trains |= bool(packages & _TRAINERS)
        self.serves = not self.trains and (self.serves or bool(packages & _ENGINES))

    def _take(self, name: str, value: ast.expr, constants: dict[str, object]) -> None:
        found: object = value.value if isinstance(value, ast.Constant) else None
        if isinstance(value, ast.Name):
            found = constants.get(value.id)
        if found is not None:
            self.values.setdefault(name, []).append(found)

    def one(self, *names: str) -> int:
        """The only number that names have; 0 where there are several, or none."""
        found = {each for name in names for each in self.values.get(name, ()) if type(each) is int and 0 < each < 10**7}
        return found.pop() if len(found) == 1 else 0

    @property
    def model(self) -> str:
        """The only model of the catalog that is named; empty where there are several, or none."""
        named = [each for name in _MODEL for each in self.values.get(name, ()) if isinstance(each, str)]
        return _only(named) or _only([text for text in self.texts if _HUB_ID.match(text)])

    @property
    def method(self) -> str:
        """The training method of a script that makes adapters, ``lora`` or ``qlora``; empty for any other script."""
        if any(each is True for name in _FOUR for each in self.values.get(name, ())):
            return "qlora"
        return "lora" if self.adapted else ""


def _only(names: list[str]) -> str:
    found = {each for each in map(model_named, list(dict.fromkeys(names))[:MOST_NAMES]) if each}
    return found.pop() if len(found) == 1 else ""


def way_on(code: PythonCode, machine: Machine = NO_MACHINE) -> tuple[int, str]:
    """The line of a launch inside, or 1, and the command that goes on."""
    found = Literals(code)
    gpu, count = next(map(asked, found.values.get("gpu", ())), ("", 0))
    machine = Machine(machine.gpu or gpu, machine.gpus_per_node or count, machine.nodes)
    for line, words in found.lists:
        (command,) = commands_of([" ".join(words)]) or (None,)
        if command is not None and (starts(command) or trains(command)):
            return line, of_command("check the launch inside", words, machine)
    if not found.model and not found.values:
        intro = "state what it trains, for example"
        return 1, of_model(intro, LIKE, machine, method="lora", batch=1, length=4096)
    if found.serves:
        intro = "check weights, one whole sequence of KV cache and the working set"
        length = found.one("max_model_len", "context_length")
        return 1, of_serving(
            intro,
            found.model,
            machine,
            weights="",
            length=length,
            kv="",
            tensor=found.one("tensor_parallel_size", "tp_size") or 1,
        )
    intro = "state what it says"
    return 1, of_model(
        intro,
        found.model,
        machine,
        method=found.method,
        batch=found.one(*_BATCH),
        length=found.one(*_LENGTH),
    )


LOADERS = {".yaml": load_yaml, ".yml": load_yaml, ".json": load_json, ".toml": load_toml}
"""What reads a file of values, by the end of its name."""
MOST_FILES = 40
"""Files that are looked for."""


def script_near(config: ConfigFile) -> tuple[str, str]:
    """The script that a launch line runs, and its text, where it is a Python file near the line; empty texts if not."""
    name, at = script_of(config)
    if not name.endswith(".py") or not config.lines:
        return "", ""
    before = re.search(r"[^\s\"'=]*$", config.lines[at.span.line - 1][: at.span.column - 1][-500:])
    name = (before[0] if before is not None else "") + name
    path = next((each for each in named_files(config, name) if is_file(each)), "")
    try:
        return (path, parse_text(path, config.read(path))) if path else ("", "")
    except (OSError, ConfigError):
        return "", ""


class NearFiles:
    """The files around one config."""

    def __init__(self, config: ConfigFile) -> None:
        self.sources: dict[str, tuple[str, ...]] = {}
        """The lines of every file that was read, by its path."""
        self._config = config
        self._looked = 0

    def module(self, name: str, level: int, of: str) -> PythonCode | None:
        """The code of a module, ``a/b`` for ``a.b``; None where no such file is there.

        ``level``: the dots before its name, which count from the folder of the file ``of``.
        """
        for each in (f"{name}.py", f"{name}/__init__.py", *(() if level else (f"src/{name}.py",))):
            path = self._found(each, level, of)
            text = "" if path is None else self._text(path)
            if path is not None and text:
                return code_of(path, text)
        return None

    def document(self, name: str) -> dict[Any, PythonValue] | None:
        """The values of a YAML or JSON file, each at its line; None where no such file can be read."""
        load = next((load for end, load in LOADERS.items() if name.endswith(end)), None)
        if load is None:
            return None
        path = self._found(name, 0, "")
        text = "" if path is None else self._text(path)
        if path is None or not text:
            return None
        try:
            config = load(path, text)
        except ConfigError:
            return None
        found: dict[Any, PythonValue] = {}
        for key, value in config.values.items():
            *sections, last = key.split(".")
            table, at = found, config.at(key)
            for each in sections:
                table = table.setdefault(each, PythonValue({}, at)).of
            table[last] = placed(value, at)
        return found

    def _found(self, name: str, level: int, of: str) -> str | None:
        self._looked += 1
        if self._looked > MOST_FILES or not name or "\0" in name or len(name) > 500:
            return None
        if not level:
            folder = os.path.dirname(self._config.path)
            plain = os.path.relpath(name, folder or ".") if name.startswith(folder + "/") and folder else name
            return next((each for each in named_files(self._config, plain) if is_file(each)), None)
        path = os.path.normpath(os.path.join(os.path.dirname(of), *[".."] * (level - 1), name))
        folder = real_path(os.path.dirname(self._config.path) or ".")
        root = self._config.inside or repository(folder)[0]
        return shown_path(path) if is_inside(real_path(path), root) and is_file(path) else None

    def _text(self, path: str) -> str:
        try:
            text = parse_text(path, self._config.read(path))
        except (OSError, ConfigError):
            return ""
        self.sources[path] = tuple(text.split("\n"))
        return text
