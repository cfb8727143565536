"""A change of a plan with a ``source`` as edits of the files that say the values: the configs', and the plan's own.

What a config can say is written into the config, which is what runs. What it cannot say is written into the plan. The
files are read again as they would be, and have to give exactly the job that was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from memcheck.configs import read_accelerate as accelerate_keys
from memcheck.configs.answers import served_values
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.edits import EDITORS
from memcheck.configs.formats import FORMATS, export_plan
from memcheck.configs.plan_text import grown, leaves, spelled_out
from memcheck.configs.read_megatron import LISTS
from memcheck.configs.sourced import source_file, with_source
from memcheck.configs.trainer_split import named_files
from memcheck.configs.types import REMOVED, ConfigError
from memcheck.edge.opener import real_path, repository
from memcheck.errors import MemcheckError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.changes import spelled
from memcheck.job.resolve import Resolved, resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.plan.finding import SEVERITIES, Edit, FileEdits
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan, with_changes
from memcheck.plan.types import Plan
from memcheck.plan.value_edits import edited, edits, excerpt, moved, read_excerpt
from memcheck.record import Record

AUTO = "auto"
"""In DeepSpeed's JSON: TrainingArguments fill it in, so that the value is theirs to change, and the plan's to state."""


class _Config(Record):
    """One config that a plan takes values from."""

    format: str
    path: str
    text: str
    values: dict[str, Any]


Values = tuple[Mapping[str, object], ...]
"""New values of each config's keys, in the order of the configs."""


class _Attempt(Record):
    """One way to write the change."""

    left: int
    """Keys that only the plan can say."""
    values: Values
    own: tuple[Edit, ...]
    elsewhere: tuple[FileEdits, ...]

    @property
    def cost(self) -> tuple[int, int]:
        """The way that leaves the least to the plan is the best, then the one that changes the fewest keys."""
        return self.left, sum(map(len, self.values))


LONGEST = 2**16
"""Characters of all configs of a plan; each way to write a change reads them again; none that is real is as long."""


def sourced_edits(
    document: Document, changes: Mapping[str, object], wanted: Resolved
) -> tuple[tuple[Edit, ...], tuple[FileEdits, ...]]:
    """Edits of the plan's own file, and of the configs that it takes values from; none where that is not certain.

    ``wanted`` is the job that the changed plan stands for.
    """
    plan, _ = read_plan(document)
    if plan is None:
        return (), ()
    change = _Change(document, plan, changes, wanted)
    if sum(len(each.text) for each in change.configs) > LONGEST:
        return (), ()
    best = change.smallest()
    return ((), ()) if best is None else (best.own, best.elsewhere)


class _Change:
    """A change of one plan, to be written."""

    def __init__(self, document: Document, plan: Plan, changes: Mapping[str, object], wanted: Resolved) -> None:
        self.document = document
        self.plan = plan
        self.changes = changes
        self.fields = dict(leaves(grown({}, dict(changes))))
        self.before = resolve(plan, FRAMEWORKS, base_dir=_folder(document))
        self.wanted = wanted
        self.configs = tuple(_configs(document))

    def smallest(self) -> _Attempt | None:
        """The best way, without new keys of the batch that say what follows from the others."""
        found = [way for values in self.ways() if (way := self.attempt(values)) is not None]
        best = min(found, key=lambda way: way.cost, default=None)
        if best is None:
            return None
        for number, config in enumerate(self.configs):
            for key in [name for group in EDITORS[config.format].together for name in group]:
                if key in config.values or key not in best.values[number]:
                    continue
                fewer = {name: value for name, value in best.values[number].items() if name != key}
                way = self.attempt((*best.values[:number], fewer, *best.values[number + 1 :]))
                if way is not None and way.cost < best.cost:
                    best = way
        return best

    def ways(self) -> list[Values]:
        """From the fewest keys to all that a writer would change, in place and with new ones."""
        found: list[Values] = []
        for direct in (True, False):
            every = tuple(self.values(config, direct=direct) for config in self.configs)
            known = tuple(
                {key: value for key, value in values.items() if key in config.values}
                for config, values in zip(self.configs, every, strict=True)
            )
            found += [each for each in (known, every) if each not in found]
        if not isinstance(self.wanted.job, TrainingJob):  # a key may be in a config, and not read in what it says
            found.append(tuple({} for _ in self.configs))
        return found

    def values(self, config: _Config, *, direct: bool) -> dict[str, object]:
        """New values of a config's keys: what its writer would write otherwise for the changed plan.

        ``direct``: only keys that stand for a changed key of the plan alone.
        """
        editor = EDITORS[config.format]
        if not isinstance(self.wanted.job, TrainingJob):
            return served_values(editor, config.values, self.fields, self.wanted.job.layout)
        old, new = (_written(config, self.plan, each) for each in (self.before, self.wanted))
        differ = {key for key in {**old, **new} if old.get(key) != new.get(key)}
        for group in editor.together:
            if differ & set(group):
                differ |= set(group) & set(new)
            if any(config.values.get(name) == AUTO for name in group):
                differ -= {name for name in group if name not in config.values}
        found: dict[str, object] = {}
        for key in sorted(differ):
            stands_for = spelled_out(editor.key_of(key))
            if direct and stands_for not in self.fields and not any(key in group for group in editor.together):
                continue
            value = new.get(key, self.fields.get(stands_for, REMOVED))
            name = next((each for each in editor.names(key) if each in config.values), key)
            if config.values.get(name) != AUTO and str(config.values.get(name)) != str(value):
                found[name] = value
        return found

    def attempt(self, values: Values) -> _Attempt | None:
        """Edits that give the configs these values, with the edits of the plan itself; None where the edited plan does
        not say what is wanted.
        """
        document = self.document
        pairs = zip(self.configs, values, strict=True)
        each_file = [FileEdits(config.path, _config_edits(config, new)) for config, new in pairs]
        mended = tuple(each for each in each_file if each.edits)
        if len(mended) != sum(map(bool, values)):
            return None
        texts = {each.path: each.text.encode() for each in self.configs}
        texts.update((each.path, edited(texts[each.path], each.edits)) for each in mended)
        own = "".join(f"{line}\n" for line in excerpt(document))
        alone = _document(document, own)
        if alone is None:
            return None
        left = self.left(with_source(alone, texts))
        made: tuple[Edit, ...] = ()
        if left:
            stated = spelled(alone, left, None)
            made = edits(alone, stated, with_changes(alone, stated).values)
            if not made:
                return None
        after = _document(document, edited(own.encode(), made).decode())
        if after is None or not _gives(with_source(after, texts), document, self.wanted):
            return None
        return _Attempt(left=len(left), values=values, own=moved(made, document.lines[0]), elsewhere=mended)

    def left(self, now: Document) -> dict[str, object]:
        """The fields that do not have their new value yet."""
        values = dict(leaves(now.values)) if isinstance(now.values, dict) else {}
        found: dict[str, object] = {key: value for key, value in self.fields.items() if values.get(key) != value}
        return found | {
            key: value for key, value in self.changes.items() if value in (None, AUTO) and spelled_out(key) in values
        }


def _folder(document: Document) -> str:
    return os.path.dirname(document.path)


def _configs(document: Document) -> Iterator[_Config]:
    """Every config of a plan, and the engine's that Accelerate's names."""
    values = document.values
    for name, path in values["source"].items() if isinstance(values, dict) else ():
        try:
            config = _load(document, name, source_file(document, path))
            if config is None or name not in EDITORS:
                continue
            yield config
            engine = config.values.get(accelerate_keys.DEEPSPEED_FILE) if name == "accelerate" else None
            if engine is not None:
                file = ConfigFile(config.path, {}, lambda key: document.locate(""), ())
                file.inside, _ = repository(real_path(_folder(document) or "."))
                for each in named_files(file, str(engine)):
                    found = _load(document, "deepspeed", each)
                    if found is not None:
                        yield found
        except ConfigError:
            continue


def _load(document: Document, format: str, path: str) -> _Config | None:
    """A config as it was when the plan was read."""
    lines = document.sources.get(path)
    if lines is None:
        return None
    text = "".join(f"{line}\n" for line in lines)
    return _Config(format=format, path=path, text=text, values=FORMATS[format].load(path, text).values)


def _written(config: _Config, plan: Plan, resolved: Resolved) -> dict[str, Any]:
    """The config that a writer makes of a job, as flat keys."""
    text = export_plan(plan, resolved, config.format, "plan").text
    found = FORMATS[config.format].load("written", text).values
    if config.format != "megatron":
        return found
    return {name: value.split() if name in LISTS and isinstance(value, str) else value for name, value in found.items()}


def _config_edits(config: _Config, values: Mapping[str, object]) -> tuple[Edit, ...]:
    """Edits after which the config has these values and otherwise those that it had."""
    made = EDITORS[config.format].edit(config.path, config.text, values) if values else ()
    if not made:
        return ()
    try:
        after = FORMATS[config.format].load(config.path, edited(config.text.encode(), made).decode()).values
    except ConfigError:
        return ()
    others = (set(after) | set(config.values)) - set(values)
    return made if all(after.get(key) == config.values.get(key) for key in others) else ()


def _document(document: Document, text: str) -> Document | None:
    """The plan without what its configs say."""
    found = read_excerpt(document, text)
    return found if found is not None and isinstance(found.values, dict) else None


def _gives(after: Document, before: Document, wanted: Resolved) -> bool:
    """Whether the files give the job that was asked for, and contradict each other no more than they did."""
    errors = {(each.code, each.message) for each in before.findings}
    if any(each.severity == SEVERITIES[-1] and (each.code, each.message) not in errors for each in after.findings):
        return False
    plan, _ = read_plan(after)
    if plan is None:
        return False
    try:
        found = resolve(plan, FRAMEWORKS, base_dir=_folder(after))
    except MemcheckError:
        return False
    return found.gpu == wanted.gpu and alike(found, wanted)


def alike(found: Resolved, wanted: Resolved) -> bool:
    """Whether two jobs are the same, or differ in nothing but what a config spells out and needs the same memory.

    FSDP offloads the states with the parameters, and Megatron-LM wants a method for full recompute: a plan leaves both
    unsaid.
    """
    one, other = found.job, wanted.job
    if one == other:
        return True
    if not isinstance(one, TrainingJob) or not isinstance(other, TrainingJob):
        return False
    optimizer = one.optimizer._replace(offload=other.optimizer.offload)
    if one._replace(options=other.options, optimizer=optimizer) != other or not set(other.options) <= set(one.options):
        return False
    needs = [estimate(each.job, each.gpu, each.overhead, every_rank=False) for each in (found, wanted)]
    return len({(need.device_bytes, need.host_bytes_per_node) for need in needs}) == 1
