"""``source``: a plan that takes from a framework's config what it does not say itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memcheck.catalog.names import UnknownNameError, find_model
from memcheck.configs.answers import NOTHING_BESIDE, SERVING, Beside, read_beside
from memcheck.configs.formats import FORMATS
from memcheck.configs.pictures import IMAGES, NUMBER
from memcheck.configs.plan_text import grown, leaves, spelled_out
from memcheck.configs.recipe_launch import reconciled
from memcheck.configs.trainer_parts import is_known
from memcheck.configs.types import NO_DEFINES, NO_TEXTS, ConfigError, ReadConfig, ReadSetting, told_once
from memcheck.edge.opener import real_path, repository
from memcheck.edge.screen import plural, value
from memcheck.job.versions import TRANSFORMERS
from memcheck.plan import finding as codes
from memcheck.plan.finding import Finding, Location
from memcheck.plan.places import Document, Provenance, escape
from memcheck.plan.text import read_bytes, shown_path

BATCHES = ("training.gradient_accumulation_steps", "training.global_batch_size")
"""Two ways to say the same; a plan has one of them."""
TAKEN = "taken from"


class SourcedMarks(Mapping[str, Provenance]):
    """Places of a plan's values: in a config where the value was taken from one, else in the plan itself."""

    def __init__(self, own: Mapping[str, Provenance], taken: dict[str, Provenance]) -> None:
        self._own = own
        self._taken = taken

    def __getitem__(self, pointer: str) -> Provenance:
        if pointer in self._taken:
            return self._taken[pointer]
        return self._own[pointer]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from (pointer for pointer in self._taken if pointer not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Source:
    """Takes one config after the other into a document."""

    def __init__(
        self,
        document: Document,
        values: dict[str, Any],
        read: Callable[[str], bytes],
        beside: Beside,
        *,
        direct: bool,
    ) -> None:
        self.document = document
        self.direct = direct
        self.beside = beside
        self.read = read
        self.stated = dict(leaves(values))
        described = self.stated.get(ARCHITECTURE)
        self.joins = isinstance(described, dict) and "model_type" not in described
        """Whether the plan states some keys of an architecture that a config describes."""
        if self.joins and isinstance(described, dict):
            del self.stated[ARCHITECTURE]
            self.stated.update((f"{ARCHITECTURE}.{name}", value) for name, value in described.items())
        self.serving = SERVING in values
        self.found: dict[str, ReadSetting] = {}
        self.marks: dict[str, Provenance] = {}
        self.findings: list[Finding] = []
        self.sources = dict(document.sources)

    def take(self, name: str, path: str) -> None:
        """Everything that one config says."""
        pointer = f"/source/{escape(name)}"
        at = self.document.locate(pointer)
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            self._unusable(pointer, at, f"memcheck does not read {name} configs", f"it reads {known}; state the values")
            return
        try:
            kind = FORMATS[name]
            shown = source_file(self.document, path)
            inside, _ = repository(real_path(os.path.dirname(self.document.path) or "."))
            beside = self.beside._replace(version=self.beside.version or self._version())
            data = self.read(shown)
            reading = read_beside(
                kind, shown, data, self.stated, beside, self.read, inside=inside, serving=self.serving
            )
        except ConfigError as error:
            related = () if error.location is None else ((error.message.rpartition(": ")[2], error.location),)
            self._unusable(pointer, at, f"`{path}` cannot be used: {error.message}", error.help, related)
            return
        except OSError as error:
            message = f"`{path}` cannot be read: {error.strerror or error}"
            self._unusable(pointer, at, message, f"the path is relative to `{self.document.path}`")
            return
        self.sources.update(reading.sources)
        self._notes(reading, pointer, at)
        for key, setting in reading.settings.items():
            self._setting(spelled_out(key), setting, at)

    def _version(self) -> str:
        """The releases by which defaults are chosen, of the trainer and of its framework; empty for the newest."""
        keys = ("training.trainer.version", "training.framework_version", f"training.options.{TRANSFORMERS}")
        return " ".join(str(self.stated[key]) for key in keys if key in self.stated)

    def _unusable(
        self, pointer: str, at: Location, message: str, help: str, related: tuple[tuple[str, Location], ...] = ()
    ) -> None:
        self.findings.append(codes.UNUSABLE_SOURCE.at(at, message, help=help, pointer=pointer, related=related))

    def _notes(self, reading: ReadConfig, pointer: str, at: Location) -> None:
        open_still = [each for each in reading.problems if not any(map(self._says, each.keys))]
        for problem in told_once(open_still):
            related = (("here", problem.location),)
            self._unusable(pointer, at, problem.message, self._help(problem.help), related)
        for note in reading.notes:
            related = (("here", note.location),)
            code, help = codes.CONFIG_KEY_NOT_CARRIED, UNCARRIED
            if note.counted:
                code, help = codes.CONFIG_DEFAULT, ""
            self.findings.append(code.at(at, note.message, help=help, pointer=pointer, related=related))

    def _help(self, said: str) -> str:
        """The help text ``said``, with the place where an answer is stated: in the plan, or for a config without a plan
        by ``--set`` on the command line.
        """
        first, *others = said.split("--set ")
        if not others or self.direct:
            return said
        answers = ", ".join(each.strip() for each in others)
        return f"{first}in the plan, {answers}"

    def _says(self, key: str) -> bool:
        """Whether the plan states a key, or something inside or around it."""
        outer = spelled_out(key)
        return any(each == outer or each.startswith(f"{key}.") or key.startswith(f"{each}.") for each in self.stated)

    def _setting(self, key: str, setting: ReadSetting, at: Location) -> None:
        described = self.joins and key.startswith(f"{ARCHITECTURE}.")
        if key.startswith("model.") and not described and self._own_model():
            self._model(key, setting)
            return
        if key in self.stated:
            if not setting.assumed and self.stated[key] != setting.value:
                self._disagrees(key, self.stated[key], setting)
            return
        if setting.assumed and key == NUMBER and self._says(IMAGES):
            return
        if key in BATCHES and any(each in self.stated for each in BATCHES):
            return
        before = self.found.get(key)
        if before is not None and before.location is None and setting.location is not None:
            before = None  # what a line says goes before what a config is by its kind
        if before is not None and before.location is not None and setting.location is None:
            return
        if before is not None and not before.assumed and not setting.assumed and before.value != setting.value:
            message = (
                f"the sources disagree about {key}: {before.value} ({before.why}) and {setting.value} ({setting.why})"
            )
            self.findings.append(codes.CONFIG_DISAGREES.at(at, message, pointer="/source"))
        if before is None or before.assumed:
            self.found[key] = setting
            self._mark(key, setting, at)

    def _own_model(self) -> list[str]:
        """Keys of the plan that name or describe a model, and do not only change one."""
        return [each for each in self.stated if each.startswith("model.") and each not in CHANGE_A_MODEL]

    def _model(self, key: str, setting: ReadSetting) -> None:
        """The plan names or describes a model, too: one is taken, and the other has to be the same."""
        own = self._own_model()[0]
        described = self.stated.get(ARCHITECTURE)
        if key == own == "model.name":
            if is_known(str(setting.value)) and _canonical(setting.value) != _canonical(self.stated[own]):
                self._disagrees(own, self.stated[own], setting)
        elif isinstance(described, dict) and key.startswith("model.architecture."):
            name = key.rpartition(".")[2]
            if name in described and described[name] != setting.value:
                self._disagrees(key, described[name], setting)
        elif not any(finding.pointer.startswith("/model") for finding in self.findings):
            self._disagrees(own, self.stated[own], setting)

    def _mark(self, key: str, setting: ReadSetting, at: Location) -> None:
        parts = [escape(part) for part in key.split(".")]
        where = at if setting.location is None else setting.location
        if setting.location is not None and where.path != self.document.path:
            where = where._replace(note=f"{TAKEN} {where.path}")
        for count in range(1, len(parts)):
            pointer = "/" + "/".join(parts[:count])
            if pointer in self.document.marks:
                continue
            if key == spelled_out(".".join(key.split(".")[:count])):
                self.marks[pointer] = Provenance(None, where, None if setting.location is None else at)
            else:
                self.marks.setdefault(pointer, Provenance(None, at))
        self.marks["/" + "/".join(parts)] = Provenance(None, where, None if setting.location is None else at)

    def _disagrees(self, key: str, own: object, setting: ReadSetting) -> None:
        if setting.assumed or not self.beside.changed.isdisjoint((key, key.rpartition(".")[0])):
            return
        pointer = "/" + key.replace(".", "/")
        while pointer not in self.document.marks:
            pointer = pointer.rpartition("/")[0]
        said = f"the config says {setting.value}"
        related = () if setting.location is None else ((said, setting.location),)
        message = f"{key} is {own} here, and {setting.value} in the config that is its source"
        help = f"leave it out here, or mend the config ({setting.why})"
        at = self.document.locate(pointer)
        if self.direct:
            message = f"`{key}` is {setting.value} here, and {own} was stated as well"
            help, at, related = f"{DISAGREES}; for another value: --set {key}={own}", setting.location or at, ()
        self.findings.append(codes.CONFIG_DISAGREES.at(at, message, help=help, pointer=pointer, related=related))

    def reconcile(self) -> None:
        """What the configs mean together, where it is not what each of them means alone."""
        values = self.document.values
        if isinstance(values, dict) and len(values["source"]) > 1:
            for key in reconciled(self.found, tuple(values["source"])):
                del self.found[key]

    def defaults(self) -> None:
        """What no config says and its framework decides, in one finding."""
        assumed = {key: setting for key, setting in self.found.items() if setting.assumed}
        if assumed:
            listed = "; ".join(f"{key}: {value(setting.value)} ({setting.why})" for key, setting in assumed.items())
            at = self.document.locate("/source")
            message = f"the framework decides {plural(len(assumed), 'key')}: {listed}"
            self.findings.append(codes.CONFIG_DEFAULT.at(at, message, pointer="/source"))

    def result(self, values: dict[str, Any]) -> Document:
        """The document with everything in it."""
        merged = grown(values, {key: setting.value for key, setting in self.found.items()})
        return self.document._replace(
            values=merged,
            marks=SourcedMarks(self.document.marks, self.marks),
            sources=self.sources,
            findings=(*self.document.findings, *self.findings),
        )


ARCHITECTURE = "model.architecture"
CHANGE_A_MODEL = ("model.overrides", "model.part")
"""Keys that change a named model: a plan states them together with the model's name."""
DISAGREES = "state what the config says, or edit the config"
UNCARRIED = "the estimate does not see it: weigh it by hand, or leave it out of the config"


def _canonical(value: object) -> object:
    """A model's canonical name, so that an alias is no disagreement."""
    if not isinstance(value, str):
        return value
    try:
        return find_model(value).name
    except UnknownNameError:
        return value


def source_file(document: Document, path: str) -> str:
    """Where a config is, as reports name it. Like ``extends``: relative, and inside the repository.

    Raises:
        ConfigError: it is elsewhere.
    """
    folder = os.path.dirname(document.path)
    if os.path.isabs(path) or "://" in path:
        raise ConfigError("it is no relative path", "name a file relative to the plan")
    target = os.path.normpath(os.path.join(folder, path))
    root, in_git = repository(real_path(folder or "."))
    if os.path.commonpath((root, real_path(target))) != root:
        limit = "the repository" if in_git else "the plan's folder, which is in no git repository"
        raise ConfigError(f"it lies outside {limit}", "keep the config in the plan's folder")
    return shown_path(target)


def with_source(
    document: Document, texts: Mapping[str, bytes] = NO_TEXTS, defines: Mapping[str, str] = NO_DEFINES
) -> Document:
    """The plan with what its framework configs say, each value at its line in them.

    ``texts``: configs, by their shown path, that are read as if they held these bytes. ``defines``: what a script's
    caller sets.
    """
    values = document.values
    if not isinstance(values, dict) or not isinstance(values.get("source"), dict):
        return document  # the schema says what is wrong with it
    beside = NOTHING_BESIDE._replace(defines=defines)
    return sourced(document, lambda path: texts[path] if path in texts else read_bytes(path), beside)


def sourced(
    document: Document, read: Callable[[str], bytes], beside: Beside = NOTHING_BESIDE, *, direct: bool = False
) -> Document:
    """The plan with what the configs of its ``source`` say.

    ``read`` gives the bytes of a shown path; ``direct``: the document is not a user's plan, but stands for a config
    alone, with the values of ``beside``, which the user stated.
    """
    values: Any = document.values
    source = _Source(document, values, read, beside, direct=direct)
    for name, path in values["source"].items():
        if isinstance(path, str) and path:
            source.take(name, path)
    source.reconcile()
    source.defaults()
    return source.result(values)
