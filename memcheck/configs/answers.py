"""What users state in addition to a config, and the reading that takes it in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memcheck.configs.config_file import NO_IMAGES, parse_text
from memcheck.configs.edits import Editor
from memcheck.configs.formats import Format
from memcheck.configs.launch_devices import read_gpu
from memcheck.configs.plan_text import value_at
from memcheck.configs.read_accelerate import MACHINES, PROCESSES
from memcheck.configs.trainer_parts import release_key
from memcheck.configs.types import NO_DEFINES, ConfigError, KeyRow, ReadConfig
from memcheck.edge.opener import Overheard, holds
from memcheck.job.training import LONGEST
from memcheck.job.types import UNPACKED, Layout
from memcheck.plan import finding as codes
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.read import with_changes
from memcheck.plan.text import split_lines
from memcheck.record import Record

NOTHING_INSTEAD: Mapping[str, object] = {}
MOST = 16
"""The most readings that are kept at a time."""
MOST_BYTES = 4 * 2**20
"""Bytes of their configs, all together."""


class Asked(Record):
    """The arguments of a reader, which identify a reading."""

    path: str
    """The config's, as it is shown."""
    inside: str
    """The folder within which it may name other files."""
    version: str
    images: Mapping[str, int]
    defines: Mapping[str, str]
    method: str
    """``training.method`` where the user states it in addition to the config; else empty."""
    gpus_per_node: int | None
    world: int | None
    gpu: str = ""
    """The GPU's name, where the user states it; else empty."""
    stated: frozenset[str] = frozenset()
    """All keys that the user states."""
    instead: Mapping[str, object] = NOTHING_INSTEAD
    """Keys of the config that are read as if they had these values."""


class _Kept(Record):
    data: bytes
    reading: ReadConfig | None
    error: ConfigError | None
    notes: tuple[Any, ...]
    """What was asked of the machine's files."""
    texts: tuple[tuple[str, bytes], ...]
    """Other files that were read."""


_kept: dict[tuple[Any, ...], _Kept] = {}


def reading_of(kind: Format, data: bytes, asked: Asked, read: Callable[[str], bytes]) -> ReadConfig:
    """A config in the plan's words. ``read`` gives the bytes of the files that it names.

    Raises:
        ConfigError: it cannot be used.
        OSError: a file that it names cannot be read.
    """
    if asked.instead:
        return _reading(_read(kind, data, asked, read))
    mappings = [tuple(sorted(each.items())) for each in (asked.images, asked.defines)]
    key = (kind.name, data, *mappings, *(each for each in asked if not isinstance(each, Mapping)))
    found = _kept.get(key)
    if found is None or not _holds(found, read):
        found = _read(kind, data, asked, read)
        _keep(key, found)
    return _reading(found)


def _reading(found: _Kept) -> ReadConfig:
    if found.error is not None:
        raise found.error.with_traceback(None)
    assert found.reading is not None  # noqa: S101 - it is one or the other
    return found.reading


def _holds(kept: _Kept, read: Callable[[str], bytes]) -> bool:
    try:
        return holds(kept.notes) and all(read(path) == data for path, data in kept.texts)
    except OSError:
        return False


def _read(kind: Format, data: bytes, asked: Asked, read: Callable[[str], bytes]) -> _Kept:
    texts: list[tuple[str, bytes]] = []

    def noted(path: str) -> bytes:
        found = read(path)
        texts.append((path, found))
        return found

    reading, error = None, None
    heard = Overheard()
    try:
        config = kind.load(asked.path, parse_text(asked.path, data), asked.defines)
        config.inside, config.read = asked.inside, noted
        config.version, config.images = asked.version, asked.images
        config.gpus_per_node, config.method = asked.gpus_per_node, asked.method
        config.gpu, config.stated = asked.gpu, asked.stated
        config.change(asked.instead)
        reading = read_gpu(kind.read(config, asked.world), config)
        reading = reading._replace(sources={**reading.sources, asked.path: split_lines(parse_text(asked.path, data))})
    except ConfigError as problem:
        error = problem
    finally:
        heard.end()
    compared = {path for path, _ in texts}
    notes = tuple(each for each in heard.notes if each[0] != "start" or each[1] not in compared)
    return _Kept(data=data, reading=reading, error=error, notes=notes, texts=tuple(texts))


def _keep(key: tuple[Any, ...], found: _Kept) -> None:
    _kept.pop(key, None)
    _kept[key] = found
    while len(_kept) > MOST or (len(_kept) > 1 and sum(_size(each) for each in _kept.values()) > MOST_BYTES):
        del _kept[next(iter(_kept))]


def _size(kept: _Kept) -> int:
    return len(kept.data) + sum(len(data) for _, data in kept.texts)


BOTH = ("model", "hardware")
CUTS = frozenset({"tensor", "pipeline", "expert", "expert_tensor"})
"""Keys of ``parallelism`` that a served model has."""
SERVING = "inference"
ENGINE = "inference.engine"
"""The key of configs that start a server."""


def taken(key: str, format: str, *, serving: bool) -> bool:
    """Whether a plan of one kind takes a key from a config.

    Megatron-LM's arguments describe its own GPT, of which serving has no model here: such a plan names its model.
    """
    section, _, name = key.partition(".")
    if not serving:
        return section != SERVING
    if section == "model" and format == "megatron":
        return False
    return section in (*BOTH, SERVING) or (section == "parallelism" and name in CUTS)


def reading_for(reading: ReadConfig, *, serving: bool) -> ReadConfig:
    """A config as one kind of plan reads it: without what is the other's. What is not carried over stays said."""
    serving = serving or ENGINE in reading.settings

    def own(key: str) -> bool:
        return taken(key, reading.format, serving=serving)

    settings = {key: setting for key, setting in reading.settings.items() if own(key)}
    problems = tuple(each for each in reading.problems if not each.keys or any(map(own, each.keys)))
    return reading._replace(settings=settings, problems=problems)


def served_values(
    editor: Editor, values: Mapping[str, object], fields: Mapping[str, object], layout: Layout
) -> dict[str, object]:
    """New values of the keys that a config has, for changed keys of an inference plan."""
    found: dict[str, object] = {}
    for row in editor.rows:
        name = next((each for each in editor.names(row.path) if each in values), "")
        if name and row.key in fields:
            found[name] = _word(row, fields[row.key])
    if PROCESSES in values:
        found[PROCESSES] = layout.world_size
    if MACHINES in values:
        found[MACHINES] = layout.nodes
    return {name: value for name, value in found.items() if str(values[name]) != str(value)}


def _word(row: KeyRow, value: object) -> object:
    return next((word for word, meant in row.words.items() if meant == value), value)


LENGTH = "training.sequence_length"
FLAGS = {
    "model": "model",
    "gpu": "hardware.gpu",
    "gpus_per_node": "hardware.gpus_per_node",
    "nodes": "hardware.nodes",
    "host_memory": "hardware.host_memory_gib",
    "micro_batch_size": "training.micro_batch_size",
    "sequence_length": LENGTH,
    "framework": "training.framework",
}
"""Options that state a key of the plan: the option's name with underscores, and the key."""
ASKS = (
    ("model", "which model it trains", "name one of the catalog: --model llama-3.1-8b (`memcheck list models`)"),
    ("hardware.gpu", "which GPU it runs on", "name one of the catalog: --gpu h100-80gb (`memcheck list gpus`)"),
    (
        "hardware.gpus_per_node",
        "how many GPUs run it",
        "state them: --gpus-per-node 8, or --gpus-per-node 8 --nodes 2 for two nodes",
    ),
    (LENGTH, "how long a sequence is", "state the tokens of the longest row: --sequence-length 8192"),
    ("training.micro_batch_size", "how many sequences a GPU takes at once", "state them: --micro-batch-size 1"),
)
"""What a plan cannot do without: its key, what it is, how to state it."""


def asks(*, serves: bool) -> tuple[tuple[str, str, str], ...]:
    """The rows of :data:`ASKS` for a config. ``serves``: it starts a server, which has no batch of its own."""
    if not serves:
        return ASKS
    return tuple((key, what.replace("trains", "serves"), help) for key, what, help in ASKS if key in SERVED)


SERVED = ("model", "hardware.gpu", "hardware.gpus_per_node")


class Beside(Record):
    """What a reader is told that no key of a plan says."""

    version: str = ""
    """Releases by which defaults are chosen, of a trainer and of its framework; empty for the newest."""
    defines: Mapping[str, str] = NO_DEFINES
    """Variables that a script leaves to its caller."""
    images: Mapping[str, int] = NO_IMAGES
    """The pictures of a sample, by key of ``training.images``."""
    changed: frozenset[str] = frozenset()
    """Keys of the plan that go before what the config says: ``--set`` of a command that judges."""
    instead: Mapping[str, object] = NOTHING_INSTEAD
    """Keys of the config that are read as if they had these values."""


NOTHING_BESIDE = Beside()


def read_beside(
    kind: Format,
    path: str,
    data: bytes,
    stated: Mapping[str, object],
    beside: Beside,
    read: Callable[[str], bytes],
    *,
    inside: str,
    serving: bool = False,
) -> ReadConfig:
    """A config in the plan's words. ``stated``: values by dotted key of the plan, which the reader counts with.

    ``read``, ``inside``: how files that the config names are read, and the folder within which they have to be.

    Raises:
        ConfigError: the config cannot be used.
        OSError: a file that it names cannot be read.
    """
    per_node, nodes = stated.get("hardware.gpus_per_node"), stated.get("hardware.nodes", 1)
    asked = Asked(
        path=path,
        inside=inside,
        version=beside.version,
        images=beside.images,
        defines=beside.defines,
        method=str(stated.get("training.method", "")),
        gpus_per_node=per_node if isinstance(per_node, int) else None,
        world=per_node * nodes if isinstance(per_node, int) and isinstance(nodes, int) else None,
        gpu=str(stated.get("hardware.gpu.name", stated.get("hardware.gpu", ""))),
        stated=frozenset(stated),
        instead=beside.instead,
    )
    return reading_for(reading_of(kind, data, asked, read), serving=serving)


INFERENCE = "inference"
STATED_LENGTH = "sequence_length"


def answered(document: Document, answers: Mapping[str, object]) -> Document:
    """The plan with the keys that options name, each in the place of what is written.

    ``answers``: by option, those of ``FLAGS`` but the hardware's and the model's, ``images``, ``framework_version``.
    """
    values = document.values
    if not isinstance(values, dict):
        return document
    if INFERENCE in values and "training" not in values:
        return document._replace(findings=(*document.findings, *_unread(document, answers)))
    changes = {FLAGS[name]: value for name, value in answers.items() if name in FLAGS and name != STATED_LENGTH}
    if "images" in answers:
        changes["training.images"] = answers["images"]
    length = answers.get(STATED_LENGTH)
    if length is not None:
        changes |= length_keys(values, length)
    release = answers.get("framework_version")
    if release is not None:
        framework = changes.get(FLAGS["framework"], value_at(values, FLAGS["framework"]))
        changes[release_key("", str(release), framework)] = release
    return with_changes(document, changes) if changes else document


def _unread(document: Document, answers: Mapping[str, object]) -> Iterator[Finding]:
    """One warning for the options that a plan which serves does not take."""
    names = [f"--{name.replace('_', '-')}" for name in answers if name != "defines"]
    if names:
        message = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} for training, and this plan serves"
        help = "the plan is checked as it is written; its own keys: --set inference.max_sequences=32"
        found = codes.CONFLICTING_KEYS.at(document.locate(f"/{INFERENCE}"), message, help=help)
        yield found._replace(severity="warning")


def length_keys(values: object, length: object) -> dict[str, object]:
    """The keys of a plan that take a stated length. Of rows that are not packed, the plan's own is only the limit."""
    limit = value_at(values, LENGTH)
    unpacked = value_at(values, "training.sequences") in UNPACKED
    if unpacked and isinstance(limit, int) and isinstance(length, int) and length <= limit:
        return {LONGEST: length}
    return {LENGTH: length}
