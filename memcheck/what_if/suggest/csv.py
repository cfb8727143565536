"""Suggestions as a table: a row per suggestion, best first."""

from __future__ import annotations

import csv
import io

from memcheck.edge.screen import Screen
from memcheck.report.csv import cell
from memcheck.what_if.suggest.types import Suggestions

COLUMNS = (
    "path",
    "document",
    "plan",
    "goal",
    "rank",
    "title",
    "changes",
    "utilization",
    "device_bytes",
    "needed_bytes",
    "slowdown",
    "numerics",
    "serves",
    "sure",
    "gpus",
    "host_bytes_per_node",
    "tokens_per_second_per_gpu",
    "price_per_gpu_hour",
    "price_per_million_tokens",
    "safe",
)


def render(answer: Suggestions, screen: Screen | None = None) -> str:
    """The rows under one line of names; the screen plays no part."""
    from memcheck.edge.text import value

    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    plan = answer.plan
    for rank, item in enumerate(answer.found, 1):
        remedy = item.remedy
        row = {
            "path": plan.path,
            "document": plan.document,
            "plan": plan.name,
            "goal": answer.goal,
            "rank": rank,
            "title": remedy.title,
            "changes": "; ".join(f"{key}={value(new)}" for key, new in remedy.set.items()),
            "utilization": round(remedy.utilization, 6),
            "device_bytes": remedy.device_bytes,
            "needed_bytes": remedy.needed_bytes,
            "slowdown": remedy.slowdown,
            "numerics": item.numerics,
            "serves": item.serves,
            "sure": remedy.sure,
            "gpus": item.gpus,
            "host_bytes_per_node": remedy.host_bytes_per_node,
            "tokens_per_second_per_gpu": item.tokens_per_second_per_gpu,
            "price_per_gpu_hour": item.price_per_gpu_hour,
            "price_per_million_tokens": item.price_per_million_tokens,
            "safe": remedy.safe,
        }
        writer.writerow({key: cell(each) for key, each in row.items()})
    return out.getvalue()
