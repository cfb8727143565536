"""Runs a plan's step and compares it with the estimate, for ``--trace`` and ``--measure``.

A plan that PyTorch cannot run as it is becomes one that can. An exception of PyTorch becomes an error that names the
step.

The process that runs PyTorch: its extra, Ctrl-C, progress on stderr, quiet libraries.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO, final

from memcheck import __version__
from memcheck.edge.screen import put, put_over
from memcheck.errors import MemcheckError, UsageError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.images import gives
from memcheck.job.types import TrainingJob
from memcheck.job.versions import TRANSFORMERS, behaviour
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.rules.result import PlanResult
from memcheck.verify.compare import MEASURED, Observation, RankComparison, RefusedStepError, UntraceableError, compare
from memcheck.verify.stand_in import StandIn, refuse, stand_ins
from memcheck.verify.subject import (
    TORCH_VERSION,
    Subject,
    changed,
    hugging_face_config,
    load_subject,
    with_torch,
    workspaces,
)

NEEDED = ("torch", "transformers", "peft")
INSTALL = "pip install 'memcheck[verify]'"


class MissingVerifyExtraError(UsageError):
    """A library of the extra is not installed, or cannot be imported."""


def require_extra() -> None:
    """Make sure that every library of the extra can be found.

    Raises:
        MissingExtraError: with the command that installs them.
    """
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingVerifyExtraError(f"memcheck verify needs {', '.join(missing)}: {INSTALL}")
    try:
        import torch  # noqa: F401  # found is not yet usable: a wheel for another platform fails here
    except Exception as error:
        raise MissingVerifyExtraError(f"torch cannot be imported ({error}): {INSTALL}") from error


def versions() -> dict[str, str]:
    """What the observation was made with."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"memcheck": __version__, "python": platform.python_version()}
    for name in (*NEEDED, "accelerate", "torchtitan"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # noqa: PERF203 - five names
            continue
    return found


@final
class Interrupts:
    """Remembers the first interrupt; a second one acts at once.

    An exception raised by a signal handler inside a weak reference's callback would be swallowed.
    """

    def __init__(self) -> None:
        self._seen = False
        self._before: object = None

    def seen(self) -> bool:
        """Whether to stop."""
        return self._seen

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._seen:
            raise KeyboardInterrupt
        self._seen = True

    def __enter__(self) -> Interrupts:
        """Take over from the default handler, in the main thread only: elsewhere signals do not arrive."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        """Give back the handler; an interrupt that has not been handled yet is raised now."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]  # what signal() gave us
            self._before = None
        if self._seen and error[0] is None:
            raise KeyboardInterrupt


INTERVAL_S = 0.1
"""A line that changes more often cannot be read."""


class Progress:
    """One line that is written over on a terminal; elsewhere one line per step."""

    def __init__(self, stream: TextIO, *, terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._terminal = terminal
        self._clock = clock
        self._rank = self._step = ""
        self._layers = 0
        self._shown = 0
        self._last = float("-inf")

    def begin(self, rank: str, layers: int) -> None:
        """Begin a new rank. ``layers``: the number of layers of its model."""
        self._rank, self._step, self._layers = rank, "", layers

    def say(self, step: str) -> None:
        """A new step."""
        self._step = step
        text = f"tracing {self._rank}: {step}"
        if self._terminal:
            self._write_over(text)
        else:
            put(self._stream, f"memcheck: {text}\n")

    def at(self, phase: str, module: str) -> None:
        """Show where in the step the run is."""
        if not self._terminal:
            return
        now = self._clock()
        if now - self._last < INTERVAL_S:
            return
        self._last = now
        layer = next((int(part) for part in module.split(".") if part.isdigit()), None)
        where = "" if layer is None else f", layer {layer + 1} of {self._layers}"
        self._write_over(f"tracing {self._rank}: {self._step}, {phase}{where}")

    def end(self) -> None:
        """Leave no trace of the line."""
        if self._terminal:
            self._write_over("")
            put_over(self._stream, "")

    def _write_over(self, text: str) -> None:
        put_over(self._stream, text.ljust(self._shown))
        self._shown = len(text)


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings, no log lines below errors, no network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


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
    named = FRAMEWORKS[str(changes.get("training.framework", job.framework.name))].version_is_transformers
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


OURS = os.path.dirname(os.path.abspath(__file__))
HANDED = "func(*args"
"""How the modes that follow a step call what they were asked for: what is compiled has no frame of its own there."""


def observe(request: Request, mode: str, progress: Progress, ranks: tuple[int, ...]) -> Observation:
    """Trace or measure. ``ranks``: of the pipeline; all when empty.

    Raises:
        RefusedError: PyTorch or a library on top of it would not run the step.
    """
    pipeline = request.job.layout.pipeline
    beyond = [rank for rank in ranks if not 0 <= rank < pipeline]
    if beyond:
        raise UsageError(f"the plan has no pipeline rank {beyond[0]}", f"ranks are 0 to {pipeline - 1}")
    try:
        with quiet():
            if mode == MEASURED:
                from memcheck.verify.measure import measure

                return measure(request.job, request.architecture, request.config, progress)
            from memcheck.verify.trace.run import trace

            observation = trace(request.job, request.architecture, request.config, progress, ranks)
            return observation._replace(notes=(*observation.notes, *_left_out(observation, pipeline)))
    except MemcheckError:
        raise
    except Exception as error:
        if _is_ours(error):
            raise
        raise _refused(error) from error


def fullest(request: Request) -> tuple[int, ...]:
    """The pipeline rank whose peak is predicted highest."""
    worst = max(request.subject.estimate.ranks, key=lambda rank: rank.step.peak.allocated_bytes)
    return (worst.pipeline_rank,)


def _is_ours(error: Exception) -> bool:
    """Raised by our own code, rather than by a library that it called or by a function that it hands through to one."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not frames[-1].filename.startswith(OURS):
        return False
    return not (frames[-1].name.startswith("__torch_") and HANDED in (frames[-1].line or ""))


def _refused(error: Exception) -> RefusedStepError:
    frames = traceback.extract_tb(error.__traceback__)
    asked = next((f for f in reversed(frames) if f.filename.startswith(OURS)), None)
    where = f" (asked by {os.path.basename(asked.filename)}:{asked.lineno})" if asked is not None else ""
    said = " ".join(str(error).split())[:300]
    theirs = [f.filename for f in frames if not f.filename.startswith(OURS)]
    by = theirs[-1].replace(os.sep, "/").rpartition("/site-packages/")[2] if theirs else "PyTorch"
    return RefusedStepError(
        f"{by} would not run this step{where}: {type(error).__name__}: {said}",
        "verify a smaller part of the plan with --set, and report it if that fails, too",
    )


def _left_out(observation: Observation, pipeline: int) -> tuple[str, ...]:
    traced = [str(rank.pipeline_rank) for rank in observation.ranks]
    if len(traced) == pipeline:
        return ()
    name = "pipeline rank" if len(traced) == 1 else "pipeline ranks"
    return (f"{name} {', '.join(traced)} of {pipeline} traced, the fullest by default; --rank N looks at others",)


def compare_all(request: Request, observation: Observation) -> tuple[RankComparison, ...]:
    """Each observed rank compared with its prediction."""
    subject = request.subject
    surplus = workspaces(subject) if observation.mode == MEASURED else 0
    return tuple(compare(subject.estimate.ranks[seen.pipeline_rank].step, seen, surplus) for seen in observation.ranks)
