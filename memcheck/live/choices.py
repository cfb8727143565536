"""Which values of a key a plan could have: every candidate read, resolved and checked by the layout rules."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE, Gate
from memcheck.errors import UnsupportedError
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import Resolved, with_batch
from memcheck.judge import effective_policy
from memcheck.live.replies import KeyChoice
from memcheck.live.spelling import stated_value, wish, without, written_value
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.schema import branches, load_schema, schema_of
from memcheck.plan.types import PolicySpec
from memcheck.rules.located import located
from memcheck.rules.run import check_layout, make_context
from memcheck.rules.words import divisors
from memcheck.what_if.variants import Frames, Variants

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
