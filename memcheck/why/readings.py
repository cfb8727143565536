"""Memory figures of a run: stated by the user, from log lines of training frameworks, or from a snapshot of PyTorch.

Each pattern of a log line names the code that prints it, the quantity and the unit it means by "GB". Snapshots are
read by ``memcheck/why/snapshots.py``.

What the figures of a message say without any plan: fragmentation, other processes, no lack of capacity, and more.

Each statement is certain where it is arithmetic on printed figures, likely or possible where it interprets them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from memcheck.accounts.state import LARGE_BUFFER, SMALL_BUFFER
from memcheck.edge.screen import gib, one_line
from memcheck.errors import UsageError
from memcheck.record import Record
from memcheck.why.evidence import (
    ALLOCATED,
    ALLOWED,
    CERTAIN,
    DEVICE,
    FREE,
    HOST,
    IN_USE,
    LIKELY,
    OTHERS,
    POSSIBLE,
    RESERVED,
    TOTAL,
    TRIED,
    UNALLOCATED,
    UNEXPLAINED,
    Figure,
    Message,
)
from memcheck.why.log import read_log as read_messages
from memcheck.why.snapshots import read_snapshot as devices_in

METRICS = ("allocated", "reserved", "device")
UNITS = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
SIZE = re.compile(r"([0-9]{1,15}(?:[.,][0-9]+)?)\s*([kmgt]?i?b)", re.IGNORECASE)


class MemoryReading(Record):
    """One figure."""

    metric: str
    """``allocated`` | ``reserved`` | ``device`` | ``any``: which quantity of the estimate it is comparable with."""
    bytes: int
    source: str
    """Where it was read, in words."""
    at_least: bool = False
    """The run asked for more than it got: an out-of-memory message."""


def parse_size(text: str) -> MemoryReading | None:
    """``61.3GiB`` or ``reserved=61.3GiB``; None when the text is no size.

    Raises:
        UsageError: a number without a unit, or an unknown metric.
    """
    metric, equals, rest = text.partition("=")
    if equals and metric.strip().lower() not in METRICS:
        return None
    size = (rest if equals else text).strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", size):
        raise UsageError(f"{text!r} has no unit", "write 61.3GiB (2^30 bytes) or 65.8GB (10^9 bytes)")
    match = SIZE.fullmatch(size)
    if match is None:
        return None
    count = float(match[1].replace(",", "."))
    name = metric.strip().lower() if equals else "any"
    return MemoryReading(name, int(count * UNITS[match[2].lower()]), "the command line")


GIB, MIB = 2**30, 2**20
NUMBER = r"([0-9]{1,15}(?![0-9])(?:\.[0-9]+)?)"
"""More digits are no figure of any memory."""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class LogPattern(Record):
    """One kind of line."""

    printed_by: str
    expression: re.Pattern[str]
    metric: str
    unit: int


def _pattern(printed_by: str, expression: str, metric: str, unit: int) -> LogPattern:
    return LogPattern(printed_by=printed_by, expression=re.compile(expression), metric=metric, unit=unit)


PATTERNS = (
    # torchtitan components/metrics.py: max_reserved_gib
    _pattern("torchtitan", rf"\bmemory: +{NUMBER}GiB\(", "reserved", GIB),
    _pattern("torchtitan", rf"memory/max_reserved\(GiB\)\W+{NUMBER}", "reserved", GIB),
    # Megatron-LM megatron/training/utils.py, report_memory: divided by 1024 * 1024
    _pattern("Megatron", rf"\| max allocated: {NUMBER}", "allocated", MIB),
    _pattern("Megatron", rf"\| max reserved: {NUMBER}", "reserved", MIB),
    # DeepSpeed runtime/utils.py, see_memory_usage: divided by 1024^3
    _pattern("DeepSpeed", rf"\bMax_MA {NUMBER} GB", "allocated", GIB),
    _pattern("DeepSpeed", rf"\bMax_CA {NUMBER} GB", "reserved", GIB),
    # Axolotl utils/bench.py and its callbacks
    _pattern("Axolotl", rf"memory/max_(?:mem|memory)_allocated(?:\(gib\))?\W+{NUMBER}", "allocated", GIB),
    _pattern("Axolotl", rf"memory/device_(?:mem|memory)_reserved(?:\(gib\))?\W+{NUMBER}", "reserved", GIB),
    # nvidia-smi's table
    _pattern("nvidia-smi", rf"\| +{NUMBER}MiB +/ +[0-9]+MiB", "device", MIB),
)

TRAINER = re.compile(
    r"\b(before_init_mem_gpu|(?:init|train)_mem_gpu_(?:alloc|peaked)_delta)'?\s*[=:]\s*([0-9]{1,18}(?![0-9]))(MB)?"
)
"""transformers trainer_utils.py, TrainerMemoryTracker; ``log_metrics`` prints MiB and calls them MB, dictionaries hold
bytes."""


def read_log(text: str, source: str) -> list[MemoryReading]:
    """The highest figure of each quantity in a log; those of a log without any: none."""
    text = ANSI.sub("", text)
    found: dict[str, MemoryReading] = {}

    def keep(reading: MemoryReading) -> None:
        known = found.get(reading.metric)
        if known is None or reading.bytes > known.bytes:
            found[reading.metric] = reading

    for pattern in PATTERNS:
        for match in pattern.expression.finditer(text):
            count = int(float(match[1]) * pattern.unit)
            keep(MemoryReading(pattern.metric, count, f"{source}, printed by {pattern.printed_by}"))
    trainer = _trainer(text, source)
    if trainer is not None:
        keep(trainer)
    for message in read_messages(text.encode("utf-8", "replace")).messages:
        held, tried = message.figures.get(ALLOCATED), message.figures.get(TRIED)
        if held is not None and message.kind == DEVICE:
            place = f"{source}, an out-of-memory error" + (
                "" if message.gpu_index is None else f" of GPU {message.gpu_index}"
            )
            asked = tried.bytes if tried is not None else 0
            keep(MemoryReading(metric="allocated", bytes=held.bytes + asked, source=place, at_least=True))
    return list(found.values())


LEAST_READINGS = 8


def growth(text: str) -> int:
    """Bytes by which memory rises from the first quarter of a log's readings to the last; 0: it does not.

    It rises if the lowest reading of the last quarter is above the highest of the first: steps differ, also over ranks.
    """
    text = ANSI.sub("", text)
    found = 0
    for pattern in PATTERNS:
        counts = [int(float(match[1]) * pattern.unit) for match in pattern.expression.finditer(text)]
        quarter = len(counts) // 4
        if len(counts) >= LEAST_READINGS:
            found = max(found, min(counts[-quarter:]) - max(counts[:quarter]))
    return found


def _trainer(text: str, source: str) -> MemoryReading | None:
    """The Trainer's report: before it was made + by making it + by training + the peak beyond what was left."""
    parts = {m[1]: int(m[2]) * (MIB if m[3] else 1) for m in TRAINER.finditer(text)}
    if "train_mem_gpu_peaked_delta" not in parts:
        return None
    return MemoryReading("allocated", sum(parts.values()), f"{source}, printed by transformers.Trainer")


def read_snapshot(path: str) -> list[MemoryReading]:
    """Peaks of allocated and reserved bytes of the fullest device of a snapshot.

    They are lower bounds where the history is not complete, and where an allocation failed: its size is added then.

    Raises:
        UsageError: no snapshot, or a file that cannot be read safely.
        OSError: the file cannot be opened.
    """
    devices = devices_in(path)
    if not devices:
        raise UsageError(f"{one_line(path)} is a snapshot without memory in use or events", "write it at the peak")
    fullest = max(devices, key=lambda device: device.peak_allocated_bytes)
    source = f"{one_line(os.path.basename(path))}, a memory snapshot, device {fullest.device}"
    if not fullest.events:
        source += ", without history: what was in use when it was written"
    elif not fullest.complete:
        source += ", whose history begins late"
    allocated, least = fullest.peak_allocated_bytes, not fullest.complete
    if fullest.failed:
        source += ", an allocation that failed included"
        allocated = max(allocated, fullest.live_bytes + fullest.failed[-1].requested_bytes)
        least = True
    found = [MemoryReading("allocated", allocated, source, at_least=least)]
    if fullest.peak_reserved_bytes is not None:
        found.append(MemoryReading("reserved", fullest.peak_reserved_bytes, source, at_least=least))
    return found


FRAGMENTATION, NOT_CAPACITY, OTHER_PROCESS = "fragmentation", "not-capacity", "other-process"
CAPPED, SMALLER_CARD, OUTSIDE = "capped", "smaller-card", "outside-allocator"
NO_SIZE, NO_FIGURE, SMALL_PART, SYSTEM_MEMORY = "no-tensor-size", "no-figure", "small-part", "system-memory"


CONTEXT = 3 * 2**29
"""Bytes that the context and libraries of one process take at most: 1.5 GiB."""
COMMUNICATORS = 4 * 2**30
"""Bytes outside torch's allocator that contexts, NCCL and CUDA graphs explain together."""
SMALL = 0.02
"""Share of the GPU below which an allocation is not what filled it."""
SETTINGS = {"HIP": "PYTORCH_HIP_ALLOC_CONF", "NPU": "PYTORCH_NPU_ALLOC_CONF"}


class Statement(Record):
    """One thing that the evidence says."""

    id: str
    certainty: str
    text: str
    lines: tuple[int, ...]


def size(figure: Figure | int) -> str:
    """A size for people: GiB from one GiB on, else MiB."""
    count = figure if isinstance(figure, int) else figure.bytes
    if count and count < 2**30:
        return f"{count / MIB:,.2f} MiB" if count >= MIB else f"{count:,} bytes"
    return f"{gib(count)} GiB"


def statements(message: Message, card_bytes: int | None = None, card: str = "") -> tuple[Statement, ...]:
    """What the figures of a message say. ``card_bytes``: what the stated GPU gives a process, if one is stated."""
    if message.kind == HOST:
        return tuple(_of_host(message))
    if message.kind != DEVICE:
        return ()
    pool, others = list(_of_pool(message)), list(_of_others(message))
    rest, unused = message.figures.get(UNEXPLAINED), message.figures.get(UNALLOCATED)
    first = (others, pool) if rest is not None and unused is not None and rest.bytes > unused.bytes else (pool, others)
    found = [*first[0], *first[1], *_of_card(message, card_bytes, card), *_of_size(message)]
    return tuple(
        Statement(id=id, certainty=certainty, text=text, lines=(message.line,)) for id, certainty, text in found
    )


Said = tuple[str, str, str]


def allocator_setting(message: Message) -> str:
    """The environment variable with which the allocator fills gaps."""
    name = next((v for k, v in SETTINGS.items() if k in message.text.upper()[:200]), "PYTORCH_CUDA_ALLOC_CONF")
    return f"{name}=expandable_segments:True"


def is_fragmented(message: Message) -> bool:
    """Whether as much was reserved and unused as was asked for, and enough of it for that to mean anything."""
    f = message.figures
    tried, unused, total = f.get(TRIED), f.get(UNALLOCATED), f.get(TOTAL)
    if tried is None or unused is None or not 0 < tried.bytes <= unused.high_bytes:
        return False
    return total is None or not names_no_tensor(tried) or unused.bytes > SMALL / 2 * total.bytes


def _of_pool(message: Message) -> Iterator[Said]:
    f = message.figures
    tried, free, unused = f.get(TRIED), f.get(FREE), f.get(UNALLOCATED)
    allowed = f.get(ALLOWED)
    if allowed is not None:
        yield CAPPED, CERTAIN, f"This process may use {size(allowed)}: a memory fraction is set for it."
    if is_fragmented(message) and tried is not None and unused is not None:
        yield (
            FRAGMENTATION,
            CERTAIN,
            (
                f"PyTorch holds {size(unused)} that it does not use, and {size(tried)} were asked for. "
                "The memory is there, but in pieces."
            ),
        )
    if tried is not None and free is not None and allowed is None and free.low_bytes > tried.high_bytes:
        yield (
            NOT_CAPACITY,
            CERTAIN,
            (
                f"{size(free)} of the GPU are free, and {size(tried)} were asked for. "
                "The GPU's size is not the reason: look for a limit on this process, "
                "or another process that held memory at that moment."
            ),
        )


def _of_others(message: Message) -> Iterator[Said]:
    f = message.figures
    total, others, rest = f.get(TOTAL), f.get(OTHERS), f.get(UNEXPLAINED)
    own, allocated, unused = f.get(IN_USE), f.get(ALLOCATED), f.get(UNALLOCATED)
    if others is not None and total is not None and others.bytes > total.bytes // 50:
        yield OTHER_PROCESS, CERTAIN, f"Other processes hold {size(others)} of the GPU's {size(total)}."
    most = 2**30 if own is not None else CONTEXT + (total.bytes // 50 if total is not None else 0)
    if rest is not None and total is not None and rest.low_bytes > most:
        yield (
            OTHER_PROCESS,
            LIKELY,
            (
                f"{size(rest)} of {size(total)} are neither free nor in PyTorch's pool of this process. "
                "Another process, a serving engine on the same GPU, or memory outside the allocator "
                "holds them: see `nvidia-smi`."
            ),
        )
    if own is not None and allocated is not None:
        outside = own.bytes - allocated.bytes - (unused.bytes if unused is not None else 0)
        if outside > COMMUNICATORS:
            yield (
                OUTSIDE,
                CERTAIN,
                (
                    f"{size(outside)} of this process are outside PyTorch's allocator: the context, NCCL, graphs "
                    "and other libraries. That is more than usual."
                ),
            )


def _of_card(message: Message, card_bytes: int | None, card: str) -> Iterator[Said]:
    f = message.figures
    total, allocated = f.get(TOTAL), f.get(ALLOCATED)
    if card_bytes is not None and total is not None and total.high_bytes < 0.95 * card_bytes:
        yield (
            SMALLER_CARD,
            CERTAIN,
            f"The GPU has {size(total)}. That is less than the {size(card_bytes)} of {card}.",
        )
    if total is not None and allocated is not None and allocated.low_bytes > total.high_bytes:
        yield (
            SYSTEM_MEMORY,
            LIKELY,
            (
                f"PyTorch has {size(allocated)} on a GPU of {size(total)}: the driver moves memory to the host, as "
                "under Windows. Speed has suffered before the failure."
            ),
        )
    if "17179869184.00 GiB" in message.text:
        yield NO_FIGURE, CERTAIN, "17179869184.00 GiB is -1 printed as an unsigned number. It says nothing."


def names_no_tensor(figure: Figure) -> bool:
    """Whether the figure is the smallest segment that the allocator asks for, whatever the tensor."""
    return any(figure.low_bytes <= each <= figure.high_bytes for each in (SMALL_BUFFER, LARGE_BUFFER))


def _of_size(message: Message) -> Iterator[Said]:
    f = message.figures
    tried, total, allocated = f.get(TRIED), f.get(TOTAL), f.get(ALLOCATED)
    if tried is None:
        return
    if message.pattern == "torch" and names_no_tensor(tried):
        what = "up to 1 MiB" if tried.bytes < LARGE_BUFFER // 2 else "1 to 10 MiB"
        yield NO_SIZE, CERTAIN, f"{size(tried)} is what the allocator asks for when any tensor of {what} has no room."
    held = allocated or f.get(RESERVED)
    if total is not None and held is not None and tried.bytes < SMALL * total.bytes and held.bytes > total.bytes // 2:
        yield (
            SMALL_PART,
            CERTAIN,
            (
                f"What failed is {size(tried)}. What filled the GPU are the {size(held)} that "
                f"PyTorch {'had allocated' if held is allocated else 'had reserved'} before."
            ),
        )


def _of_host(message: Message) -> Iterator[Statement]:
    held, tried = message.figures.get(IN_USE), message.figures.get(TRIED)
    lines = (message.line,)
    if message.pattern.startswith("kernel") and held is not None:
        small = held.bytes < 2**30
        text = f"The process that was killed held {size(held)}."
        if small:
            text += " That is too little for training: the limit was of another, smaller container or process."
        yield Statement(id="killed-process", certainty=CERTAIN, text=text, lines=lines)
    if message.pattern == "ray-oom" and held is not None and TOTAL in message.figures:
        total = message.figures[TOTAL]
        text = f"The node used {size(held)} of {size(total)}, more than Ray's threshold."
        yield Statement(id="threshold", certainty=CERTAIN, text=text, lines=lines)
    if tried is not None:
        yield Statement(
            id="host-request", certainty=CERTAIN, text=f"The host was asked for {size(tried)} at once.", lines=lines
        )
    if message.certainty == LIKELY:
        text = "The line shows a kill from outside. A time limit or a person can send the same signal."
        yield Statement(id="signal", certainty=POSSIBLE, text=text, lines=lines)
