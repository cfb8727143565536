"""Image tokens take the places that the text left them: ``inputs_embeds.masked_scatter(mask, features)``."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Storage, Value


def scatter(ctx: Context, rows: Value, features: Value) -> Value:
    """``rows`` [tokens, hidden]: what was looked up; a new tensor with the image tokens in it.

    The mask [B, S, 1] is expanded without memory, and is all that backward keeps. On CUDA the forward makes the mask
    whole, and a running count of it in int64 (aten/src/ATen/native/cuda/IndexKernel.cpp, masked_scatter__cuda).
    Backward masks the rows' gradient, and picks the features' with ``masked_select``, which lists the places as three
    int64 each (FunctionsManual.cpp, masked_scatter_backward; aten IndexKernel.cpp, masked_select_cuda).
    """
    tape = ctx.tape
    if features.dtype != rows.dtype:
        from memcheck.autograd.elementwise import cast

        features = cast(tape, features, rows.dtype)
    shape, dtype, taken = rows.shape, rows.dtype, features.shape
    out = tape.value(shape, dtype, "masked_scatter")
    whole = tape.new(shape, "bool", "masked_scatter mask")
    count = tape.new(shape, "int64", "masked_scatter prefix sum")
    del whole, count
    mask = tape.new(shape[:1], "bool", "image mask")
    nr, nf = rows.origin is not None, features.origin is not None

    def run(grad: Storage) -> list[Storage | None]:
        filled = tape.new(shape, dtype, "masked_fill backward") if nr else None
        if not nf:
            return [filled, None]
        places = tape.new((*taken, 3), "int64", "masked_select places")
        picked = tape.new(taken, dtype, "masked_scatter backward")
        del places
        return [filled, picked]

    return tape.record(out, (rows, features), run, saves=(mask,))


def put(ctx: Context, rows: Value, features: Value) -> Value:
    """``inputs_embeds.index_put(places, features)``: keeps the places, two int64 each (FunctionsManual.cpp,
    derivatives.yaml: index_put). Backward puts zeros there in a copy of the rows' gradient, and picks the features'.
    """
    tape = ctx.tape
    shape, dtype, taken = rows.shape, rows.dtype, features.shape
    places = tape.new((taken[0], 2), "int64", "places")
    out = tape.value(shape, dtype, "index_put")
    nr, nf = rows.origin is not None, features.origin is not None

    def run(grad: Storage) -> list[Storage | None]:
        filled = None
        if nr:
            zeros = tape.new(taken, dtype, "zeros")
            filled = tape.new(shape, dtype, "index_put backward")
            del zeros
        return [filled, tape.new(taken, dtype, "index backward") if nf else None]

    return tape.record(out, (rows, features), run, saves=(places,))


def added(ctx: Context, rows: Value, features: Value) -> Value:
    """``inputs_embeds[mask] + features``, number by number: keeps the mask, which is expanded without memory. The
    places of every number are listed as three int64 each, and backward, which puts the gradient back into zeros, sorts
    them (aten IndexingUtils.h, expandTensors; native/cuda/Indexing.cu, index_put_with_sort_kernel).
    """
    tape, taken = ctx.tape, features.shape
    shape, dtype = rows.shape, rows.dtype
    found = tape.new(taken, dtype, "looked up in their places")
    places = tape.new((*taken, 3), "int64", "places of image tokens")
    del places
    out = tape.value(taken, dtype, "add image tokens")
    del found
    nr, nf = rows.origin is not None, features.origin is not None

    def run(grad: Storage) -> list[Storage | None]:
        if not nr:
            return [None, grad if nf else None]
        zeros = tape.new(shape, dtype, "index backward")
        listed = tape.new((*taken, 6), "int64", "places and their order")
        del listed
        return [zeros, grad if nf else None]

    return tape.record(out, (rows, features), run)
