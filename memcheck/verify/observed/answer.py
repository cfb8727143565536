"""``memcheck verify PLAN --observed``: from a figure, a log or a snapshot to an answer."""

from __future__ import annotations

import os
from typing import Any

from memcheck import __version__
from memcheck.edge.json_text import dumps
from memcheck.edge.opener import open_file
from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, gib, value, wrap
from memcheck.errors import UsageError
from memcheck.report.details import labelled, name_and_place
from memcheck.verify.compare import TOLERANCE
from memcheck.verify.observed.hypotheses import Explanation, explanations
from memcheck.verify.observed.judge import Judgement, judge
from memcheck.verify.observed.logs import read_log
from memcheck.verify.observed.reading import MemoryReading, parse_size
from memcheck.verify.observed.snapshot import is_pickle, read_snapshot
from memcheck.verify.subject import Subject

LARGEST_LOG = 256 * 2**20
SHOWN = 5
"""Explanations that people see; programs get all."""

Judged = tuple[Judgement, list[Explanation]]


def answer(subject: Subject, observed: str, form: str, screen: Screen) -> tuple[str, bool]:
    """The text to print, and whether everything that was read is consistent with the estimate.

    Raises:
        UsageError: nothing in ``observed`` is a figure of memory.
    """
    found: list[Judged] = []
    for reading in readings(observed):
        judgement = judge(subject, reading)
        off = not judgement.consistent or abs(judgement.gap) > TOLERANCE * judgement.predicted_bytes
        above = judgement.gap > 0 or not reading.at_least
        found.append((judgement, explanations(subject, judgement) if off and above else []))
    consistent = all(judgement.consistent for judgement, _ in found)
    if form == "json":
        return _json(subject, found, consistent), consistent
    return _text(subject, found, screen), consistent


def readings(observed: str) -> list[MemoryReading]:
    """What a size, a file or a log line says.

    Raises:
        UsageError: none of them.
    """
    size = parse_size(observed)
    if size is not None:
        return [size]
    if os.path.isfile(observed):
        try:
            found = read_snapshot(observed) if is_pickle(observed) else _log_file(observed)
        except OSError as error:
            raise UsageError(f"cannot read {observed}: {error.strerror}") from error
    else:
        found = read_log(observed, "the command line")
    if not found:
        raise UsageError(
            f"no memory figure in {observed[:80]!r}",
            "give a size (61.3GiB, reserved=61.3GiB), a log of torchtitan, Megatron, DeepSpeed, Axolotl or the Trainer,"
            " or a memory snapshot",
        )
    return found


def _log_file(path: str) -> list[MemoryReading]:
    """The end of a log says as much as the whole: peaks only grow."""
    with open_file(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LARGEST_LOG))
        text = file.read(LARGEST_LOG).decode("utf-8", "replace")
    return read_log(text, os.path.basename(path))


def _text(subject: Subject, found: list[Judged], screen: Screen) -> str:
    lines = name_and_place(subject.name, subject.path, screen)
    for judgement, explained in found:
        lines += ["", *labelled("observed", _what(judgement), screen), *labelled("predicted", _said(judgement), screen)]
        lines += labelled("verdict", _verdict(judgement), screen)
        if explained:
            best = [e for e in explained if _explains(e, judgement)]
            title = "what would explain it" if best else "what would explain a part of it"
            lines.append(screen.paint(title, "dim"))
            for item in (best or explained)[:SHOWN]:
                lines += [f"  {line}" for line in wrap(clean(_explanation(item)), screen.columns - 2)]
        elif not judgement.consistent:
            lines += labelled("explanation", "no single assumption closes a quarter of the gap", screen)
    return "\n".join(lines) + "\n"


def _what(judgement: Judgement) -> str:
    reading = judgement.reading
    name = "" if reading.metric == "any" else f"{reading.metric} "
    least = "at least " if reading.at_least else ""
    return f"{least}{name}{gib(reading.bytes)} GiB ({reading.source})"


def _said(judgement: Judgement) -> str:
    metric = judgement.reading.metric
    name = {"any": "device", "allocated": "allocated, BLAS workspaces included,"}.get(metric, metric)
    span = f"{gib(judgement.low_bytes)} to {gib(judgement.high_bytes)} GiB"
    return f"{name} {gib(judgement.predicted_bytes)} GiB; readings from {span} are consistent with it"


def _verdict(judgement: Judgement) -> str:
    gap = judgement.gap
    off = f"{gib(abs(gap))} GiB ({abs(gap) / judgement.predicted_bytes:.1%})"
    side = "above" if gap > 0 else "below"
    return f"{'consistent' if judgement.consistent else 'not consistent'}: {off} {side} the prediction"


def _explains(item: Explanation, judgement: Judgement) -> bool:
    return abs(item.remaining) <= TOLERANCE * judgement.reading.bytes


def _explanation(item: Explanation) -> str:
    stated = "the plan does not say" if item.stated is None else f"the plan says {value(item.stated)}"
    side = "above" if item.remaining > 0 else "below"
    left = f"the reading is {gib(abs(item.remaining))} GiB {side} that"
    return f"{item.key}: {value(item.value)} -> {gib(item.predicted_bytes)} GiB predicted, {left} ({stated})"


def _json(subject: Subject, found: list[Judged], consistent: bool) -> str:
    rows: list[dict[str, Any]] = [
        {
            "metric": judgement.reading.metric,
            "observed_bytes": judgement.reading.bytes,
            "at_least": judgement.reading.at_least,
            "source": judgement.reading.source,
            "predicted_bytes": judgement.predicted_bytes,
            "consistent_bytes": [judgement.low_bytes, judgement.high_bytes],
            "consistent": judgement.consistent,
            "explanations": [
                {
                    "key": e.key,
                    "value": e.value,
                    "stated": e.stated,
                    "predicted_bytes": e.predicted_bytes,
                    "remaining_bytes": e.remaining,
                    "set": e.changes,
                }
                for e in explained
            ],
        }
        for judgement, explained in found
    ]
    document = {
        "observed": 1,
        "memcheck": __version__,
        "path": subject.path,
        "name": subject.name,
        "consistent": consistent,
        "readings": rows,
    }
    return dumps(document, indent=1) + "\n"
