"""The time of a vision tower: its layers cost what layers of text of the same shape cost, picture by picture.

The patch embedding, the merger and the projector, one or two products on a quarter of the rows, are left out.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.autograd.tensor import ceil_div
from memcheck.job.images import pictures_of
from memcheck.job.training import encoder_length
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Block
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.timing.shape import Shape


class TowerShape(Record):
    """The settings of a job that decide the time of its vision tower, or of its encoder."""

    pictures: int
    """Pictures of one micro-batch; samples, for an encoder."""
    rows: int
    """Patch rows of one picture; tokens of one sample, for an encoder."""
    trained: bool
    """The base weights of the tower get gradients."""
    adapted: bool
    """LoRA matrices are added to its layers."""
    graph: bool
    """Gradients go through it: it, or something below it, is trained, or checkpointing woke it."""


def tower_shape(job: TrainingJob, architecture: Architecture) -> TowerShape | None:
    """Return the settings that decide the tower's time; None without pictures. A sample of an encoder counts as one."""
    if architecture.encoder is not None:
        trained = job.method == "full" and "encoder" not in job.freeze
        adapted = job.method != "full" and job.lora is not None
        rows, batch = encoder_length(job, architecture.encoder), job.micro_batch_size
        return TowerShape(pictures=batch, rows=rows, trained=trained, adapted=adapted, graph=trained or adapted)
    if architecture.vision is None:
        return None
    images = pictures_of(job, architecture.vision)
    if not images.rows:
        return None
    trained = job.method == "full" and "vision" not in job.freeze
    adapted = job.method != "full" and job.lora is not None and (not job.lora.parts or "vision" in job.lora.parts)
    woken = architecture.vision.hooked and job.checkpointing.mode != "none"
    pictures = max(1, images.pictures)
    return TowerShape(
        pictures=pictures,
        rows=ceil_div(images.rows, pictures),
        trained=trained,
        adapted=adapted,
        graph=trained or adapted or woken,
    )


def tower_kinds(vision: Vision) -> tuple[tuple[Block, int], ...]:
    """List the kinds of layers of a vision tower, written as layers of a text model, each with the number of layers."""
    return tuple((_as_text(block), count) for block, count in (*vision.blocks, *vision.idle))


def side_kinds(architecture: Architecture) -> tuple[tuple[Block, int, int], ...]:
    """List the kinds of layers of a tower or an encoder, each with the number of layers and their hidden size."""
    if architecture.encoder is not None:
        return tuple((block, count, architecture.hidden_size) for block, count in architecture.encoder.blocks)
    vision = architecture.vision
    if vision is None:
        return ()
    return tuple((block, count, vision.hidden) for block, count in tower_kinds(vision))


def shape_inside(shape: Shape, tower: TowerShape) -> Shape:
    """Return the settings for the layers of the tower: ``shape``, with the tower's batch, rows and trained weights."""
    return shape._replace(
        batch=tower.pictures,
        sequence=tower.rows,
        adapter=shape.adapter if tower.adapted else None,
        base_trained=tower.trained,
        frozen_modules=(),
        fp8=False,
    )


@lru_cache(maxsize=64)
def _as_text(block: Block) -> Block:
    """Return a tower's layer with the attention record of text models, which :func:`block_cost` can time."""
    mixer = block.mixer
    if not isinstance(mixer, TowerAttention):
        return block
    return block._replace(
        mixer=Attention(
            mixer.heads,
            mixer.heads,
            mixer.head_dim,
            rotary_dim=mixer.head_dim,
            tensors=mixer.tensors,
            dropout=0.0,
            qkv_bias=False,
            out_bias=False,
            query_norm=None,
            key_norm=None,
            window=None,
        )
    )
