"""ViP-LLaVA: rows of several layers of CLIP side by side, a LayerNorm, two matrices (modeling_vipllava.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.llava import stem
from memcheck.frameworks.transformers.towers.tiles import given_out, layer_norm, two_matrices
from memcheck.models.vision import Vision

__all__ = ["project", "stem"]


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector`` on what ``torch.cat`` makes of the layers' patches; their gradients are padded for the
    class token, each at once.
    """
    tape, hidden, count = ctx.tape, x.shape[1], 1 + len(vision.gathered)
    rows = ctx.setting.pictures * (vision.tile - vision.classes)
    shape, dtype = x.shape, x.dtype
    if x.origin is None:  # earlier layers' rows, which the output has (`hidden_states`)
        ctx.returned += [tape.value(shape, dtype, "earlier rows") for _ in vision.gathered]
    out = tape.value((rows, hidden * count), dtype, "cat earlier rows")

    def run(grad: Storage) -> list[Storage | None]:
        padded: list[Storage | None] = [tape.new(shape, dtype, "slice backward") for _ in range(count)]
        return padded[:1]

    joined = tape.record(out, (x,), run)
    del out
    normed = layer_norm(ctx, joined, vision.projector)
    del joined
    return given_out(ctx, two_matrices(ctx, vision, normed, vision.projector[2:]), joins=False)
