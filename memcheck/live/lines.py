"""Bytes that each line of a plan is responsible for: the plan is estimated once more with the key at a neutral value.

The figures do not add up to the whole, because keys act together. Each says what one change alone would do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memcheck.config.gate import Gate
from memcheck.edge.screen import gib
from memcheck.edge.screen import value as shown
from memcheck.live.positions import Positions
from memcheck.live.replies import LineBytes
from memcheck.live.spelling import stated_value, wish
from memcheck.plan.changes import SHORT
from memcheck.plan.places import Document
from memcheck.what_if.points import Evaluator, Point

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "parallelism.zero_stage": (0,),
    "parallelism.tensor": (1,),
    "parallelism.context": (1,),
    "parallelism.pipeline": (1,),
    "parallelism.expert": (1,),
    "parallelism.virtual_stages": (1,),
    "parallelism.sequence": (False,),
    "parallelism.reshard_after_forward": (True,),
    "parallelism.gradient_sync": ("every",),
    "parallelism.gradient_as_bucket_view": (False,),
    "training.method": ("full",),
    "training.precision": ("fp32",),
    "training.optimizer": ("adamw",),
    "training.optimizer.offload": ("none",),
    "training.optimizer.in_backward": (False,),
    "training.activation_checkpointing": ("none",),
    "training.activation_checkpointing.offload": ("none",),
    "training.attention": ("eager", "sdpa"),
    "training.loss": ("standard",),
    "training.gradient_accumulation_steps": (1,),
    "training.reference": ("resident",),
    "training.offload.parameters": ("none",),
    "training.compile": (False,),
    "training.kernels.liger": (False,),
    "inference.weights": ("bf16",),
    "inference.kv_cache": ("bf16",),
    "inference.tensor": (1,),
    "inference.pipeline": (1,),
}
"""Values of keys that ask for nothing; of several, the first that is legal and not the plan's own."""
HALVED = (
    "training.micro_batch_size",
    "training.sequence_length",
    "training.longest_row",
    "training.lora.rank",
    "training.evaluation.micro_batch_size",
    "inference.batch_size",
    "inference.context_length",
    "inference.chunk",
    "hardware.nodes",
    "hardware.gpus_per_node",
)
"""Keys without a value that asks for nothing: half of what the plan states."""
UNNOTICED_BYTES = 2**20
"""Differences below this are none that a figure in GiB could show."""


def line_bytes(document: Document, gate: Gate, positions: Positions) -> Iterator[LineBytes | None]:
    """What each stated key does to the need of the fullest GPU; None for one that cannot be told, before the next."""
    evaluator = Evaluator(document, gate)
    here = evaluator.point({})
    if not here.estimated:
        return
    for key in (*NEUTRAL, *HALVED):
        now = stated_value(document.values, key)
        place = _place(document, key)
        if now is None or place is None:
            continue
        found = None
        for other in neutral(key, now):
            changes, removed = wish(document, {key: other})
            there = evaluator.point(changes) if changes and not removed else None
            yield None
            if there is not None and there.estimated:
                found = _told(document, key, other, here, there, positions)
                break
        yield found


def neutral(key: str, now: object) -> tuple[object, ...]:
    """The values to compare the present one with."""
    if key in NEUTRAL:
        return tuple(each for each in NEUTRAL[key] if each != now)
    halves = isinstance(now, int) and not isinstance(now, bool) and now >= 2
    return (now // 2,) if halves else ()  # type: ignore[operator]  # a whole number


def _place(document: Document, key: str) -> str | None:
    """The pointer of a key that the plan's own file states; None where it does not."""
    pointer = "/" + key.replace(".", "/")
    if pointer not in document.marks and SHORT.get(key.rpartition(".")[0]) == key.rpartition(".")[2]:
        pointer = pointer.rpartition("/")[0]
    if pointer not in document.marks or document.locate(pointer).path != document.path:
        return None
    return pointer


def _told(document: Document, key: str, other: object, here: Point, there: Point, positions: Positions) -> LineBytes:
    """What the key does, in bytes and in words."""
    more = there.needed_bytes - here.needed_bytes
    word = f"half of it, {shown(other)}" if key in HALVED else shown(other)
    if abs(more) < UNNOTICED_BYTES:
        text = f"the same need as with {word}"
    elif key in HALVED:
        text = f"{gib(abs(more))} GiB {'less' if more < 0 else 'more'} with {word}"
    else:
        text = f"{'saves' if more > 0 else 'takes'} {gib(abs(more))} GiB against {word}"
    pointer = _place(document, key) or ""
    return LineBytes(
        key=key,
        place=positions.span(document.locate(pointer).span)[0],
        other=other,
        saved_bytes=more,
        text=text,
    )
