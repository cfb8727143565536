"""The GPUs that a job asks its scheduler for, by type and number: ``--gres=gpu:h100:8``, ``accelerators: H100:8``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memcheck.catalog.gpus import find_gpu
from memcheck.catalog.names import AmbiguousNameError, UnknownNameError
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.types import ConfigProblem, ReadConfig, ReadSetting
from memcheck.finding import Location, Span
from memcheck.record import Record

GPU, PER_NODE_KEY = "hardware.gpu", "hardware.gpus_per_node"
PER_NODE, PER_TASK, TOTAL = "per node", "per task", "in total"
OPTIONS = {
    "gres": PER_NODE,
    "gpus-per-node": PER_NODE,
    "gpus-per-task": PER_TASK,
    "gpus": TOTAL,
    "G": TOTAL,
}
"""Slurm's options that ask for GPUs, and what their number counts."""
_SBATCH = re.compile(
    r"#SBATCH\s+(?:--(gres|gpus-per-node|gpus-per-task|gpus|nodes|ntasks-per-node|ntasks)(?:=|\s+)|-(G|N|n)\s*)[\"']?([^\s\"']+)"
)
_GRES = re.compile(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?(?::(\d{1,4}))?(?=\(|,|$)")
_TYPED = re.compile(r"(?:([A-Za-z][\w.-]*)(?::(\d{1,5}))?|(\d{1,5}))\Z")
_KEYS = ("accelerators", "accelerator", "resources.accelerators", "resources.accelerator", "resources.gpu")
"""Keys that hold the GPUs in the job files of clouds (SkyPilot, dstack and similar tools)."""


class GpuRequest(Record):
    """One request for GPUs: an option of a scheduler or a key of a cloud's job file, with its number."""

    option: str
    counts: str
    """What the number counts: :data:`PER_NODE`, :data:`PER_TASK`, :data:`TOTAL`."""
    type: str
    """The GPU type by the scheduler's name, such as ``a100``; empty where the request names no type."""
    number: int
    location: Location


def asked(config: ConfigFile) -> Iterator[GpuRequest]:
    """Every request for GPUs of a script's comments and of ``srun`` on its lines, or of a cloud's keys in a file."""
    for option, value, at in _requests(config):
        found = _GRES.search(value) if option == "gres" else _TYPED.match(value)
        if found is not None:
            type, number = found[1] or "", found[2] or (found[3] if option != "gres" else None)
            yield GpuRequest(option=option, counts=OPTIONS[option], type=type, number=int(number or 1), location=at)
    for key in _KEYS if not config.launch else ():
        written = config.values.get(key)
        found = _TYPED.match(written) if isinstance(written, str) else None
        if found is not None and found[1] and _known(found[1]) is not None:
            yield GpuRequest(
                option=key, counts=PER_NODE, type=found[1], number=int(found[2] or 1), location=config.at(key)
            )


def per_node(config: ConfigFile, *, most: int = 999) -> tuple[int, GpuRequest] | None:
    """How many GPUs each node has by the first request, and that request; None where none says it."""
    numbers = dict(_numbers(config))
    nodes = numbers.get("nodes", numbers.get("N", 1))
    tasks = numbers.get("ntasks-per-node") or max(1, numbers.get("ntasks", numbers.get("n", nodes)) // max(nodes, 1))
    for each in asked(config):
        if each.counts == TOTAL and each.number % max(nodes, 1):
            continue
        count = {PER_NODE: each.number, PER_TASK: each.number * tasks, TOTAL: each.number // max(nodes, 1)}[each.counts]
        if 0 < count <= most:
            return count, each
    return None


def read_gpu(reading: ReadConfig, config: ConfigFile) -> ReadConfig:
    """The reading with the GPU that the job asks for by type; one that stands for several is asked for."""
    typed = next((each for each in asked(config) if each.type), None)
    if typed is None or GPU in reading.settings:
        return reading
    at, said = typed.location, f"`{typed.option}`: the job asks for `{typed.type}`"
    name = _known(typed.type)
    if isinstance(name, str):
        setting = ReadSetting(name, f"{at.path}:{at.span.line} {typed.option}", at)
        settings = {**reading.settings, GPU: setting}
        if typed.option in _KEYS and PER_NODE_KEY not in settings:
            settings[PER_NODE_KEY] = setting._replace(value=typed.number)
        return reading._replace(settings=settings, notes=tuple(each for each in reading.notes if each.location != at))
    message, help = (
        f"{said}, and no GPU of the catalog is called so",
        "name one: --gpu h100-80gb (`memcheck list gpus`)",
    )
    if name is not None:
        message, help = f"{said}, which is {' or '.join(name)}", f"say which: --gpu {name[0]}"
    return reading._replace(problems=(*reading.problems, ConfigProblem(at, message, help, keys=(GPU,))))


def _known(type: str) -> str | tuple[str, ...] | None:
    """The catalog's GPU of a scheduler's name for it, the several that it may be, or None."""
    plain = type.lower().replace("_", "-")
    found = [_named(name) for name in dict.fromkeys((plain, plain.removeprefix("nvidia-"), plain.removeprefix("amd-")))]
    several = next((each for each in found if isinstance(each, tuple)), None)
    return next((each for each in found if isinstance(each, str)), several)


def _named(name: str) -> str | tuple[str, ...] | None:
    try:
        return find_gpu(name).name
    except AmbiguousNameError as error:
        return error.close
    except UnknownNameError:
        return None


def _requests(config: ConfigFile) -> Iterator[tuple[str, str, Location]]:
    for name, value, at in _comments(config):
        if name in OPTIONS:
            yield name, value, at
    for name in OPTIONS:  # of srun, on a line of the script
        key = name if name in config.values else name.replace("-", "_")
        said = config.values.get(key)
        if config.launch and isinstance(said, str) and "$" not in said and (name != "gpus" or ":" in said):
            yield name, said, config.at(key)


def _comments(config: ConfigFile) -> Iterator[tuple[str, str, Location]]:
    for number, line in enumerate(config.lines, 1):
        found = _SBATCH.match(line[:400]) if line.startswith("#SBATCH") else None
        if found is not None:
            at = Location(config.path, Span(number, found.start(3) + 1, number, found.end(3) + 1))
            yield found[1] or found[2], found[3], at


def _numbers(config: ConfigFile) -> Iterator[tuple[str, int]]:
    for name, value, _ in _comments(config):
        if name not in OPTIONS and re.fullmatch(r"\d{1,5}", value):
            yield name, int(value)
