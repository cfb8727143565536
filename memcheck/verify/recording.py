"""Observations kept in a file, and how they and the predictions move from version to version.

The file has JSON lines, one per rank, with everything that the run was made with. The fields from ``id`` to ``note``
are those of a case of the accuracy benchmark; ``predicted_bytes`` is what memcheck said at the time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from memcheck.edge.json_text import dumps
from memcheck.edge.opener import read_whole
from memcheck.edge.screen import Screen, clean, gib, plural, wrap
from memcheck.errors import MemcheckError, UsageError
from memcheck.plan.read import load_documents
from memcheck.record import Record
from memcheck.verify.compare import MEASURED, Observation, RankComparison
from memcheck.verify.report import share
from memcheck.verify.subject import TORCH_VERSION, Subject, changed, load_subject, with_torch

FORMAT = 1


def records(
    subject: Subject, observation: Observation, comparisons: tuple[RankComparison, ...]
) -> Iterator[dict[str, Any]]:
    """One record per rank and metric. The plan is the one that was run: any stand-in is written into it."""
    stack = ", ".join(f"{name} {version}" for name, version in observation.versions.items())
    for comparison in comparisons:
        observed = comparison.observed
        suffix = f"@rank{observed.pipeline_rank}" if len(observation.ranks) > 1 else ""
        common = {
            "record": FORMAT,
            "id": f"{subject.name}{suffix}",
            "group": f"{observation.mode} (verify)",
            "plan": changed(subject.document, {TORCH_VERSION: None}).values,  # it is among the versions
            "phase": observed.peak.name,
            "pipeline_rank": observed.pipeline_rank if len(observation.ranks) > 1 else None,
            "source": f"memcheck verify --{'measure' if observation.mode == MEASURED else 'trace'}: {stack}",
            "confidence": "high",
            "note": "; ".join(observation.notes),
            "versions": observation.versions,
            "device": observation.device,
            "date": _now(),
        }
        yield {
            **common,
            "metric": "allocated",
            "truth_bytes": comparison.observed_bytes,
            "predicted_bytes": comparison.predicted_bytes,
            "instants_bytes": {i.name: i.allocated_bytes for i in observed.instants},
            "components_bytes": observed.peak.components_bytes,
            "largest": [list(group) for group in observed.largest],
        }
        if observed.reserved_bytes is not None:
            yield {**common, "metric": "reserved", "truth_bytes": observed.reserved_bytes}
        if observed.device_bytes is not None:
            yield {**common, "metric": "device", "truth_bytes": observed.device_bytes}


def _now() -> str:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def append(path: str, found: Iterator[dict[str, Any]]) -> int:
    """Append records to those that are there; the number of new ones.

    Raises:
        UsageError: the file cannot be written.
    """
    lines = [dumps(record) + "\n" for record in found]
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return len(lines)


LARGEST = 256 * 2**20
"""Bytes of a file of records."""


def read(path: str) -> list[dict[str, Any]]:
    """Every record of a file.

    Raises:
        UsageError: unreadable, or a line that is no record.
    """
    try:
        lines = read_whole(path, LARGEST).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}:{number}: not JSON: {error}", "records are JSON lines") from error
        if not isinstance(record, dict) or record.get("record") != FORMAT:
            raise UsageError(f"{path}:{number}: no record of format {FORMAT}", "write records with verify --record")
        found.append(record)
    return found


IGNORED = frozenset({"python"})
"""Versions that move no memory."""


class Sight(Record):
    """One record of a plan."""

    versions: dict[str, str]
    observed_bytes: int
    predicted_bytes: int | None
    """What memcheck said at the time."""


class Drift(Record):
    """All records of one plan's rank, in the order in which they were made."""

    id: str
    metric: str
    sights: tuple[Sight, ...]
    now_bytes: int | None
    """What memcheck says now; None when it cannot price the plan any more, or the metric is not ``allocated``."""

    @property
    def moved(self) -> float:
        """Latest observation over the earliest, minus one."""
        return self.sights[-1].observed_bytes / self.sights[0].observed_bytes - 1

    @property
    def error(self) -> float | None:
        """Today's prediction over the latest observation, minus one."""
        return None if self.now_bytes is None else self.now_bytes / self.sights[-1].observed_bytes - 1


def drifts(records: list[dict[str, Any]], base_dir: str) -> list[Drift]:
    """Group records by plan, mode, metric and rank."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        key = [record["plan"], record["group"], record["metric"], record.get("pipeline_rank"), record.get("device")]
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(record)
    found = []
    for group in groups.values():
        last = group[-1]
        sights = tuple(Sight(r["versions"], r["truth_bytes"], r.get("predicted_bytes")) for r in group)
        now = _price(last, base_dir) if last["metric"] == "allocated" else None
        found.append(Drift(id=last["id"], metric=last["metric"], sights=sights, now_bytes=now))
    return found


def _price(record: dict[str, Any], base_dir: str) -> int | None:
    """Today's prediction for a record's plan, with the PyTorch that it was observed with."""
    path = os.path.join(base_dir, "record.yaml")
    try:
        (document,) = load_documents(path, json.dumps(record["plan"]).encode())
        subject = load_subject(with_torch(document, record["versions"].get("torch")))
    except MemcheckError:
        return None
    if not isinstance(subject, Subject):
        return None
    rank = record.get("pipeline_rank")
    ranks = [r for r in subject.estimate.ranks if rank is None or r.pipeline_rank == rank]
    return max((r.step.peak.allocated_bytes for r in ranks), default=None)


def changed_versions(before: dict[str, str], after: dict[str, str]) -> str:
    """``torch 2.12.0 -> 2.13.0, peft 0.20 -> 0.21``."""
    names = [n for n in dict.fromkeys([*before, *after]) if n not in IGNORED and before.get(n) != after.get(n)]
    return ", ".join(f"{n} {before.get(n, 'absent')} -> {after.get(n, 'absent')}" for n in names)


def render(found: list[Drift], tolerance: float, screen: Screen) -> str:
    """One paragraph per plan, and a last line that counts."""
    lines: list[str] = []
    for drift in found:
        lines.append(f"{screen.paint(clean(drift.id), 'strong')}  {drift.metric}")
        before: Sight | None = None
        for sight in drift.sights:
            text = f"{gib(sight.observed_bytes)} GiB"
            if sight.predicted_bytes is not None:
                text += f", predicted {gib(sight.predicted_bytes)} at the time"
            if before is None:
                text += ": " + ", ".join(f"{k} {v}" for k, v in sight.versions.items() if k not in IGNORED)
            else:
                move = sight.observed_bytes / before.observed_bytes - 1
                text += f", {share(move)}: {changed_versions(before.versions, sight.versions) or 'same versions'}"
            lines += [f"  {line}" for line in wrap(clean(text), screen.columns - 2)]
            before = sight
        if drift.now_bytes is not None and drift.error is not None:
            lines.append(f"  now predicted {gib(drift.now_bytes)} GiB, {share(drift.error)}")
        lines.append("")
    moved = sum(abs(d.moved) > tolerance for d in found)
    off = sum(d.error is not None and abs(d.error) > tolerance for d in found)
    lines.append(
        f"{plural(len(found), 'observed plan')}: {moved} moved by more than {tolerance:.1%},"
        f" {off} predicted more than {tolerance:.1%} off today"
    )
    return "\n".join(lines) + "\n"


def as_json(found: list[Drift], tolerance: float) -> str:
    """The drift of every observed plan as JSON."""
    rows = [
        {
            "id": d.id,
            "metric": d.metric,
            "sights": [s._asdict() for s in d.sights],
            "now_bytes": d.now_bytes,
            "moved": round(d.moved, 6),
            "error": None if d.error is None else round(d.error, 6),
        }
        for d in found
    ]
    return dumps({"drift": 1, "tolerance": tolerance, "plans": rows}, indent=1) + "\n"
