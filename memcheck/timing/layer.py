"""What one layer costs one rank: arithmetic, memory and bytes to exchange, for one micro-batch."""

from __future__ import annotations

from memcheck.accounts.state import local_tensor
from memcheck.autograd.context import is_frozen
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
    """Seconds of one layer and micro-batch on one rank, and what it exchanges."""

    forward: RooflineSeconds
    input_gradients: RooflineSeconds
    """Seconds of the gradients of the inputs."""
    weight_gradients: RooflineSeconds
    """Seconds of the gradients of the weights."""
    recomputed: RooflineSeconds
    """Seconds of what backward recomputes."""
    flops: float
    """FLOPs of the forward pass, as papers count them."""
    backward_flops: float
    recomputed_flops: float
    """FLOPs that recompute adds."""
    attention_recompute_flops: float
    """FLOPs of the scores that attention's backward kernel computes again."""
    attention_seconds: float
    attention_backward_seconds: float
    dense_parameters: int
    """Parameters on this rank, without experts."""
    trained_dense_parameters: int
    expert_parameters: int
    trained_expert_parameters: int
    exchanges: int = 0
    """Times that tensor parallelism gathers and reduces the hidden states in a forward pass."""
    recomputed_exchanges: int = 0
    routed_bytes: float = 0.0
    """Bytes that the rank sends to experts in one all-to-all."""
    recomputed_routed: bool = False
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


def block_cost(block: Block, hidden: int, s: Shape, rates: Rates, *, trained: bool, input_grad: bool) -> LayerCost:
    """Compute the seconds, FLOPs, parameters and exchanged bytes of one layer, for one micro-batch on one rank.

    ``hidden``: width of the residual stream. ``s``: the settings of the job. ``trained``: the base weights of the layer
    get gradients. ``input_grad``: something below the layer is trained, so that its input gets a gradient.
    """
    tokens = s.batch * s.sequence
    residual_tokens = tokens // s.tensor_parallel if s.sequence_parallel else tokens
    forward, inputs, weights, recomputed = Tally(rates), Tally(rates), Tally(rates), Tally(rates)
    linear = products(block, s, trained=trained)
    operand_bytes = 1 if s.fp8 else s.item_bytes
    for p in linear:
        _linear(p, s, operand_bytes, forward, inputs, weights)
    residual_bytes = 4 if s.autocast or s.item_bytes == 4 else 2
    traffic = block_traffic(block, hidden, fused=s.fused, fused_norms=s.fused_norms, item_bytes=residual_bytes)
    m = block.mlp
    routed = residual_tokens * m.experts_per_token if isinstance(m, Moe) else 0
    if isinstance(m, Moe) and s.tensor_parallel > 1 and not s.sequence_parallel:
        routed = tokens * m.experts_per_token
    scale = s.item_bytes / 2  # `Traffic` counts the inner operations at two bytes an element
    for tally, place in ((forward, 0), (inputs, 1)):
        tally.bytes(traffic.stream[place] * residual_tokens)
        tally.bytes(scale * (traffic.inner[place] * tokens / s.tensor_parallel + traffic.experts[place] * routed))
    inputs.bytes(_shared_input_gradient_bytes(linear, s))
    core = _attention(block, s, rates)
    mixer: Any = block.mixer  # none of a tower, whose layers are timed as ones of text
    if s.repeats_kv_heads:
        repeated = repeat_traffic(mixer, tensor=s.tensor_parallel, item_bytes=s.item_bytes) * tokens
        forward.bytes(repeated)
        inputs.bytes(repeated)
    if s.context_parallel > 1:
        merge_forward, merge_backward = merge_traffic(
            s.context_kind,
            mixer,
            s.context_parallel,
            tensor=s.tensor_parallel,
            fused=s.fused,
            repeats_kv_heads=s.repeats_kv_heads,
        )
        forward.bytes(merge_forward * tokens)
        inputs.bytes(merge_backward * tokens)
    if s.fp8_saved_input:  # cast to fp8 after the activation function, and back before its gradient
        cast = 3.0 * (kept_width(block) * tokens / s.tensor_parallel + kept_expert_width(block) * routed)
        forward.bytes(cast)
        inputs.bytes(cast)
    forward.arithmetic += core.seconds
    forward.bytes(core.forward_bytes)
    forward.flops += core.flops
    inputs.arithmetic += core.backward_seconds
    inputs.bytes(core.backward_bytes)
    inputs.flops += 2.0 * core.flops
    exchanges, recomputed_exchanges, recomputed_routed = _recompute(block, s, linear, forward, core, recomputed)
    modules = s.recompute_modules
    if modules:
        again = recomputed_traffic(block, hidden, modules, fused=s.fused)
        moved = (
            again.stream[0] * residual_tokens + again.inner[0] * tokens / s.tensor_parallel + again.experts[0] * routed
        )
        recomputed.bytes(scale * moved)
    dense, dense_trained, experts, experts_trained = _counts(block, s, trained=trained)
    if not input_grad:
        inputs = Tally(rates)
        if not trained and s.adapter is None:
            recomputed = Tally(rates)
    return LayerCost(
        forward=forward.seconds,
        input_gradients=inputs.seconds,
        weight_gradients=weights.seconds,
        recomputed=recomputed.seconds,
        flops=forward.flops,
        backward_flops=inputs.flops + weights.flops,
        recomputed_flops=recomputed.flops,
        attention_recompute_flops=0.5 * core.flops if input_grad and s.attention != "eager" else 0.0,
        attention_seconds=core.seconds,
        attention_backward_seconds=core.backward_seconds,
        dense_parameters=dense,
        trained_dense_parameters=dense_trained,
        expert_parameters=experts,
        trained_expert_parameters=experts_trained,
        exchanges=exchanges,
        recomputed_exchanges=recomputed_exchanges,
        routed_bytes=float(s.item_bytes * routed * hidden * (s.expert_imbalance if s.expert_parallel > 1 else 1.0))
        if routed
        else 0.0,
        recomputed_routed=recomputed_routed,
        recomputed_attention=s.recompute == "full" or "core_attn" in modules,
        kv_bytes=_kv_bytes(block, s),
        experts_per_token=m.experts_per_token if isinstance(m, Moe) else 0,
        expert_groups=m.groups[0] if isinstance(m, Moe) else 1,
        chosen_groups=m.groups[1] if isinstance(m, Moe) else 1,
        halves=_exchanging_halves(block, s, linear, rates, operand_bytes),
    )


def _exchanging_halves(
    block: Block, s: Shape, linear: list[Product], rates: Rates, operand_bytes: int
) -> tuple[Half, ...]:
    """Return the halves of the layer around which tensor-parallel ranks exchange hidden states."""
    if s.tensor_parallel == 1:
        return ()
    return halves(linear, rates, operand_bytes, dense=_has_dense(block, s), latent=_latent(block, s))


def _latent(block: Block, s: Shape) -> str:
    """Return :attr:`Half.latent` of the attention half: whether tensor ranks exchange latents, not hidden states."""
    if not isinstance(block.mixer, LatentAttention) or s.latent_inputs != "exchanged":
        return ""
    return AGAIN if s.recompute == "selective" and "mla_up_proj" in s.recompute_modules else KEPT


def _linear(p: Product, s: Shape, item_bytes: int, forward: Tally, inputs: Tally, weights: Tally) -> None:
    """Add one linear layer to the forward pass and to the gradients of its input and of its weight.

    Besides the products this counts the bytes of casts to fp8 or by autocast, of dequantised weights, and the products
    of adapters. ``item_bytes``: bytes per element of what is multiplied.
    """
    forward.product(p.tokens, p.outputs, p.inputs, batch=p.batch, item_bytes=item_bytes)
    inputs.product(p.tokens, p.inputs, p.outputs, batch=p.batch, item_bytes=item_bytes)
    if p.trained:
        weights.product(p.outputs, p.inputs, p.tokens, batch=p.batch, item_bytes=item_bytes)
    input_elements = p.tokens * p.inputs * p.batch
    if s.fp8:  # a maximum (read) and a cast (read, write) of both operands, compiled into two kernels
        forward.bytes(5.0 * (p.cast_input_elements + p.parameters))
        inputs.bytes(5.0 * p.cast_output_elements)
        if s.float8_tensors:
            _transposed_copies(p, inputs, weights)
    if s.autocast:  # fp32 to 16 bits of the input and of the weight, and back for the gradients
        forward.bytes(6.0 * (input_elements + p.parameters))
        inputs.bytes(6.0 * input_elements)
        if p.trained:
            weights.bytes(6.0 * p.parameters)
    if s.adapter is not None and s.adapter.quantized and p.adapted:
        forward.bytes(2.5 * p.parameters)  # half a byte read, two written
        inputs.bytes(2.5 * p.parameters)
    if p.adapted and s.adapter is not None:
        rank = s.adapter.rank
        for tally in (forward, inputs, weights):
            tally.product(p.tokens, rank, p.inputs, batch=p.batch)
            tally.product(p.tokens, p.outputs, rank, batch=p.batch)


def _transposed_copies(p: Product, inputs: Tally, weights: Tally) -> None:
    """Add the transposed copies that torchao's fp8 products need, at 2 bytes per element (read 1, write 1).

    An fp8 product takes a row-major and a column-major operand, and any other layout is copied. The input's gradient
    needs a copy of the weight. The weight's gradient needs copies of the output's gradient and of the input; products
    that read the same input share its copy. Source: torchao ``float8_ops.py``, preprocess_addmm.
    """
    inputs.bytes(2.0 * p.parameters)
    if p.trained:
        weights.bytes(2.0 * p.batch * p.tokens * (p.outputs + (0 if p.shares_input else p.inputs)))


def _shared_input_gradient_bytes(linear: list[Product], s: Shape) -> float:
    """Bytes moved to add up the gradients of inputs that several products read (q, k and v; gate and up).

    Each addition reads two tensors and writes one. A compiled kernel reads all of them and writes one.
    """
    if s.fused_products == "all":
        return 0.0
    bytes_moved = 0.0
    readers = 1
    for p, following in zip(linear, [*linear[1:], None], strict=True):
        readers = readers + 1 if p.shares_input else 1
        if readers > 1 and (following is None or not following.shares_input) and s.fused_products != p.group:
            accesses = readers + 1 if s.fused else 3 * (readers - 1)
            bytes_moved += float(accesses * s.item_bytes * p.tokens * p.inputs)
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


def _attention(block: Block, s: Shape, rates: Rates) -> CoreAttention:
    """Compute the time of core attention in one layer: two products over the keys that a query may see.

    A causal query sees half of the keys on average, or those of its sliding window. Eager attention computes the scores
    of all keys and also moves them through memory, in backward twice as much as in forward.
    """
    mixer = block.mixer
    length = s.sequence * s.context_parallel
    if isinstance(mixer, Attention):
        width, heads, window = 2 * mixer.head_dim, mixer.heads, mixer.window
    elif isinstance(mixer, LatentAttention):
        width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
        heads, window = mixer.heads, None
    else:
        return CoreAttention()
    heads = -(-heads // s.tensor_parallel)
    keys = length / 2 if window is None or window >= length else window - window * window / (2 * length)
    queries = s.batch * s.sequence
    flops = 2.0 * queries * keys * heads * width
    if s.attention == "eager":
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
    block: Block, s: Shape, linear: list[Product], forward: Tally, core: CoreAttention, recomputed: Tally
) -> tuple[int, int, bool]:
    """Add to ``recomputed`` what activation checkpointing runs again in backward.

    Returns the tensor-parallel exchanges of the forward pass, those of the recompute, and whether the recompute repeats
    the all-to-alls to the experts.
    """
    parallel_halves = int(block.mixer is not None) + int(_has_dense(block, s))
    exchanges = parallel_halves if s.tensor_parallel > 1 else 0
    if s.recompute == "full":
        recomputed.arithmetic, recomputed.memory, recomputed.flops = forward.arithmetic, forward.memory, forward.flops
        return exchanges, exchanges, True
    if s.recompute != "selective":
        return exchanges, 0, False
    if s.by_operators:
        # every operation but the kept ones: every second matrix product and attention (activation_checkpoint.py)
        recomputed.memory = forward.memory
        kept = False
        for p in projections(linear):
            kept = not kept
            if not kept or p.group == "experts":
                recomputed.product(p.tokens, p.outputs, p.inputs, batch=p.batch)
        return exchanges, 0, False
    return exchanges, _recompute_modules(s, linear, core, recomputed), "moe" in s.recompute_modules


def _recompute_modules(s: Shape, linear: list[Product], core: CoreAttention, recomputed: Tally) -> int:
    """Add Megatron's ``recompute_modules`` (by default core attention alone) to ``recomputed``.

    Returns the tensor-parallel exchanges that the recompute repeats.
    """
    exchanges = 0
    if "core_attn" in s.recompute_modules:
        recomputed.arithmetic += core.seconds
        recomputed.flops += core.flops
        recomputed.bytes(core.forward_bytes)
    groups: set[str] = set()
    if "mlp" in s.recompute_modules:
        groups.add("mlp")
    if "moe" in s.recompute_modules:
        groups |= {"experts", "shared_experts", "router"}
    if "shared_experts" in s.recompute_modules:
        groups.add("shared_experts")
    for p in linear:
        is_up_projection = "mla_up_proj" in s.recompute_modules and p.name.endswith(("q_b_proj", "kv_b_proj"))
        if p.group in groups or is_up_projection:
            recomputed.product(p.tokens, p.outputs, p.inputs, batch=p.batch, item_bytes=1 if s.fp8 else s.item_bytes)
            if s.fp8:
                recomputed.bytes(5.0 * p.cast_input_elements)
            exchanges = 1 if s.tensor_parallel > 1 and p.group in ("mlp", "shared_experts") else exchanges
    return exchanges


def _has_dense(block: Block, s: Shape) -> bool:
    """Whether the feed-forward half exchanges hidden states over the tensor ranks."""
    m = block.mlp
    if isinstance(m, Moe) and s.own_expert_groups:
        return bool(m.shared_width)  # routed tokens go over groups of their own
    if isinstance(m, Moe):
        return bool(m.shared_width) or s.expert_tensor_parallel > 1 or s.expert_parallel == 1
    return m is not None


def _kv_bytes(block: Block, s: Shape) -> float:
    """Bytes of the keys and values of this rank's tokens, which context parallelism exchanges; 0 without it."""
    if s.context_parallel == 1:
        return 0.0
    tokens = s.batch * s.sequence
    mixer = block.mixer
    if isinstance(mixer, Attention):
        width = 2 * -(-(mixer.heads if s.repeats_kv_heads else mixer.kv_heads) // s.tensor_parallel) * mixer.head_dim
    elif isinstance(mixer, LatentAttention):
        heads = -(-mixer.heads // s.tensor_parallel)
        width = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
    else:
        return 0.0
    return float(s.item_bytes * tokens * width)


def _counts(block: Block, s: Shape, *, trained: bool) -> tuple[int, int, int, int]:
    """Count the parameters on this rank, adapters included: dense, trained dense, expert, trained expert."""
    counts = [0, 0, 0, 0]
    owned: list[tuple[ParameterTensor, object]] = [
        (t, c) for c in (block.mixer, block.second_mixer, block.mlp) if c is not None for t in c.tensors
    ]
    owned += [(t, None) for t in block_tensors(block)[len(owned) :]]
    for t, component in owned:
        size = 1
        shape = local_tensor(t, component, s.tensor_parallel, s.expert_parallel, s.expert_tensor_parallel)
        for d in shape:
            size *= d
        place = 2 if t.group == "experts" else 0
        name = t.name.removesuffix(".weight")
        counts[place] += size
        if s.adapter is None:
            if trained and not is_frozen(name, s.frozen_modules):
                counts[place + 1] += size
        elif len(shape) == 2 and is_adapted(s, t, component):
            added = s.adapter.rank * sum(shape)
            counts[place] += added
            counts[place + 1] += added
    return counts[0], counts[1], counts[2], counts[3]
