"""From a plan to the plan that can be run: what ``--trace`` and ``--measure`` start from."""

from __future__ import annotations

from typing import Any

from memcheck.architecture.types import Architecture
from memcheck.job.types import TrainingJob
from memcheck.record import Record
from memcheck.result import PlanResult
from memcheck.verify.errors import UntraceableError
from memcheck.verify.stand_in import StandIn, refuse, stand_ins
from memcheck.verify.subject import Subject, changed, hugging_face_config, load_subject


class Request(Record):
    """A step that can be run, and the prediction it is compared with."""

    subject: Subject
    """Of the plan that is run: the plan itself unless something stands in for a part of it."""
    job: TrainingJob
    architecture: Architecture
    config: dict[str, Any]
    """What transformers builds the model from."""
    replaced: tuple[StandIn, ...]


def runnable(subject: Subject) -> Request:
    """What can be run of a plan.

    Raises:
        UntraceableError: nothing stands for what the plan asks.
    """
    replaced = stand_ins(subject.job)
    if replaced:
        changes = {key: value for item in replaced for key, value in item.changes.items()}
        found = load_subject(changed(subject.document, changes))
        if isinstance(found, PlanResult):
            said = "; ".join(f.message for f in found.findings if f.severity == "error")
            raise UntraceableError(f"no stand-in for this plan: {said}", "verify a smaller part of it with --set")
        subject = found
    job = subject.job
    if not isinstance(job, TrainingJob) or not isinstance(job.architecture, Architecture):
        raise UntraceableError("nothing to run", "verify runs training steps of known models")
    refuse(job, job.architecture)
    config = hugging_face_config(subject.plan.model, subject.base_dir)
    return Request(subject, job, job.architecture, config, replaced)
