"""What the engine replies: one record per step, and the records inside. ``schemas/live.schema.json`` is made of them.

Text is plain, except for ``sections``, which are HTML of the engine's own. Bytes are whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.record import Record
from memcheck.report.story.blocks import Verdict


class TextPlace(Record):
    """A place in a file."""

    line: int
    """The line, from 1."""
    column: int
    """The character of the line, from 1."""
    character: int
    """The UTF-16 unit of the line, from 0, as editors count."""


class TextEdit(Record):
    """Replace the text between two places; an empty span inserts."""

    start: TextPlace
    end: TextPlace
    text: str


class FileChange(Record):
    """The edits of one file, which belong together."""

    path: str
    edits: tuple[TextEdit, ...]


class RelatedPlace(Record):
    """Another place that takes part in a diagnostic."""

    path: str
    start: TextPlace
    end: TextPlace
    label: str


class Diagnostic(Record):
    """One finding about a plan, at its place."""

    id: str
    """Stays while the subject of the finding stays."""
    code: str
    name: str
    severity: str
    """``error``, ``warning`` or ``info``."""
    message: str
    help: str
    path: str
    start: TextPlace
    end: TextPlace
    pointer: str
    """JSON pointer of the key in the plan, or nothing."""
    related: tuple[RelatedPlace, ...]
    fix: tuple[TextEdit, ...]
    """Edits of the plan with one right outcome; empty where there are none."""


class PlanTab(Record):
    """One plan of a file."""

    document: int
    """The number of the plan in the file, from 0."""
    name: str
    line: int
    """The first line of the document, from 1."""
    verdict: Verdict
    used: str
    """How full the memory is that decides, such as ``45.2%``; empty without an estimate."""


class SectionHead(Record):
    """A section of the result in its order."""

    id: str
    title: str
    folded: bool
    """Whether the section is shown on demand."""
    half: bool
    """Whether the section takes half of a wide screen."""


class Figures(Record):
    """The figures of an estimate, in bytes."""

    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int
    seen_bytes: int
    """What a monitor shows: the need with the allocator's cache."""
    capacity_bytes: int
    limit_bytes: int
    """The most that the policy allows."""
    host_bytes: int
    """What a node's processes need of its memory."""
    gpus: int


class KeyChoice(Record):
    """A value that a key could have."""

    value: object
    label: str
    told: str
    """Facts to choose by, such as the memory of a GPU; empty where the value says it all."""
    legal: bool
    """Whether the plan passes the layout rules with it."""
    code: str
    """The rule that refuses the value; empty where it is legal."""
    reason: str
    """Why the value is refused; empty where it is legal."""


class FormField(Record):
    """A control: one key of the plan."""

    key: str
    label: str
    kind: str
    """``choice``, ``flag``, ``number``, ``text``, ``list``, ``model`` or ``gpu``."""
    told: str
    """What the key means."""
    unit: str
    value: object
    """The value that counts; null where there is none."""
    origin: str
    """``stated`` in the plan, ``assumed``, the format's ``default``, or ``unset``."""
    why: str
    """Why an assumed value was taken."""
    minimum: float | None
    maximum: float | None
    main: bool
    """Whether the field is shown at once."""
    relevant: bool
    """Whether the plan has a use for the key: others refuse it or do not read it."""
    choices: str
    """When there are values to choose from: ``soon`` (the step ``choices``), ``asked`` (the request), or ``none``."""
    place: TextPlace | None
    """Where the value is written in the plan's own file; null where it is not."""


class FormGroup(Record):
    """Fields of one section of the plan."""

    id: str
    title: str
    told: str
    keys: tuple[str, ...]
    """The fields in their order."""


class PlanForm(Record):
    """The plan as controls."""

    groups: tuple[FormGroup, ...]
    fields: Mapping[str, FormField]
    """Fields by key; one that is missing has not changed."""
    textbook: bool
    """Whether the plan takes a flat share as overhead."""
    assumed: int
    """How many values were assumed."""


class Choices(Record):
    """The values that some keys could have: of a number, the marks of a slider."""

    choices: Mapping[str, tuple[KeyChoice, ...]]
    """Values by key. A key that takes any value has none; one that is missing has not changed."""


class First(Record):
    """The verdict, the bar and the findings of one plan: the first step of an answer."""

    path: str
    document: int
    name: str
    status: str
    """``passed``, ``failed``, or ``error`` where nothing could be estimated."""
    verdict: Verdict
    lead: str
    """The answer in a sentence."""
    used: str
    """How full the memory is that decides, such as ``45.2%``; empty without an estimate."""
    figures: Figures | None
    documents: tuple[PlanTab, ...]
    """All plans of the file."""
    order: tuple[SectionHead, ...]
    """All sections of the result; one that is missing in ``sections`` has not changed."""
    sections: Mapping[str, str]
    """HTML by the id of a section."""
    diagnostics: tuple[Diagnostic, ...]
    edits: tuple[FileChange, ...]
    """What the request changed in the files, which the workspace holds already; empty but for ``set``."""
    files: tuple[str, ...]
    """The files of the workspace that the plan was read from, its own first."""
    defects: tuple[str, ...]
    """Reports of memcheck's own failures, to copy into an issue; empty as a rule."""


class LineBytes(Record):
    """What one key does to the memory that the fullest GPU needs."""

    key: str
    place: TextPlace
    """Where the key's value is written."""
    other: object
    """The value that it is compared with, such as 0 for a stage or half of a length."""
    saved_bytes: int
    """How much more is needed with the other value; negative where less is."""
    text: str
    """What the key does, in words."""


class Lines(Record):
    """The bytes that lines are responsible for; figures of several lines do not add up."""

    lines: tuple[LineBytes, ...]


class Searching(Record):
    """A search goes on."""

    part: str
    """``choices``, ``lines``, ``remedies``, ``gpus`` or ``sweep``."""
    tried: int
    """How many candidates were tried so far."""
    fits: int
    """How many changes that help were found so far."""


class RemedyEdits(Record):
    """A change that helps, and how to make it."""

    id: str
    """The id of the remedy in the HTML: ``data-remedy``."""
    title: str
    changes: Mapping[str, object]
    """New values by dotted key."""
    edits: tuple[FileChange, ...]
    """Edits that write the change; empty where no edit does, so that the keys have to be set by hand."""


class RemedySteps(Record):
    """The result of a search for changes that help: none where there is nothing to mend, or where none helps."""

    order: tuple[SectionHead, ...]
    """All sections of the result; one of another step keeps its place."""
    sections: Mapping[str, str]
    """Sections that change with what was found; empty HTML where there is none."""
    remedies: tuple[RemedyEdits, ...]
    diagnostics: tuple[Diagnostic, ...]
    """All findings: those about memory are now at the key that ends them most cheaply."""


class GpuShare(Record):
    """The plan on one GPU."""

    gpu: str
    word: str
    """The verdict."""
    tone: str
    share: str
    """How full the GPU is, such as ``45.2%``; empty where the plan cannot run on it."""
    needed_bytes: int
    capacity_bytes: int
    own: bool
    """Whether this is the GPU of the plan."""


class Gpus(Record):
    """The plan on other GPUs."""

    order: tuple[SectionHead, ...]
    """All sections of the result; one of another step keeps its place."""
    sections: Mapping[str, str]
    gpus: tuple[GpuShare, ...]


class Remark(Record):
    """A sentence about a place of a file."""

    path: str
    place: TextPlace
    message: str
    help: str
    keys: tuple[str, ...]
    """Keys of the plan that settle a problem when they are set with the request."""


class AssumedValue(Record):
    """A value that nothing states."""

    key: str
    value: object
    why: str


class ImportedPlan(Record):
    """The plan of a framework's config or script."""

    format: str
    """The format that was read."""
    text: str
    """The plan file; empty where there are problems."""
    notes: tuple[Remark, ...]
    """What the plan does not carry."""
    problems: tuple[Remark, ...]
    """Why there is no plan; empty where there is one."""
    assumed: tuple[AssumedValue, ...]


class Exported(Record):
    """A framework's config that runs the plan."""

    format: str
    name: str
    """The usual name of such a file."""
    text: str
    notices: tuple[str, ...]
    """What the format cannot say, or what belongs elsewhere."""


class Drawn(Record):
    """A comparison, a heat map, suggestions, or why a run ended."""

    of: str
    """The word of the request."""
    title: str
    html: str
    remedies: tuple[RemedyEdits, ...]
    """Changes in the HTML that can be applied; empty but for ``suggest``."""


class Reported(Record):
    """A report to download."""

    format: str
    text: str
    encoded: bool
    """Whether the text is base64 of bytes."""


class Linked(Record):
    """A link that holds the plan."""

    fragment: str
    """The part of the page's address from ``#`` on."""
    flattened: bool
    """Whether the plan was written anew, with all that it takes from other files."""
    warning: str
    """What to say of a long link; empty for one that goes everywhere."""


class CatalogModel(Record):
    """A model that can be named."""

    name: str
    id: str
    """The id on the Hugging Face hub."""
    family: str
    parameters: int


class CatalogGpu(Record):
    """A GPU that can be named."""

    name: str
    memory_bytes: int
    arch: str
    bf16_tflops: float | None
    gpus_per_node: int | None


class Catalog(Record):
    """What can be chosen by name."""

    models: tuple[CatalogModel, ...]
    gpus: tuple[CatalogGpu, ...]
    exports: tuple[str, ...]
    """Formats of ``export``."""
    reports: tuple[str, ...]
    """Formats of ``report``."""


class Failed(Record):
    """The request has no answer."""

    kind: str
    """``request`` (a wrong message), ``refused`` (what was asked is not possible), or ``defect`` (memcheck failed)."""
    message: str
    help: str
    report: str
    """Text to copy into an issue; empty but for a defect."""


class Done(Record):
    """The last step of every request."""

    steps: int
    """The number of steps before this one."""


STEPS: Mapping[str, type] = {
    "first": First,
    "form": PlanForm,
    "choices": Choices,
    "lines": Lines,
    "searching": Searching,
    "remedies": RemedySteps,
    "gpus": Gpus,
    "imported": ImportedPlan,
    "exported": Exported,
    "drawn": Drawn,
    "reported": Reported,
    "linked": Linked,
    "catalog": Catalog,
    "failed": Failed,
    "done": Done,
}
"""The record of every step by its word."""
