"""The codes of what can be wrong with a plan file itself. Numbers and names are stable."""

from __future__ import annotations

from memcheck.plan.finding import Edit, Finding, Location
from memcheck.record import Record


class Code(Record):
    """One diagnostic of the file family ``MEM0xx``."""

    code: str
    name: str
    severity: str
    summary: str

    def at(  # the parts of one finding
        self,
        location: Location,
        message: str,
        *,
        help: str = "",
        pointer: str = "",
        related: tuple[tuple[str, Location], ...] = (),
        fix: tuple[Edit, ...] = (),
        severity: str = "",
    ) -> Finding:
        """Return a finding of this code."""
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity or self.severity,
            message=message,
            location=location,
            pointer=pointer,
            help=help,
            related=related,
            fix=fix,
        )


UNREADABLE_FILE = Code("MEM001", "unreadable-file", "error", summary="The file is not UTF-8 text.")
INVALID_YAML = Code("MEM002", "invalid-yaml", "error", summary="The file is not valid YAML.")
DUPLICATE_KEY = Code("MEM003", "duplicate-key", "error", summary="A mapping states the same key twice.")
NUMBER_TRAP = Code(
    "MEM004", "yaml-number-trap", "error", summary="YAML reads a number differently from what it looks like."
)
BOOLEAN_TRAP = Code(
    "MEM005", "yaml-boolean-trap", "warning", summary="An unquoted word that only some YAML readers take for a boolean."
)
BROKEN_EXTENDS = Code("MEM006", "broken-extends", "error", summary="The plan that this one extends cannot be used.")
TOO_COMPLEX = Code("MEM007", "too-complex", "error", summary="The file is too large, too deep or expands to too much.")
INVALID_PLAN = Code("MEM010", "invalid-plan", "error", summary="The document is not a plan.")
UNKNOWN_KEY = Code("MEM011", "unknown-key", "error", summary="The plan format has no such key.")
MISSING_KEY = Code("MEM012", "missing-key", "error", summary="A required key is missing.")
WRONG_TYPE = Code("MEM013", "wrong-type", "error", summary="A value has the wrong type.")
INVALID_VALUE = Code("MEM014", "invalid-value", "error", summary="A value is outside of what its key allows.")
CONFLICTING_KEYS = Code("MEM015", "conflicting-keys", "error", summary="Keys that exclude each other are both set.")
RENAMED_KEY = Code("MEM016", "renamed-key", "error", summary="A key has the name that another tool gives it.")
UNKNOWN_MODEL = Code("MEM020", "unknown-model", "error", summary="The catalog has no such model.")
UNKNOWN_GPU = Code("MEM021", "unknown-gpu", "error", summary="The catalog has no such GPU.")
UNSUPPORTED_ARCHITECTURE = Code(
    "MEM022", "unsupported-architecture", "error", summary="There is no memory model for this kind of model."
)
UNREAD_CONFIG_KEY = Code(
    "MEM023", "unread-config-key", "error", summary="A key of the model's config bears on sizes and is not understood."
)
UNREADABLE_CONFIG = Code("MEM024", "unreadable-config", "error", summary="The model's config file cannot be read.")
NO_MEMORY_MODEL = Code("MEM025", "no-memory-model", "error", summary="There is no memory model for what the plan asks.")
INVALID_SUPPRESSION = Code(
    "MEM030", "invalid-suppression", "warning", summary="A suppressing comment lacks a reason or names no rule."
)
UNUSED_SUPPRESSION = Code("MEM031", "unused-suppression", "warning", summary="A suppressing comment hides nothing.")
EXPIRED_SUPPRESSION = Code(
    "MEM032", "expired-suppression", "warning", summary="The last day of a suppressing comment is over."
)

CONFIG_DISAGREES = Code(
    "MEM501",
    "config-disagrees",
    "error",
    summary="The plan and the framework config that is its source say different things.",
)
CONFIG_KEY_NOT_CARRIED = Code(
    "MEM502",
    "config-key-not-carried",
    "warning",
    summary="A key of the framework config moves memory and is not carried over.",
)
UNUSABLE_SOURCE = Code(
    "MEM503", "unusable-source", "error", summary="The framework config that is the plan's source cannot be used."
)
CONFIG_DEFAULT = Code(
    "MEM504", "config-default", "info", summary="The framework config leaves values to its framework."
)

FORBIDDEN_SUPPRESSION = Code(
    "MEM607", "forbidden-suppression", "error", summary="A comment hides a finding that the policy forbids to hide."
)
