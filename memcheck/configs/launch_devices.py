"""The GPUs of a launch: what a script, its environment and a platform's file ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from memcheck.catalog.names import AmbiguousNameError, UnknownNameError, find_gpu
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft
from memcheck.configs.launch_lines import Command, commands_of, starts, trains
from memcheck.configs.next_command import gpu_named
from memcheck.configs.shell_values import asked_of_slurm, resolved
from memcheck.configs.types import ConfigProblem, Note, ReadConfig, ReadSetting
from memcheck.plan.finding import Location, Span
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
_CONSTRAINT = re.compile(r"#SBATCH\s+(?:--(?:constraint|partition)(?:=|\s+)|-[Cp]\s*)[\"']?([\w.&|,*@:-]+)")
_WORD = re.compile(r"[&|,*@:_-]+")
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
        if found is not None and found[1] and catalog_gpu(found[1]) is not None:
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


def hinted_gpu(config: ConfigFile) -> str:
    """The catalog's GPU that a constraint or the name of a partition names, as a hint for a command; else empty.

    A name that stands for two GPUs is the smaller one.
    """
    for line in config.lines[:MOST_HINTS]:
        found = _CONSTRAINT.match(line[:400])
        words = () if found is None else (found[1], *_WORD.split(found[1])[:8])
        for name in (gpu_named(word)[0] for word in words if any(each.isdigit() for each in word)):
            if name:
                return name
    return ""


MOST_HINTS = 200
"""Lines in which a constraint is looked for."""


def read_gpu(reading: ReadConfig, config: ConfigFile) -> ReadConfig:
    """The reading with the GPU that the job asks for by type; one that stands for several is asked for."""
    part, first, last = part_of(config)
    if part >= 0:
        at = Location(config.path, Span(first, 1, first, len(config.lines[first - 1]) + 1))
        said = f"the other parts of a heterogeneous job: only part {part}, of lines {first} to {last}, is checked"
        reading = reading._replace(notes=(*reading.notes, Note(at, said)))
    typed = next((each for each in asked(config) if each.type), None)
    if typed is None or GPU in reading.settings:
        return reading
    at, said = typed.location, f"`{typed.option}`: the job asks for `{typed.type}`"
    name = catalog_gpu(typed.type)
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


def catalog_gpu(type: str) -> str | tuple[str, ...] | None:
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
    first, last = part_of(config)[1:]
    for number, line in enumerate(config.lines, 1):
        found = _SBATCH.match(line[:400]) if line.startswith("#SBATCH") and first <= number <= last else None
        if found is not None:
            at = Location(config.path, Span(number, found.start(3) + 1, number, found.end(3) + 1))
            yield found[1] or found[2], found[3], at


def _numbers(config: ConfigFile) -> Iterator[tuple[str, int]]:
    for name, value, _ in _comments(config):
        if name not in OPTIONS and re.fullmatch(r"\d{1,5}", value):
            yield name, int(value)


_PARTS = re.compile(r"#SBATCH\s+(?:het|pack)job\b")
_STEP = re.compile(r"--(?:het|pack)-group[=\s]+(\d{1,3})(?!\d)")


def part_of(config: ConfigFile) -> tuple[int, int, int]:
    """The part of a heterogeneous Slurm job that trains, and the first and last line of what it asks for.

    It is the part whose number stands before the launch (``srun --het-group=1``), or else part 0. -1: the job has one
    part, which is the whole script.
    """
    ends = [number for number, line in enumerate(config.lines, 1) if _PARTS.match(line)]
    if not ends:
        return -1, 1, len(config.lines)
    named = [
        int(found[1])
        for command in commands_of(config.lines)
        if starts(command) or trains(command)
        for found in list(_STEP.finditer(command.text[:MOST_WORDS]))[:1]
    ]
    part = min(named[0] if named else 0, len(ends))
    return part, ends[part - 1] if part else 1, ends[part] if part < len(ends) else len(config.lines)


MOST_WORDS = 2000
"""Characters of a command in which the number of a part is looked for."""
SEGMENTS = "training.expandable_segments"
ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_ASSIGNED = r"\s*(?:export\s+)?(?:\w+=\S*\s+)*{}=([^\s\\]+)"


def allocator(draft: Draft) -> None:
    """Whether segments expand, where the script sets PyTorch's variable for it."""
    for name in ALLOCATORS:
        text, at = written(draft, name)
        found = re.search(r"expandable_segments:\s*(true|false)", text, re.IGNORECASE)
        if at is not None and found is not None and SEGMENTS not in draft.settings:
            if name not in draft.config.values:
                draft.config.adopt(name, text, at)
            draft.set(SEGMENTS, found[1].lower() == "true", name)


def written(draft: Draft, name: str) -> tuple[str, Location | None]:
    """The value of a variable and its place, in a script or below ``ENV`` of a YAML; the first assignment counts."""
    config, below = draft.config, f"ENV.{name}"
    if config.has(below):
        return str(config.take(below)), config.at(below)
    for number, line in enumerate(config.lines, 1):
        found = re.match(_ASSIGNED.format(name), line[:1000])
        if found is not None:
            span = Span(number, found.start(1) + 1, number, found.end(1) + 1)
            return found[1].strip("'\""), Location(config.path, span)
    return "", None


GPUS, NODES, STAGE = "hardware.gpus_per_node", "hardware.nodes", "parallelism.zero_stage"
PROCESSES = "NPROC_PER_NODE"
VISIBLE = "CUDA_VISIBLE_DEVICES"
ASKED_NODES = {"nodes": 4, "N": 4}
"""Options of Slurm, and the digits that are taken for a number of nodes."""
_VISIBLE = re.compile(r"(?:^|[\s;])CUDA_VISIBLE_DEVICES=[\"']?([^\s\"';\\]+)")
_TORCHRUN = re.compile(r"(?:^|[\s;&/])(torchrun|torch\.distributed\.(?:run|launch))\s")
_SWIFT = re.compile(r"(?:^|[\s;&])swift\s+(?:sft|pt|rlhf)\s")
_LISTED = re.compile(r"(?:\d{1,3}|GPU-[\w-]+)(?:,\s*(?:\d{1,3}|GPU-[\w-]+))*,?\Z")
_PYTHON = re.compile(r"\.py\b|\s-m\s")
_SRUN = re.compile(r"(?:^|[\s;&(\"'])srun\s")
_FOLLOWED = re.compile(r"\s*\S")


def machines(draft: Draft) -> None:
    """Nodes that Slurm is asked for, on each of which ``srun`` starts the job; torchrun has to be told of them."""
    if NODES in draft.settings or any(NODES in each.keys for each in draft.problems):
        return
    jobs = commands_of(draft.config.lines)
    apart = any(_TORCHRUN.search(each.text) for each in jobs)
    if apart or not any(_SRUN.search(each.text) for each in jobs):
        return
    count, _, at = _asked(draft.config, ASKED_NODES)
    if at is not None:
        draft.settings[NODES] = ReadSetting(count, f"{at.path}:{at.span.line} #SBATCH", at)


def allotted(draft: Draft) -> None:
    """GPUs of each node that Slurm is asked for."""
    if GPUS not in draft.settings and not any(GPUS in each.keys for each in draft.problems):
        count, name, at = _allotted(draft.config)
        if at is not None:
            draft.settings[GPUS] = ReadSetting(count, f"{at.path}:{at.span.line} {name}", at)


def visible(draft: Draft) -> None:
    """GPUs that a launcher sees which starts one process unless told otherwise (ms-swift's)."""
    if GPUS in draft.settings or any(GPUS in each.keys for each in draft.problems):
        return
    count, name, at = _seen(draft.config, commands_of(draft.config.lines))
    if at is not None and name == VISIBLE:
        draft.settings[GPUS] = ReadSetting(count, f"{at.path}:{at.span.line} {name}", at)
        return
    alone = any(_SWIFT.search(each.text) for each in commands_of(draft.config.lines))
    if not draft.config.launch or not alone or written(draft, PROCESSES)[1] is not None:
        return
    if at is None and any(VISIBLE in line for line in draft.config.lines):
        return  # of GPUs that are not plain
    draft.assume(GPUS, 1, f"ms-swift starts one process where no {PROCESSES} says more")
    if at is not None and count > 1:
        message = f"`{name}`: one process sees {count} GPUs and lays the model over them"
        draft.notes.append(Note(at, f"{message}: estimated as whole on each, an upper bound"))


def devices(draft: Draft) -> None:
    """torchrun starts one process unless told otherwise; other launchers use the GPUs that they see."""
    machines(draft)
    if GPUS in draft.settings or any(GPUS in each.keys for each in draft.problems):
        return
    jobs = [each for each in commands_of(draft.config.lines) if starts(each) or trains(each)]
    alone = _alone(draft.config, jobs)
    if alone is not None:
        why = "torchrun starts one process where no --nproc_per_node says more"
        draft.settings[GPUS] = ReadSetting(1, why, alone)
        return
    count, name, at = _seen(draft.config, jobs)
    if at is not None:
        draft.settings[GPUS] = ReadSetting(count, f"{at.path}:{at.span.line} {name}", at)
    plain = bool(jobs) and not any(starts(each) for each in jobs)
    if plain:
        _one_process(draft, count or draft.config.gpus_per_node or 1, name, at)


def _one_process(draft: Draft, count: int, name: str, at: Location | None) -> None:
    """``python train.py`` where it sees several GPUs."""
    if count < 2:
        return
    if at is not None:
        message = (
            f"`{name}`: one process sees {count} GPUs. transformers' Trainer then copies the model to each "
            "(DataParallel), or splits its layers. The estimate is of one process per GPU"
        )
        draft.notes.append(Note(at, message))
    if STAGE in draft.settings and draft.settings[STAGE].assumed:
        why = "neither deepspeed nor fsdp: every GPU holds the whole state, in a process of its own"
        draft.assume(STAGE, 0, f"{why}, of which the script starts one")


def _alone(config: ConfigFile, jobs: Sequence[Command]) -> Location | None:
    """Where torchrun is called without a number of processes."""
    if any("nproc" in name for name in config.values):
        return None
    called = [(each, _TORCHRUN.search(each.text)) for each in jobs if starts(each)]
    alone = [
        command.at(config.path, found.start(1), found.end(1))
        for command, found in called
        if found is not None
        and "srun" not in command.text
        and "nproc" not in command.text
        and "$" not in _PYTHON.split(command.text[found.end() :])[0]
    ]
    return alone[0] if alone and len(alone) == len(called) else None


def _seen(config: ConfigFile, jobs: Sequence[Command]) -> tuple[int, str, Location | None]:
    """How many GPUs a job sees: by variables before its command, by exported variables, or by Slurm's options."""
    before: dict[str, Location] = {}
    exported: dict[str, Location] = {}
    for command in commands_of(config.lines):
        for found in _VISIBLE.finditer(command.text):
            into = before if _FOLLOWED.match(command.text, found.end() + 1) else exported
            if into is exported or command in jobs:
                into.setdefault(resolved(found[1], config.variables), command.at(config.path, *found.span(1)))
    for values in (before, exported):
        if values:
            counts = {len(text.strip(",").split(",")) for text in values if _LISTED.match(text)}
            if len(counts) == 1 and all(_LISTED.match(text) for text in values):
                return counts.pop(), VISIBLE, next(iter(values.values()))
            return 0, "", None
    return _allotted(config)


def _allotted(config: ConfigFile) -> tuple[int, str, Location | None]:
    """The GPUs of each node that a job asks its scheduler for."""
    found = per_node(config)
    return (0, "", None) if found is None else (found[0], found[1].option, found[1].location)


def _asked(config: ConfigFile, options: Mapping[str, int]) -> tuple[int, str, Location | None]:
    """The number that a batch script's own comments ask Slurm for; ``options``: the digits that each may have."""
    for option, number, asked in asked_of_slurm(config.lines):
        if len(asked[4]) <= options.get(option, 0):
            place = Location(config.path, Span(number, asked.start(4) + 1, number, asked.end(4) + 1))
            return int(asked[4]), option, place
    return 0, "", None
