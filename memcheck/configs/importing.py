"""Makes a plan from a framework's config and the values that the user states in addition to it.

The config that runs a plan: the plan is read, its layout is checked, and a format writes its job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE
from memcheck.configs.answers import ENGINE, FLAGS, LENGTH, NOTHING_BESIDE, Beside, asks, read_beside
from memcheck.configs.config_file import parse_text
from memcheck.configs.detect import detect
from memcheck.configs.formats import FORMATS, export_plan
from memcheck.configs.launch_devices import GPU
from memcheck.configs.pictures import IMAGES, NUMBER, STATED
from memcheck.configs.plan_text import plan_text, plan_values
from memcheck.configs.refusals import launch_inside
from memcheck.configs.sourced import DISAGREES
from memcheck.configs.trainer_parts import is_known, release_key
from memcheck.configs.types import ConfigProblem, Note, ReadConfig, ReadSetting, Written, told_once
from memcheck.edge.opener import is_inside, real_path, repository
from memcheck.errors import MemcheckError, UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.job.training import LONGEST
from memcheck.job.types import UNPACKED
from memcheck.plan import types as plan_types
from memcheck.plan.finding import Finding, Location, Span
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents, read_plan
from memcheck.plan.text import read_bytes
from memcheck.record import Record
from memcheck.rules.run import check_layout, make_context
from memcheck.rules.types import located

_SECTIONS: dict[str, tuple[str, ...]] = {
    "model": plan_types.ModelSpec._fields,
    "hardware": plan_types.HardwareSpec._fields,
    "parallelism": plan_types.ParallelismSpec._fields,
    "training": plan_types.TrainingSpec._fields,
    "inference": plan_types.InferenceSpec._fields,
}


class Imported(Record):
    """The outcome of an import."""

    format: str
    settings: dict[str, ReadSetting]
    notes: tuple[Note, ...]
    problems: tuple[ConfigProblem, ...]
    """Why there is no plan; empty when there is one."""
    sources: Mapping[str, tuple[str, ...]]

    @property
    def text(self) -> str:
        """The plan file."""
        return plan_text(self.settings)

    @property
    def values(self) -> dict[str, object]:
        """The plan as plain values."""
        return plan_values(self.settings)

    @property
    def assumed(self) -> list[tuple[str, ReadSetting]]:
        """What neither the config nor the command line says."""
        return [(key, setting) for key, setting in self.settings.items() if setting.assumed]


def import_config(
    path: str,
    data: bytes,
    stated: dict[str, ReadSetting],
    format: str = "",
    beside: Beside = NOTHING_BESIDE,
    folder: str = ".",
) -> Imported:
    """Read a config; ``stated`` (by dotted plan key) fills in what it cannot say, and must agree with what it does.

    ``format``: the name of the format, where the file does not prove it. ``folder``: where the plan will be, and the
    files that it names are.

    Raises:
        ConfigError: the config cannot be read at all.
    """
    text = parse_text(path, data)
    launch = launch_inside(path, text, {name: stated[key].value for name, key in FLAGS.items() if key in stated})
    if launch is not None and launch.serves:
        text, data = launch.text, launch.text.encode()
        beside = beside._replace(version=beside.version or str(launch.release.get("framework_version", "")))
        why = f"{path} asks for it"
        asked = {FLAGS[name]: ReadSetting(value, why) for name, value in launch.machine.said.items()}
        stated = {**asked, **stated}
    kind = FORMATS[format or detect(path, text, named="model" in stated)]
    values = {key: each.value for key, each in stated.items()}
    reading = read_beside(kind, path, data, values, beside, read_bytes, inside=_project(path))
    settings, problems = merged(reading, stated)
    if beside.version:
        framework = settings.get("training.framework")
        key = release_key(kind.name, beside.version, None if framework is None else framework.value)
        settings.setdefault(key, ReadSetting(beside.version, "--framework-version"))
    if "hardware.nodes" not in settings:
        settings["hardware.nodes"] = ReadSetting(1, "not stated: one node", assumed=True)
    start = Location(path, Span(1, 1, 1, 1))
    if beside.images and not problems and not any(each.why == STATED for each in settings.values()):
        help = f"leave {STATED} out"
        problems.append(ConfigProblem(start, f"the job does not train on pictures, and {STATED} was given", help))
    for key, what, help in asks(serves=ENGINE in settings):
        if not any(_within(each, key) for each in settings) and not any(key in each.keys for each in problems):
            problems.append(ConfigProblem(start, f"the config does not say {what}", help, keys=(key,)))
    imported = Imported(
        format=kind.name,
        settings=_ordered(settings),
        notes=reading.notes,
        problems=tuple(told_once(problems)),
        sources=reading.sources,
    )
    return imported if problems else imported._replace(problems=tuple(invalid(imported, start, folder)))


def _project(path: str) -> str:
    """The folder within which a config may name other files: its repository; in none, where the command runs, or the
    config's own folder.
    """
    folder = real_path(os.path.dirname(path) or ".")
    root, in_git = repository(folder)
    here = real_path(".")
    return here if not in_git and is_inside(folder, here) else root


def invalid(imported: Imported, start: Location, folder: str = ".") -> list[ConfigProblem]:
    """What is wrong with the plan itself: a batch of 0, a model that no catalog knows."""
    (document,) = load_documents("plan.yaml", imported.text.encode())
    plan, findings = read_plan(document)
    if plan is None:
        wrong = [(each.pointer, each.message, each.help) for each in findings if each.severity == "error"]
    else:
        try:
            resolve(plan, FRAMEWORKS, base_dir=folder)
        except ResolutionError as error:
            wrong = [(each.pointer, each.message, _named(each.message, each.help)) for each in error.problems]
        else:
            return []
    return [ConfigProblem(_place(imported, pointer, start), message, help) for pointer, message, help in wrong]


def _named(message: str, help: str) -> str:
    """The remedy, with the flag that names a model for one that no catalog has."""
    return f"{help}; --model NAME says what it is built like" if message.startswith("unknown model") else help


def _place(imported: Imported, pointer: str, start: Location) -> Location:
    """The config's line for a place of the plan."""
    key = pointer[1:].replace("/", ".")
    found = next((each for each in imported.settings if _within(each, key) or _within(key, each)), "")
    setting = imported.settings.get(found)
    return start if setting is None or setting.location is None else setting.location


def merged(reading: ReadConfig, stated: dict[str, ReadSetting]) -> tuple[dict[str, ReadSetting], list[ConfigProblem]]:
    """The settings of both, and where they disagree."""
    settings, start = dict(reading.settings), Location("", Span(1, 1, 1, 1))
    problems = [each for each in reading.problems if not _settled(each, stated)]
    if any(_within(each, IMAGES) for each in stated) and NUMBER in settings and settings[NUMBER].assumed:
        del settings[NUMBER]
    for key, setting in stated.items():
        for other in [each for each in settings if _within(each, key) or _within(key, each)]:
            found = settings[other]
            if other == key and found.value == setting.value:
                continue
            if other == key == LENGTH and _is_limit(settings, setting.value):
                continue
            if other == "model.name" and not is_known(str(found.value)):
                del settings[other]  # what is called so is built like the model that was stated
                continue
            said = found.location is not None and not (other == key and found.assumed)
            if said and key != GPU:
                message = f"`{other}` is {found.value} here, and {key}={setting.value} was stated as well"
                problems.append(ConfigProblem(found.location or start, message, DISAGREES))
            del settings[other]
        if key not in settings:
            settings[key] = setting
    if LENGTH in stated and _is_limit(settings, stated[LENGTH].value):
        settings.setdefault(LONGEST, stated[LENGTH])
    return settings, problems


def _is_limit(settings: dict[str, ReadSetting], stated: object) -> bool:
    """Whether the config's length is only the limit of its rows, so that a stated one below it is the longest row's."""
    laid, limit = settings.get("training.sequences"), settings.get(LENGTH)
    if laid is None or limit is None or not isinstance(stated, int) or not isinstance(limit.value, int):
        return False
    return laid.value in UNPACKED and stated <= limit.value


def _settled(problem: ConfigProblem, stated: dict[str, ReadSetting]) -> bool:
    return any(_within(key, each) or _within(each, key) for key in problem.keys for each in stated)


def _within(key: str, outer: str) -> bool:
    return key == outer or key.startswith(f"{outer}.")


def _ordered(settings: dict[str, ReadSetting]) -> dict[str, ReadSetting]:
    """In the order of the plan format."""

    def place(key: str) -> tuple[int, str]:
        section, _, rest = key.partition(".")
        names, name = _SECTIONS.get(section, ()), rest.partition(".")[0]
        return (names.index(name) if name in names else len(names), name)

    return dict(sorted(settings.items(), key=lambda item: place(item[0])))


class RefusedPlanError(MemcheckError):
    """A plan of which no config is written: it is wrong, or it trains nothing."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        """``findings``: what the check of the plan says; without an error among them, the plan trains nothing."""
        self.errors = tuple(each for each in findings if each.severity == "error")
        if self.errors:
            first = self.errors[0]
            super().__init__(f"{first.code} {first.message}", first.help or "correct the plan first")
        else:
            super().__init__("the plan is one for inference", "only training is exported")


def exported(document: Document, format: str) -> Written:
    """The config of one format for a plan. ``format``: a key of :data:`~memcheck.configs.formats.WRITTEN`.

    Raises:
        RefusedPlanError: the plan is wrong, or trains nothing.
    """
    plan, findings = read_plan(document)
    if plan is None:
        raise RefusedPlanError(findings)
    if plan.training is None:
        raise RefusedPlanError(())
    try:
        resolved = resolve(plan, FRAMEWORKS, base_dir=os.path.dirname(document.path))
    except (ResolutionError, UnsupportedError) as error:
        raise RefusedPlanError(located(error, document)) from None
    context = make_context(plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE)
    found, possible = check_layout(context)
    if not possible:
        raise RefusedPlanError(found)
    return export_plan(plan, resolved, format, document.path)
