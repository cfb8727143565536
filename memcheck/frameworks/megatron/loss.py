"""Megatron's cross entropy over vocabulary shards, in three implementations.

Sources: Megatron-core ``tensor_parallel/cross_entropy.py`` (works in place on an fp32 copy), ``fusions/
fused_cross_entropy.py`` (the same under torch.compile, gradient cast inside), TransformerEngine
``pytorch/triton/cross_entropy.py`` (before version 2.18 the gradient is made in forward, over the logits; in 2.18 in
fp32; since 2.19 in backward, over a copy of the logits that forward makes).
"""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.job.versions import is_before

IN_FP32_SINCE = (2, 18)
"""TransformerEngine, from which on its loss has a gradient of its own."""
COPIES_SINCE = (2, 19)
"""From which on it keeps a copy of the logits in its place."""


def implementation(setting: Setting) -> str:
    """Return which cross entropy runs, by the options and the release of TransformerEngine.

    ``unfused``: operator by operator. ``native``: compiled by torch. ``te``: TransformerEngine's kernel, which computes
    an fp32 gradient in forward; ``te in place`` wrote it over the logits before, ``te copy`` computes it in backward.
    """
    if not bool(setting.option("cross_entropy_loss_fusion")):
        return "unfused"
    stated = str(setting.option("cross_entropy_fusion_impl", "native"))
    version = str(setting.option("transformer_engine_version") or "")
    if stated != "te" or not version:
        return stated
    if is_before(version, IN_FP32_SINCE):
        return "te in place"
    return "te" if is_before(version, COPIES_SINCE) else "te copy"


def cross_entropy(tape: Tape, logits: Value, how: str) -> Value:
    """Compute the loss per token of ``logits`` [tokens, vocabulary / tp]. The caller keeps the logits until its forward
    returns.
    """
    if how.startswith("te"):
        return _with_gradient(tape, logits, how)
    return _on_fp32_copy(tape, logits, compiled=how == "native")


def _on_fp32_copy(tape: Tape, logits: Value, *, compiled: bool) -> Value:
    """Compute ``logits.float()``; maximum subtracted, exponentiated and normalised in place; kept for backward.

    ``compiled`` (native): torch.compile functionalises the in-place subtraction and exponential into a second fp32
    tensor that is copied back; the gradient is bf16 first, whatever the logits are.
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

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: the gradient is written over the saved fp32 copy, and cast to the logits' dtype."""
        narrow = tape.new(shape, "bf16", "grad_input.to(bf16)") if compiled and dtype != "bf16" else None
        if dtype == "fp32" and narrow is None:
            return [kept[0]]
        return [tape.new(shape, dtype, "gradient of logits")]

    return tape.record(out, (logits,), run, saves=kept)


def _with_gradient(tape: Tape, logits: Value, kernel: str) -> Value:
    """Compute TE's Triton cross entropy, which saves the gradient of the logits or what it is computed from.

    ``kernel``: ``te`` computes an fp32 gradient in forward; backward casts it to the logits' dtype. ``te in place``
    writes it over the logits. Any other computes it in backward over a copy of the logits. Returns the loss per token.
    """
    shape, dtype = logits.shape, logits.dtype
    rows = shape[:-1]
    out = tape.value(rows, "fp32", "loss")
    statistics = tape.new((3 * shape[0],), "fp32", "m, d, x_y")
    dtype_and_label = ("fp32", "gradient of logits in fp32") if kernel == "te" else (dtype, "copy of the logits")
    kept = logits.storage if kernel == "te in place" else tape.new(shape, *dtype_and_label)
    del statistics
    casts_gradient = kernel == "te" and dtype != "fp32"
    return tape.record(
        out,
        (logits,),
        lambda grad: [tape.new(shape, dtype, "gradient of logits") if casts_gradient else kept],
        saves=(kept,),
    )
