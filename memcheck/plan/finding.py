"""What memcheck says about a plan: one finding, its code, where it is, and how to mend it.

Codes of what can be wrong with a plan file itself are listed here. Numbers and names are stable.
"""

from __future__ import annotations

from memcheck.record import Record

SEVERITIES = ("info", "warning", "error")
"""Ordered from mild to severe; ``SEVERITIES.index`` compares two of them."""


class Span(Record):
    """A range of source text. Lines and columns count from 1; ``end_column`` is the one after the last character."""

    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def is_empty(self) -> bool:
        """Whether the span holds no character: the span of a whole file, or a place where something is missing."""
        return (self.line, self.column) == (self.end_line, self.end_column)


class Location(Record):
    """A span in a file, and how the value came to be there."""

    path: str
    span: Span
    note: str = ""
    """Provenance when the value was not written in place: ``through <<: *base``, ``from base.yaml``."""


class Edit(Record):
    """Replace the text of ``span`` (empty span: insert) by ``text``."""

    span: Span
    text: str


class FileEdits(Record):
    """Edits of one file."""

    path: str
    edits: tuple[Edit, ...]


CHEAP, ROOMY, HARDWARE = "cheap", "roomy", "other hardware"
ROLES = (CHEAP, ROOMY, HARDWARE)
"""What a remedy is among several: the one with the same results that takes least time, the one of these that leaves
room and takes least, the least that other hardware would take."""


SAME_RESULT, OTHER_RESULT = "same_hardware_same_result", "same_hardware_other_result"
OTHER_HARDWARE = "other_hardware"
GROUPS = (SAME_RESULT, OTHER_RESULT, OTHER_HARDWARE)
"""What a remedy asks for, in the order in which remedies are shown: nothing but time and host memory, another result of
the training or of the server, GPUs or nodes that the plan does not have."""


class Remedy(Record):
    """A change of the plan that was re-computed by the engine."""

    title: str
    set: dict[str, object]
    """Dotted plan keys and their new values, e.g. ``{"parallelism.zero_stage": 3}``."""
    device_bytes: int
    utilization: float
    """``needed / capacity``."""
    slowdown: float | None
    """Relative time per token against the plan as written: 0.33 = a third slower (a model, not a measurement); None:
    there is no model of it."""
    safe: bool
    """True when the training result does not change beyond rounding and no hardware is added."""
    group: str
    """One of :data:`GROUPS`."""
    edits: tuple[Edit, ...] = ()
    """Edits of the plan's own file."""
    host_bytes_per_node: int = 0
    """Host memory that the processes of a node need with the change."""
    interval_bytes: tuple[int, int] = (0, 0)
    """95% interval of ``device_bytes``, which is what is seen."""
    needed_bytes: int = 0
    """The floor below which the changed plan dies."""
    needed_interval_bytes: tuple[int, int] = (0, 0)
    """95% interval of ``needed_bytes``."""
    role: str = ""
    """One of :data:`ROLES`; empty for the other ones."""
    sure: bool = True
    """Whether the whole 95% interval of the changed plan lies within the GPU."""
    elsewhere: tuple[FileEdits, ...] = ()
    """Edits of the configs that the plan takes values from. All edits of a remedy belong together: made one without
    the other, the files contradict each other."""
    written: dict[str, str] | None = None
    """For a framework's own config: changed plan keys and the lines that its owner writes for them. A key that is
    missing has no words there; an empty line is said by the others. None for a plan."""

    @property
    def high_utilization(self) -> float:
        """The upper end of what is needed over the capacity of the changed plan's GPU."""
        return self.utilization * self.needed_interval_bytes[1] / self.needed_bytes if self.needed_bytes else 0.0

    @property
    def is_edit(self) -> bool:
        """Whether text edits make the change."""
        return bool(self.edits or self.elsewhere)

    def files(self, plan: str) -> tuple[FileEdits, ...]:
        """The edits of every file; ``plan`` is the path of the plan's own."""
        return (*((FileEdits(plan, self.edits),) if self.edits else ()), *self.elsewhere)


class Finding(Record):
    """One diagnostic. Every finding has a location."""

    code: str
    name: str
    severity: str
    message: str
    location: Location
    pointer: str = ""
    """JSON pointer of the key in the merged plan."""
    help: str = ""
    related: tuple[tuple[str, Location], ...] = ()
    """Other places that take part, each with a label."""
    fix: tuple[Edit, ...] = ()
    """Text edits with exactly one right outcome (for ``--fix``)."""
    remedies: tuple[Remedy, ...] = ()

    @property
    def about_memory(self) -> bool:
        """Whether the finding is about an amount of memory (MEM1xx): more memory, or a smaller need, removes it."""
        return self.code.startswith(("MEM1", "MEM7"))


OF_THE_PLAN = "MEM1"
"""Codes whose findings are about a plan as a whole: the key that they underline is only the cheapest one to change."""


def key_of(code: str, pointer: str) -> str:
    """The part of a finding's pointer that its key needs."""
    return "" if code.startswith(OF_THE_PLAN) else pointer


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
