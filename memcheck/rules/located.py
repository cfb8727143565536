"""What keeps a plan from being estimated, as findings."""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.finding import Finding, Location, Span
from memcheck.job.defaults import ResolutionError
from memcheck.plan import codes
from memcheck.plan.document import Document
from memcheck.rules.place import place

PROBLEM_CODES = {
    "model": codes.UNKNOWN_MODEL,
    "gpu": codes.UNKNOWN_GPU,
    "architecture": codes.UNSUPPORTED_ARCHITECTURE,
    "config-key": codes.UNREAD_CONFIG_KEY,
    "images": codes.INVALID_VALUE,
    "rows": codes.INVALID_VALUE,
    "base": codes.INVALID_VALUE,
    "lora": codes.INVALID_VALUE,
    "target": codes.INVALID_VALUE,
    "config": codes.UNREADABLE_CONFIG,
    "missing": codes.MISSING_KEY,
}


def located(error: ResolutionError | UnsupportedError, document: Document) -> list[Finding]:
    """What could not be resolved or priced, as findings on the keys that ask for it."""
    if isinstance(error, UnsupportedError):
        where = place(document, error.pointer)
        return [codes.NO_MEMORY_MODEL.at(where, error.message, help=error.help, pointer=error.pointer)]
    return [
        PROBLEM_CODES[problem.kind].at(
            place(document, problem.pointer), problem.message, help=problem.help, pointer=problem.pointer
        )
        for problem in error.problems
    ]


def no_document(path: str) -> Finding:
    """A file without any document was named as a plan: it must not pass for one."""
    start = Location(path, Span(1, 1, 1, 1))
    return codes.INVALID_PLAN.at(start, "the file holds no document", help="a plan starts with `memcheck: 1`")
