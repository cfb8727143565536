"""How many GPUs of a node a launch uses, where none of its arguments says it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from memcheck.configs.asked_gpus import per_node
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft
from memcheck.configs.launch_environment import written
from memcheck.configs.launch_lines import Command, commands_of, starts, trains
from memcheck.configs.shell_values import asked_of_slurm, resolved
from memcheck.configs.types import Note, ReadSetting
from memcheck.finding import Location, Span

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
            f"`{name}`: one process sees {count} GPUs, and transformers' Trainer lays copies of the model on them "
            "(DataParallel, which gathers all logits on the first) or its layers: priced is a process for each"
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
