"""From ``training.teacher`` to a second model."""

from __future__ import annotations

from memcheck.job.errors import ResolutionError
from memcheck.job.model import resolve_model
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types

PLACE = "/training/teacher"


def resolve_teacher(stated: plan_types.TeacherSpec, base_dir: str) -> Architecture | Rough:
    """The teacher's model.

    Raises:
        ResolutionError: as of the model that is trained, at the teacher's place.
    """
    try:
        return resolve_model(stated.model, base_dir=base_dir)
    except ResolutionError as error:
        problems = tuple(p._replace(pointer=PLACE + p.pointer) for p in error.problems)
        raise ResolutionError(problems) from None
