"""Runs a plan's step and compares; whatever PyTorch throws becomes an error that names the step."""

from __future__ import annotations

import os
import traceback

from memcheck.errors import MemcheckError, UsageError
from memcheck.verify.compare import RankComparison, compare
from memcheck.verify.errors import RefusedStepError
from memcheck.verify.observed.judge import workspaces
from memcheck.verify.progress import Progress
from memcheck.verify.quiet import quiet
from memcheck.verify.request import Request
from memcheck.verify.types import MEASURED, Observation

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
                from memcheck.verify.measure.run import measure

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
