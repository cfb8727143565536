"""From the bytes of a log to the messages that tell of its death, in one pass and linear time.

Words of the table are looked for in blocks of bytes. Only lines that hold one are decoded. Of each pattern a bounded
number of messages is read with its figures; further ones of ranks that are known are counted as echoes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import islice

from memcheck.edge.screen import clean
from memcheck.record import Record
from memcheck.why.evidence import (
    ALLOCATED,
    DEVICE,
    FREE,
    IN_USE,
    OTHERS,
    RESERVED,
    SHARED,
    TOTAL,
    TRIED,
    UNALLOCATED,
    UNEXPLAINED,
    UNKNOWN,
    Figure,
    Message,
    printed_shape,
)
from memcheck.why.patterns import (
    ANCHORS,
    COMMON,
    GPU,
    KERNEL,
    LOCAL_RANK,
    NCCL_GPU,
    PATTERNS,
    PHASES,
    PROCESS,
    RANKS,
    RESIDENT,
    ROOT_CAUSE,
    SIGN,
    TORCH,
    Pattern,
)

BLOCK = 2**20
LONGEST_LINE = 2**13
"""Bytes of a line that are looked at on either side of a word."""
OVERLAP = 64
MOST_READ = 64
"""Messages of one pattern that are read although their rank is known."""
MOST_ALIKE = 1024
"""Lines with the same words, after which further ones of known ranks are counted without being read."""
MOST_RANKS = 4096
CONTINUED = 8
"""Lines that may continue a message."""
AROUND = 2**15
"""Bytes around a message in which its traceback is looked for."""
MOST_FRAMES = 60
SHOWN = 300
LARGEST = 2**50
"""More bytes are no size of a memory: 17179869184.00 GiB is -1 printed as an unsigned number."""

ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?")
FRAME_OF = re.compile(r"^(?:E {1,12}|[\s│|>]){0,12}|[\s│|]{0,12}$")
NEW_ENTRY = re.compile(
    r"\s{0,4}(?:\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|INFO|WARNING|ERROR|DEBUG|Traceback|File \"|\+{3,})"
)
STEP = re.compile(
    r"(?:\b(?:global_step|step|iteration|iter|Iter|Step)\b[ :=#]{1,4}|[|\]] {0,4})"
    r"([0-9]{1,9})(?: ?/ ?[0-9]{1,9})?(?= |\[|,|/|:|$|\|)"
)
PROGRESS = tuple(
    re.compile(expression, re.IGNORECASE)
    for expression in (
        (
            rb"(?:\b(?:global_step|step|iteration|iter)\b['\" :=#\[]{1,12}"
            rb"|\| {0,4}(?=[0-9]{1,9}/[0-9]{1,9} \[))([0-9]{1,9})\b"
        ),
        rb"'epoch': '?([0-9]{1,6}(?:\.[0-9]{1,9})?)",
    )
)
"""Numbers that rise while a run goes on: its steps, and the epochs that the Trainer of transformers prints."""
COMPLETE = re.compile(
    rb"\btraining (?:has |is |was )?(?:complete|completed|finished|done)\b(?! with)|\btrain_runtime\b", re.IGNORECASE
)
AFTER = 4 * 2**20
"""Bytes after the first lack of memory, and at the end of a log, in which progress is looked for."""
SEVERAL = 2
"""Steps beyond the last one after which a run has survived: other ranks may print one more after one of them died."""
FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}


class LogEvidence(Record):
    """What a log says of its death."""

    messages: tuple[Message, ...]
    """Messages that were read, in the order of their lines."""
    first: Message | None
    """The one that names the reason first."""
    echoes: int
    """Further messages, which only repeat it or follow from it."""
    step: int | None
    """The last step that was printed before it."""
    lines: int
    survived: tuple[Message, ...] = ()
    """Lacks of memory after which the run went on, so that they are not its end."""


def read_log(data: bytes) -> LogEvidence:
    """Read a log, a message, or a part of one."""
    found = _read(data)
    if found.first is None and len(data) <= AROUND and b"\n" in data.strip():
        # a message that was broken at the width of a terminal
        joined = _read(re.sub(rb"\s*\r?\n\s*", b" ", data))
        if joined.first is not None and joined.first.kind != UNKNOWN:
            return joined._replace(lines=found.lines)
    return found


def _read(data: bytes) -> LogEvidence:
    messages: list[Message] = []
    strength: dict[int, int] = {}
    counts: dict[str, int] = {}
    same: dict[int, int] = {}
    ranks: dict[str, set[int | None]] = {}
    known_ranks: set[int | None] = set()
    echoes, line, counted = 0, 1, 0
    for start, words in _hits(data):
        own = _decoded(data, start)
        rank = _rank(own)
        if same.get(words, 0) > MOST_ALIKE and rank in known_ranks:
            echoes += 1
            continue
        pattern = _pattern(own, words)
        if pattern is None:
            continue
        same[words] = same.get(words, 0) + 1
        known = ranks.setdefault(pattern.name, set())
        counts[pattern.name] = counts.get(pattern.name, 0) + 1
        if counts[pattern.name] > MOST_READ and (rank in known or len(known) >= MOST_RANKS):
            echoes += 1
            continue
        known.add(rank)
        known_ranks.add(rank)
        line += data.count(b"\n", counted, start)
        counted = start
        text = _continued(data, start, own, rank, pattern)
        strength[len(messages)] = pattern.strength
        messages.append(_message(pattern, text, line, rank))
    over = _survived(messages, data)
    survived = tuple([messages[n] for n in over])
    strength = {n: strength[m] for n, m in enumerate(m for m in range(len(messages)) if m not in over)}
    messages = [message for n, message in enumerate(messages) if n not in over]
    index = _first(messages, strength, data)
    if index is None:
        lines = data.count(b"\n") + 1
        return LogEvidence(messages=(), first=None, echoes=0, step=None, lines=lines, survived=survived)
    first = _with_traceback(messages[index], data)
    first = _silent_host(first, data, messages)
    others = len(messages) - 1 + echoes
    return LogEvidence(
        messages=tuple(messages),
        first=first,
        echoes=others,
        step=_step(data, first.line),
        lines=data.count(b"\n") + 1,
        survived=survived,
    )


def _hits(data: bytes) -> list[tuple[int, int]]:
    """Starts of lines that hold a word of the table, in order, with a bit for each of those words."""
    found: dict[int, int] = {}
    end_of_log = len(data) - AROUND
    for begin in range(0, len(data), BLOCK):
        block = data[begin : begin + BLOCK + OVERLAP].lower()
        returns = b"\r" in block
        for number, needle in enumerate(_NEEDLES):
            at = block.find(needle, max(0, end_of_log - begin) if needle == _COMMON else 0)
            while at >= 0:
                place = begin + at
                start = data.rfind(b"\n", max(0, place - LONGEST_LINE), place) + 1
                if returns:
                    start = max(start, data.rfind(b"\r", max(0, place - LONGEST_LINE), place) + 1)
                if not start and place > LONGEST_LINE:
                    start = place - place % LONGEST_LINE  # a line without an end is read in pieces
                found[start] = found.get(start, 0) | 1 << number
                at = block.find(needle, at + len(needle))
    return sorted(found.items())


def _decoded(data: bytes, start: int) -> str:
    """The line that begins at a place, without escape sequences."""
    end = data.find(b"\n", start, start + 2 * LONGEST_LINE)
    raw = data[start : end if end >= 0 else start + 2 * LONGEST_LINE]
    text = raw.decode("utf-8", "replace")
    return ESCAPES.sub("", text) if "\x1b" in text else text


def _rank(line: str) -> int | None:
    head = line[:120]
    if not _MARKED(head):
        return None
    for expression in RANKS:
        match = expression.match(head)
        if match is not None:
            return int(match[1])
    return None


_MARKED = re.compile(r"\s{0,8}(?:\[|[0-9])|.{0,60}(?:rank|TP[0-9]|_TP)", re.IGNORECASE).match
ABSURD = next(pattern for pattern in PATTERNS if pattern.name == "torch-absurd")
_NEEDLES = [word.encode() for word in ANCHORS]
_COMMON = COMMON.encode()
_candidates: dict[int, tuple[Pattern, ...]] = {}


def _pattern(line: str, words: int) -> Pattern | None:
    """The first pattern of the table that the line matches; ``words``: a bit for each word that it holds."""
    candidates = _candidates.get(words)
    if candidates is None:
        held = {word for number, word in enumerate(ANCHORS) if words >> number & 1}
        candidates = tuple(pattern for pattern in PATTERNS if not held.isdisjoint(pattern.anchors))
        if len(_candidates) < MOST_RANKS:
            _candidates[words] = candidates
    return next((pattern for pattern in candidates if pattern.expression.search(line)), None)


def _plain(line: str) -> str:
    """A line without the marks of quotations, boxes and test runners around it."""
    return FRAME_OF.sub("", line)


def _continued(data: bytes, start: int, line: str, rank: int | None, pattern: Pattern) -> str:
    """The message: its line and those that go on from it, without what another message says."""
    parts = [line]
    at = data.find(b"\n", start, start + 2 * LONGEST_LINE)
    for _ in range(CONTINUED):
        if at < 0 or at + 1 >= len(data):
            break
        following = _decoded(data, at + 1)
        at = data.find(b"\n", at + 1, at + 1 + 2 * LONGEST_LINE)
        own = _rank(following)
        if own != rank or not following.strip() or NEW_ENTRY.match(following) or pattern.expression.search(following):
            break
        parts.append(_plain(following))
    text = " ".join(parts)
    first = pattern.expression.search(text) if pattern.kind == DEVICE else None
    second = pattern.expression.search(text, first.end()) if first is not None else None
    return text[: second.start()] if second is not None else text


def _message(pattern: Pattern, text: str, line: int, rank: int | None) -> Message:
    figures = _figures(pattern, text, line)
    gpu = GPU.search(text) or NCCL_GPU.search(text)
    if rank is None:
        local = LOCAL_RANK.search(text)
        rank = int(local[1]) if local is not None else None
    if pattern.kind == DEVICE and _is_absurd(pattern, text):
        pattern = ABSURD
    return Message(
        pattern=pattern.name,
        kind=pattern.kind,
        certainty=pattern.certainty,
        line=line,
        text=clean(_plain(text))[:SHOWN],
        figures=figures,
        rank=rank,
        gpu_index=int(gpu[1]) if gpu is not None and pattern.kind == DEVICE else None,
        phase=pattern.phase or None,
        means=pattern.means,
    )


def sized(number: str, unit: str, line: int) -> Figure | None:
    """The figure that a printed number and its unit are; None for what no memory has."""
    factor = FACTORS.get(unit[:1].lower() if unit[:1].lower() != "b" else "")
    if factor is None:
        return None
    whole, _, decimals = number.replace(",", "").partition(".")
    count = round(float(f"{whole}.{decimals or 0}") * factor)
    half = 0 if factor == 1 else -(-factor // (2 * 10 ** len(decimals)))
    return Figure(count, half, line) if count < LARGEST else None


def _is_absurd(pattern: Pattern, text: str) -> bool:
    """Whether a message asks for more than any memory has: its size was never received or is not initialised."""
    for clause in pattern.clauses:
        match = clause.expression.search(text) if clause.figure == TRIED else None
        if match is not None:
            return sized(match[1], match[2], 0) is None
    return False


def _figures(pattern: Pattern, text: str, line: int) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for clause in pattern.clauses:
        if clause.figure in found:
            continue
        match = clause.expression.search(text)
        figure = sized(match[1], match[2], line) if match is not None else None
        if figure is not None:
            found[clause.figure] = figure
    if pattern.clauses is KERNEL and IN_USE in found:
        parts = [sized(number, unit, line) for number, unit in RESIDENT.findall(text)]
        resident = [figure for figure in parts if figure is not None]
        found[IN_USE] = Figure(sum(f.bytes for f in resident), sum(f.resolution_bytes for f in resident), line)
    if TOTAL not in found and FREE in found:
        # "GPU had 12.44 GiB free of 79.19": the unit is written once
        again = re.search(r"([KMG]iB) free of ([0-9]{1,9}\.[0-9]{1,4})", text)
        total = sized(again[2], again[1], line) if again is not None else None
        if total is not None:
            found[TOTAL] = total
    shape = printed_shape(text) if TRIED not in found and pattern.name.startswith("tf-") else None
    if shape is not None and shape.bytes < LARGEST:
        found[TRIED] = Figure(shape.bytes, 0, line)
    if pattern.clauses is TORCH:
        _completed(found, text, line)
    return found


def _completed(found: dict[str, Figure], text: str, line: int) -> None:
    """What follows from the printed figures: unallocated, whose memory a "Process" is, and what nothing explains."""
    allocated, reserved = found.get(ALLOCATED), found.get(RESERVED)
    if UNALLOCATED not in found and allocated is not None and reserved is not None:
        rest = max(0, reserved.bytes - allocated.bytes)
        found[UNALLOCATED] = Figure(rest, reserved.resolution_bytes + allocated.resolution_bytes, line)
    if IN_USE in found and found[IN_USE].bytes == 0 and (allocated is None or allocated.bytes):
        del found[IN_USE]  # the driver could not tell
    processes = [figure for m in PROCESS.finditer(text) if (figure := sized(m[2], m[3], line)) is not None]
    unallocated = found.get(UNALLOCATED)
    held = (allocated.bytes if allocated else 0) + (unallocated.bytes if unallocated else 0)
    if processes and IN_USE not in found and "this process has" not in text:
        # in a container the driver's numbers are not this process's own, so it is one of those named
        large = [figure for figure in processes if figure.high_bytes >= held]
        own = min(large, key=lambda figure: figure.bytes) if held and large else None
        if own is None and len(processes) == 1 and not held:
            own = processes[0]
        if own is not None:
            found[IN_USE] = own
            processes.remove(own)
        elif not held:
            processes = []
    if processes or (IN_USE in found and PROCESS.search(text) is not None):
        half = sum(figure.resolution_bytes for figure in processes)
        found[OTHERS] = Figure(sum(figure.bytes for figure in processes), half, line)
    total, free = found.get(TOTAL), found.get(FREE)
    own_bytes = found.get(IN_USE)
    if total is None or free is None or (own_bytes is None and allocated is None):
        return
    used = own_bytes.bytes if own_bytes is not None else held
    others = found[OTHERS].bytes if OTHERS in found else 0
    parts = [f for f in (total, free, own_bytes, found.get(OTHERS)) if f is not None]
    rest = total.bytes - free.bytes - used - others
    found[UNEXPLAINED] = Figure(max(0, rest), sum(f.resolution_bytes for f in parts), line)


def _first(messages: list[Message], strength: dict[int, int], data: bytes) -> int | None:
    """The message that names the reason: the strongest kind of message, and of these the one of the first rank."""
    if not messages:
        return None
    best = max(strength.values())
    candidates = [index for index in range(len(messages)) if strength[index] == best]
    chosen = candidates[-1] if best < SIGN and messages[candidates[-1]].pattern == "exception" else candidates[0]
    if best < SIGN:
        return chosen
    rank = _root_cause(data)
    if rank is not None:
        same = [i for i in candidates if messages[i].rank == rank and messages[i].kind == messages[chosen].kind]
        if same:
            return same[0]
        if messages[chosen].rank is None:
            messages[chosen] = messages[chosen]._replace(rank=rank)
    return chosen


def _survived(messages: list[Message], data: bytes) -> set[int]:
    """Indices of the lacks of device memory after which the run went on: it caught them and tried again."""
    short = [index for index, message in enumerate(messages) if message.kind in (DEVICE, SHARED)]
    if not short:
        return set()
    places: dict[int, int] = {}
    line, at = 1, 0
    for index in short:
        for _ in range(messages[index].line - line):
            at = data.find(b"\n", at) + 1
        line, places[index] = messages[index].line, at
    begin = max(0, places[short[0]] - AROUND)
    parts = [(begin, data[begin : begin + AROUND + AFTER])]
    tail = max(begin + AROUND + AFTER, len(data) - AFTER)
    parts += [(tail, data[tail:])] if tail < len(data) else []
    complete = max((base + m.start() for base, part in parts for m in COMPLETE.finditer(part)), default=-1)
    found = {index for index in short if complete > places[index]}
    for expression in PROGRESS:
        seen = [(base + m.start(), float(m[1])) for base, part in parts for m in expression.finditer(part)]
        found |= {index for index, place in places.items() if _went_on(seen, place)}
    return found


def _went_on(seen: list[tuple[int, float]], place: int) -> bool:
    """Whether several numbers after a place are above the last one before it. ``seen``: places and numbers."""
    cut = bisect_left(seen, (place, 0.0))
    last = seen[cut - 1][1] if cut else -1.0
    return len({number for _, number in islice(seen, cut, None) if number > last}) >= SEVERAL


def _root_cause(data: bytes) -> int | None:
    """The rank that torchrun observed to fail first."""
    at = data.rfind(b"Root Cause (first observed failure)")
    match = ROOT_CAUSE.search(data[at : at + 600].decode("utf-8", "replace")) if at >= 0 else None
    return int(match[1]) if match is not None else None


def _place(data: bytes, line: int) -> int:
    """Where a line begins."""
    at = 0
    for _ in range(line - 1):
        at = data.find(b"\n", at) + 1
    return at


def _nearby(data: bytes, line: int) -> tuple[list[str], list[str]]:
    """Decoded lines before and after a line, within a bound."""
    at = _place(data, line)
    before = data[max(0, at - AROUND) : at].decode("utf-8", "replace")
    end = data.find(b"\n", at)
    after = data[end + 1 : end + AROUND].decode("utf-8", "replace") if end >= 0 else ""
    return [ESCAPES.sub("", x) for x in before.split("\n")], [ESCAPES.sub("", x) for x in after.split("\n")]


def _with_traceback(message: Message, data: bytes) -> Message:
    """The message with the frames of its own rank around it, and the phase that they show."""
    before, after = _nearby(data, message.line)
    rank = message.rank
    frames: list[str] = []
    for text in reversed(before):
        own = _rank(text)
        if len(frames) >= MOST_FRAMES or ("Traceback (most recent" in text and own in (None, rank)):
            break
        if text.strip() and own in (None, rank):
            frames.insert(0, text)
    for text in after[:20]:
        own = _rank(text)
        if "rror:" in text or "oot Cause" in text:
            break
        if rank is None and own is not None and message.kind == DEVICE:
            rank = own  # the message came without its mark, what follows it has one
        if text.strip() and own in (None, rank):
            frames.append(text)
    kept = tuple(clean(text.strip())[:SHOWN] for text in frames)
    return message._replace(rank=rank, frames=kept, phase=message.phase or _phase([*kept, message.text]))


def _phase(frames: list[str]) -> str | None:
    """The phase that a traceback shows: what runs a whole phase decides, else the innermost of loss and forward."""
    for phase, expression in PHASES[:-2]:
        if any(expression.search(frame) for frame in frames):
            return phase
    for frame in reversed(frames):
        for phase, expression in PHASES[-2:]:
            if expression.search(frame):
                return phase
    return None


SILENT = re.compile(r"Before initializing optimizer states|CPU Virtual Memory|Loading checkpoint shards")


def _silent_host(message: Message, data: bytes, messages: list[Message]) -> Message:
    """A launcher ends its processes after one died without an exception, right after lines about the host's memory."""
    if message.pattern != "launcher-kill":
        return message
    before, _ = _nearby(data, message.line)
    tail = before[-6:]
    if any("Traceback" in text or "rror:" in text for text in before) or not any(SILENT.search(t) for t in tail):
        return message
    means = "A process died without a message while it filled the host's memory. The GPU is not what the lines show."
    phase = "init" if any("optimizer states" in text for text in tail) else message.phase
    return message._replace(kind="host", certainty="likely", means=means, phase=phase)


def _step(data: bytes, line: int) -> int | None:
    """The last step that a log printed before a line."""
    before, _ = _nearby(data, line)
    for text in reversed(before):
        found = STEP.findall(text[:400])
        if found:
            return int(found[-1])
    return None
