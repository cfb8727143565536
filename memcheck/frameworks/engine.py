"""An engine that wraps the model and runs its steps, as DeepSpeed's does: what torch's steps ask it for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from memcheck.edge.imports import import_module
from memcheck.frameworks.registry import FOLDERS
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.accounts.state import LocalTensor
    from memcheck.frameworks.torch.data_parallel import Strategy
    from memcheck.job.framework import Framework
    from memcheck.job.types import TrainingJob

    Tensors = Sequence[tuple[LocalTensor, ...]]

    class ResidentBuffers(Protocol):
        """Bytes of an engine's buffers on one rank that a step's record does not count."""

        @property
        def resident(self) -> int:
            """Bytes of buffers that exist from the engine's start."""

        @property
        def persistent(self) -> int:
            """Bytes of unsharded parameters, which are freed while the optimizer runs."""

        @property
        def live_parameters(self) -> int:
            """Gathered parameters during a forward."""

        @property
        def master(self) -> int:
            """A second copy of parameters, which the optimizer steps on."""

        @property
        def gradients(self) -> int:
            """Gradients that stay allocated from step to step."""

        @property
        def step_temporaries(self) -> int:
            """Copies of gradients while the optimizer runs."""

        @property
        def other_streams(self) -> int:
            """The most that comes on streams of the engine's own."""

    class BuffersOf(Protocol):
        """A function from a rank's parameters, unit by unit, to the engine's buffers."""

        def __call__(self, job: TrainingJob, units: Tensors, *, recomputes: bool | None = None) -> ResidentBuffers:
            """``recomputes``: autograd saves nothing of a layer; None: what a step gathers is not asked for."""


class Engine(Record):
    """What a folder has under ``ENGINE`` in its ``step.py``."""

    buffers: BuffersOf
    strategy: Callable[[TrainingJob, Tensors], tuple[Strategy, tuple[int, ...]]]
    """How it runs a step, and the sizes of its buffers."""
    sums_apart: Callable[[TrainingJob], bool]
    """Whether a hook casts each gradient that has arrived to fp32, to add it to a sum."""
    saves_inputs: Callable[[TrainingJob], bool]
    """Whether it puts a function of its own in place of ``F.linear``."""
    kept_whole: Callable[[TrainingJob, Sequence[LocalTensor]], int]
    """Bytes of a model other than the trained one that it does not divide."""
    gathered_at_once: Callable[[TrainingJob, Sequence[LocalTensor], str], int]
    """Bytes of such a model that are gathered while its forward runs; the last argument is the dtype."""


@lru_cache(maxsize=16)
def engine_code(framework: Framework) -> Engine | None:
    """The engine of a framework; None where torch's own data parallelism runs."""
    if framework.data_parallel != "zero":
        return None
    engine: Engine = import_module(f"memcheck.frameworks.{FOLDERS[framework.name]}.step").ENGINE
    return engine
