"""Suggestions for programs: remedies as in the report of `check`, with what each costs."""

from __future__ import annotations

from memcheck import __version__
from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen
from memcheck.report.json import diagnostic, remedy
from memcheck.what_if.suggest.types import NOT_JUDGED, Suggestion, Suggestions


def render(answer: Suggestions, screen: Screen | None = None) -> str:
    """One document; the screen plays no part."""
    return dumps(document(answer), indent=1) + "\n"


def document(answer: Suggestions) -> dict[str, object]:
    """The answer as plain data."""
    plan, estimate, tally = answer.plan, answer.plan.estimate, answer.tally
    return {
        "suggest": 1,
        "memcheck": __version__,
        "path": plan.path,
        "document": plan.document,
        "name": plan.name,
        "goal": answer.goal,
        "status": answer.status,
        "as_written": None
        if estimate is None
        else {
            "status": plan.status,
            "verdict": plan.verdict,
            "gpus": plan.gpus,
            "device_bytes": estimate.device_bytes,
            "needed_bytes": estimate.needed_bytes,
            "capacity_bytes": estimate.capacity_bytes,
            "utilization": round(estimate.utilization, 6),
            "host_bytes_per_node": estimate.host_bytes_per_node,
            "host_capacity_bytes": plan.host_capacity_bytes,
            "best": answer.best_as_written,
        },
        "cards": [card._asdict() for card in answer.cards],
        "remedies": [suggestion(each) for each in answer.found],
        "space": {
            "keys": {key: list(values) for key, values in answer.space.items()},
            "kept": list(answer.keep),
            "considered": tally.considered,
            **tally._asdict(),
            "exhausted": answer.exhausted,
            "unsearched": answer.unsearched,
            "budget_seconds": answer.budget,
            "timed_as": answer.timed_as or None,
        },
        "smallest_cluster": None if answer.smallest is None else suggestion(answer.smallest),
        "diagnostics": [diagnostic(plan, finding) for finding in plan.findings] if answer.status == NOT_JUDGED else [],
    }


def suggestion(item: Suggestion) -> dict[str, object]:
    """One remedy and its costs."""
    return {
        **remedy(item.remedy),
        "numerics": item.numerics,
        "serves": item.serves or None,
        "gpus": item.gpus,
        "tokens_per_second_per_gpu": item.tokens_per_second_per_gpu,
        "price_per_gpu_hour": item.price_per_gpu_hour,
        "price_per_million_tokens": item.price_per_million_tokens,
    }
