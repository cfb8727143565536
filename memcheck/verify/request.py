"""From a plan to the plan that can be run: what ``--trace`` and ``--measure`` start from."""

from __future__ import annotations

from typing import Any

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.image_outputs import gives
from memcheck.job.torch import behaviour
from memcheck.job.types import TrainingJob
from memcheck.job.versions import TRANSFORMERS
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.result import PlanResult
from memcheck.verify.errors import UntraceableError
from memcheck.verify.extra import versions
from memcheck.verify.stand_in import StandIn, refuse, stand_ins
from memcheck.verify.subject import TORCH_VERSION, Subject, changed, hugging_face_config, load_subject, with_torch


class Request(Record):
    """A step that can be run, and the prediction it is compared with."""

    subject: Subject
    """The plan that is run: the plan itself unless something stands in for a part of it."""
    job: TrainingJob
    architecture: Architecture
    config: dict[str, Any]
    """What transformers builds the model from."""
    replaced: tuple[StandIn, ...]


def runnable(subject: Subject) -> Request:
    """What can be run of a plan, estimated for the PyTorch that is installed.

    Raises:
        UntraceableError: nothing stands for what the plan asks.
    """
    replaced = stand_ins(subject.job)
    changes = {key: value for item in replaced for key, value in item.changes.items()}
    here = versions()
    if installed := here.get("torch"):
        other = _other_torch(subject, installed)
        replaced += other
        if changes or other or (isinstance(subject.job, TrainingJob) and subject.job.torch != (behaviour(installed),)):
            changes[TORCH_VERSION] = installed
    changes |= _older_transformers(subject, changes, here.get("transformers"))
    if changes:
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
    return Request(subject=subject, job=job, architecture=job.architecture, config=config, replaced=replaced)


def _older_transformers(subject: Subject, changes: dict[str, Any], installed: str | None) -> dict[str, Any]:
    """The key that says which transformers is installed, if its models' outputs keep less of a tower than those of the
    newest release. A plan that states no version is estimated for the newest one.
    """
    job, training = subject.job, subject.plan.training
    if installed is None or gives(installed) or not isinstance(job, TrainingJob) or job.images is None:
        return {}
    named = FRAMEWORKS[str(changes.get("training.framework", job.framework.name))].versions_models
    if training is None or (training.framework_version if named else job.option(TRANSFORMERS)):
        return {}
    return {"training.framework_version" if named else f"training.options.{TRANSFORMERS}": installed}


def _other_torch(subject: Subject, installed: str) -> tuple[StandIn, ...]:
    """A stated version that takes other amounts of memory for this step than the installed one."""
    job, training = subject.job, subject.plan.training
    stated = training and (training.torch_version or training.framework_version)
    if not isinstance(job, TrainingJob) or len(job.torch) > 1 or stated is None:
        return ()
    found = load_subject(with_torch(subject.document, installed))
    if isinstance(found, PlanResult) or not isinstance(found.job, TrainingJob) or found.job.torch == job.torch:
        return ()
    why = "it is the one that can be imported here"
    return (StandIn(TORCH_VERSION, stated, installed, why=why, changes={TORCH_VERSION: installed}),)
