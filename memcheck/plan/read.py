"""From the bytes of a file to its YAML documents and typed plans, or to what is wrong with them.

A plan with some values replaced, as if they had been written in its file: ``--set``, ``--gpu``, remedies.

``read_stated`` reads ``KEY=VALUE`` of a command line as the plan's file would have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

from memcheck.edge.libyaml import yaml
from memcheck.plan.compose import Composed, ComposeError, ComposeProblem, Composer
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document, Marks
from memcheck.plan.schema import conforms, integer_keys, load_schema, schema_of, types
from memcheck.plan.text import decode, shown_path, split_lines
from memcheck.plan.types import (
    ActivationCheckpointingSpec,
    BaseSpec,
    CheckpointSpec,
    DemandSpec,
    EvaluationSpec,
    GpuSpec,
    HardwareSpec,
    HeadSpec,
    ImagesSpec,
    InferenceSpec,
    InitializationSpec,
    KernelsSpec,
    LoraSpec,
    LossSpec,
    ModelSpec,
    ObjectiveSpec,
    OffloadSpec,
    OptimizerSpec,
    ParallelismSpec,
    Plan,
    PolicySpec,
    PrecisionSpec,
    RoughSpec,
    TeacherSpec,
    TrainerSpec,
    TrainingSpec,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar


_MULTIPLES: dict[str, int] = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_ALONE = frozenset(("MEM006", "MEM503"))
"""What a plan takes from other files is not there: what it lacks for itself says nothing."""
_BROKEN = frozenset(("MEM001", "MEM002", "MEM007", "MEM010", "MEM503"))

if TYPE_CHECKING:
    _Record = TypeVar("_Record", bound=tuple[Any, ...])


def read_plan(document: Document) -> tuple[Plan | None, list[Finding]]:
    """Read the typed plan and every finding about the file. No plan when the document does not conform to the
    schema.
    """
    findings = list(document.findings)
    values: Any = document.values
    if values is None and any(finding.code in _BROKEN for finding in findings):
        return None, findings
    alone = any(finding.code in _ALONE for finding in findings)
    schema = load_schema()
    if not alone and isinstance(values, dict) and ("extends" in values or "source" in values):
        # What was extended is in the values by now, so that the plan has to be complete: the condition never holds.
        schema = {**schema, "if": {"not": {}}}
    valid = conforms(values, schema, schema)
    if not valid:
        from memcheck.plan.explain import explain

        findings += explain(document, schema)
    if document.odd and isinstance(values, dict):
        from memcheck.plan.traps import traps

        said = {finding.pointer for finding in findings}
        odd = [finding for finding in traps(document, schema) if finding.pointer not in said]
        # JSON Schema has no word against NaN, which is neither below a minimum nor above a maximum.
        valid = valid and not any(finding.code == "MEM014" for finding in odd)
        findings += odd
    return (build_plan(values) if valid and not alone else None), findings


def build_plan(values: dict[str, Any]) -> Plan:
    """Return the typed plan of values that conform to the schema."""
    training, inference = values.get("training"), values.get("inference")
    return Plan(
        memcheck=1,
        model=_model(values["model"]),
        hardware=_hardware(values["hardware"]),
        name=values.get("name"),
        description=values.get("description"),
        extends=values.get("extends"),
        source=values.get("source"),
        parallelism=ParallelismSpec(**_whole(_without_auto(values.get("parallelism", {})))),
        training=None if training is None else _training(training),
        inference=None if inference is None else _inference(inference),
        policy=_policy(values.get("policy", {})),
    )


def _whole(values: dict[str, Any]) -> dict[str, Any]:
    """4.0 is an integer to JSON Schema; to arithmetic it must be one."""
    if not any(value.__class__ is float for value in values.values()):
        return values
    whole = integer_keys()
    return {
        name: int(value) if value.__class__ is float and name in whole and value.is_integer() else value
        for name, value in values.items()
    }


def _without_auto(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == "auto" else value for name, value in values.items()}


def _model(value: Any) -> ModelSpec:
    """Return the typed ``model`` section, which may be one word: the model's name."""
    if isinstance(value, str):
        return ModelSpec(name=value)
    rough = value.get("rough")
    if rough is None:
        return ModelSpec(**value)
    return ModelSpec(rough=RoughSpec(**_whole({**rough, "parameters": parse_count(rough["parameters"])})))


def _hardware(values: dict[str, Any]) -> HardwareSpec:
    gpu = values["gpu"]
    record = GpuSpec(gpu) if isinstance(gpu, str) else GpuSpec(**gpu)
    return HardwareSpec(**_whole({**values, "gpu": record}))


def _training(values: dict[str, Any]) -> TrainingSpec:
    """Return the typed ``training`` section."""
    typed = _whole(_without_auto(values))
    for name, read in _RECORDS.items():
        if name in typed:
            typed[name] = read(typed[name])
    return TrainingSpec(**typed)


def _inference(values: dict[str, Any]) -> InferenceSpec:
    typed = _whole(values)
    demand = typed.get("demand")
    return InferenceSpec(**typed if demand is None else {**typed, "demand": DemandSpec(**_whole(demand))})


def _teacher(value: dict[str, Any]) -> TeacherSpec:
    return TeacherSpec(_model(value["model"]))


def _record(record: Callable[..., _Record], short: str) -> Callable[[Any], _Record]:
    """Return a reader for a record that may be written as one word, which then is its ``short`` field."""

    def read(value: Any) -> _Record:
        if not isinstance(value, dict):
            return record(**{short: value})
        lists = {name: tuple(item) if item.__class__ is list else item for name, item in value.items()}
        return record(**_whole(lists))

    return read


def _policy(values: dict[str, Any]) -> PolicySpec:
    fractions: dict[str, Any] = {name: parse_fraction(value) for name, value in values.items()}
    return PolicySpec(**fractions)


def parse_count(value: str | float) -> int:
    """Return ``700M``, ``8B`` or a number, exactly."""
    if not isinstance(value, str):
        return int(value)
    whole, _, decimals = value[:-1].strip().partition(".")
    scale: int = 10 ** len(decimals)
    return max(1, int(whole + decimals) * _MULTIPLES[value[-1].lower()] // scale)


def parse_fraction(value: str | float) -> str | float:
    """``90%`` is 0.9; a number and ``modeled`` stay as they are."""
    if isinstance(value, str) and value.rstrip().endswith("%"):
        return float(value.rstrip()[:-1]) / 100
    return value


_RECORDS: dict[str, Callable[[Any], Any]] = {
    "teacher": _teacher,
    "trainer": _record(TrainerSpec, "name"),
    "evaluation": _record(EvaluationSpec, "micro_batch_size"),
    "head": _record(HeadSpec, "kind"),
    "objective": _record(ObjectiveSpec, "name"),
    "base": _record(BaseSpec, "held_in"),
    "lora": _record(LoraSpec, "rank"),
    "images": _record(ImagesSpec, "per_sample"),
    "freeze": tuple,
    "precision": _record(PrecisionSpec, "recipe"),
    "optimizer": _record(OptimizerSpec, "name"),
    "activation_checkpointing": _record(ActivationCheckpointingSpec, "mode"),
    "loss": _record(LossSpec, "kind"),
    "offload": _record(OffloadSpec, "parameters"),
    "initialization": _record(InitializationSpec, "place"),
    "checkpoint": _record(CheckpointSpec, "state_dict"),
    "kernels": _record(KernelsSpec, "ssm"),
}
"""Keys of ``training`` that become records."""


def load_documents(path: str, data: bytes) -> list[Document]:
    """Return every YAML document of a file, in order. Empty documents are left out but counted.

    Never raises for bad input: what cannot be read becomes a document whose ``values`` are None and whose
    findings say why. Reads other files only for ``extends``.
    """
    path = shown_path(path)
    text, finding = decode(path, data)
    lines = split_lines(text)
    if finding is not None:
        return [_unreadable(path, 0, lines, finding)]
    documents: list[Document] = []
    composer = Composer(text).documents()
    inherited = Inherited()
    index = -1
    while True:
        index += 1
        try:
            composed = next(composer, None)
        except (ComposeError, yaml.YAMLError) as error:
            documents.append(_unreadable(path, index, lines, syntax_finding(path, text, lines, error)))
            return documents
        if composed is None:
            return documents
        if composed.values is not None:
            documents.append(_document(path, index, lines, composed, inherited))


class Inherited:
    """How many values the documents of one file have taken from those that they extend."""

    def __init__(self) -> None:
        self.count = 0


def _document(path: str, index: int, lines: tuple[str, ...], composed: Composed, inherited: Inherited) -> Document:
    """Return the document with everything that it extends."""
    values = composed.values
    if isinstance(values, dict) and "extends" in values:
        from memcheck.plan.extends import extended

        return extended(path, index, lines, composed, inherited)
    sources = {path: lines}
    marks = Marks(path, composed.root, sources)
    findings = tuple(locate(problem, marks) for problem in composed.problems)
    return Document(
        path=path,
        index=index,
        values=values,
        marks=marks,
        sources=sources,
        findings=findings,
        odd=composed.odd,
        lines=composed.lines,
    )


def locate(problem: ComposeProblem, marks: Marks) -> Finding:
    """Return a problem of composing, as a finding."""
    related = tuple((label, marks.at(event)) for label, event in problem.related)
    return problem.code.at(marks.at(problem.event), problem.message, help=problem.help, related=related)


def syntax_finding(path: str, text: str, lines: tuple[str, ...], error: Any) -> Finding:
    """Return the finding for a document that could not be composed."""
    if isinstance(error, ComposeError):
        return locate(error.problem, Marks(path, None, {path: lines}))
    from memcheck.plan.syntax import explain

    return explain(path, text, error)


def _unreadable(path: str, index: int, lines: tuple[str, ...], finding: Finding) -> Document:
    """Return a document without values, with the finding that says why."""
    sources = {path: lines}
    return Document(
        path=path, index=index, values=None, marks=Marks(path, None, sources), sources=sources, findings=(finding,)
    )


SHORT = {
    "hardware.gpu": "name",
    "training.trainer": "name",
    "training.objective": "name",
    "training.head": "kind",
    "training.lora": "rank",
    "training.precision": "recipe",
    "training.optimizer": "name",
    "training.activation_checkpointing": "mode",
    "training.loss": "kind",
    "training.initialization": "place",
    "training.checkpoint": "state_dict",
}
"""Keys that may be written as one word, and the field that the word then is."""
MODEL = "model"
BESIDE_A_NAME = "overrides"
"""The field of a model that may be set together with its name; any other field replaces the name."""


def with_changes(document: Document, changes: Mapping[str, object]) -> Document:
    """Return the document with dotted keys set to new values; missing mappings on the way are made.

    If a mapping is written as one word (``gpu: h100-80gb``) and a field of it is set, the word becomes the field that
    it stands for. The places of values stay what they were: a finding about a changed value points at what it replaced.
    """
    top: dict[str, object] = {"": document.values}
    own: set[int] = set()
    """Mappings that were made here. Others are copied: aliases share objects, and no other place may show a change."""
    for key, value in changes.items():
        place, name, above = top, "", ""
        for part in fields(key):
            found = place.get(name)
            if isinstance(found, dict) and id(found) in own:
                table = found
            else:
                table = dict(found) if isinstance(found, dict) else _long(found, above, part)
                own.add(id(table))
                place[name] = table
            place, name, above = table, part, f"{above}.{part}" if above else part
        place[name] = value
    pointers = tuple(["/" + key.replace(".", "/") for key in changes])
    return document._replace(values=top[""], changed=document.changed + pointers)


@lru_cache(maxsize=1024)
def fields(key: str) -> tuple[str, ...]:
    """The parts of a dotted key."""
    return tuple(key.split("."))


def _long(written: object, key: str, field: str) -> dict[str, object]:
    """Return the mapping that a short form stands for; an empty one where there is none."""
    if written is None:
        return {}
    if key == MODEL:
        return {"name": written} if field == BESIDE_A_NAME else {}
    return {SHORT[key]: written} if key in SHORT else {}


_NUMBERS = {"integer", "number"}
_VERSION = "_version"
"""How options of a framework end whose values are releases; the schema takes any value of an option."""


def read_stated(written: str) -> tuple[str, object]:
    """Read the dotted key and its value, read as YAML; a key of text keeps what is written (``4.40``).

    Raises:
        ValueError: it is of another form, no YAML, or not finite.
    """
    key, equals, text = written.partition("=")
    if not equals or not all(key.split(".")):
        raise ValueError(f"{written!r} is not of the form training.micro_batch_size=4")
    try:
        value = yaml.safe_load(text)
        finite = _is_finite(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: the 45th of January
        raise ValueError(f"the value of {key} is not YAML: {text!r}") from error
    if not finite:
        raise ValueError(f"the value of {key} must be finite: {text!r}")
    plain = value is not None and not isinstance(value, (str, bool, list, dict))
    return key, text.strip() if plain and _takes_text(key) else value


def _takes_text(key: str) -> bool:
    """Say whether the schema has a text and no number for the key."""
    root = load_schema()
    found = schema_of(key, root)
    if not found:
        return found is not None and key.endswith(_VERSION)
    known = types(found, root)
    return "string" in known and known.isdisjoint(_NUMBERS)


def _is_finite(value: object) -> bool:
    """No NaN and no infinity at any depth. Ends in RecursionError for a value that contains itself."""
    if isinstance(value, float):
        return math.isfinite(value)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_is_finite, children))
