"""Resident tensors of a rank between steps: parameters, gradients, master weights, optimizer states, one by one.

Bytes per parameter of every stack: docs/memory-model.md. Sharding: FSDP2 cuts dim 0 of each tensor and pads it
(torch/distributed/fsdp/_fully_shard/_fsdp_param.py); ZeRO and Megatron's distributed optimizer cut flat buffers.
Quantised weights: ``memcheck.autograd.weight_formats``.

Resident blocks leave gaps in the segments of torch's caching allocator (c10/cuda/CUDACachingAllocator.cpp). A block
below 10 MiB comes out of a segment of 20: two matrices of 7 MiB leave 6 that a third does not fit into. Larger
segments are multiples of 2 MiB. Expandable segments leave nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import prod

from memcheck.autograd.context import Adapter
from memcheck.autograd.tensor import ceil_div, round_up, rounded
from memcheck.autograd.weight_formats import FORMATS
from memcheck.job.types import DTYPE_BYTES, Layout, Lora
from memcheck.models.parameters import block_tensors
from memcheck.models.types import Attention, Block, Moe, ParameterTensor
from memcheck.record import Record

MATRIX = 2
"""Dimensions of a matrix; stacked experts have one more."""
STACKED = 3
"""Dimensions of stacked experts."""
BYTE_BITS = 8
FP16, FP32 = 2, 4
"""Bytes of one element."""


class LocalTensor(Record):
    """One parameter tensor of one rank, before data-parallel sharding."""

    name: str
    shape: tuple[int, ...]
    trained: bool
    """The tensor gets a gradient and optimizer states."""
    dtype: str | None = None
    """A dtype of its own (adapters, 4-bit base weights); None: the recipe's."""
    expert: bool = False
    """The tensor belongs to routed experts."""
    matrix: bool = False
    """The tensor is a matrix, for optimizers such as Muon that treat matrices apart."""
    sharded_dim: int = 0
    """The dimension that FSDP2 cuts."""
    idle_fsdp_group: str = ""
    """FSDP group of a tensor whose module never runs, so that no gradient of it arrives: ``layer`` (a unit of its own)
    or ``root`` (the root's group). Empty: the module runs.
    """
    part: str = ""
    """``vision`` or ``projector``, of what is no layer there."""

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)


def weight_bytes(tensor: LocalTensor, dtype: str, numel: int | None = None) -> int:
    """Compute the bytes of one resident tensor, rounded up to an allocator block. ``numel``: None for all of it."""
    elements = tensor.numel if numel is None else numel
    stored_dtype = tensor.dtype or dtype
    if stored_dtype in FORMATS:
        return FORMATS[stored_dtype].stored_bytes(tensor.shape, elements)
    return rounded(elements * DTYPE_BYTES[stored_dtype])


def shard_numel(tensor: LocalTensor, ranks: int) -> int:
    """Count the elements of the largest FSDP2 shard: one dimension, mostly the first, divided over ``ranks`` ranks."""
    if ranks <= 1:
        return tensor.numel
    rows = tensor.shape[tensor.sharded_dim]
    row_numel = tensor.numel // rows if rows else 0
    return ceil_div(rows, ranks) * row_numel


def expert_slices(layout: Layout, *, own_degree: bool = False) -> int:
    """Return the number of ranks that share the matrices of one expert.

    ``own_degree``: the framework cuts them by expert-tensor parallelism alone.

    Experts that are not dealt out are cut over the tensor ranks like every other matrix: torchtitan
    ``models/common/moe_sharding.py`` (expert_param_placement_dense), the plans of transformers' configurations
    (``mlp.experts.gate_up_proj: packed_colwise``), serving engines (vLLM ``fused_moe/layer.py``). Megatron-LM has a
    degree of its own for them, and DeepSpeed's AutoTP replaces linear layers, which stacked experts are not.
    """
    if layout.expert > 1 or layout.expert_tensor > 1 or own_degree:
        return layout.expert_tensor
    return layout.tensor


def local_tensor(
    t: ParameterTensor, component: object, tensor: int, expert: int, expert_tensor: int
) -> tuple[int, ...]:
    """Return the shape of a parameter tensor on one tensor- and expert-parallel rank, rounded up.

    ``component``: what owns the tensor (attention, mixture of experts, ...). ``tensor``, ``expert``, ``expert_tensor``:
    degrees of parallelism.

    Column-parallel weights [outputs, inputs] are cut along their outputs, row-parallel ones along their inputs, whose
    bias stays whole.
    """
    if t.group == "experts":
        return _local_experts(t, component, expert, expert_tensor)
    ranks = tensor
    if isinstance(component, Attention) and t.shard == "column" and not component.fused_qkv:
        kv_width = component.kv_heads * component.head_dim
        if t.shape[0] == kv_width and component.kv_heads < tensor:
            ranks = component.kv_heads  # key and value heads are replicated beyond their number
    if ranks == 1 or t.shard == "none":
        return t.shape
    transposed = t.transposed and len(t.shape) == MATRIX
    dimension = 1 if (t.shard == "row") != transposed else 0
    return _divided(t.shape, dimension, ranks) if dimension < len(t.shape) else t.shape


def _divided(shape: tuple[int, ...], dimension: int, ranks: int) -> tuple[int, ...]:
    """Return the shape with one dimension divided over ``ranks`` ranks, rounded up."""
    sizes = list(shape)
    sizes[dimension] = ceil_div(sizes[dimension], ranks)
    return tuple(sizes)


def _local_experts(t: ParameterTensor, component: object, expert: int, expert_tensor: int) -> tuple[int, ...]:
    """Return the shape of a tensor of stacked experts on one rank. ``expert``, ``expert_tensor``: degrees.

    Weights are [experts, rows, columns]: experts are dealt out, and the matrices of each may be cut as well. Biases are
    [experts, rows]. Some models have the rows of all experts in one matrix.
    """
    shape = t.shape
    if len(shape) == STACKED:
        shape = _divided(shape, 0, expert)
        dimension = 2 if (t.shard == "row") != t.transposed else 1
        return shape if t.shard == "none" else _divided(shape, dimension, expert_tensor)
    if len(shape) != MATRIX:
        return shape
    is_bias = isinstance(component, Moe) and shape[0] == component.experts
    if not is_bias:
        return _divided(shape, 0, expert * expert_tensor)
    shape = _divided(shape, 0, expert)
    return _divided(shape, 1, expert_tensor) if t.shard == "column" else shape


def block_component_tensors(block: Block) -> list[tuple[ParameterTensor, object]]:
    """List every parameter tensor of a block with the component that owns it; None: the block itself (norms)."""
    cross_attention = block.cross.attention if block.cross is not None else None
    components = [block.mixer, block.second_mixer, cross_attention, block.mlp]
    if block.shared_with.later:  # attention and MLP belong to a later layer
        components = [block.second_mixer]
    owned: list[tuple[ParameterTensor, object]] = []
    for component in components:
        if component is not None:
            owned.extend((tensor, component) for tensor in component.tensors)
    norms = block_tensors(block)[len(owned) :]  # the block's own tensors come last
    owned.extend((tensor, None) for tensor in norms)
    return owned


def adapter_tensors(tensor: ParameterTensor, shape: tuple[int, ...], lora: Lora | Adapter) -> list[LocalTensor]:
    """List LoRA's two matrices for one linear layer of local ``shape`` [outputs, inputs], and DoRA's magnitudes."""
    name = tensor.name.removesuffix(".weight")
    outputs, inputs = shape[::-1] if tensor.transposed else shape
    adapters = [
        LocalTensor(name=name + ".lora_A", shape=(lora.rank, inputs), trained=True, dtype=lora.dtype, matrix=True),
        LocalTensor(name=name + ".lora_B", shape=(outputs, lora.rank), trained=True, dtype=lora.dtype, matrix=True),
    ]
    if lora.dora:
        adapters.append(
            LocalTensor(name=name + ".lora_magnitude_vector", shape=(outputs,), trained=True, dtype=lora.dtype)
        )
    return adapters


class StateBytes(Record):
    """Bytes of the parameters of one unit of the model on a rank, and of what the optimizer keeps for them."""

    parameters: int = 0
    """Base weights, in the dtype in which the model runs or is stored."""
    adapters: int = 0
    """LoRA matrices and DoRA magnitudes."""
    gradients: int = 0
    """Gradients, while they exist."""
    master_weights: int = 0
    """Copies of the parameters on which the optimizer steps, mostly in fp32; 0 if it steps on the parameters."""
    optimizer_states: int = 0
    """Moments of the optimizer, such as Adam's two per parameter."""

    def plus(self, other: StateBytes, times: int = 1) -> StateBytes:
        """Return the sum with ``times`` times ``other``."""
        return StateBytes(*[a + b * times for a, b in zip(self, other, strict=True)])


STATES_PER_PARAMETER = {
    "adamw": 2,
    "adam": 2,
    "paged-adamw": 2,
    "adamw-8bit": 2,
    "paged-adamw-8bit": 2,
    "adafactor": 0,
    "sgd": 0,
    "sgd-momentum": 1,
    "lion": 1,
    "lion-8bit": 1,
    "muon": 1,
    "adamw-torchao-8bit": 2,
    "adamw-torchao-4bit": 2,
    "adamw-torchao-fp8": 2,
    "flash-adamw": 2,
    "flash-adamw-32": 2,
    "te-fused-adam": 2,
}
"""Full-size state tensors per parameter tensor. Adafactor keeps a row and a column."""

EIGHT_BIT_MINIMUM = 4096
"""bitsandbytes keeps tensors below this many elements in fp32 (optim/optimizer.py, min_8bit_size)."""
EIGHT_BIT_BLOCK = 256
"""One fp32 absmax per this many elements (bitsandbytes blockwise quantisation of optimizer states)."""


def optimizer_state_bytes(tensor: LocalTensor, numel: int, optimizer: str, dtype: str) -> int:
    """Compute the bytes of the optimizer's states of one tensor, or of its shard with ``numel`` elements.

    ``optimizer``: its name in a plan. ``dtype``: of full-precision states. Each state is rounded up as the caching
    allocator does. Large states of paged optimizers are 0: they are in managed memory (:func:`paged_bytes`).
    """
    if optimizer == "adafactor":
        return _adafactor_states(tensor.shape, numel, dtype)
    if optimizer == "muon" and not orthogonalised(tensor):
        optimizer = "adamw"
    if optimizer in LOW_BITS:
        return _low_bit_states(numel, LOW_BITS[optimizer], dtype)
    if optimizer in FLASH_MASTERS:
        return _flash_states(numel, tensor.dtype or dtype, FLASH_MASTERS[optimizer])
    if optimizer == "te-fused-adam":  # two fp32 moments, and an fp32 copy of 16-bit weights
        has_master = DTYPE_BYTES[tensor.dtype or dtype] == FP16
        return (3 if has_master else 2) * rounded(FP32 * numel)
    if optimizer.startswith("paged-") and numel >= PAGED_MINIMUM:
        return 0
    count = STATES_PER_PARAMETER[optimizer]
    if optimizer.endswith("8bit") and numel >= EIGHT_BIT_MINIMUM:  # a byte per element, an fp32 scale per block
        return count * (rounded(numel) + rounded(FP32 * ceil_div(numel, EIGHT_BIT_BLOCK)))
    if optimizer.endswith("8bit"):
        dtype = "fp32"
    step = STEP_COUNT_BYTES if optimizer in ("adamw", "adam") else 0
    return count * rounded(numel * DTYPE_BYTES[dtype]) + step


STEP_COUNT_BYTES = rounded(FP32)
"""The block of the fp32 scalar in which torch's fused Adam, and Adafactor, count the steps of one tensor."""


def _adafactor_states(shape: tuple[int, ...], numel: int, dtype: str) -> int:
    """Compute the bytes of Adafactor's states for a tensor of ``shape``, or for its shard of ``numel`` elements.

    A matrix has a sum of squares per row and one per column (``exp_avg_sq_row``, ``exp_avg_sq_col``), a vector one per
    element.
    """
    item_bytes = DTYPE_BYTES[dtype]
    if len(shape) < MATRIX:
        return rounded(numel * item_bytes) + STEP_COUNT_BYTES
    rows = numel // shape[-1] if shape[-1] else 0
    columns = numel // shape[-2] if shape[-2] else 0
    return rounded(rows * item_bytes) + rounded(columns * item_bytes) + STEP_COUNT_BYTES


PAGED_MINIMUM = 100_000
"""Elements from which bitsandbytes' paged optimizers hold a state in managed memory (``optim/optimizer.py``,
``get_state_buffer``; ``functional.py``, ``get_paged``): torch's allocator does not know of it, and the driver moves its
pages to the host when the GPU is full."""


def paged_bytes(numel: int, optimizer: str) -> int:
    """Compute the optimizer's state bytes of one tensor that are in CUDA managed memory (bitsandbytes' paged ones)."""
    if not optimizer.startswith("paged-") or numel < PAGED_MINIMUM:
        return 0
    state_bytes = numel if optimizer.endswith("8bit") else FP32 * numel
    return STATES_PER_PARAMETER[optimizer] * state_bytes


FLASH_GROUP = 32
"""Elements of a moment that share a 16-bit scale (flashoptim 0.1 ``optimizers.py``, ``quantize``)."""


FLASH_MASTERS = {"flash-adamw": 3, "flash-adamw-32": 4}
"""Bytes of a master weight (``master_weight_bits``), of which the parameter is a part."""


def _flash_states(numel: int, dtype: str, master: int) -> int:
    """Compute the state bytes of flashoptim's FlashAdamW: both moments in 8 bits, their scales, and a master's error.

    ``master``: bytes of a master weight. Only what it has more than its parameter is stored (``error_bits``).
    """
    moment = rounded(numel) + rounded(FP16 * ceil_div(numel, FLASH_GROUP))  # a byte per element, a scale per group
    error = rounded(max(0, master - DTYPE_BYTES[dtype]) * numel)
    return 2 * moment + error


class LowBits(Record):
    """How torchao holds a moment (``torchao/optim/subclass_8bit.py``, ``subclass_4bit.py``, ``subclass_fp8.py``)."""

    bits: int
    block: int
    """Elements that share one fp32 scale."""
    table: int
    """Entries of the fp32 table of its codes, which every moment has one of its own of."""


LOW_BITS = {
    "adamw-torchao-8bit": LowBits(bits=8, block=256, table=256),
    "adamw-torchao-4bit": LowBits(bits=4, block=128, table=16),
    "adamw-torchao-fp8": LowBits(bits=8, block=256, table=0),
}


def _low_bit_states(numel: int, kind: LowBits, dtype: str) -> int:
    """Compute the bytes of both moments of torchao's low-bit AdamW for ``numel`` elements: codes, scales, code table.

    ``kind``: bits and block size. Tensors that are small, or that blocks do not divide, have moments of ``dtype``
    (``torchao/optim/adam.py``, ``_new_buffer``). The step counter is on the host.
    """
    if numel < EIGHT_BIT_MINIMUM or numel % kind.block:
        return 2 * rounded(numel * DTYPE_BYTES[dtype])
    codes = rounded(numel * kind.bits // BYTE_BITS)
    scales = rounded(FP32 * (numel // kind.block))
    return 2 * (codes + scales + rounded(FP32 * kind.table))


def orthogonalised(tensor: LocalTensor) -> bool:
    """Say whether Muon updates the tensor: torch.optim.Muon takes matrices only; embeddings, head, vectors and stacked
    experts stay with AdamW (torch/optim/_muon.py: "Muon only supports 2D parameters").
    """
    return tensor.matrix and len(tensor.shape) == MATRIX


MIB = 2**20
SMALL_SIZE = MIB
"""``kSmallSize``: the largest block of a small pool."""
SMALL_BUFFER = 2 * MIB
"""``kSmallBuffer``: a segment of a small pool, and a page of an expandable one."""
MIN_LARGE = 10 * MIB
"""``kMinLargeAlloc``: below it a large pool takes segments of ``LARGE_BUFFER``."""
LARGE_BUFFER = 20 * MIB
"""``kLargeBuffer``; also a page of an expandable segment of a large pool."""
ROUND_LARGE = 2 * MIB
"""``kRoundLarge``: larger segments are multiples of it."""


def segment_size(size: int) -> int:
    """Return what the driver is asked for, in bytes, when a block of ``size`` bytes has no room
    (``get_allocation_size``).
    """
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    return LARGE_BUFFER if size < MIN_LARGE else round_up(size, ROUND_LARGE)


class Unfilled(Record):
    """Bytes that the segments of resident blocks leave to no other block."""

    parameters: int
    """What parameters, which come first, leave unfilled: every one of them has a new segment or a rest of one."""
    later: int
    """What gradients and states leave unfilled, if no segment were free when they come."""
    later_bytes: int
    """Gradients and states themselves."""

    def among(self, freed: int) -> int:
        """Return the bytes left unfilled if ``freed`` bytes are free when gradients and states come: larger free blocks
        are divided.
        """
        new = max(0, self.later_bytes - freed)
        return self.parameters + (self.later * new // self.later_bytes if new else 0)

    @property
    def most(self) -> int:
        """Bytes left unfilled if nothing has been freed before gradients and states come."""
        return self.parameters + self.later


def unfilled(blocks: Sequence[int]) -> int:
    """Compute the bytes of the allocator's segments that resident blocks leave unusable.

    ``blocks``: bytes of the resident blocks, in the order of allocation. Each goes to the smallest gap that holds it,
    or to a new segment. A gap that is smaller than every block is wasted.
    """
    large = [size for size in blocks if size > SMALL_SIZE]
    smallest = min(large, default=0)
    gaps: list[int] = []
    wasted = 0
    for size in large:
        at = bisect_left(gaps, size)
        if at < len(gaps):
            remainder = gaps.pop(at) - size
        else:
            remainder = LARGE_BUFFER - size if size < MIN_LARGE else -size % ROUND_LARGE
        if remainder > SMALL_SIZE:
            insort(gaps, remainder)
        else:
            wasted += remainder
    return wasted + sum(gap for gap in gaps if gap < smallest)
