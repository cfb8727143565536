"""Whose model code and buffers the schedules of this folder run: Megatron-core's, or another folder's."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from memcheck.autograd.context import Style
from memcheck.edge.imports import import_module
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.accounts.ranks import Components, ResidentStates
    from memcheck.autograd.context import Context, Setting
    from memcheck.autograd.tensor import Value
    from memcheck.frameworks.megatron.buffers import Counted
    from memcheck.frameworks.megatron.embedding import MegatronEmbedding
    from memcheck.frameworks.megatron.head import Gradients, MegatronHead
    from memcheck.frameworks.megatron.schedule import SchedulePosition
    from memcheck.frameworks.megatron.stages import Chunk
    from memcheck.frameworks.megatron.workspaces import ChunkContents, Device
    from memcheck.job.types import TrainingJob
    from memcheck.models.types import Architecture, Block

    class ConsecutiveLayers(Protocol):
        """A function that runs consecutive layers."""

        def __call__(self, ctx: Context, blocks: tuple[Block, ...], x: Value, /, *, recompute: bool) -> Value:
            """The residual stream after the layers, from that before them. ``recompute``: in a checkpoint."""


class OwnCode(Record):
    """What a folder has under ``CODE`` in its ``code.py``."""

    layers: ConsecutiveLayers
    embedding: Callable[[Context, MegatronEmbedding], Value]
    head: Callable[[Context, MegatronHead, Value, Gradients], Value]
    setting: Callable[[TrainingJob, Architecture, Setting], Setting]
    """The setting of its modules, from that which Megatron's have."""
    side_buffers: Callable[[TrainingJob, Architecture, Setting, ChunkContents, Device], Components]
    """Side buffers that live all step."""
    forward_only: Callable[[TrainingJob, Setting], int]
    """Bytes that live during a forward through the first or the last stage, and not after it."""
    resident: Callable[[TrainingJob, list[Counted]], ResidentStates]
    """What is resident on a rank between steps, and what the optimizer's step takes."""
    position: Callable[[TrainingJob, SchedulePosition], SchedulePosition]
    """A rank's position in the schedule, from that in Megatron's own."""
    remaps: bool
    """Parameters are copied into contiguous buffers while the model is made."""
    holds_inputs: bool
    """A chunk keeps the last input that it got from another stage, and so its gradient."""
    cut_chunks: Callable[[TrainingJob], tuple[tuple[Chunk, ...], ...]] | None = None
    """Chunks of every pipeline rank, where Megatron's arguments do not cut it."""


@lru_cache(maxsize=16)
def code_of(style: Style) -> OwnCode:
    """Return the code of a framework's folder."""
    code: OwnCode = import_module(f"memcheck.frameworks.{style.folder}.code").CODE
    return code
