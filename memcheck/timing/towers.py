"""The time of a vision tower: its layers cost what layers of text of the same shape cost, picture by picture.

The patch embedding, the merger and the projector, one or two products on a quarter of the rows, are left out.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.job.images import pictures_of
from memcheck.job.rows import encoder_length
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Block
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.timing.shape import Shape


class TowerShape(Record):
    """What of a job decides the cost of its tower."""

    pictures: int
    rows: int
    """Patch rows of one picture."""
    trained: bool
    adapted: bool
    """Adapters reach it."""
    graph: bool
    """Gradients go through it: it, or something below it, is trained, or checkpointing woke it."""


def tower_shape(job: TrainingJob, a: Architecture) -> TowerShape | None:
    """The tower's shape; None without pictures. For an encoder each sample counts as one picture."""
    if a.encoder is not None:
        trained = job.method == "full" and "encoder" not in job.freeze
        adapted = job.method != "full" and job.lora is not None
        rows, batch = encoder_length(job, a.encoder), job.micro_batch_size
        return TowerShape(pictures=batch, rows=rows, trained=trained, adapted=adapted, graph=trained or adapted)
    if a.vision is None:
        return None
    found = pictures_of(job, a.vision)
    if not found.rows:
        return None
    trained = job.method == "full" and "vision" not in job.freeze
    adapted = job.method != "full" and job.lora is not None and (not job.lora.parts or "vision" in job.lora.parts)
    woken = a.vision.hooked and job.checkpointing.mode != "none"
    pictures = max(1, found.pictures)
    return TowerShape(
        pictures=pictures,
        rows=-(-found.rows // pictures),
        trained=trained,
        adapted=adapted,
        graph=trained or adapted or woken,
    )


def tower_kinds(vision: Vision) -> tuple[tuple[Block, int], ...]:
    """Kinds of layers as ones of text, and how many there are of each."""
    return tuple((_as_text(block), n) for block, n in (*vision.blocks, *vision.idle))


def side_kinds(a: Architecture) -> tuple[tuple[Block, int, int], ...]:
    """Kinds of layers of a tower or an encoder, how many there are of each, and how wide they are."""
    if a.encoder is not None:
        return tuple((block, n, a.hidden_size) for block, n in a.encoder.blocks)
    return tuple((block, n, a.vision.hidden) for block, n in tower_kinds(a.vision)) if a.vision is not None else ()


def shape_inside(s: Shape, tower: TowerShape) -> Shape:
    """The shape of the tower's layers."""
    return s._replace(
        batch=tower.pictures,
        sequence=tower.rows,
        adapter=s.adapter if tower.adapted else None,
        base_trained=tower.trained,
        frozen_modules=(),
        fp8=False,
    )


@lru_cache(maxsize=64)
def _as_text(block: Block) -> Block:
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
