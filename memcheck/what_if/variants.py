"""Typed plans of many variants of one document, and what variants share that differ in their batch alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError, resolve_model
from memcheck.job.resolve import framed
from memcheck.job.training_frame import JobFrame
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.memory.estimate import Estimator
from memcheck.models.types import Architecture, Rough
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan, with_changes
from memcheck.plan.types import ModelSpec, Plan, TrainingSpec
from memcheck.rules.run import Standing, check_standing
from memcheck.rules.types import RuleContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


REMEMBERED = 16384
"""Frames, and training sections, that are kept at most."""
BATCH = ("micro_batch_size", "sequence_length", "gradient_accumulation_steps", "global_batch_size")
"""Keys of ``training`` that :func:`memcheck.job.resolve.with_batch` reads."""


class SharedFrame:
    """One frame, with what its points have in common."""

    __slots__ = ("_estimator", "_standing", "known", "plan")

    def __init__(self, plan: Plan, known: JobFrame) -> None:
        self.plan = plan
        """The first point's, whose sections are what the frame is found by."""
        self.known = known
        self._standing: Standing | None = None
        self._estimator: Estimator | None = None

    def standing(self, context: RuleContext) -> Standing:
        """Return what the rules say of every batch; ``context``: of any point."""
        if self._standing is None:
            self._standing = check_standing(context)
        return self._standing

    def estimator(self) -> Estimator:
        """Predicts the memory of each.

        Raises:
            UnsupportedError: there is no memory model for what they ask.
        """
        if self._estimator is None:
            self._estimator = Estimator(self.known.job, self.known.gpu, self.known.overhead)
        return self._estimator

    def least_host_bytes(self, job: TrainingJob | InferenceJob) -> int:
        """Return what a node's memory holds at least of one of them; 0 where none that keeps nothing there has shown
        it.
        """
        if self._estimator is None or isinstance(job, InferenceJob) or self.known.overhead.kind == "flat":
            return 0
        moments = self._estimator.hosts.get((job.gradient_accumulation_steps > 1, 0), ())
        return max([moment.bytes for moment in moments], default=0)


class Frames:
    """The frames of one document's points. ``folder``: where relative paths of the plan start."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[tuple[object, ...], SharedFrame] = {}
        self._trained: dict[int, tuple[TrainingSpec, str]] = {}
        self._models: dict[int, tuple[ModelSpec, Architecture | Rough | None]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, plan: Plan) -> SharedFrame:
        """Return the point's frame. Sections are known by identity, because :class:`Variants` makes each of them once.

        Raises:
            ResolutionError: as :func:`memcheck.job.resolve.framed`.
        """
        trained = None if plan.training is None else self._without_batch(plan.training)
        sections = (plan.model, plan.hardware, plan.parallelism, plan.inference, plan.policy)
        key = (trained, *map(id, sections))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            frame = framed(plan, FRAMEWORKS, base_dir=self._folder, model=self._model(plan.model))
            found = self._known[key] = SharedFrame(plan, frame)
        return found

    def _model(self, model: ModelSpec) -> Architecture | Rough | None:
        """Return what the section says, read once: what is known of a model is found by its identity. None: it cannot
        be.
        """
        found = self._models.get(id(model))
        if found is None:
            try:
                read = resolve_model(model, base_dir=self._folder)
            except ResolutionError:
                read = None
            if len(self._models) >= REMEMBERED:
                self._models.clear()
            found = self._models[id(model)] = (model, read)
        return found[1]

    def _without_batch(self, training: TrainingSpec) -> str:
        """Return the section as it is written, but for its batch."""
        found = self._trained.get(id(training))
        if found is None:
            if len(self._trained) >= REMEMBERED:
                self._trained.clear()
            text = repr(training._replace(**dict.fromkeys(BATCH)))
            found = self._trained[id(training)] = (training, text)
        return found[1]


SECTIONS_KEPT = 65536
"""Variants of sections that are kept at most."""
Reading = tuple["Plan | None", "list[Finding]"]


class Variants:
    """Reads one document with different values in it. ``whole``: how a document is read."""

    def __init__(self, document: Document, whole: Callable[[Document], Reading] = read_plan) -> None:
        self.document, self._whole = document, whole
        plan, findings = whole(document)
        self._base = plan
        self._findings = findings
        self._sections: dict[str, object] = {}
        """By the keys and values as they are written, because 1 and true are one key of a dictionary."""

    def read(self, changes: Mapping[str, object]) -> Reading:
        """Read the plan with dotted keys set to other values, and what is wrong with it."""
        base = self._base
        if base is None:
            return self._whole(with_changes(self.document, changes))
        by_section: dict[str, list[tuple[str, object]]] = {}
        for item in changes.items():
            by_section.setdefault(item[0].partition(".")[0], []).append(item)
        parts: dict[str, Any] = {}
        for name, items in by_section.items():
            found = self._section(name, items)
            if found is None:
                return self._whole(with_changes(self.document, changes))
            parts[name] = found
        return base._replace(**parts), self._findings

    def _section(self, name: str, items: list[tuple[str, object]]) -> object:
        """Return the typed section with its values set; None if the document is not valid with them."""
        key = repr(items)
        if key in self._sections:
            return self._sections[key]
        plan, findings = self._whole(with_changes(self.document, dict(items)))
        found = getattr(plan, name, None) if plan is not None and len(findings) == len(self._findings) else None
        if len(self._sections) >= SECTIONS_KEPT:
            self._sections.clear()
        self._sections[key] = found
        return found
