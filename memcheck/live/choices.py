"""Which values of a key a plan could have: every candidate read, resolved and checked by the layout rules.

Dotted keys and values as the author of a plan would write them, whether a key has a short or a long form.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE, Gate
from memcheck.errors import UnsupportedError, UsageError
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import Resolved, with_batch
from memcheck.judge import effective_policy
from memcheck.live.replies import KeyChoice
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.read import SHORT
from memcheck.plan.schema import Schema, branches, load_schema, schema_of
from memcheck.plan.types import PolicySpec
from memcheck.rules.budget import divisors
from memcheck.rules.run import check_layout, make_context
from memcheck.rules.types import located
from memcheck.what_if.variants import Frames, Variants

NAMES = ("name", "config", "architecture", "rough")
"""Fields of a model of which a plan states one."""
WHOLE = frozenset({"hardware.gpu", "model"})
"""Keys that a name replaces as a whole, where a mapping is written."""
EITHER = {
    "training.global_batch_size": "training.gradient_accumulation_steps",
    "training.gradient_accumulation_steps": "training.global_batch_size",
}
"""Keys of which a plan states one at most: to set the one removes the other."""


def wish(document: Document, changes: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """The changes as the plan's author would write them, and the keys to remove."""
    wanted: dict[str, object] = {}
    removed: dict[str, None] = {}
    for key, value in changes.items():
        if not key or not all(key.split(".")):
            raise UsageError(f"{key[:50]!r} is not a key of a plan", "such as training.micro_batch_size")
        spelled = _spelled(document, key)
        if value is None:
            if _is_there(document.values, spelled):
                removed[_emptied(document.values, spelled)] = None
            continue
        if value == written_value(document.values, spelled):
            continue
        wanted[spelled] = value
        other = EITHER.get(key)
        if other is not None and other not in changes and _is_there(document.values, other):
            removed[other] = None
    return in_order(_gathered(document, in_order(_of_model(document, wanted)))), tuple(removed)


def in_order(changes: dict[str, object]) -> dict[str, object]:
    """The changes with their keys as the schema has them: mappings before their fields, other keys last."""
    if len(changes) < 2:
        return changes
    places = {key: number for number, key in enumerate(every_key())}
    return {key: changes[key] for key in sorted(changes, key=lambda key: places.get(key, len(places)))}


def _of_model(document: Document, wanted: Mapping[str, object]) -> dict[str, object]:
    """The changes with a model written anew where a field of it replaces its name, or another of :data:`NAMES`."""
    here = written_value(document.values, "model")
    inside = {key: value for key, value in wanted.items() if key.startswith("model.")}
    fields = {key.split(".")[1] for key in inside}
    replaced = fields.intersection(NAMES)
    if not inside or "model" in wanted or (isinstance(here, dict) and replaced <= here.keys()):
        return dict(wanted)
    kept = here if isinstance(here, dict) else {"name": here} if here is not None else {}
    model: dict[str, object] = {name: value for name, value in kept.items() if not (replaced and name in NAMES)}
    for key, value in inside.items():
        _, *path, last = key.split(".")
        place = model
        for name in path:
            below = place.get(name)
            place[name] = dict(below) if isinstance(below, dict) else {}
            place = place[name]  # type: ignore[assignment]  # made right above
        place[last] = value
    return {**{key: value for key, value in wanted.items() if key not in inside}, "model": model}


def _gathered(document: Document, wanted: Mapping[str, object]) -> dict[str, object]:
    """The changes with fields of a key that is written as one word gathered into a mapping of that key."""
    found: dict[str, object] = {}
    for key, value in wanted.items():
        parent, _, field = key.rpartition(".")
        here = found.get(parent, written_value(document.values, parent))
        if parent not in SHORT or (isinstance(here, dict) and parent not in found):
            found[key] = value
        elif isinstance(here, dict):
            found[parent] = {**here, field: value}
        elif here is None:
            found[parent] = value if SHORT[parent] == field and takes_word(parent) else {field: value}
        else:
            found[parent] = value if SHORT[parent] == field else {SHORT[parent]: here, field: value}
    return found


def _spelled(document: Document, key: str) -> str:
    """The key of the field that a word stands for, where the plan writes a mapping under the word's key."""
    if key in SHORT and key not in WHOLE and isinstance(written_value(document.values, key), dict):
        return f"{key}.{SHORT[key]}"
    parent, _, field = key.rpartition(".")
    is_field = SHORT.get(parent) == field and not isinstance(written_value(document.values, parent), dict)
    return parent if is_field and takes_word(parent) else key


def takes_word(key: str) -> bool:
    """Whether a key may be written as one word in place of a mapping."""
    root = load_schema()
    schema = schema_of(key, root)
    return bool(schema) and any(each.get("type") != "object" for each in branches(schema, root))  # type: ignore[arg-type]


def written_value(values: object, key: str) -> object:
    """The value under a dotted key of a plan's values; None where it is not written."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _is_there(values: object, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    above = written_value(values, parent) if parent else values
    return isinstance(above, dict) and name in above


def _emptied(values: object, key: str) -> str:
    """The key to remove so that no empty mapping stays."""
    parent = key.rpartition(".")[0]
    above = written_value(values, parent) if parent else None
    return _emptied(values, parent) if isinstance(above, dict) and len(above) == 1 else key


def stated_value(values: object, key: str) -> object:
    """The value that a plan states under a key; of a word's key the word, and of its field that word, too.

    None where the plan states nothing.
    """
    found = written_value(values, key)
    parent, _, field = key.rpartition(".")
    if found is None and parent in SHORT and SHORT[parent] == field:
        above = written_value(values, parent)
        return above if not isinstance(above, (dict, list)) else None
    if isinstance(found, dict) and key in SHORT:
        return found.get(SHORT[key])
    if isinstance(found, dict) and key == "model":
        return found.get("name")
    return found


@lru_cache(maxsize=1)
def order() -> dict[str, tuple[str, ...]]:
    """The keys of every mapping of the plan format in the schema's order, by the pointer of the mapping."""
    root = load_schema()
    found: dict[str, tuple[str, ...]] = {}
    pending: list[tuple[str, Schema]] = [("", root)]
    while pending:
        pointer, schema = pending.pop()
        for each in branches(schema, root):
            if "properties" in each:
                found[pointer] = tuple(each["properties"])
                pending += [(f"{pointer}/{name}", inner) for name, inner in each["properties"].items()]
    return found


@lru_cache(maxsize=1)
def every_key() -> tuple[str, ...]:
    """Every dotted key of the plan format in the schema's order, each mapping before its fields."""
    return tuple(_below(""))


def _below(pointer: str) -> Iterator[str]:
    for name in order().get(pointer, ()):
        inner = f"{pointer}/{name}"
        yield inner[1:].replace("/", ".")
        yield from _below(inner)


def without(values: object, removed: tuple[str, ...]) -> object:
    """A copy of the values without some keys."""
    for key in removed:
        head, _, rest = key.partition(".")
        if isinstance(values, dict) and head in values:
            inner = {head: without(values[head], (rest,))} if rest else {}
            values = {name: inner.get(name, each) for name, each in values.items() if name != head or rest}
    return values


MOST = 40
"""Values of a key that are tried."""
LARGEST_DEGREE = 4096
"""Degrees beyond this are not tried."""
DEGREES = frozenset(
    {"tensor", "context", "pipeline", "expert", "expert_tensor", "data", "shard_group", "gpus_per_node"}
)
"""Keys whose values divide a number of GPUs."""
SERIES: Mapping[str, tuple[object, ...]] = {
    "hardware.gpus_per_node": (1, 2, 4, 8, 16),
    "hardware.nodes": (1, 2, 4, 8, 16, 32, 64, 128),
    "parallelism.zero_stage": (0, 1, 2, 3),
    "parallelism.virtual_stages": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    "training.micro_batch_size": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
    "training.sequence_length": tuple(2**power for power in range(8, 21)),
    "training.gradient_accumulation_steps": (1, 2, 4, 8, 16, 32, 64, 128),
    "training.lora.rank": (4, 8, 16, 32, 64, 128, 256),
    "training.loss.chunks": (2, 4, 8, 16, 32),
    "training.evaluation.micro_batch_size": (1, 2, 4, 8, 16, 32),
    "inference.batch_size": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "inference.context_length": tuple(2**power for power in range(9, 21)),
    "inference.chunk": (512, 1024, 2048, 4096, 8192, 16384),
    "inference.tensor": (1, 2, 4, 8, 16),
    "inference.pipeline": (1, 2, 4, 8),
    "inference.max_num_seqs": (1, 8, 16, 32, 64, 128, 256, 512, 1024),
    "policy.overhead": ("modeled", "10%"),
}
"""Values to try of keys that the schema does not list values for."""


class Choosing:
    """Tries values of one document's keys. ``gate``: for the policy, as in a check."""

    def __init__(self, document: Document, gate: Gate | None = None) -> None:
        self.document = document
        self._gate = Gate() if gate is None else gate
        self._variants: dict[tuple[str, ...], Variants] = {}
        """Readers of the document without some of its keys."""
        self._frames = Frames(os.path.dirname(document.path) or ".")
        self._policy: tuple[PolicySpec | None, PolicySpec] = (None, PolicySpec())

    def refusal(self, key: str, value: object) -> Finding | None:
        """Why the plan is refused before its memory is estimated if the key has this value; None where it is not."""
        changes, removed = wish(self.document, {key: value})
        _, errors = self._tried(changes, removed)
        return errors[0] if errors else None

    def resolved(self, changes: Mapping[str, object]) -> Resolved | None:
        """The job of the plan with these values; None where a rule refuses it."""
        found, errors = self._tried(changes)
        return None if errors else found

    def _tried(
        self, changes: Mapping[str, object], removed: tuple[str, ...] = ()
    ) -> tuple[Resolved | None, list[Finding]]:
        variants = self._variants.get(removed)
        if variants is None:
            rest = self.document._replace(values=without(self.document.values, removed))
            variants = self._variants[removed] = Variants(rest)
        plan, findings = variants.read(changes)
        errors = _errors(findings)
        if plan is None or errors:
            return None, errors
        if plan.policy is not self._policy[0]:
            self._policy = (plan.policy, effective_policy(plan.policy, self._gate))
        plan = plan._replace(policy=self._policy[1])
        try:
            frame = self._frames.of(plan)
            resolved = with_batch(frame.known, plan.training)
            context = make_context(
                plan, self.document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE
            )
            found, _ = check_layout(context, standing=frame.standing(context))
        except (ResolutionError, UnsupportedError) as error:
            return None, located(error, self.document)
        return resolved, _errors(found)

    def choices(self, key: str) -> tuple[KeyChoice, ...]:
        """Every value of a key that is tried, and why it is refused where it is; empty for a key of any text."""
        now = stated_value(self.document.values, key)
        return tuple(self.choice(key, value) for value in candidates(self.document.values, key, now))

    def choice(self, key: str, value: object) -> KeyChoice:
        """One value of a key, and why it is refused where it is."""
        refusal = self.refusal(key, value)
        return KeyChoice(
            value=value,
            label=label(value),
            told="",
            legal=refusal is None,
            code=refusal.code if refusal else "",
            reason=refusal.message if refusal else "",
        )


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity == "error"]


def label(value: object) -> str:
    """A value as a reader sees it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)


def candidates(values: object, key: str, now: object) -> tuple[object, ...]:
    """The values of a key to try: those that the schema lists, else those of a series, with the present one."""
    found = listed(key)
    if not found:
        found = SERIES.get(key, ())
        parent, _, name = key.rpartition(".")
        if name in DEGREES and parent == "parallelism":
            found = divisors(world_size(values), LARGEST_DEGREE)[:MOST]
        if not found:
            return ()
        if (
            now is not None
            and not isinstance(now, (dict, list))
            and not any(now is each or now == each for each in found)
        ):
            found = ordered((*found, now))
    return found[:MOST]


def listed(key: str) -> tuple[object, ...]:
    """The values that the schema lists for a key, or for the word that the key may be written as."""
    root = load_schema()
    schema = schema_of(key, root)
    if not schema:
        return ()
    found: list[object] = []
    for each in branches(schema, root):
        kind = each.get("type")
        if "enum" in each:
            found += each["enum"]
        elif kind == "boolean":
            found += [False, True]
        elif kind not in ("object", "array"):
            return ()
    return tuple(found)


def ordered(values: tuple[object, ...]) -> tuple[object, ...]:
    """Numbers by size, with words after them."""
    numbers = [each for each in values if isinstance(each, (int, float)) and not isinstance(each, bool)]
    return (*sorted(numbers), *(each for each in values if each not in numbers))


def world_size(values: object) -> int:
    """The GPUs that a plan states; 1 where it says nothing of use."""
    found = 1
    for key in ("hardware.nodes", "hardware.gpus_per_node"):
        count = written_value(values, key)
        found *= count if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= 2**20 else 1
    return found
