"""1-bit Adam, 0/1 Adam and 1-bit LAMB: what their compressed all-reduce keeps, and what their step takes.

Source: DeepSpeed ``runtime/fp16/onebit/adam.py``, ``zoadam.py``, ``lamb.py`` and ``runtime/comm/nccl.py``
(``compressed_allreduce``), beneath ``runtime/fp16/fused_optimizer.py`` (both Adams, on one flat tensor) and
``unfused_optimizer.py`` (LAMB, tensor by tensor). Every step is estimated as one that compresses. The first one does so
(``self.initialize``), in spite of ``freeze_step``.
"""

from __future__ import annotations

from math import gcd

from memcheck.autograd.tensor import rounded
from memcheck.errors import UnsupportedError
from memcheck.job.types import TrainingJob

TEMPORARIES = {"onebit-adam": 2, "zero-one-adam": 3, "onebit-lamb": 2}
"""fp32 copies of the flat moment at the compression's highest: a product and a difference (``buffer_m - worker_scale *
...``). 0/1 Adam compresses while ``update`` lives."""
LAMB = "onebit-lamb"


def refuse_one_bit(job: TrainingJob) -> None:
    """Check that DeepSpeed's engine runs the optimizer on 16-bit parameters that every rank holds whole.

    Raises:
        UnsupportedError: the engine does not, or stops ("1bit-Adam is not compatible with ZeRO", runtime/engine.py).
    """
    name, pointer = job.optimizer.name, "/training/optimizer"
    if job.framework.data_parallel != "zero":
        message = f"{name} is DeepSpeed's: {job.framework.title} does not have it"
        raise UnsupportedError(message, "use `framework: deepspeed`, or `adamw`", pointer)
    if job.layout.zero_stage:
        raise UnsupportedError(f"{name} is not compatible with ZeRO", "use zero_stage 0", "/parallelism/zero_stage")
    if job.recipe.compute == "fp32":
        message = f"memcheck has no model of {name} on fp32 parameters, which no optimizer of 16 bits wraps"
        raise UnsupportedError(message, "use `precision: fp16-mixed`", "/training/precision")


def padded(count: int, ranks: int) -> int:
    """Elements of the compressed moment: a multiple of ranks and bytes (``corrected_tensor_size``)."""
    chunk = ranks * (ranks * 8 // gcd(ranks, 8))
    return -(-count // chunk) * chunk


def errors(count: int, ranks: int) -> int:
    """Bytes in addition to the states of ``count`` parameters: ``server_error``, and what the worker's is padded by."""
    whole = padded(count, ranks)
    return rounded(4 * (whole // ranks)) + 4 * (whole - count)


def pool(count: int, ranks: int) -> int:
    """Bytes of CuPy's pool, which keeps what it once held (``cupy.packbits``, ``unpackbits``): signs that are sent,
    received and received from the servers, a flat copy, one's own server's, each of a bit, and unpacked ones of a byte.
    """
    whole = padded(count, ranks)
    return 4 * rounded(whole // 8) + rounded(whole // ranks // 8) + rounded(whole) if ranks > 1 else 0


def step_bytes(name: str, sizes: list[int], ranks: int, item: int) -> int:
    """Bytes of the step at its highest, in addition to gradients of ``item`` bytes. ``sizes``: elements of trained
    tensors.
    """
    count = sum(sizes)
    whole, flat = padded(count, ranks), rounded(4 * count)
    compressing = TEMPORARIES[name] * rounded(4 * whole) if ranks > 1 else 2 * flat
    if name == LAMB:  # fp32 gradients, and the moments before the step (`exp_avg_last_step`)
        alone = [rounded(4 * n) for n in sizes]
        return 2 * flat + max(compressing, _lamb(alone))
    copied = rounded(4 * whole) if whole != count and ranks > 1 else 0  # torch.cat with zeros
    # gradients are copied, joined, and let go of before the optimizer steps
    return max(2 * flat, flat + compressing + copied - item * count)


def _lamb(sizes: list[int]) -> int:
    """The loop after the all-reduce has five variables of a tensor's size (``grad_reconstruct``, ``denom``,
    ``update_prelim``, ``update``, ``denom_real``), which hold those of the previous tensor until they are assigned.
    """
    pairs = zip((0, *sizes), sizes, strict=False)
    return max((max(2 * size + 5 * before, 6 * size + before) for before, size in pairs), default=0)
