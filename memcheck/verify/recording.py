"""Observations kept in a file: JSON lines, one per rank, with everything that the run was made with.

The fields from ``id`` to ``note`` are those of a case of the accuracy benchmark; ``predicted_bytes`` is what memcheck
said at the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from memcheck.edge.json_text import dumps
from memcheck.edge.opener import read_whole
from memcheck.errors import UsageError
from memcheck.verify.compare import RankComparison
from memcheck.verify.subject import TORCH_VERSION, Subject, changed
from memcheck.verify.types import MEASURED, Observation

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
