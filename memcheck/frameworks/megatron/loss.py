"""Megatron's cross entropy over vocabulary shards, in three implementations.

Sources: Megatron-core ``tensor_parallel/cross_entropy.py`` (works in place on an fp32 copy), ``fusions/
fused_cross_entropy.py`` (the same under torch.compile, gradient cast inside), TransformerEngine
``pytorch/triton/cross_entropy.py`` (gradient computed in forward; before version 2.19 written over the logits).
"""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import Storage, Tape, Value


def implementation(setting: Setting) -> str:
    """``unfused`` | ``native`` | ``te``."""
    if not bool(setting.option("cross_entropy_loss_fusion")):
        return "unfused"
    return str(setting.option("cross_entropy_fusion_impl", "native"))


def cross_entropy(tape: Tape, logits: Value, how: str) -> Value:
    """Loss per token of ``logits`` [tokens, vocabulary / tp]. The caller keeps the logits until its forward returns."""
    if how == "te":
        return _in_place(tape, logits)
    return _on_fp32_copy(tape, logits, compiled=how == "native")


def _on_fp32_copy(tape: Tape, logits: Value, *, compiled: bool) -> Value:
    """``logits.float()``; maximum subtracted, exponentiated and normalised in place; kept for backward.

    ``compiled`` (native): torch.compile functionalises the in-place subtraction and exponential into a second fp32
    tensor that is copied back.
    Backward subtracts one at the targets in place; the engine casts the result to the logits' dtype while the fp32
    tensor is still held by the function (torch/csrc/autograd/engine.cpp, validate_outputs before release_variables).
    """
    shape, dtype = logits.shape, logits.dtype
    wide = logits.storage if dtype == "fp32" else tape.new(shape, "fp32", "logits.float()")
    if compiled:
        functional = tape.new(shape, "fp32", "exp_logits of the compiled graph")
        del functional
    rows = shape[:-1]
    kept = (wide, tape.new(rows, "bool", "target mask"), tape.new(rows, "int64", "masked target"))
    out = tape.value(rows, "fp32", "loss")

    def run(grad: Storage, kept: tuple[Storage | None, Storage, Storage] = kept) -> list[Storage | None]:
        return [kept[0] if dtype == "fp32" else tape.new(shape, dtype, "gradient of logits")]

    return tape.record(out, (logits,), run)


def _in_place(tape: Tape, logits: Value) -> Value:
    """TE's Triton kernel: the gradient overwrites the logits in forward and is scaled in place in backward."""
    rows = logits.shape[:-1]
    out = tape.value(rows, "fp32", "loss")
    statistics = tape.new((3 * logits.shape[0],), "fp32", "m, d, x_y")
    kept = logits.storage
    del statistics
    return tape.record(out, (logits,), lambda grad, kept=kept: [kept])
