"""What one layer costs one rank: arithmetic, memory and bytes to exchange, for one micro-batch."""

from __future__ import annotations

from math import prod

from memcheck.accounts.state import local_tensor
from memcheck.autograd.context import is_frozen
from memcheck.autograd.tensor import ceil_div
from memcheck.models.parameters import block_tensors
from memcheck.models.types import Attention, Block, LatentAttention, Moe, ParameterTensor
from memcheck.record import Record
from memcheck.timing.rates import Rates, matmul
from memcheck.timing.shape import Product, Shape, is_adapted, products, projections
from memcheck.timing.tensor_parallel import AGAIN, KEPT, Half, halves
from memcheck.timing.traffic import (
    block_traffic,
    kept_expert_width,
    kept_width,
    merge_traffic,
    recomputed_traffic,
    repeat_traffic,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RooflineSeconds(Record):
    """Seconds of a pass, by what bounds its operations."""

    arithmetic: float
    memory: float


class LayerCost(Record):
    """What one layer costs one rank for one micro-batch: seconds, FLOPs, parameters, and bytes that it exchanges."""

    forward: RooflineSeconds
    """Seconds of the forward pass."""
    input_gradients: RooflineSeconds
    """Seconds of the gradients of the inputs."""
    weight_gradients: RooflineSeconds
    """Seconds of the gradients of the weights."""
    recomputed: RooflineSeconds
    """Seconds of what backward recomputes."""
    flops: float
    """FLOPs of the forward pass, as papers count them."""
    backward_flops: float
    """FLOPs of the gradients of inputs and weights."""
    recomputed_flops: float
    """FLOPs that recompute adds."""
    attention_recompute_flops: float
    """FLOPs of the scores that attention's backward kernel computes again."""
    attention_seconds: float
    """Seconds of core attention in forward, which a ring of context-parallel ranks may overlap."""
    attention_backward_seconds: float
    """Seconds of core attention in backward."""
    dense_parameters: int
    """Parameters on this rank, without experts."""
    trained_dense_parameters: int
    """Dense parameters that get gradients, adapters included."""
    expert_parameters: int
    """Parameters of routed experts on this rank."""
    trained_expert_parameters: int
    """Parameters of routed experts that get gradients, adapters included."""
    exchanges: int = 0
    """Times that tensor parallelism gathers and reduces the hidden states in a forward pass."""
    recomputed_exchanges: int = 0
    """Pairs of them that the recompute repeats."""
    routed_bytes: float = 0.0
    """Bytes that the rank sends to experts in one all-to-all."""
    recomputed_routed: bool = False
    """The recompute repeats the all-to-alls to the experts and back."""
    recomputed_attention: bool = False
    """Attention is among what backward computes again."""
    kv_bytes: float = 0.0
    """Bytes of the keys and values of this rank's tokens."""
    experts_per_token: int = 0
    """Experts that a token is routed to."""
    expert_groups: int = 1
    """Number of groups that the experts are divided into."""
    chosen_groups: int = 1
    """Largest number of expert groups per token."""
    halves: tuple[Half, ...] = ()
    """Products whose exchanges tensor parallelism needs."""


class Tally:
    """Adds up the FLOPs of one pass, and the seconds of its operations by what bounds them."""

    __slots__ = ("arithmetic", "flops", "memory", "rates")

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.arithmetic = self.memory = self.flops = 0.0

    def product(self, m: int, n: int, k: int, *, batch: int = 1, item_bytes: int = 2) -> None:
        """Add ``batch`` matrix products ``[m, k] x [k, n]`` of elements of ``item_bytes`` bytes."""
        seconds, by_memory = matmul(m, n, k, self.rates, batch, item_bytes)
        self.flops += 2.0 * m * n * k * batch
        if by_memory:
            self.memory += seconds
        else:
            self.arithmetic += seconds

    def bytes(self, count: float) -> None:
        """Add the seconds of reading and writing ``count`` bytes of device memory."""
        self.memory += count / self.rates.hbm_bandwidth

    @property
    def seconds(self) -> RooflineSeconds:
        """Seconds so far that arithmetic bounds, and that memory traffic bounds."""
        return RooflineSeconds(self.arithmetic, self.memory)


def block_cost(block: Block, hidden: int, shape: Shape, rates: Rates, *, trained: bool, input_grad: bool) -> LayerCost:
    """Compute the seconds, FLOPs, parameters and exchanged bytes of one layer, for one micro-batch on one rank.

    ``hidden``: width of the residual stream. ``shape``: the settings of the job. ``trained``: the base weights of the
    layer get gradients. ``input_grad``: something below the layer is trained, so that its input gets a gradient.
    """
    # time by pass: forward, gradients of inputs, gradients of weights, and what backward recomputes
    forward, inputs = Tally(rates), Tally(rates)
    weights, recomputed = Tally(rates), Tally(rates)
    linear = products(block, shape, trained=trained)
    operand_bytes = 1 if shape.fp8 else shape.item_bytes
    for product in linear:
        _linear(product, shape, operand_bytes, forward, inputs, weights)
    routed_tokens = _routed_tokens(block, shape)
    _elementwise(block, hidden, shape, routed_tokens, forward, inputs)
    inputs.bytes(_shared_input_gradient_bytes(linear, shape))
    core = _attention(block, shape, rates)
    _context_and_heads(block, shape, forward, inputs)
    if shape.fp8_saved_input:  # cast to fp8 after the activation function, and back before its gradient
        tokens = shape.batch * shape.sequence
        saved = kept_width(block) * tokens / shape.tensor_parallel + kept_expert_width(block) * routed_tokens
        forward.bytes(3.0 * saved)  # reads 2, writes 1; in backward reads 1, writes 2
        inputs.bytes(3.0 * saved)
    forward.arithmetic += core.seconds
    forward.bytes(core.forward_bytes)
    forward.flops += core.flops
    inputs.arithmetic += core.backward_seconds
    inputs.bytes(core.backward_bytes)
    inputs.flops += 2.0 * core.flops  # the backward of attention has twice the products of its forward
    exchanges, recomputed_exchanges, recomputed_routed = _recompute(block, shape, linear, forward, core, recomputed)
    if shape.recompute_modules:
        _recomputed_elementwise(block, hidden, shape, routed_tokens, recomputed)
    dense, dense_trained, experts, experts_trained = _counts(block, shape, trained=trained)
    if not input_grad:  # nothing below the layer is trained: autograd computes no gradients of its inputs
        inputs = Tally(rates)
        if not trained and shape.adapter is None:
            recomputed = Tally(rates)
    moe = block.mlp if isinstance(block.mlp, Moe) else None
    return LayerCost(
        forward=forward.seconds,
        input_gradients=inputs.seconds,
        weight_gradients=weights.seconds,
        recomputed=recomputed.seconds,
        flops=forward.flops,
        backward_flops=inputs.flops + weights.flops,
        recomputed_flops=recomputed.flops,
        attention_recompute_flops=0.5 * core.flops if input_grad and shape.attention != "eager" else 0.0,
        attention_seconds=core.seconds,
        attention_backward_seconds=core.backward_seconds,
        dense_parameters=dense,
        trained_dense_parameters=dense_trained,
        expert_parameters=experts,
        trained_expert_parameters=experts_trained,
        exchanges=exchanges,
        recomputed_exchanges=recomputed_exchanges,
        routed_bytes=_routed_bytes(routed_tokens, hidden, shape),
        recomputed_routed=recomputed_routed,
        recomputed_attention=shape.recompute == "full" or "core_attn" in shape.recompute_modules,
        kv_bytes=_kv_bytes(block, shape),
        experts_per_token=moe.experts_per_token if moe is not None else 0,
        expert_groups=moe.routing.groups[0] if moe is not None else 1,
        chosen_groups=moe.routing.groups[1] if moe is not None else 1,
        halves=_exchanging_halves(block, shape, linear, rates, operand_bytes),
    )


def _residual_tokens(shape: Shape) -> int:
    """Count the tokens of the residual stream on this rank: sequence parallelism divides them among tensor ranks."""
    tokens = shape.batch * shape.sequence
    return tokens // shape.tensor_parallel if shape.sequence_parallel else tokens


def _routed_tokens(block: Block, shape: Shape) -> int:
    """Count the copies of tokens that this rank sends to experts: one for each expert of a token; 0 without experts."""
    if not isinstance(block.mlp, Moe):
        return 0
    return _residual_tokens(shape) * block.mlp.experts_per_token


def _routed_bytes(routed_tokens: int, hidden: int, shape: Shape) -> float:
    """Return the bytes that the busiest rank sends in one all-to-all to the experts: [routed tokens, hidden]."""
    imbalance = shape.expert_imbalance if shape.expert_parallel > 1 else 1.0
    return float(shape.item_bytes * routed_tokens * hidden * imbalance) if routed_tokens else 0.0


def _elementwise(block: Block, hidden: int, shape: Shape, routed_tokens: int, forward: Tally, inputs: Tally) -> None:
    """Add the bytes that a layer's element-wise operations move to ``forward`` and to ``inputs`` (backward).

    ``routed_tokens``: rows that the local experts get.
    """
    stream_bytes = 4 if shape.autocast or shape.item_bytes == 4 else 2
    traffic = block_traffic(block, hidden, fused=shape.fused, fused_norms=shape.fused_norms, item_bytes=stream_bytes)
    scale = shape.item_bytes / 2  # `Traffic` counts the inner operations at two bytes an element
    tokens = shape.batch * shape.sequence
    for tally, direction in ((forward, 0), (inputs, 1)):
        tally.bytes(traffic.stream[direction] * _residual_tokens(shape))
        inner = traffic.inner[direction] * tokens / shape.tensor_parallel
        tally.bytes(scale * (inner + traffic.experts[direction] * routed_tokens))


def _recomputed_elementwise(block: Block, hidden: int, shape: Shape, routed_tokens: int, recomputed: Tally) -> None:
    """Add to ``recomputed`` the bytes of element-wise operations that Megatron's ``recompute_modules`` run again.

    ``routed_tokens``: rows that the local experts get.
    """
    traffic = recomputed_traffic(block, hidden, shape.recompute_modules, fused=shape.fused)
    tokens = shape.batch * shape.sequence
    moved = (
        traffic.stream[0] * _residual_tokens(shape)
        + traffic.inner[0] * tokens / shape.tensor_parallel
        + traffic.experts[0] * routed_tokens
    )
    recomputed.bytes(shape.item_bytes / 2 * moved)  # `Traffic` counts two bytes an element


def _context_and_heads(block: Block, shape: Shape, forward: Tally, inputs: Tally) -> None:
    """Add bytes to ``forward`` and ``inputs`` (backward): for repeating keys and values, and for merging ring
    attention.

    Some frameworks repeat keys and values for every query head. A ring merges the outputs of its steps.
    """
    tokens = shape.batch * shape.sequence
    mixer: Any = (
        block.mixer
    )  # not of a tower: :func:`memcheck.timing.towers.tower_kinds` describes their layers as text's
    if shape.repeats_kv_heads:
        repeated = repeat_traffic(mixer, tensor=shape.tensor_parallel, item_bytes=shape.item_bytes) * tokens
        forward.bytes(repeated)
        inputs.bytes(repeated)
    if shape.context_parallel > 1:
        merge_forward, merge_backward = merge_traffic(
            shape.context_kind,
            mixer,
            shape.context_parallel,
            tensor=shape.tensor_parallel,
            fused=shape.fused,
            repeats_kv_heads=shape.repeats_kv_heads,
        )
        forward.bytes(merge_forward * tokens)
        inputs.bytes(merge_backward * tokens)


def _exchanging_halves(
    block: Block, shape: Shape, linear: list[Product], rates: Rates, operand_bytes: int
) -> tuple[Half, ...]:
    """Return the halves of a layer, attention and MLP, before and after which tensor ranks exchange hidden states.

    ``linear``: the layer's matrix products. Empty without tensor parallelism.
    """
    if shape.tensor_parallel == 1:
        return ()
    return halves(linear, rates, operand_bytes, dense=_has_dense(block, shape), latent=_latent(block, shape))


def _latent(block: Block, shape: Shape) -> str:
    """Return :attr:`Half.latent` of the attention half: whether tensor ranks exchange latents, not hidden states."""
    if not isinstance(block.mixer, LatentAttention) or shape.latent_inputs != "exchanged":
        return ""
    return AGAIN if shape.recompute == "selective" and "mla_up_proj" in shape.recompute_modules else KEPT


def _linear(product: Product, shape: Shape, item_bytes: int, forward: Tally, inputs: Tally, weights: Tally) -> None:
    """Add one linear layer's work to ``forward``, and its backward's to ``inputs`` (dX) and ``weights`` (dW).

    In addition to ``product`` this counts the bytes of casts to fp8 or by autocast, of dequantised weights, and the
    products of adapters. ``item_bytes``: bytes per element of the operands.
    """
    forward.product(product.tokens, product.outputs, product.inputs, batch=product.batch, item_bytes=item_bytes)
    inputs.product(product.tokens, product.inputs, product.outputs, batch=product.batch, item_bytes=item_bytes)
    if product.trained:
        weights.product(product.outputs, product.inputs, product.tokens, batch=product.batch, item_bytes=item_bytes)
    input_elements = product.tokens * product.inputs * product.batch
    if shape.fp8:  # a maximum (read) and a cast (read, write) of both operands, compiled into two kernels
        forward.bytes(5.0 * (product.cast_input_elements + product.parameters))
        inputs.bytes(5.0 * product.cast_output_elements)
        if shape.float8_tensors:
            _transposed_copies(product, inputs, weights)
    if shape.autocast:  # casts of input and weight read 4 and write 2; those of the gradients read 2 and write 4
        forward.bytes(6.0 * (input_elements + product.parameters))
        inputs.bytes(6.0 * input_elements)
        if product.trained:
            weights.bytes(6.0 * product.parameters)
    if shape.adapter is not None and shape.adapter.quantized and product.adapted:
        forward.bytes(2.5 * product.parameters)  # half a byte read, two written
        inputs.bytes(2.5 * product.parameters)
    if product.adapted and shape.adapter is not None:
        rank = shape.adapter.rank
        for tally in (forward, inputs, weights):
            tally.product(product.tokens, rank, product.inputs, batch=product.batch)
            tally.product(product.tokens, product.outputs, rank, batch=product.batch)


def _transposed_copies(product: Product, inputs: Tally, weights: Tally) -> None:
    """Add the transposed copies that torchao's fp8 products need, at 2 bytes per element (read 1, write 1).

    An fp8 product takes a row-major and a column-major operand, and any other layout is copied. The input's gradient
    needs a copy of the weight. The weight's gradient needs copies of the output's gradient and of the input; products
    that read the same input share its copy. Source: torchao ``float8_ops.py``, preprocess_addmm.
    """
    inputs.bytes(2.0 * product.parameters)
    if product.trained:
        copied_columns = product.outputs if product.shares_input else product.outputs + product.inputs
        weights.bytes(2.0 * product.batch * product.tokens * copied_columns)


def _shared_input_gradient_bytes(linear: list[Product], shape: Shape) -> float:
    """Return the bytes moved to add up the gradients of inputs that several products read (q, k and v; gate and up).

    Each addition reads two tensors and writes one. A compiled kernel reads all of them and writes one.
    """
    if shape.fused_products == "all":
        return 0.0
    bytes_moved = 0.0
    readers = 1
    for product, following in zip(linear, [*linear[1:], None], strict=True):
        readers = readers + 1 if product.shares_input else 1
        if readers > 1 and (following is None or not following.shares_input) and shape.fused_products != product.group:
            accesses = readers + 1 if shape.fused else 3 * (readers - 1)
            bytes_moved += float(accesses * shape.item_bytes * product.tokens * product.inputs)
    return bytes_moved


class CoreAttention(Record):
    """Seconds, FLOPs and bytes of core attention: the scores, and the values that they weight."""

    seconds: float = 0.0
    backward_seconds: float = 0.0
    flops: float = 0.0
    """FLOPs of a causal forward."""
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0


BACKWARD_PRODUCTS = 2.5
"""FLOPs of attention's backward over those of its forward: five products instead of two (Dao 2023, section 3.1)."""
EAGER_SCORE_BYTES = 20.0
"""Bytes per score of eager attention's forward: written 2, masked 2 + 2, softmax 2 + 4, cast 4 + 2, read 2."""


def _attention(block: Block, shape: Shape, rates: Rates) -> CoreAttention:
    """Compute the time of core attention in one layer: two products over the keys that a query may see.

    A causal query sees half of the keys on average, or those of its sliding window. Eager attention computes the scores
    of all keys and also moves them through memory, in backward twice as much as in forward.
    """
    mixer = block.mixer
    length = shape.sequence * shape.context_parallel
    if isinstance(mixer, Attention):
        width, heads, window = 2 * mixer.head_dim, mixer.heads, mixer.window
    elif isinstance(mixer, LatentAttention):
        width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
        heads, window = mixer.heads, None
    else:
        return CoreAttention()
    heads = ceil_div(heads, shape.tensor_parallel)
    keys = length / 2  # the mean number of keys that a query sees
    if window is not None and window < length:
        keys = window - window * window / (2 * length)
    queries = shape.batch * shape.sequence
    flops = 2.0 * queries * keys * heads * width
    if shape.attention == "eager":
        bytes_moved = EAGER_SCORE_BYTES * queries * length * heads
        seconds = 2.0 * queries * length * heads * width / rates.matmul_flops
        return CoreAttention(
            seconds=seconds,
            backward_seconds=BACKWARD_PRODUCTS * seconds,
            flops=flops,
            forward_bytes=bytes_moved,
            backward_bytes=2 * bytes_moved,
        )
    return CoreAttention(
        flops / rates.attention_flops, BACKWARD_PRODUCTS * flops / rates.attention_backward_flops, flops
    )


def _recompute(
    block: Block, shape: Shape, linear: list[Product], forward: Tally, core: CoreAttention, recomputed: Tally
) -> tuple[int, int, bool]:
    """Add to ``recomputed`` the work that activation checkpointing repeats in backward.

    ``linear``: the layer's matrix products. ``forward``, ``core``: the work of its forward and of its core attention.
    Returns the tensor-parallel exchanges of the forward pass, those of the recompute, and whether the recompute repeats
    the all-to-alls to the experts.
    """
    parallel_halves = int(block.mixer is not None) + int(_has_dense(block, shape))
    exchanges = parallel_halves if shape.tensor_parallel > 1 else 0
    if shape.recompute == "full":
        recomputed.arithmetic, recomputed.memory, recomputed.flops = forward.arithmetic, forward.memory, forward.flops
        return exchanges, exchanges, True
    if shape.recompute != "selective":
        return exchanges, 0, False
    if shape.by_operators:
        # every operation but the kept ones: every second matrix product and attention (activation_checkpoint.py)
        recomputed.memory = forward.memory
        kept = False
        for product in projections(linear):
            kept = not kept
            if not kept or product.group == "experts":
                recomputed.product(product.tokens, product.outputs, product.inputs, batch=product.batch)
        return exchanges, 0, False
    return exchanges, _recompute_modules(shape, linear, core, recomputed), "moe" in shape.recompute_modules


def _recompute_modules(shape: Shape, linear: list[Product], core: CoreAttention, recomputed: Tally) -> int:
    """Add the work of Megatron's ``recompute_modules`` (by default core attention alone) to ``recomputed``.

    ``linear``: the layer's matrix products. ``core``: the work of its core attention. Returns the number of
    tensor-parallel exchanges that the recompute repeats.
    """
    exchanges = 0
    if "core_attn" in shape.recompute_modules:
        recomputed.arithmetic += core.seconds
        recomputed.flops += core.flops
        recomputed.bytes(core.forward_bytes)
    groups: set[str] = set()
    if "mlp" in shape.recompute_modules:
        groups.add("mlp")
    if "moe" in shape.recompute_modules:
        groups |= {"experts", "shared_experts", "router"}
    if "shared_experts" in shape.recompute_modules:
        groups.add("shared_experts")
    for product in linear:
        is_up_projection = "mla_up_proj" in shape.recompute_modules and product.name.endswith(("q_b_proj", "kv_b_proj"))
        if product.group in groups or is_up_projection:
            recomputed.product(
                product.tokens,
                product.outputs,
                product.inputs,
                batch=product.batch,
                item_bytes=1 if shape.fp8 else shape.item_bytes,
            )
            if shape.fp8:
                recomputed.bytes(5.0 * product.cast_input_elements)
            exchanges = 1 if shape.tensor_parallel > 1 and product.group in ("mlp", "shared_experts") else exchanges
    return exchanges


def _has_dense(block: Block, shape: Shape) -> bool:
    """Say whether the feed-forward half exchanges hidden states over the tensor ranks."""
    mlp = block.mlp
    if isinstance(mlp, Moe) and shape.own_expert_groups:
        return bool(mlp.shared.width)  # routed tokens go over groups of their own
    if isinstance(mlp, Moe):
        return bool(mlp.shared.width) or shape.expert_tensor_parallel > 1 or shape.expert_parallel == 1
    return mlp is not None


def _kv_bytes(block: Block, shape: Shape) -> float:
    """Return the bytes of the keys and values of this rank's tokens, which context parallelism exchanges; 0 without
    it.
    """
    if shape.context_parallel == 1:
        return 0.0
    tokens = shape.batch * shape.sequence
    mixer = block.mixer
    if isinstance(mixer, Attention):
        width = (
            2
            * ceil_div(mixer.heads if shape.repeats_kv_heads else mixer.kv_heads, shape.tensor_parallel)
            * mixer.head_dim
        )
    elif isinstance(mixer, LatentAttention):
        heads = ceil_div(mixer.heads, shape.tensor_parallel)
        width = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
    else:
        return 0.0
    return float(shape.item_bytes * tokens * width)


def _counts(block: Block, shape: Shape, *, trained: bool) -> tuple[int, int, int, int]:
    """Count a layer's parameters on this rank, adapters included: dense, trained dense, expert, trained expert.

    ``trained``: the base weights get gradients.
    """
    dense = trained_dense = experts = trained_experts = 0
    tensors_of_modules: list[tuple[ParameterTensor, object]] = []
    for module in (block.mixer, block.second_mixer, block.mlp):
        if module is not None:
            tensors_of_modules += [(tensor, module) for tensor in module.tensors]
    norms = block_tensors(block)[len(tensors_of_modules) :]
    tensors_of_modules += [(tensor, None) for tensor in norms]
    for tensor, owner in tensors_of_modules:
        local = local_tensor(tensor, owner, shape.tensor_parallel, shape.expert_parallel, shape.expert_tensor_parallel)
        numel, trained_numel = prod(local), 0
        if shape.adapter is None:
            if trained and not is_frozen(tensor.name.removesuffix(".weight"), shape.frozen_modules):
                trained_numel = numel
        elif len(local) == 2 and is_adapted(shape, tensor, owner):
            trained_numel = shape.adapter.rank * sum(local)  # A [rank, inputs] and B [outputs, rank]
            numel += trained_numel
        if tensor.group == "experts":
            experts, trained_experts = experts + numel, trained_experts + trained_numel
        else:
            dense, trained_dense = dense + numel, trained_dense + trained_numel
    return dense, trained_dense, experts, trained_experts
