"""From evidence on the command line to the answer: reads it, drafts a plan where the log names one, and compares."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from memcheck.catalog.names import find_gpu, gpu_sizes
from memcheck.configs.documents import load_one
from memcheck.edge.opener import open_file, read_start
from memcheck.edge.screen import one_line
from memcheck.errors import MemcheckError, UsageError
from memcheck.families.registry import catalog_architecture
from memcheck.models.types import Architecture, Rough
from memcheck.verify.subject import changed
from memcheck.why.answer import Diagnosis, Drafted
from memcheck.why.causes import explain
from memcheck.why.drafting import draft
from memcheck.why.engine_start import ENGINES, judge_start
from memcheck.why.engine_start import read_start as read_engine_start
from memcheck.why.evidence import (
    ALLOCATED,
    CERTAIN,
    DEVICE,
    FREE,
    TOTAL,
    TRIED,
    UNKNOWN,
    Figure,
    Message,
    printed_shape,
)
from memcheck.why.live import (
    ACTIVATIONS,
    BUFFERS,
    GRADIENTS,
    LOGITS,
    PARAMETERS,
    STATES,
    component_of,
    failing,
    map_blocks,
)
from memcheck.why.log import LogEvidence, read_log
from memcheck.why.readings import growth, statements
from memcheck.why.shapes import TensorFit, readings
from memcheck.why.snapshot_file import snapshot_kind
from memcheck.why.snapshots import DeviceMemory, read_snapshot

STDIN = "-"
LARGEST = 256 * 2**20
"""Bytes of a log that are read."""
PATHLIKE = re.compile(r"[\w./~+-]{1,400}")
START = 4096
SHOWN_OTHERS = 4
SHOWN_SURVIVED = 4
AT_END = 8 * 2**20
"""Bytes at the end of a log that are read for the memory of its steps."""
PHASES_OF = {
    LOGITS: "loss",
    GRADIENTS: "backward",
    STATES: "optimizer",
    ACTIVATIONS: "forward",
    PARAMETERS: "load",
    BUFFERS: "forward",
}
"""The phase in which a component's blocks are made, of a stack in a snapshot."""
SAME_SIZE = 0.005
"""Share by which the totals of one kind of GPU differ between drivers."""
ASSUMED = {"training.objective": "sft", "training.method": "full"}
"""What a drafted plan takes where the command does not say what it trains."""


Read = tuple[str, bytes, LogEvidence, tuple[str, ...], tuple[DeviceMemory, ...]]


def answer(
    evidence: tuple[str, ...],
    *,
    stdin: Callable[[int], bytes],
    plan: str | None = None,
    document: int | None = None,
    model: str | None = None,
    gpu: str | None = None,
    settings: Mapping[str, object] | None = None,
) -> Diagnosis:
    """What the evidence says.

    Raises:
        UsageError: a file that cannot be read, an unknown model or GPU, or an unreadable plan.
    """
    found = [_read(each, stdin) for each in evidence]
    source, data, log, notes, devices = min(found, key=_order)
    message = log.first
    changes = dict(settings or {})
    if gpu is not None:
        changes["hardware.gpu"] = gpu
    if model is not None and plan is not None:
        raise UsageError("--model in addition to --plan", "the plan names its model; use --set model=NAME to change it")
    card = _card(gpu)
    said = statements(message, *card) if message is not None else ()
    notes = (*notes, *_others(found, source))
    result = Diagnosis(source=source, log=log, statements=said, notes=notes, devices=devices)
    if message is not None and message.pattern in ENGINES:
        return _of_engine(result, data, message, plan, document, changes)
    if plan is not None and message is not None:
        # The engine takes time to load, which a log without a plan and a command does not need.

        hardware = {key.removeprefix("hardware."): item for key, item in changes.items() if key.startswith("hardware.")}
        _, _, written = load_one(plan, document, "why compares a run with it", hardware)
        stated = changed(written, changes)
        return _with_card(result._replace(explained=explain(stated, message, _growth(data, devices))), message)
    if message is None or message.kind == UNKNOWN:
        return result
    own = _gpu_of(message) if gpu is None and "hardware.gpu" not in changes else None
    drafted = draft(data, changes | ({"hardware.gpu": own} if own is not None else {}), source)
    if drafted.document is not None:
        rise = _growth(data, devices)
        explained = explain(drafted.document, message, rise)
        if explained.plan.estimate is None:
            drafted = draft(data, changes | ({"hardware.gpu": own} if own is not None else {}), source, assumed=ASSUMED)
            explained = explain(drafted.document, message, rise) if drafted.document is not None else explained
        values = ((Drafted("hardware.gpu", own, message.line),) if own is not None else ()) + drafted.values
        result = result._replace(drafted=values, missing=drafted.missing)
        if explained.plan.estimate is not None:
            return _with_card(result._replace(explained=explained), message)
        missing = tuple(dict.fromkeys((*drafted.missing, *(one_line(f.message) for f in explained.plan.findings[:3]))))
        result = result._replace(missing=missing)
    name = model or drafted.model
    printed = printed_shape(message.text)
    if printed is not None and TRIED in message.figures:
        return result._replace(fit=TensorFit((printed,), 1, 1))
    if name is None or message.kind != DEVICE or TRIED not in message.figures:
        return result
    architecture = _architecture(name)
    exact = message.pattern != "torch"
    fit = readings(message.figures[TRIED], architecture, None, (*message.frames, message.text), exact=exact)
    return result._replace(fit=fit, model=name)


def _of_engine(
    result: Diagnosis, data: bytes, message: Message, plan: str | None, document: int | None, changes: dict[str, object]
) -> Diagnosis:
    """A serving engine that ended at its start: what its log says, and the engine's own answer to the plan."""
    start = read_engine_start(data)
    result = result._replace(
        start=start,
        statements=(*result.statements, *start.statements),
        drafted=tuple([Drafted(key, item, line) for key, item, line in start.settings]),
    )

    if plan is not None:
        hardware = {key.removeprefix("hardware."): item for key, item in changes.items() if key.startswith("hardware.")}
        _, _, written = load_one(plan, document, "why compares a run with it", hardware)
        return result._replace(explained=judge_start(changed(written, changes), message, start))
    if "hardware.gpu" not in changes:
        return result
    drafted = draft(data, changes, result.source).document
    if drafted is None:
        return result
    own = {key: item for key, item, _ in start.settings if key != "model"}
    explained = judge_start(changed(drafted, own), message, start)
    return result._replace(explained=explained) if explained.plan.estimate is not None else result


def _others(found: list[Read], source: str) -> tuple[str, ...]:
    """What the other files say of an end, a sentence for each."""
    rest = [
        f"{name}, line {log.first.line:,}: {log.first.means}"
        for name, _, log, _, _ in found
        if name != source and log.first is not None
    ]
    told = rest[:SHOWN_OTHERS]
    more = len(rest) - len(told)
    return (*told, *([f"{more:,} further files name an end."] if more else []))


def _gpu_of(message: Message) -> str | None:
    """The GPU of the catalog whose memory is nearest to the total that a message of CUDA prints; None for others."""
    total = message.figures.get(TOTAL)
    if total is None or message.pattern != "torch" or "CUDA" not in message.text:
        return None
    nearest = min(gpu_sizes(), key=lambda each: abs(each.memory_bytes - total.bytes))
    return nearest.name if abs(nearest.memory_bytes - total.bytes) <= SAME_SIZE * total.bytes else None


def _growth(data: bytes, devices: tuple[DeviceMemory, ...]) -> int:
    """Bytes by which the memory rose that the end of a log prints, or that steps of a snapshot do not free."""
    device = failing(devices)
    if device is not None:
        return sum(left.bytes for left in device.growth)
    return growth(data[-AT_END:].decode("utf-8", "replace"))


def _with_card(result: Diagnosis, message: Message) -> Diagnosis:
    """The statements once more, with the GPU of the plan, and a snapshot's live blocks next to its ledger."""
    plan = result.explained.plan if result.explained is not None else None
    if plan is None or plan.estimate is None:
        return result
    device = failing(result.devices)
    if device is not None:
        rank = next(r for r in plan.estimate.ranks if r.pipeline_rank == plan.estimate.pipeline_rank)
        at = next((i for i in rank.instants if i.name == message.phase), rank.peak)
        result = result._replace(mapped=map_blocks(device.live, rank.ledger, at.components_bytes))
    return result._replace(statements=statements(message, plan.estimate.capacity_bytes, plan.gpu))


def _card(gpu: str | None) -> tuple[int | None, str]:
    if gpu is None:
        return None, ""

    found = find_gpu(gpu)
    return found.memory_bytes, found.name


def _architecture(name: str) -> Architecture:
    try:
        found = catalog_architecture(name)
    except MemcheckError as error:
        raise UsageError(f"--model {one_line(name)}: {error}", "memcheck list models") from error
    if isinstance(found, Rough):
        raise UsageError(f"--model {one_line(name)}: its layers are not known")
    return found


def _order(read: Read) -> int:
    """Evidence that names a lack of memory comes first, then that which names another reason."""
    first = read[2].first
    if first is None or first.kind == UNKNOWN:
        return 2
    return 0 if first.certainty == CERTAIN else 1


def _read(evidence: str, stdin: Callable[[int], bytes]) -> Read:
    if evidence == STDIN:
        return _log(_whole(stdin(LARGEST + 1), "stdin"), "stdin")
    if not os.path.exists(evidence):
        if PATHLIKE.fullmatch(evidence):
            raise UsageError(f"no file {one_line(evidence)}", "quote a message, so that it is one argument")
        return _log(evidence.encode("utf-8", "replace"), "the command line")
    name = os.path.basename(evidence)
    try:
        start = read_start(evidence, START)
        if snapshot_kind(start) is not None:
            return _snapshot(evidence, name)
        return _log(*_file(evidence), name)
    except OSError as error:
        raise UsageError(f"cannot read {one_line(evidence)}: {error.strerror or error}") from error


def _whole(data: bytes, name: str) -> bytes:
    if len(data) > LARGEST:
        raise UsageError(f"{name} holds more than {LARGEST >> 20} MiB", "name the file: its end is read")
    return data


def _file(path: str) -> tuple[bytes, tuple[str, ...]]:
    with open_file(path) as file:
        total = os.fstat(file.fileno()).st_size
        if total <= LARGEST:
            return file.read(LARGEST), ()
        file.seek(total - LARGEST)
        note = f"Only the last {LARGEST >> 20} MiB of {total >> 20} MiB were read; lines count from there."
        return file.read(LARGEST), (note,)


def _log(data: bytes, name: str | tuple[str, ...], *rest: str) -> Read:
    notes = name if isinstance(name, tuple) else ()
    shown = rest[0] if rest else str(name)
    log = read_log(data)
    if log.survived:
        lines = [f"{message.line:,}" for message in log.survived[:SHOWN_SURVIVED]]
        places = f"line{'s' if len(lines) > 1 else ''} {', '.join(lines)}"
        more = f" and {len(log.survived) - len(lines):,} more" if len(log.survived) > len(lines) else ""
        notes = (*notes, f"Memory was short on {places}{more} of {shown}, and the run went on: that is not its end.")
    return shown, data, log, notes, ()


def _snapshot(path: str, name: str) -> Read:
    """The allocation that failed, and what was live, as a message."""
    devices = read_snapshot(path)
    notes = tuple(f"device {each.device}: {note}" for each in devices for note in each.notes)
    died = next((each for each in devices if each.failed), None)
    if died is None:
        return (
            name,
            b"",
            LogEvidence(messages=(), first=None, echoes=0, step=None, lines=0),
            notes,
            devices,
        )
    failed = died.failed[-1]
    figures = {
        TRIED: Figure(failed.requested_bytes, 0, 0),
        FREE: Figure(failed.free_bytes, 0, 0),
        ALLOCATED: Figure(died.live_bytes, 0, 0),
    }
    frames = tuple(f"{frame.file}:{frame.line} in {frame.name}" for frame in reversed(failed.stack))
    message = Message(
        pattern="snapshot",
        kind=DEVICE,
        certainty=CERTAIN,
        line=0,
        text=f"oom entry of device {died.device}",
        figures=figures,
        rank=None,
        gpu_index=died.device,
        phase=PHASES_OF.get(component_of(failed.stack)),
        frames=frames,
        means="The GPU ran out of memory.",
    )
    return (
        name,
        b"",
        LogEvidence(
            messages=(message,), first=message, echoes=sum(len(d.failed) for d in devices) - 1, step=None, lines=0
        ),
        notes,
        devices,
    )
