"""Says a change of a plan in the words of the framework's own config that the plan was read from.

The section ``written`` of ``keys/NAME.yaml`` proposes keys of the config for a key of the plan. Rows of ``read`` and
the writers of formats propose further ones. A proposal counts only if the config is read as the changed plan with it:
what a user is told to write is what memcheck reads.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, islice, product
from typing import Any

from memcheck.configs.answers import FLAGS
from memcheck.configs.bridge_launch import RUNNERS
from memcheck.configs.direct import DirectConfig
from memcheck.configs.formats import FORMATS, WRITTEN, export_plan
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_devices import ALLOCATORS, SEGMENTS
from memcheck.configs.megatron_bridge import OPTIONS, is_bridge
from memcheck.configs.plan_text import grown, leaves, nested, scalar, spelled_out
from memcheck.configs.read_keys import taken
from memcheck.configs.sourced import source_file
from memcheck.configs.sourced_edits import alike
from memcheck.configs.syntax import ARGUMENTS, PYTHON, TOML, load_config, syntax_of
from memcheck.configs.types import ConfigError
from memcheck.edge.screen import value as plain
from memcheck.errors import MemcheckError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import Resolved, resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan, with_changes
from memcheck.record import Record

Words = Mapping[str, object]
"""Keys of a config and their new values; None: the config shall not have the key."""

MOST_READINGS = 12
"""Ways to say one change that are read; the first ones leave the least to the plan's own keys."""
LONGEST, LONGEST_NOTEBOOK = 2**16, 2**20
"""Characters of a config, and of a Python file or notebook, which may hold outputs: each way to say a change reads it
again.
"""
LAUNCHED = "--{key} {value}"
"""An argument of a command line, where the format's table has no other form."""
CALLS = re.compile(r"\b(?:TrainingArguments|(?:SFT|DPO|KTO|ORPO|CPO|Reward|Trainer|Training)Config)\(")
"""Calls of a Python file that take TRL's and transformers' arguments."""
LAYOUT, CONTEXT = "parallelism.", "parallelism.context"
ENGINE = "deepspeed."
"""The start of keys of the engine's config, which a trainer's config holds or names."""
ONE_QUEUE = "CUDA_DEVICE_MAX_CONNECTIONS=1"
"""What launches of tensor parallelism set, and Megatron-FSDP refuses (megatron/training/arguments.py)."""


def said_so(document: Document, changes: Mapping[str, object], wanted: Resolved) -> dict[str, str]:
    """The line that a user writes for each changed key of a plan; a key that has no words is left out.

    ``document``: of a framework's own config. ``wanted``: the job that the changed plan stands for. A key with an empty
    line is said by the other lines. Lines that start with ``memcheck`` state what the command line stated.
    """
    config = document.config
    if not isinstance(config, DirectConfig):
        return {}
    job = _Said(document, config, wanted)
    if len(config.text) > (LONGEST_NOTEBOOK if job.syntax == PYTHON else LONGEST):
        return {}
    choices = {key: job.choices(key, value) for key, value in changes.items()}
    lines = {key: job.stated(key, value) for key, value in changes.items() if not choices[key]}
    picked = next((each for each in islice(_picks(choices), MOST_READINGS) if job.reads(each, changes)), {})
    found = {key: line for key, line in lines.items() if line}
    words = _joined(picked.values())
    for key, own in picked.items():
        found[key] = ", ".join(job.line(name, words.pop(name)) for name in own if name in words)
    for key in changes if picked else ():
        follows = [each for each, line in found.items() if not line and each not in picked]
        if key not in found and job.reads(picked, changes, silent=[*follows, key]):
            found[key] = ""
    return found


def _picks(choices: Mapping[str, list[Words]]) -> Iterator[dict[str, Words]]:
    """One way to say each key, the most keys first."""
    keys = [key for key, ways in choices.items() if ways]
    for count in range(len(keys), 0, -1):
        for some in combinations(keys, count):
            for ways in product(*(choices[key] for key in some)):
                yield dict(zip(some, ways, strict=True))


class _Said:
    """One config, and the changed plan that it shall say."""

    def __init__(self, document: Document, config: DirectConfig, wanted: Resolved) -> None:
        self.document = document
        self.config = config
        self.wanted = wanted
        self.folder = os.path.dirname(document.path)
        self.fields = _leaves(document.values)
        self.own = _leaves(config.values)
        self.text, self.syntax = self._source()
        self.recipe = self._recipe() if self.syntax == ARGUMENTS else ""
        self.forms = _forms(config.format)
        self.trainer = any(prefix for prefix, _ in self.forms.rows)
        self.engine = self.fields.get("training.framework") == ENGINE.rstrip(".")
        self.launches_recipe = config.format == "megatron" and RUNNERS.search(self.text) is not None
        self.bridge = self.launches_recipe or (config.format == "megatron" and is_bridge(self.text))
        self.needed = 0

    def _source(self) -> tuple[str, str]:
        """The text that holds the keys, and its syntax: of the config, or of the file that a launch names."""
        path, text = self.config.start.path, self.config.text
        try:
            shown = source_file(self.document, str(self.config.values["source"][self.config.format]))
        except ConfigError:
            shown = path
        if shown != path:
            path, text = shown, "\n".join(self.document.sources.get(shown, ()))
        if self.config.format == "python" and syntax_of(path, text) != PYTHON:  # the script that a launch runs
            path = next((each for each in self.document.sources if each.endswith(".py")), path)
            text = "\n".join(self.document.sources.get(path, ())) or text
        return text, syntax_of(path, text)

    def _recipe(self) -> str:
        """The text of the YAML that a launch names, in which its model stands; empty where the launch says it."""
        path = self.document.locate("/model").path
        named = path != self.config.start.path and path.endswith((".yaml", ".yml"))
        return "\n".join(self.document.sources.get(path, ())) if named else ""

    def choices(self, key: str, value: object) -> list[Words]:
        """Ways to say one change in the config; none for what the command line stated."""
        changed = {name: each for name, each in _leaves(grown({}, {key: value})).items() if self._differs(name, each)}
        if not changed or any(name in self.own or name == SEGMENTS for name in changed):
            return []
        if self.syntax == PYTHON and not CALLS.search(self.text):
            return []
        if self.config.format == "python" and self.syntax != PYTHON:
            return []  # a script of one's own, whose options have names of their own
        every = [self._proposed(name, each) for name, each in changed.items()]
        ways = [each for each in every if each]  # of a mapping, some fields may say what is so already
        if not ways:
            ways = [self._exported(key, value)] if self.config.format in WRITTEN else []
        found = [self._own_names(_joined(each)) for each in product(*ways)]
        return [each for each in found if each]

    def _own_names(self, words: Words) -> Words:
        """The words under the names of a user's own file, or of a launch of Megatron-Bridge, whose code reads no
        others; empty where one is missing.
        """
        if self.bridge:
            known = words if FIELDS.keys() >= words.keys() else {}
            return {FIELDS[name]: value for name, value in known.items()} if self.launches_recipe else known
        if self.config.format != "keys":
            return words
        names = {normal: each.key for normal, each in taken(load_config("", self.text, self.syntax)).items()}
        return {names[name]: value for name, value in words.items()} if names.keys() >= words.keys() else {}

    def _differs(self, name: str, value: object) -> bool:
        return self.fields.get(name) != value

    def _proposed(self, name: str, value: object) -> list[Words]:
        """Ways to say one field of the plan; a name that the text has goes first."""
        said = self.forms.written.get(name)
        found: list[Words] = []
        if isinstance(said, str):
            found = [{each: value} for each in said.split()]
        elif said is not None:
            ways = said.get(scalar(value), said.get(ANY, []))
            for each in ways if isinstance(ways, list) else [ways]:
                found.append({key: value if new == SAME else new for key, new in each.items()})
        for prefix, row in self.forms.rows:
            if row.key == name and (not prefix or (self.engine and name != CONTEXT)):
                word = next((word for word, meant in row.words.items() if meant == value), value)
                found.append({f"{prefix}{row.path}": word})
        return sorted(found, key=lambda words: sum(not self._has(each) for each in words))

    def _has(self, name: str) -> bool:
        return self._stands(name, self.text + self.recipe)

    def _stands(self, name: str, text: str) -> bool:
        """Whether a text has the last part of a dotted name, with dashes or underscores."""
        last = re.escape(name.rpartition(".")[2])
        return re.search(rf"(?<!\w)(?<!\w-){last.replace('_', '[_-]')}(?![\w-])", text) is not None

    def _exported(self, key: str, value: object) -> list[Words]:
        """What the writer of the format writes otherwise for this change alone."""
        before, after = self._written({}), self._written({key: value})
        if before is None or after is None:
            return []
        names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
        return [{name: after.get(name) for name in names}] if names else []

    def _written(self, changes: Mapping[str, object]) -> dict[str, object] | None:
        """The keys that the writer of the format writes for the plan with these changes."""
        document = with_changes(self.document, changes)
        plan, _ = read_plan(document)
        if plan is None:
            return None
        try:
            resolved = resolve(plan, FRAMEWORKS, base_dir=self.folder)
            text = export_plan(plan, resolved, self.config.format, "plan").text
            return dict(FORMATS[self.config.format].load("written", text).values)
        except (MemcheckError, TypeError):
            return None

    def reads(self, picked: Mapping[str, Words], changes: Mapping[str, object], silent: Collection[str] = ()) -> bool:
        """Whether the config with these words is read as the changed plan, if nobody states the ``silent`` keys.

        What the config itself decides together with them may differ, where the job then needs no more memory.
        """
        words = _joined(picked.values())
        after = self.config.changed(words, {key: changes[key] for key in changes.keys() - picked.keys() - set(silent)})
        plan, _ = read_plan(after)
        if plan is None or any(each.severity == "error" for each in after.findings):
            return False
        try:
            found = resolve(plan, FRAMEWORKS, base_dir=self.folder)
        except MemcheckError:
            return False
        if found.gpu != self.wanted.gpu:
            return False
        return alike(found, self.wanted) or (self._says(after, found, changes) and self._needs_no_more(found))

    def _says(self, after: Document, found: Resolved, changes: Mapping[str, object]) -> bool:
        """Whether the changed fields have their new values; those of the layout may be said by other fields."""
        fields, new = _leaves(after.values), _leaves(grown({}, dict(changes)))
        differ = [name for name, each in new.items() if fields.get(name) != each]
        return found.job.layout == self.wanted.job.layout and all(name.startswith(LAYOUT) for name in differ)

    def _needs_no_more(self, found: Resolved) -> bool:
        """Whether a job of the same layout needs no more memory than the one that is wanted."""
        one, other = found.job, self.wanted.job
        if not isinstance(one, TrainingJob) or not isinstance(other, TrainingJob):
            return False
        try:
            least = estimate(one, found.gpu, found.overhead, every_rank=False)
            self.needed = (
                self.needed or estimate(other, self.wanted.gpu, self.wanted.overhead, every_rank=False).needed_bytes
            )
        except MemcheckError:
            return False
        return least.needed_bytes <= self.needed

    def stated(self, key: str, value: object) -> str:
        """The line for what no config says: an option of memcheck, or a variable of the allocator; else empty."""
        name = spelled_out(key)
        if name == SEGMENTS and value is True:
            variable = next((each for each in ALLOCATORS if each in self.text), ALLOCATORS[-1])
            return f"{variable}=expandable_segments:True in the environment"
        if not {name, key} & set(self.own):
            return ""
        flag = next((flag for flag, stated in FLAGS.items() if stated in (name, key)), "")
        return f"memcheck --{flag.replace('_', '-')} {plain(value)}" if flag else f"memcheck --set {key}={plain(value)}"

    def line(self, name: str, value: object) -> str:
        """A key and its value as the config's syntax spells them."""
        where, shown = "", FIELDS.get(name, name) if self.bridge else name
        if name.startswith(ENGINE) and f"{name.rpartition('.')[0]}." not in self.text:
            where, shown = " in the DeepSpeed config", name.removeprefix(ENGINE)
        if value is None:
            return f"without {self._argument(shown)}" if self.syntax == ARGUMENTS else f"without {shown}"
        if where:
            return f"{shown}: {scalar(value)}{where}"
        if self.syntax == PYTHON:
            return self._keyword(shown, value)
        if self.syntax == TOML:
            return f"{shown} = {json.dumps(value, ensure_ascii=False)}"
        if self.bridge:
            return f"{shown}={scalar(value)}" if self.launches_recipe else f"{shown}: {scalar(value)}"
        if self.syntax == ARGUMENTS and (not self.recipe or self._stands(shown, self.text)):
            alone = name == "use-megatron-fsdp" and ONE_QUEUE in self.text
            return self._launched(shown, value) + (f" (without {ONE_QUEUE})" if alone else "")
        return f"{shown}: {scalar(value)}"

    def _keyword(self, name: str, value: object) -> str:
        """A keyword of a call, under the name that the file has for it."""
        names = next(
            (said.split() for said in self.forms.written.values() if isinstance(said, str) and name in said.split()), []
        )
        if not self._has(name):
            name = next((each for each in names if self._has(each)), name)
        first, _, inner = name.partition(".")
        if name in key_table("python").words["loading"] and "from_pretrained(" not in self.text:
            first, inner = "model_init_kwargs", name
        value = nested({inner: value}) if inner else value
        return f"{first}={value!r}".replace("'", '"')

    def _launched(self, name: str, value: object) -> str:
        form = self.forms.arguments
        if self.trainer and "." in name:
            name, _, inner = name.partition(".")
            return f"--{name} '{json.dumps(nested({inner: value}))}'"
        if form == LAUNCHED and value is True and "-" in "".join(row.path for _, row in self.forms.rows):
            return f"--{name}"  # a switch, which takes no value
        words = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else scalar(value)
        words = f'"{words}"' if isinstance(value, str) and " " in value else words
        return form.format(key=self._argument(name).removeprefix("--"), value=words)

    def _argument(self, name: str) -> str:
        dashed = f"--{name.replace('_', '-')}"
        return dashed if re.search(rf"{re.escape(dashed)}\b", self.text) else f"--{name}"


ANY, SAME = "any", "="
"""In a table: for any value of the plan's key; and the value itself."""
FIELDS = {
    **{name.replace("_", "-"): field for name, field in OPTIONS.items()},
    **{
        name.replace("_", "-"): f"model.{name}"
        for name in ("sequence_parallel", "recompute_granularity", "recompute_method", "recompute_num_layers")
    },
}
"""Megatron's arguments, and the fields of Megatron-Bridge's container for the same things."""


class _Forms(Record):
    """How one format says what a remedy changes."""

    written: Mapping[str, Any]
    arguments: str
    rows: tuple[tuple[str, Any], ...]
    """Rows of the format's table, each with what stands before its key."""


def _forms(name: str) -> _Forms:
    table = key_table(name)
    own = dict(table.written)
    above = _forms(str(own.pop("like"))) if "like" in own else None
    form = str(own.pop("arguments", LAUNCHED))
    rows = tuple(("", row) for rows in table.rows.values() for row in rows)
    if name == "transformers":
        rows += tuple((ENGINE, row) for row in key_table("deepspeed").rows["rows"])
    if above is not None:
        return _Forms({**above.written, **own}, form, (*rows, *above.rows))
    return _Forms(own, form, rows)


def _leaves(values: object) -> dict[str, object]:
    return dict(leaves(values)) if isinstance(values, dict) else {}


def _joined(ways: Any) -> dict[str, object]:
    """Several ways as one; of two texts of one key, the one that has the other in it."""
    found: dict[str, object] = {}
    for words in ways:
        for name, value in words.items():
            before = found.get(name)
            if not (isinstance(before, str) and isinstance(value, str) and value in before):
                found[name] = value
    return found
