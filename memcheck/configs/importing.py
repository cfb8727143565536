"""From a framework's config, and what is stated beside it, to a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping

from memcheck.configs.arguments import NO_DEFINES
from memcheck.configs.config_file import NO_IMAGES, parse_text
from memcheck.configs.detect import detect
from memcheck.configs.formats import FORMATS
from memcheck.configs.pictures import IMAGES, NUMBER, STATED
from memcheck.configs.plan_text import plan_text, plan_values
from memcheck.configs.release import release_key
from memcheck.configs.served import reading_for
from memcheck.configs.trainer_parts import is_known
from memcheck.configs.types import ConfigProblem, Note, ReadConfig, ReadSetting
from memcheck.edge.observed import real_path
from memcheck.edge.opener import is_inside, repository
from memcheck.finding import Location, Span
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.errors import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.job.rows import LONGEST, UNPACKED
from memcheck.plan import types as plan_types
from memcheck.plan.load import load_documents
from memcheck.plan.read import read_plan
from memcheck.record import Record

LENGTH = "training.sequence_length"
ASKS = (
    ("model", "which model it trains", "name one of the catalog: --model llama-3.1-8b (`memcheck list models`)"),
    ("hardware.gpu", "which GPU it runs on", "name one of the catalog: --gpu h100-80gb (`memcheck list gpus`)"),
    ("hardware.gpus_per_node", "how many GPUs run it", "state them: --gpus-per-node 8, and --nodes for more than one"),
    (LENGTH, "how long a sequence is", "state the tokens: --sequence-length 8192"),
    ("training.micro_batch_size", "how many sequences a GPU takes at once", "state them: --micro-batch-size 1"),
)
"""What a plan cannot do without: its key, what it is, how to state it."""

_SECTIONS: dict[str, tuple[str, ...]] = {
    "model": plan_types.ModelSpec._fields,
    "hardware": plan_types.HardwareSpec._fields,
    "parallelism": plan_types.ParallelismSpec._fields,
    "training": plan_types.TrainingSpec._fields,
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
    version: str = "",
    defines: Mapping[str, str] = NO_DEFINES,
    images: Mapping[str, int] = NO_IMAGES,
) -> Imported:
    """Read a config; ``stated`` (by dotted plan key) fills in what it cannot say, and must agree with what it does.

    ``version``: the framework's release, by which its defaults are chosen; empty for the newest. ``defines``: variables
    that a script leaves to its caller. ``images``: the pictures of a sample, by key of ``training.images``.

    Raises:
        ConfigError: the config cannot be read at all.
    """
    text = parse_text(path, data)
    kind = FORMATS[format or detect(path, text, named="model" in stated)]
    config = kind.load(path, text, defines)
    config.inside = _project(path)
    config.version, config.images = version, images
    per_node = stated.get("hardware.gpus_per_node")
    config.gpus_per_node = per_node.value if per_node is not None and isinstance(per_node.value, int) else None
    reading = reading_for(kind.read(config, _world(stated)), serving=False)
    settings, problems = merged(reading, stated)
    if version:
        _carry(release_key(kind.name, version), version, settings)
    if "hardware.nodes" not in settings:
        settings["hardware.nodes"] = ReadSetting(1, "not stated: one node", assumed=True)
    start = Location(path, Span(1, 1, 1, 1))
    if images and not problems and not any(each.why == STATED for each in settings.values()):
        help = f"leave {STATED} out"
        problems.append(ConfigProblem(start, f"the job does not train on pictures, and {STATED} was given", help))
    for key, what, help in ASKS:
        if not any(_within(each, key) for each in settings) and not any(key in each.keys for each in problems):
            problems.append(ConfigProblem(start, f"the config does not say {what}", help, keys=(key,)))
    imported = Imported(
        format=kind.name,
        settings=_ordered(settings),
        notes=reading.notes,
        problems=tuple(problems),
        sources=reading.sources,
    )
    return imported if problems else imported._replace(problems=tuple(invalid(imported, start)))


def _project(path: str) -> str:
    """The folder within which a config may name other files: its repository; in none, where the command runs, or the
    config's own folder.
    """
    folder = real_path(os.path.dirname(path) or ".")
    root, in_git = repository(folder)
    here = real_path(".")
    return here if not in_git and is_inside(folder, here) else root


def _carry(key: str, version: str, settings: dict[str, ReadSetting]) -> None:
    """State the release in the plan, whose memory differs by it; an engine below transformers has one of its own."""
    setting = settings.get("training.framework")
    framework = None if setting is None else FRAMEWORKS.get(str(setting.value))
    apart = framework is not None and framework.own_engine and framework.runs_transformers
    if framework is not None and not (apart and key == "training.framework_version"):
        settings.setdefault(key, ReadSetting(version, "--framework-version"))


def invalid(imported: Imported, start: Location) -> list[ConfigProblem]:
    """What is wrong with the plan itself: a batch of 0, a model that no catalog knows."""
    (document,) = load_documents("plan.yaml", imported.text.encode())
    plan, findings = read_plan(document)
    if plan is None:
        wrong = [(each.pointer, each.message, each.help) for each in findings if each.severity == "error"]
    else:
        try:
            resolve(plan, FRAMEWORKS, base_dir=".")
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


def _world(stated: dict[str, ReadSetting]) -> int | None:
    """How many GPUs run the job, if that was stated."""
    per_node, nodes = stated.get("hardware.gpus_per_node"), stated.get("hardware.nodes")
    if per_node is None or not isinstance(per_node.value, int):
        return None
    return per_node.value * (nodes.value if nodes is not None and isinstance(nodes.value, int) else 1)


def merged(reading: ReadConfig, stated: dict[str, ReadSetting]) -> tuple[dict[str, ReadSetting], list[ConfigProblem]]:
    """The settings of both, and where they disagree."""
    settings = dict(reading.settings)
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
            if found.location is not None and not (other == key and found.assumed):
                message = f"`{other}` is {found.value} here, and {key}={setting.value} was stated beside it"
                problems.append(
                    ConfigProblem(found.location, message, "state what the config says, or edit the config")
                )
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
