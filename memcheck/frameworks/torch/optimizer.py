"""Temporaries of the optimizer step.

Sources: torch/optim/adamw.py, torch/optim/_adafactor.py, torch/optim/_muon.py. _multi_tensor_adamw makes one list of
sqrt(exp_avg_sq) for all parameters at once. _single_tensor_adamw makes two tensors at a time, while one of the previous
tensor is live. The fused kernel makes none.
"""

from __future__ import annotations

from memcheck.accounts.state import LOW_BITS, LocalTensor, orthogonalised
from memcheck.autograd.tensor import rounded
from memcheck.job.types import DTYPE_BYTES, Optimizer
from memcheck.record import Record

ADAM_LIKE = frozenset({"adamw", "adam"})


class Mesh(Record):
    """The ranks that share a parameter under FSDP2."""

    ways: int = 1
    per_node: int = 8


ALONE = Mesh()


class StepInBackward(Record):
    """An optimizer for every tensor, stepped by a hook after AccumulateGrad (torchtune ``training/memory.py``)."""

    optimizer: str
    implementation: str

    def temporaries(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the bytes that its step of one tensor takes for itself."""
        tensor = LocalTensor("", shape, trained=True, matrix=len(shape) > 1)
        return step_temporaries([(tensor, tensor.numel)], self.optimizer, self.implementation, dtype)


def step_in_backward(optimizer: Optimizer) -> StepInBackward | None:
    """The optimizer that steps in backward, if it does."""
    return StepInBackward(optimizer.name, optimizer.implementation) if optimizer.in_backward else None


def step_temporaries(
    trained: list[tuple[LocalTensor, int]], optimizer: str, implementation: str, dtype: str, mesh: Mesh = ALONE
) -> int:
    """Return the peak bytes of temporaries in the optimizer's step on one rank.

    ``trained``: each trained tensor with the number of its elements that this rank updates. ``optimizer``: its name in
    a plan. ``implementation``: ``fused`` | ``foreach`` | ``for-loop``. ``dtype``: of the optimizer states of tensors
    without a dtype of their own. ``mesh``: the ranks over which FSDP2 shards each tensor.
    """
    if optimizer in LOW_BITS:
        from memcheck.frameworks.torch.own_optimizers import low_bit_step

        return max((low_bit_step(n, optimizer) for _, n in trained), default=0)
    if not trained or implementation == "fused":
        return 0
    keys = [(n, t.dtype) for t, n in trained]
    bytes_by_key = {key: rounded(key[0] * DTYPE_BYTES[key[1] or dtype]) for key in set(keys)}
    all_bytes, largest_bytes = sum(map(bytes_by_key.__getitem__, keys)), max(bytes_by_key.values())
    if optimizer in ADAM_LIKE:
        # foreach computes one temporary for every tensor in a list (torch.optim.adam, _multi_tensor_adam)
        return all_bytes if implementation == "foreach" else _one_by_one([bytes_by_key[key] for key in keys])
    if optimizer == "adafactor":
        if implementation == "foreach":
            return all_bytes
        # a vector has `grad_squared` and the variance's clone, a matrix `update`
        copies = 2 if all(len(t.shape) == 1 for t, _ in trained) else 1
        return _one_by_one([bytes_by_key[key] for key in keys], copies)
    if optimizer == "muon":  # matrices are orthogonalised, AdamW steps on the others; one after the other
        adamw_bytes = [bytes_by_key[n, t.dtype] for t, n in trained if not orthogonalised(t)]
        from memcheck.frameworks.torch.own_optimizers import newton_schulz

        matrices = {(t, n) for t, n in trained if orthogonalised(t)}
        muon_bytes = (newton_schulz(t, n, DTYPE_BYTES[t.dtype or dtype], mesh) for t, n in matrices)
        return max(max(muon_bytes, default=0), _one_by_one(adamw_bytes))
    if optimizer == "lion":
        return 2 * largest_bytes  # lion-pytorch: update = exp_avg * beta1 + grad * (1 - beta1), then sign
    return 0  # sgd works in place; bitsandbytes' 8-bit and paged optimizers update in their kernels


def _one_by_one(sizes: list[int], copies: int = 2) -> int:
    """Return the peak bytes of temporaries of an optimizer that loops over its tensors (for-loop implementation).

    ``sizes``: bytes of a temporary of each tensor. Adam's ``denom = (exp_avg_sq.sqrt() / correction).add_(eps)`` makes
    two ``copies``, the root and the quotient, while ``denom`` still refers to the previous tensor's quotient. Adafactor
    makes one: ``update``, of ``row_var @ col_var``.
    """
    previous_sizes = (0, *sizes)
    return max((copies * size + previous for previous, size in zip(previous_sizes, sizes, strict=False)), default=0)
