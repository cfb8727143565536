"""A plan with what options say of its job: ``check plan.yaml --sequence-length 2048``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memcheck.configs.answers import FLAGS, LENGTH
from memcheck.configs.leaves import value_at
from memcheck.configs.release import release_key
from memcheck.finding import Finding
from memcheck.job.rows import LONGEST
from memcheck.job.types import UNPACKED
from memcheck.plan import codes
from memcheck.plan.changes import with_changes
from memcheck.plan.document import Document

SERVING = "inference"
STATED_LENGTH = "sequence_length"


def answered(document: Document, answers: Mapping[str, object]) -> Document:
    """The plan with the keys that options name, each in the place of what is written.

    ``answers``: by option, those of ``FLAGS`` but the hardware's and the model's, ``images``, ``framework_version``.
    """
    values = document.values
    if not isinstance(values, dict):
        return document
    if SERVING in values and "training" not in values:
        return document._replace(findings=(*document.findings, *_unread(document, answers)))
    changes = {FLAGS[name]: value for name, value in answers.items() if name in FLAGS and name != STATED_LENGTH}
    if "images" in answers:
        changes["training.images"] = answers["images"]
    length = answers.get(STATED_LENGTH)
    if length is not None:
        changes |= length_keys(values, length)
    release = answers.get("framework_version")
    if release is not None:
        framework = changes.get(FLAGS["framework"], value_at(values, FLAGS["framework"]))
        changes[release_key("", str(release), framework)] = release
    return with_changes(document, changes) if changes else document


def _unread(document: Document, answers: Mapping[str, object]) -> Iterator[Finding]:
    """One warning for the options that a plan which serves does not take."""
    names = [f"--{name.replace('_', '-')}" for name in answers if name != "defines"]
    if names:
        message = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} for training, and this plan serves"
        help = "the plan is checked as it is written; its own keys: --set inference.max_sequences=32"
        found = codes.CONFLICTING_KEYS.at(document.locate(f"/{SERVING}"), message, help=help)
        yield found._replace(severity="warning")


def length_keys(values: object, length: object) -> dict[str, object]:
    """The keys of a plan that take a stated length. Of rows that are not packed, the plan's own is only the limit."""
    limit = value_at(values, LENGTH)
    unpacked = value_at(values, "training.sequences") in UNPACKED
    if unpacked and isinstance(limit, int) and isinstance(length, int) and length <= limit:
        return {LONGEST: length}
    return {LENGTH: length}
