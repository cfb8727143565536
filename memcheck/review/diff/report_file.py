"""Reads a JSON report of ``memcheck check`` back, as one side of a comparison."""

from __future__ import annotations

import json
from typing import Any

from memcheck.errors import UsageError
from memcheck.review.diff.compare import ACCEPTED, PASSED, WARNED, Side

LARGEST_REPORT = 1024 * 2**20
"""Bytes of a JSON report, some 100,000 plans: it is read whole."""


def read_report(path: str, data: bytes) -> list[Side]:
    """The plans of a report.

    Raises:
        UsageError: the file is no report that this version can read.
    """
    try:
        document = json.loads(data)
        if document["report"] != 1:
            raise UsageError(
                f"{path} is a report of format {document['report']!r}, not 1", "use the memcheck that wrote it"
            )
        return [_side(plan) for plan in document["plans"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise UsageError(
            f"{path} is no JSON report of memcheck", "write one with: memcheck check --format json=FILE"
        ) from error


def _side(plan: dict[str, Any]) -> Side:
    estimate = plan["estimate"]
    errors = [each for each in plan.get("diagnostics", ()) if each["severity"] == "error"]
    warned = any(each["severity"] == "warning" for each in plan.get("diagnostics", ()))
    side = Side(
        path=str(plan["path"]),
        key=str(plan["path"]),
        document=int(plan["document"]),
        name=str(plan["name"]),
        status=str(plan["status"]),
        codes=tuple(dict.fromkeys(f"{each['code']} {each['name']}" for each in errors)),
        mark=ACCEPTED if plan.get("accepted") else WARNED if str(plan["status"]) == PASSED and warned else "",
        verdict=str((estimate or {}).get("verdict") or ""),
    )
    if estimate is None:
        return side
    capacity = estimate.get("host_capacity_bytes")
    parts = {str(name): int(count) for name, count in estimate["components_bytes"].items()}
    parts["fragmentation"] -= int(estimate["cache_bytes"])
    return side._replace(
        needed_bytes=int(estimate["needed_bytes"]),
        device_bytes=int(estimate["device_bytes"]),
        capacity_bytes=int(estimate["capacity_bytes"]),
        utilization=float(estimate["utilization"]),
        host_bytes=int(estimate.get("host_bytes_per_node", 0)),
        host_capacity_bytes=None if capacity is None else int(capacity),
        components_bytes=parts,
    )
