"""Temporaries of optimizers with a step of their own: Muon, transformers' Adafactor, torchao's moments in few bits.

Muon's orthogonalisation: torch/optim/_muon.py, _zeropower_via_newtonschulz. On FSDP2's shards its products are
DTensor's, which takes of several ways to run one the way whose exchanges cost least by its own estimate
(torch/distributed/tensor/_collective_utils.py: MeshTopoInfo, allgather_cost, _compute_placement_transition_cost). The
ways differ in whether a whole matrix is gathered.
"""

from __future__ import annotations

from memcheck.accounts.state import EIGHT_BIT_MINIMUM, LOW_BITS, LocalTensor
from memcheck.autograd.tensor import ITEM_BYTES, rounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.frameworks.torch.resident import Mesh

STEPPED_BYTES = {"adamw-torchao-8bit": 8, "adamw-torchao-4bit": 26, "adamw-torchao-fp8": 0}
"""Bytes of torchao's compiled step (``single_param_adam``), for each element: what Inductor allocates (its wrapper's
``empty_strided`` calls, torch 2.13). Where codes are searched in a table both moments in fp32, divided by their scales;
of 4 bits the unpacked codes of both, too, and the new ones as int64."""
LATENCY_US, HOP_US, FAR_HOP_US = 6.6, 0.6, 2.7
"""Latency of a collective, and what each other rank within and beyond a node adds to it."""
NEAR_GBS, FAR_GBS = 87.7, 87.7 * 0.22
EXCHANGE_US = 1.0
"""What an exchange of one sharded dimension for another costs beyond a gather of its size."""


def newton_schulz(tensor: LocalTensor, numel: int, element_bytes: int, mesh: Mesh) -> int:
    """Return the peak bytes of temporaries while Muon orthogonalises one matrix (Newton-Schulz iteration in bf16).

    They are ``update``, the iterate X, and Gram matrices ``X @ X.T``. ``numel``: elements on this rank.
    ``element_bytes``: bytes of an element of the parameter. ``mesh``: ranks over which FSDP2 shards the matrix: DTensor
    then gathers X, or exchanges shards, whichever it estimates to be faster.
    """
    bf16_bytes = ITEM_BYTES["bf16"]
    gram_bytes, whole_bytes = bf16_bytes * min(tensor.shape) ** 2, bf16_bytes * tensor.numel
    update, x, gram = rounded(element_bytes * numel), rounded(bf16_bytes * numel), rounded(gram_bytes)
    if mesh.shards == 1 or numel == tensor.numel:
        return update + 2 * x + 2 * gram  # two copies of X, two Gram matrices
    # a tall matrix is transposed: its product sums over the sharded dimension, and what is reduced is a Gram matrix;
    # the partial one, its sum, that of the step before and the polynomial
    summed = update + x + 4 * gram
    if tensor.shape[0] > tensor.shape[1]:
        return max(summed, update + 2 * x + 3 * gram)  # or the next X with the last X still live, after the polynomial
    gram_shard, whole_x = rounded(gram // mesh.shards), rounded(whole_bytes)
    two_exchanges_us = 2 * exchange_us(mesh, whole_bytes)
    if gather_us(mesh, whole_bytes) <= two_exchanges_us:
        # X.T is gathered along its second dimension, through a buffer; Gram matrix and polynomial are divided
        return update + 2 * x + 2 * gram_shard + 2 * whole_x
    cast_update = x if element_bytes != bf16_bytes else 0  # X is views of it
    if gather_us(mesh, whole_bytes) <= gather_us(mesh, gram_bytes) + two_exchanges_us:
        iterating = 2 * gram + gram_shard + whole_x + x
    else:
        iterating = 3 * gram + 3 * x  # what is sent and received, with what the previous exchange has left
    return max(summed, update + cast_update + iterating)


def gather_us(mesh: Mesh, n_bytes: float) -> float:
    """Return DTensor's estimate, in microseconds, of an all-gather over ``mesh`` whose result has ``n_bytes``."""
    in_node = mesh.shards <= mesh.ranks_per_node
    hops = mesh.shards - 1
    hop_us, gib_per_s = (HOP_US, NEAR_GBS) if in_node else (FAR_HOP_US, FAR_GBS)
    transfer_us = n_bytes / 2**30 * hops / mesh.shards / gib_per_s * 1e6
    return LATENCY_US + hops * hop_us + transfer_us


def exchange_us(mesh: Mesh, n_bytes: float) -> float:
    """DTensor's estimate, in microseconds, for an exchange of a matrix of that many bytes."""
    return gather_us(mesh, n_bytes / mesh.shards) + EXCHANGE_US


def adafactor_step(tensors: list[tuple[int, bool]]) -> int:
    """Return the peak bytes of the step of transformers' Adafactor, which runs in fp32, tensor by tensor.

    ``(grad**2) + eps`` makes two tensors while the previous tensor's ``update`` is still alive. A 16-bit gradient and
    parameter are first copied to fp32 (transformers 5.23 optimization.py, ``Adafactor.step``).

    ``tensors``: per tensor, the number of elements that the rank updates, and whether it is stored in 16 bits.
    """
    highest = previous_update = copies = 0
    for numel, is_16_bit in tensors:
        size = rounded(numel * ITEM_BYTES["fp32"])
        if is_16_bit:  # the variables hold the previous tensor's copies while the gradient is copied
            highest = max(highest, previous_update + copies + size)
        copies = 2 * size if is_16_bit else 0
        highest = max(highest, previous_update + copies + 2 * size)
        previous_update = size
    return highest


def low_bit_step(numel: int, optimizer: str) -> int:
    """Return the bytes that torchao's compiled step allocates for one tensor of ``numel`` elements.

    Its largest tensors are ``STEPPED_BYTES`` per element; both moments also have an fp32 scale per block. Tensors are
    stepped one after the other. 0 for a tensor whose moments are not quantised: its step is one kernel.
    """
    kind = LOW_BITS[optimizer]
    if numel < EIGHT_BIT_MINIMUM or numel % kind.block:
        return 0
    return rounded(STEPPED_BYTES[optimizer] * numel) + 2 * rounded(numel // kind.block * 4)
