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
from memcheck.timing.shape import (
    CAST,
    Product,
    Shape,
    activation_input_width,
    block_traffic,
    expert_activation_input_width,
    is_adapted,
    kv_width,
    merge_traffic,
    products,
    projections,
    recomputed_traffic,
    repeat_traffic,
)
from memcheck.timing.tensor_parallel import AGAIN, KEPT, Half, halves
from memcheck.timing.types import RooflineSeconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


FP8_STORE_BYTES = 3.0
"""Per element kept in fp8 until backward: read 2 and written 1 in forward, read 1 and written 2 in backward."""
FP8_CAST_BYTES = 5.0
"""Per element of an operand cast to fp8 in two kernels: read 2 for the maximum, read 2 and written 1 for the cast."""
FP8_TRANSPOSE_BYTES = 2.0
"""Per fp8 element that is copied to another layout: read 1, written 1."""
DEQUANTISE_BYTES = 2.5
"""Per 4-bit weight that is dequantised: read 0.5, written 2."""


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
    tensor_exchanges: int = 0
    """Times that tensor parallelism gathers and reduces the hidden states in a forward pass."""
    recomputed_tensor_exchanges: int = 0
    """Pairs of them that the recompute repeats."""
    routed_bytes: float = 0.0
    """Bytes that the rank sends to experts in one all-to-all."""
    recomputes_routing: bool = False
    """The recompute repeats the all-to-alls to the experts and back."""
    recomputes_attention: bool = False
    """Attention is among what backward computes again."""
    kv_bytes: float = 0.0
    """Bytes of the keys and values of this rank's tokens."""
    experts_per_token: int = 0
    """Experts that a token is routed to."""
    expert_groups: int = 1
    """Number of groups that the experts are divided into."""
    groups_per_token: int = 1
    """Largest number of expert groups per token."""
    halves: tuple[Half, ...] = ()
    """Products whose exchanges tensor parallelism needs."""


class Tally:
    """Adds up the FLOPs of one pass, and the seconds of its operations by what bounds them."""

    __slots__ = ("arithmetic", "flops", "memory", "rates")

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.arithmetic = self.memory = self.flops = 0.0

    def product(self, rows: int, columns: int, inner: int, *, batch: int = 1, item_bytes: int = 2) -> None:
        """Add ``batch`` matrix products ``[rows, inner] x [inner, columns]`` of elements of ``item_bytes`` bytes."""
        time = matmul(rows, columns, inner, self.rates, batch, item_bytes)
        self.flops += 2.0 * rows * columns * inner * batch  # a multiplication and an addition
        if time.is_memory_bound:
            self.memory += time.seconds
        else:
            self.arithmetic += time.seconds

    def bytes(self, count: float) -> None:
        """Add the seconds of reading and writing ``count`` bytes of device memory."""
        self.memory += count / self.rates.hbm_bandwidth

    @property
    def seconds(self) -> RooflineSeconds:
        """Seconds so far that arithmetic bounds, and that memory traffic bounds."""
        return RooflineSeconds(self.arithmetic, self.memory)


class _Passes(Record):
    """The work of one layer, pass by pass."""

    forward: Tally
    input_gradients: Tally
    weight_gradients: Tally
    recomputed: Tally


def block_cost(block: Block, hidden: int, shape: Shape, rates: Rates, *, trained: bool, input_grad: bool) -> LayerCost:
    """Compute the seconds, FLOPs, parameters and exchanged bytes of one layer, for one micro-batch on one rank.

    ``hidden``: width of the residual stream. ``shape``: the settings of the job. ``trained``: the base weights of the
    layer get gradients. ``input_grad``: something below the layer is trained, so that its input gets a gradient.
    """
    linear, core = products(block, shape, trained=trained), _attention(block, shape, rates)
    routed_tokens = _routed_tokens(block, shape)
    passes = _forward_and_backward(block, hidden, shape, rates, linear, core)
    repeated = _recompute(block, shape, linear, passes.forward, core, passes.recomputed)
    if shape.recompute_modules:
        _recomputed_elementwise(block, hidden, shape, routed_tokens, passes.recomputed)
    if not input_grad:  # nothing below the layer is trained: autograd computes no gradients of its inputs
        passes = passes._replace(input_gradients=Tally(rates))
        if not trained and shape.adapter is None:
            passes = passes._replace(recomputed=Tally(rates))
    counts = _counts(block, shape, trained=trained)
    moe = block.mlp if isinstance(block.mlp, Moe) else None
    return LayerCost(
        forward=passes.forward.seconds,
        input_gradients=passes.input_gradients.seconds,
        weight_gradients=passes.weight_gradients.seconds,
        recomputed=passes.recomputed.seconds,
        flops=passes.forward.flops,
        backward_flops=passes.input_gradients.flops + passes.weight_gradients.flops,
        recomputed_flops=passes.recomputed.flops,
        attention_recompute_flops=_attention_recompute_flops(core, shape) if input_grad else 0.0,
        attention_seconds=core.seconds,
        attention_backward_seconds=core.backward_seconds,
        dense_parameters=counts.dense,
        trained_dense_parameters=counts.trained_dense,
        expert_parameters=counts.experts,
        trained_expert_parameters=counts.trained_experts,
        tensor_exchanges=_tensor_exchanges(block, shape),
        recomputed_tensor_exchanges=repeated.tensor_exchanges,
        routed_bytes=_routed_bytes(routed_tokens, hidden, shape),
        recomputes_routing=repeated.routing,
        recomputes_attention=shape.recompute == "full" or "core_attn" in shape.recompute_modules,
        kv_bytes=_kv_bytes(block, shape),
        experts_per_token=moe.experts_per_token if moe is not None else 0,
        expert_groups=moe.routing.groups[0] if moe is not None else 1,
        groups_per_token=moe.routing.groups[1] if moe is not None else 1,
        halves=_exchanging_halves(block, shape, linear, rates),
    )


def _forward_and_backward(
    block: Block, hidden: int, shape: Shape, rates: Rates, linear: list[Product], core: CoreAttention
) -> _Passes:
    """Return the work of a layer's forward and backward; its recompute is still empty.

    ``linear``: its matrix products. ``core``: the work of core attention.
    """
    forward, input_gradients, weight_gradients = Tally(rates), Tally(rates), Tally(rates)
    routed_tokens = _routed_tokens(block, shape)
    for product in linear:
        _linear(product, shape, forward, input_gradients, weight_gradients)
    _elementwise(block, hidden, shape, routed_tokens, forward, input_gradients)
    input_gradients.bytes(_shared_input_gradient_bytes(linear, shape))
    _context_and_heads(block, shape, forward, input_gradients)
    if shape.fp8_saved_input:  # cast to fp8 after the activation function, and back before its gradient
        stored = activation_input_width(block) * shape.batch * shape.sequence / shape.tensor_parallel
        stored += expert_activation_input_width(block) * routed_tokens
        forward.bytes(FP8_STORE_BYTES * stored)
        input_gradients.bytes(FP8_STORE_BYTES * stored)
    _add_core_attention(core, forward, input_gradients)
    return _Passes(
        forward=forward, input_gradients=input_gradients, weight_gradients=weight_gradients, recomputed=Tally(rates)
    )


def _add_core_attention(core: CoreAttention, forward: Tally, input_gradients: Tally) -> None:
    """Add the work of core attention to the forward pass, and that of its backward to the gradients of inputs."""
    forward.arithmetic += core.seconds
    forward.bytes(core.forward_bytes)
    forward.flops += core.flops
    input_gradients.arithmetic += core.backward_seconds
    input_gradients.bytes(core.backward_bytes)
    input_gradients.flops += 2.0 * core.flops  # each of the two products has two gradients


def _attention_recompute_flops(core: CoreAttention, shape: Shape) -> float:
    """Return the FLOPs of the scores, one of attention's two products, which fused kernels compute again in
    backward.
    """
    return 0.0 if shape.attention == "eager" else core.flops / 2


def _operand_bytes(shape: Shape) -> int:
    """Return the bytes per element of the operands of matrix products: 1 in fp8, else those of the activations."""
    return 1 if shape.fp8_products else shape.item_bytes


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


def _elementwise(
    block: Block, hidden: int, shape: Shape, routed_tokens: int, forward: Tally, input_gradients: Tally
) -> None:
    """Add the bytes that a layer's element-wise operations move in the forward pass and for the gradients of inputs.

    ``routed_tokens``: rows that the local experts get.
    """
    stream_bytes = 4 if shape.autocast or shape.item_bytes == 4 else 2
    traffic = block_traffic(
        block, hidden, fused=shape.fuses_elementwise, fused_norms=shape.fused_norms, item_bytes=stream_bytes
    )
    scale = shape.item_bytes / 2  # `Traffic` counts the inner operations at two bytes an element
    tokens = shape.batch * shape.sequence
    passes = zip((forward, input_gradients), traffic.stream, traffic.inner, traffic.experts, strict=True)
    for tally, stream, inner, experts in passes:
        tally.bytes(stream * _residual_tokens(shape))
        tally.bytes(scale * (inner * tokens / shape.tensor_parallel + experts * routed_tokens))


def _recomputed_elementwise(block: Block, hidden: int, shape: Shape, routed_tokens: int, recomputed: Tally) -> None:
    """Add to ``recomputed`` the bytes of element-wise operations that Megatron's ``recompute_modules`` run again.

    ``routed_tokens``: rows that the local experts get.
    """
    traffic = recomputed_traffic(block, hidden, shape.recompute_modules, fused=shape.fuses_elementwise)
    tokens = shape.batch * shape.sequence
    moved = (
        traffic.stream.forward_bytes * _residual_tokens(shape)
        + traffic.inner.forward_bytes * tokens / shape.tensor_parallel
        + traffic.experts.forward_bytes * routed_tokens
    )
    recomputed.bytes(shape.item_bytes / 2 * moved)  # `Traffic` counts two bytes an element


def _context_and_heads(block: Block, shape: Shape, forward: Tally, input_gradients: Tally) -> None:
    """Add the bytes moved around core attention by repeated keys and values, and by ring attention.

    Some frameworks repeat keys and values for every query head. A ring of context-parallel ranks merges the outputs of
    its steps.
    """
    tokens = shape.batch * shape.sequence
    # a tower's layers are described as layers of text (memcheck.timing.model.tower_kinds), so that mypy's other types
    # of mixers do not occur
    mixer: Any = block.mixer
    if shape.repeats_kv_heads:
        repeated = repeat_traffic(mixer, tensor=shape.tensor_parallel, item_bytes=shape.item_bytes) * tokens
        forward.bytes(repeated)
        input_gradients.bytes(repeated)
    if shape.context_parallel > 1:
        merged = merge_traffic(
            shape.context_kind,
            mixer,
            shape.context_parallel,
            tensor=shape.tensor_parallel,
            fused=shape.fuses_elementwise,
            repeats_kv_heads=shape.repeats_kv_heads,
        )
        forward.bytes(merged.forward_bytes * tokens)
        input_gradients.bytes(merged.backward_bytes * tokens)


def _exchanging_halves(block: Block, shape: Shape, linear: list[Product], rates: Rates) -> tuple[Half, ...]:
    """Return the halves of a layer, attention and MLP, before and after which tensor ranks exchange hidden states.

    ``linear``: the layer's matrix products. Empty without tensor parallelism.
    """
    if shape.tensor_parallel == 1:
        return ()
    return halves(
        linear, rates, _operand_bytes(shape), dense=_mlp_exchanges(block, shape), latent=_latent(block, shape)
    )


def _latent(block: Block, shape: Shape) -> str:
    """Return :attr:`Half.latents` of the attention half: whether tensor ranks exchange latents, not hidden states."""
    if not isinstance(block.mixer, LatentAttention) or shape.latent_input_tokens != "exchanged":
        return ""
    recomputed_alone = shape.recompute == "selective" and "mla_up_proj" in shape.recompute_modules
    return AGAIN if recomputed_alone else KEPT


def _linear(product: Product, shape: Shape, forward: Tally, input_gradients: Tally, weight_gradients: Tally) -> None:
    """Add the work of one linear layer: its product in forward, and the two products of its gradients.

    In addition to ``product`` this counts the bytes of casts to fp8 or by autocast, of dequantised weights, and the
    products of adapters.
    """
    tokens, outputs, inputs, batch = product.tokens, product.outputs, product.inputs, product.equal_products
    item_bytes = _operand_bytes(shape)
    forward.product(tokens, outputs, inputs, batch=batch, item_bytes=item_bytes)
    input_gradients.product(tokens, inputs, outputs, batch=batch, item_bytes=item_bytes)
    if product.trained:
        weight_gradients.product(outputs, inputs, tokens, batch=batch, item_bytes=item_bytes)
    if shape.fp8_products:
        forward.bytes(FP8_CAST_BYTES * (product.cast_input_elements + product.parameters))
        input_gradients.bytes(FP8_CAST_BYTES * product.cast_output_elements)
        if shape.uses_torchao_float8:
            _transposed_copies(product, input_gradients, weight_gradients)
    if shape.autocast:  # input and weight are cast to 16 bits, and their gradients to fp32
        input_elements = tokens * inputs * batch
        forward.bytes(CAST * (input_elements + product.parameters))
        input_gradients.bytes(CAST * input_elements)
        if product.trained:
            weight_gradients.bytes(CAST * product.parameters)
    if shape.adapter is None or not product.adapted:
        return
    if shape.adapter.base_format is not None:
        forward.bytes(DEQUANTISE_BYTES * product.parameters)
        input_gradients.bytes(DEQUANTISE_BYTES * product.parameters)
    rank = shape.adapter.rank
    for tally in (forward, input_gradients, weight_gradients):  # the gradients' products are as large as the forward's
        tally.product(tokens, rank, inputs, batch=batch)
        tally.product(tokens, outputs, rank, batch=batch)


def _transposed_copies(product: Product, input_gradients: Tally, weight_gradients: Tally) -> None:
    """Add the transposed copies that torchao's fp8 products need.

    An fp8 product takes a row-major and a column-major operand, and any other layout is copied. The input's gradient
    needs a copy of the weight. The weight's gradient needs copies of the output's gradient and of the input; products
    that read the same input share its copy. Source: torchao ``float8_ops.py``, preprocess_addmm.
    """
    input_gradients.bytes(FP8_TRANSPOSE_BYTES * product.parameters)
    if product.trained:
        copied_columns = product.outputs if product.shares_input else product.outputs + product.inputs
        weight_gradients.bytes(FP8_TRANSPOSE_BYTES * product.equal_products * product.tokens * copied_columns)


def _shared_input_gradient_bytes(linear: list[Product], shape: Shape) -> float:
    """Return the bytes moved to add up the gradients of inputs that several products read (q, k and v; gate and up).

    Each addition reads two tensors and writes one. A compiled kernel reads all of them and writes one. Products that
    the framework runs as one have one gradient, and nothing is added.
    """
    if shape.fused_products == "all":
        return 0.0
    bytes_moved = 0.0
    readers = 1  # products so far that read the current input
    for product, following in zip(linear, [*linear[1:], None], strict=True):
        readers = readers + 1 if product.shares_input else 1
        last_reader = following is None or not following.shares_input
        if readers > 1 and last_reader and shape.fused_products != product.group:
            additions = readers - 1
            accesses = readers + 1 if shape.fuses_elementwise else 3 * additions
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
    length = shape.sequence * shape.context_parallel  # tokens of the whole sequence
    if isinstance(mixer, Attention):  # `width`: the inner dimension of scores, and the columns of the weighted values
        width, heads, window = 2 * mixer.head_dim, mixer.heads, mixer.window
    elif isinstance(mixer, LatentAttention):
        width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
        heads, window = mixer.heads, None
    else:
        return CoreAttention()
    heads = ceil_div(heads, shape.tensor_parallel)
    queries = shape.batch * shape.sequence
    flops_per_key = 2.0 * queries * heads * width
    flops = flops_per_key * _mean_keys(length, window)
    if shape.attention == "eager":
        bytes_moved = EAGER_SCORE_BYTES * queries * length * heads
        seconds = flops_per_key * length / rates.matmul_flops
        return CoreAttention(
            seconds=seconds,
            backward_seconds=BACKWARD_PRODUCTS * seconds,
            flops=flops,
            forward_bytes=bytes_moved,
            backward_bytes=2 * bytes_moved,
        )
    return CoreAttention(
        seconds=flops / rates.attention_flops,
        backward_seconds=BACKWARD_PRODUCTS * flops / rates.attention_backward_flops,
        flops=flops,
    )


def _mean_keys(length: int, window: int | None) -> float:
    """Return the mean number of keys that a query of ``length`` tokens sees, causally or within a sliding window.

    The first ``window`` queries see fewer keys than the window: half of it on average.
    """
    if window is None or window >= length:
        return length / 2
    return window - window * window / (2 * length)


class Repeated(Record):
    """The exchanges that activation checkpointing repeats in backward."""

    tensor_exchanges: int = 0
    """Gather and reduce-scatter pairs of tensor parallelism."""
    routing: bool = False
    """The all-to-alls to the experts and back."""


def _tensor_exchanges(block: Block, shape: Shape) -> int:
    """Count the gather and reduce-scatter pairs of a forward pass: one for attention, one for the MLP."""
    if shape.tensor_parallel == 1:
        return 0
    attention_exchanges = block.mixer is not None
    return [attention_exchanges, _mlp_exchanges(block, shape)].count(True)


def _recompute(
    block: Block, shape: Shape, linear: list[Product], forward: Tally, core: CoreAttention, recomputed: Tally
) -> Repeated:
    """Add to ``recomputed`` the work that activation checkpointing repeats in backward, and return its exchanges.

    ``linear``: the layer's matrix products. ``forward``, ``core``: the work of its forward and of its core attention.
    """
    if shape.recompute == "full":
        recomputed.arithmetic, recomputed.memory, recomputed.flops = forward.arithmetic, forward.memory, forward.flops
        return Repeated(_tensor_exchanges(block, shape), routing=True)
    if shape.recompute != "selective":
        return Repeated()
    if not shape.recompute_selects_operators:
        return Repeated(_recompute_modules(shape, linear, core, recomputed), routing="moe" in shape.recompute_modules)
    # all operations but attention and every second matrix product, whose results are saved (torchtitan
    # distributed/activation_checkpoint.py)
    recomputed.memory = forward.memory
    for index, product in enumerate(projections(linear)):
        is_saved = index % 2 == 0 and product.group != "experts"
        if not is_saved:
            recomputed.product(product.tokens, product.outputs, product.inputs, batch=product.equal_products)
    return Repeated()


def _recompute_modules(shape: Shape, linear: list[Product], core: CoreAttention, recomputed: Tally) -> int:
    """Add the work of Megatron's ``recompute_modules`` (by default core attention alone) to ``recomputed``.

    ``linear``: the layer's matrix products. ``core``: the work of its core attention. Returns the number of
    tensor-parallel exchanges that the recompute repeats.
    """
    modules = shape.recompute_modules
    exchanges = 0
    if "core_attn" in modules:
        recomputed.arithmetic += core.seconds
        recomputed.flops += core.flops
        recomputed.bytes(core.forward_bytes)
    groups = {group for module in modules for group in PRODUCT_GROUPS.get(module, ())}
    for product in linear:
        is_up_projection = "mla_up_proj" in modules and product.name.endswith(("q_b_proj", "kv_b_proj"))
        if product.group not in groups and not is_up_projection:
            continue
        recomputed.product(
            product.tokens,
            product.outputs,
            product.inputs,
            batch=product.equal_products,
            item_bytes=_operand_bytes(shape),
        )
        if shape.fp8_products:
            recomputed.bytes(FP8_CAST_BYTES * product.cast_input_elements)
        if shape.tensor_parallel > 1 and product.group in ("mlp", "shared_experts"):
            exchanges = 1
    return exchanges


PRODUCT_GROUPS = {
    "mlp": ("mlp",),
    "moe": ("experts", "shared_experts", "router"),
    "shared_experts": ("shared_experts",),
}
"""Groups of matrix products (:attr:`Product.group`) that one of Megatron's ``recompute_modules`` runs again."""


def _mlp_exchanges(block: Block, shape: Shape) -> bool:
    """Say whether the feed-forward half exchanges hidden states over the tensor ranks."""
    mlp = block.mlp
    if isinstance(mlp, Moe) and shape.experts_have_own_groups:
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
    width = kv_width(block.mixer, tensor=shape.tensor_parallel, repeats_kv_heads=shape.repeats_kv_heads)
    return float(shape.item_bytes * tokens * width)


class ParameterCounts(Record):
    """Parameters of one layer on one rank, adapters included."""

    dense: int
    """Parameters outside routed experts."""
    trained_dense: int
    experts: int
    trained_experts: int


def _counts(block: Block, shape: Shape, *, trained: bool) -> ParameterCounts:
    """Count a layer's parameters on this rank, adapters included. ``trained``: the base weights get gradients."""
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
    return ParameterCounts(dense=dense, trained_dense=trained_dense, experts=experts, trained_experts=trained_experts)
