"""Plans of the benchmarks as requests to run, and their steps in real PyTorch."""

from __future__ import annotations

import io
import json
from typing import Any

from memcheck.errors import MemcheckError
from memcheck.plan.read import load_documents
from memcheck.verify.compare import TRACED, Observation
from memcheck.verify.observe import Progress, Request, observe, runnable
from memcheck.verify.subject import Subject, load_subject


def request_of(name: str, plan: dict[str, Any]) -> Request:
    """What is to be run of a plan.

    Raises:
        MemcheckError: it is not valid, cannot be priced, or cannot be run.
    """
    (document,) = load_documents(f"{name}.yaml", json.dumps(plan).encode())
    subject = load_subject(document)
    if not isinstance(subject, Subject):
        raise MemcheckError("; ".join(f.message for f in subject.findings if f.severity == "error"))
    return runnable(subject)


def trace_of(request: Request, *ranks: int) -> Observation:
    """Its pipeline ranks, or those named, traced; nothing is said meanwhile."""
    return observe(request, TRACED, Progress(io.StringIO(), terminal=False), ranks)
