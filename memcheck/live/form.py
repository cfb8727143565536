"""The plan as controls: groups of fields with their labels, ranges, values, and the values that are legal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from memcheck.catalog.names import GpuSize, gpu_sizes
from memcheck.edge.screen import gib
from memcheck.job.types import Assumption
from memcheck.live.choices import Choosing, candidates, every_key, listed, stated_value, written_value
from memcheck.live.moves import Positions
from memcheck.live.replies import FormField, FormGroup, KeyChoice, PlanForm
from memcheck.plan.places import Document
from memcheck.plan.read import SHORT
from memcheck.plan.schema import Schema, branches, load_schema, schema_of
from memcheck.record import Record
from memcheck.report.story.remedies import SILENT
from memcheck.rules.result import PlanResult

GROUPS = ("model", "hardware", "parallelism", "training", "inference", "policy")
"""Sections of a plan that are groups of the form."""
MAIN = frozenset(
    {
        "model",
        "hardware.gpu",
        "hardware.gpus_per_node",
        "hardware.nodes",
        "parallelism.zero_stage",
        "parallelism.tensor",
        "parallelism.context",
        "parallelism.pipeline",
        "parallelism.expert",
        "training.framework",
        "training.method",
        "training.lora.rank",
        "training.lora.target_modules",
        "training.micro_batch_size",
        "training.sequence_length",
        "training.gradient_accumulation_steps",
        "training.precision",
        "training.optimizer",
        "training.activation_checkpointing",
        "training.attention",
        "inference.batch_size",
        "inference.context_length",
        "inference.weights",
        "inference.kv_cache",
        "inference.engine",
        "inference.tensor",
        "inference.max_model_len",
        "inference.gpu_memory_utilization",
        "policy.overhead",
    }
)
"""Fields that are shown at once; the others are shown on demand."""
ADAPTED = ("lora", "qlora")
UNITS = (("_length", "tokens"), ("_gib", "GiB"), ("_bytes", "bytes"), ("_tflops", "TFLOPS"), ("_gbs", "GB/s"))
"""The unit of a key, by how the key ends."""
GPU = "hardware.gpu"
USUAL = ("rtx-4090", "l40s", "a100-40gb", "a100-80gb", "h100-80gb", "h200", "b200", "mi300x")
"""The GPUs to choose from at first: one of each common size."""
SOON, ASKED, NONE = "soon", "asked", "none"
"""When the values of a field are known."""
TEXTBOOK = "policy.overhead"
"""The key that is set to a flat share for textbook figures."""


class FieldForm(Record):
    """What the format says of a key, whatever the plan says."""

    key: str
    label: str
    kind: str
    """``choice``, ``flag``, ``number``, ``text``, ``list``, ``model`` or ``gpu``."""
    told: str
    unit: str
    minimum: float | None
    maximum: float | None
    default: object


@lru_cache(maxsize=1)
def forms() -> Mapping[str, FieldForm]:
    """Every key that is a field, in the schema's order."""
    return {each.key: each for each in _forms()}


def _forms() -> Iterator[FieldForm]:
    root = load_schema()
    titles: dict[str, str] = {}
    for key in every_key():
        parent, _, name = key.rpartition(".")
        schema = schema_of(key, root)
        if key.partition(".")[0] not in GROUPS or not schema or parent.startswith("training.teacher"):
            continue
        title = str(_said(schema, root, "title", name.replace("_", " ").capitalize()))
        titles[key] = title if parent in ("", *GROUPS) else f"{titles.get(parent, parent)}: {title.lower()}"
        union = branches(schema, root)
        if SHORT.get(parent) == name and any(each.get("type") != "object" for each in branches_of(parent)):
            continue  # the word of the key above
        if key == "hardware.gpu" or (parent == "hardware.gpu" and name == "name"):
            if parent == "hardware.gpu":
                continue
        elif all(each.get("type") == "object" for each in union) or key == "model.name":
            continue  # a mapping, whose fields follow
        yield FieldForm(
            key=key,
            label=titles[key],
            kind=kind_of(key, union),
            told=str(_said(schema, root, "description", "")),
            unit=next((unit for end, unit in UNITS if name.endswith(end)), ""),
            minimum=_bound(union, "minimum", "exclusiveMinimum"),
            maximum=_bound(union, "maximum"),
            default=_said(schema, root, "default", None),
        )


def branches_of(key: str) -> list[Schema]:
    """The branches of a key's schema."""
    root = load_schema()
    return branches(schema_of(key, root) or {}, root)


def _said(schema: Schema, root: Schema, word: str, other: object) -> object:
    """What a schema says under a word, or the one that it refers to."""
    while word not in schema and "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
    return schema.get(word, other)


def _bound(union: list[Schema], *words: str) -> float | None:
    """The first bound of a union's numbers."""
    return next((each[word] for each in union for word in words if word in each), None)


def kind_of(key: str, union: list[Schema]) -> str:
    """What kind of control a key needs."""
    if key in ("model", "hardware.gpu"):
        return key.rpartition(".")[2]
    types = {each.get("type", "string" if "enum" in each else "") for each in union}
    if types == {"boolean"}:
        return "flag"
    if listed(key):
        return "choice"
    if types & {"integer", "number"}:
        return "number"
    return "list" if "array" in types else "text"


def form(document: Document, plan: PlanResult, positions: Positions) -> PlanForm:
    """The controls of one plan."""
    values = document.values if isinstance(document.values, dict) else {}
    assumed = {each.key: each for each in plan.assumptions}
    groups: dict[str, list[str]] = {name: [] for name in GROUPS if is_shown(name, values)}
    fields: dict[str, FormField] = {}
    for key, each in forms().items():
        name = key.partition(".")[0]
        if name in groups and (key == "model" or is_written(values, key) or not key.startswith("model.")):
            groups[name].append(key)
            fields[key] = field(each, document, assumed, positions)
    root = load_schema()
    titles = root["properties"]
    return PlanForm(
        groups=tuple(
            FormGroup(
                id=name,
                title=str(_said(titles[name], root, "title", name)),
                told=str(_said(titles[name], root, "description", "")),
                keys=tuple(keys),
            )
            for name, keys in groups.items()
        ),
        fields=fields,
        textbook=is_flat(stated_value(values, TEXTBOOK)),
        assumed=len(assumed),
    )


def soon(made: PlanForm, choosing: Choosing) -> Iterator[tuple[str, tuple[KeyChoice, ...]]]:
    """The values of each field that is shown at once, one field after the other."""
    for key, each in made.fields.items():
        if each.choices == SOON:
            yield key, choices(key, choosing, whole=False)


def is_flat(value: object) -> bool:
    """Whether an overhead is a flat share, as in textbooks."""
    return value is not None and value != "modeled"


def is_shown(group: str, values: Mapping[str, object]) -> bool:
    """Whether a plan has a use for a group: it either trains or serves."""
    if group in ("training", "inference"):
        other = {"training": "inference", "inference": "training"}[group]
        return group in values or other not in values
    engine = written_value(values, "inference.engine")
    return group != "parallelism" or engine is None


def is_written(values: object, key: str) -> bool:
    """Whether the plan states the key."""
    return stated_value(values, key) is not None


def field(
    each: FieldForm,
    document: Document,
    assumed: Mapping[str, Assumption],
    positions: Positions,
) -> FormField:
    """One control with its value: as the plan states it, as it was assumed, or as the format's silence means."""
    key, main = each.key, each.key in MAIN
    now = stated_value(document.values, key)
    taken = assumed.get(key) or assumed.get(f"{key}.{SHORT.get(key, '')}")
    origin = "stated" if now is not None else "assumed" if taken is not None else "default"
    default = SILENT.get(key, each.default)
    value = now if now is not None else taken.value if taken is not None else default
    pointer = "/" + key.replace(".", "/")
    place = None
    if now is not None:
        where = document.locate(pointer)
        if where.path == document.path:
            place = positions.span(where.span)[0]
    relevant = not key.startswith("training.lora.") or stated_value(document.values, "training.method") in ADAPTED
    finite = key == GPU or bool(candidates(document.values, key, now))
    return FormField(
        key=key,
        label=each.label,
        kind=each.kind,
        told=each.told,
        unit=each.unit,
        value=value,
        origin=origin if value is not None else "unset",
        why=taken.why if taken is not None and now is None else "",
        minimum=each.minimum,
        maximum=each.maximum,
        main=main and relevant,
        relevant=relevant,
        choices=SOON if main and relevant and finite else ASKED if finite else NONE,
        place=place,
    )


def choices(key: str, choosing: Choosing, *, whole: bool = True) -> tuple[KeyChoice, ...]:
    """The values of a key with what there is to know of each. Of GPUs, the plan's own and the usual ones come first.

    ``whole``: with the other GPUs of the catalog after them.
    """
    if key != GPU:
        return choosing.choices(key)
    sizes = {each.name: each for each in gpu_sizes()}
    now = stated_value(choosing.document.values, key)
    own = () if now in USUAL or not isinstance(now, str) else (now,)
    names = dict.fromkeys((*own, *USUAL, *(sizes if whole else ())))
    return tuple(choosing.choice(key, name)._replace(told=gpu_facts(sizes.get(name))) for name in names)


def gpu_facts(size: GpuSize | None) -> str:
    """Memory and rate of a GPU in words; empty for one that the catalog does not have under this name."""
    if size is None:
        return ""
    rate = f", {size.bf16_tflops:,.0f} TFLOPS" if size.bf16_tflops else ""
    return f"{gib(size.memory_bytes)} GiB{rate}"
