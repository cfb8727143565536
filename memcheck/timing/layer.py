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


class LayerCost(Record):
    """Seconds of one layer and micro-batch on one rank, and what it exchanges."""

    forward: tuple[float, float]
    """Seconds that arithmetic bounds, and seconds that memory bounds."""
    inputs: tuple[float, float]
    """Gradients of the inputs."""
    weights: tuple[float, float]
    """Gradients of the weights."""
    again: tuple[float, float]
    """Recomputed in backward."""
    flops: float
    """Forward, as papers count them."""
    backward_flops: float
    again_flops: float
    """Operations that recompute adds."""
    kernel_flops: float
    """The scores that attention's own backward computes again."""
    attention_seconds: float
    attention_backward: float
    dense: int
    """Parameters on this rank, without experts."""
    dense_trained: int
    experts: int
    experts_trained: int
    exchanges: int = 0
    """Times that tensor parallelism gathers and reduces the hidden states in a forward pass."""
    again_exchanges: int = 0
    routed_bytes: float = 0.0
    """What the rank sends to experts in one all-to-all."""
    again_routed: bool = False
    again_attention: bool = False
    """Attention is among what backward computes again."""
    kv_bytes: float = 0.0
    """Keys and values of this rank's tokens."""
    chosen: int = 0
    """Experts that a token is routed to."""
    groups: int = 1
    """Number of groups that the experts are divided into."""
    chosen_groups: int = 1
    """Largest number of expert groups per token."""
    halves: tuple[Half, ...] = ()
    """Products whose exchanges tensor parallelism needs."""


class Tally:
    """Adds up the operations of one pass."""

    __slots__ = ("arithmetic", "flops", "memory", "rates")

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.arithmetic = self.memory = self.flops = 0.0

    def product(self, m: int, n: int, k: int, *, batch: int = 1, item: int = 2) -> None:
        """A matrix product."""
        seconds, by_memory = matmul(m, n, k, self.rates, batch, item)
        self.flops += 2.0 * m * n * k * batch
        if by_memory:
            self.memory += seconds
        else:
            self.arithmetic += seconds

    def bytes(self, count: float) -> None:
        """Memory traffic."""
        self.memory += count / self.rates.hbm

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds by arithmetic, and seconds by memory traffic."""
        return self.arithmetic, self.memory


def block_cost(block: Block, hidden: int, s: Shape, rates: Rates, *, trained: bool, input_grad: bool) -> LayerCost:
    """One layer under a shape. ``trained``: its base weights; ``input_grad``: something below it is trained."""
    tokens = s.batch * s.sequence
    own = tokens // s.tensor if s.sequence_parallel else tokens
    forward, inputs, weights, again = Tally(rates), Tally(rates), Tally(rates), Tally(rates)
    linear = products(block, s, trained=trained)
    item = 1 if s.fp8 else s.item
    for p in linear:
        _linear(p, s, item, forward, inputs, weights)
    stream = 4 if s.autocast or s.item == 4 else 2
    traffic = block_traffic(block, hidden, fused=s.fused, fused_norms=s.fused_norms, item=stream)
    m = block.mlp
    routed = own * m.experts_per_token if isinstance(m, Moe) else 0
    if isinstance(m, Moe) and s.tensor > 1 and not s.sequence_parallel:
        routed = tokens * m.experts_per_token
    scale = s.item / 2
    for tally, place in ((forward, 0), (inputs, 1)):
        tally.bytes(traffic.stream[place] * own)
        tally.bytes(scale * (traffic.inner[place] * tokens / s.tensor + traffic.experts[place] * routed))
    inputs.bytes(_summed(linear, s))
    core = _attention(block, s, rates)
    mixer: Any = block.mixer  # none of a tower, whose layers are timed as ones of text
    if s.repeats:
        both = repeat_traffic(mixer, tensor=s.tensor, item=s.item) * tokens
        forward.bytes(both)
        inputs.bytes(both)
    if s.context > 1:
        ahead, back = merge_traffic(s.context_kind, mixer, s.context, tensor=s.tensor, fused=s.fused, repeats=s.repeats)
        forward.bytes(ahead * tokens)
        inputs.bytes(back * tokens)
    if s.narrow_input:  # cast to fp8 after the activation function, and back before its gradient
        cast = 3.0 * (kept_width(block) * tokens / s.tensor + kept_expert_width(block) * routed)
        forward.bytes(cast)
        inputs.bytes(cast)
    forward.arithmetic += core.seconds
    forward.bytes(core.forward_bytes)
    forward.flops += core.flops
    inputs.arithmetic += core.backward_seconds
    inputs.bytes(core.backward_bytes)
    inputs.flops += 2.0 * core.flops
    exchanges, again_exchanges, again_routed = _recompute(block, s, linear, forward, core, again)
    modules = s.modules
    if modules:
        few = recomputed_traffic(block, hidden, modules, fused=s.fused)
        again.bytes(scale * (few.stream[0] * own + few.inner[0] * tokens / s.tensor + few.experts[0] * routed))
    dense, dense_trained, experts, experts_trained = _counts(block, s, trained=trained)
    if not input_grad:
        inputs = Tally(rates)
        if not trained and s.adapter is None:
            again = Tally(rates)
    around = halves(linear, rates, item, dense=_has_dense(block, s), latent=_latent(block, s)) if s.tensor > 1 else ()
    return LayerCost(
        forward=forward.seconds,
        inputs=inputs.seconds,
        weights=weights.seconds,
        again=again.seconds,
        flops=forward.flops,
        backward_flops=inputs.flops + weights.flops,
        again_flops=again.flops,
        kernel_flops=0.5 * core.flops if input_grad and s.attention != "eager" else 0.0,
        attention_seconds=core.seconds,
        attention_backward=core.backward_seconds,
        dense=dense,
        dense_trained=dense_trained,
        experts=experts,
        experts_trained=experts_trained,
        exchanges=exchanges,
        again_exchanges=again_exchanges,
        routed_bytes=float(s.item * routed * hidden * (s.imbalance if s.expert > 1 else 1.0)) if routed else 0.0,
        again_routed=again_routed,
        again_attention=s.recompute == "full" or "core_attn" in modules,
        kv_bytes=_kv_bytes(block, s),
        chosen=m.experts_per_token if isinstance(m, Moe) else 0,
        groups=m.groups if isinstance(m, Moe) else 1,
        chosen_groups=m.chosen_groups if isinstance(m, Moe) else 1,
        halves=around,
    )


def _latent(block: Block, s: Shape) -> str:
    """Whether tensor ranks exchange latents in place of hidden states, as ``tensor_parallel.py`` says it."""
    if not isinstance(block.mixer, LatentAttention) or s.latent_inputs != "exchanged":
        return ""
    return AGAIN if s.recompute == "selective" and "mla_up_proj" in s.modules else KEPT


def _linear(p: Product, s: Shape, item: int, forward: Tally, inputs: Tally, weights: Tally) -> None:
    """One linear layer: output, gradient of its input, gradient of its weight; casts of what it multiplies."""
    forward.product(p.tokens, p.outputs, p.inputs, batch=p.batch, item=item)
    inputs.product(p.tokens, p.inputs, p.outputs, batch=p.batch, item=item)
    if p.trained:
        weights.product(p.outputs, p.inputs, p.tokens, batch=p.batch, item=item)
    given = p.tokens * p.inputs * p.batch
    if s.fp8:  # a maximum (read) and a cast (read, write) of both operands, compiled into two kernels
        forward.bytes(5.0 * (p.cast_inputs + p.parameters))
        inputs.bytes(5.0 * p.cast_outputs)
        if s.float8_tensors:
            _transposed(p, inputs, weights)
    if s.autocast:  # fp32 to 16 bits of the input and of the weight, and back for the gradients
        forward.bytes(6.0 * (given + p.parameters))
        inputs.bytes(6.0 * given)
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


def _transposed(p: Product, inputs: Tally, weights: Tally) -> None:
    """fp8 products take a row-major and a column-major operand: what lies otherwise is copied, read 1 and write 1.

    torchao ``float8_ops.py``, preprocess_addmm: the weight for the gradient of the input, and for that of the weight
    the output's gradient and, once for all products that read it, the input.
    """
    inputs.bytes(2.0 * p.parameters)
    if p.trained:
        weights.bytes(2.0 * p.batch * p.tokens * (p.outputs + (0 if p.shares else p.inputs)))


def _summed(linear: list[Product], s: Shape) -> float:
    """Bytes of adding up the gradients of an input that several products read: two are read and one is written each
    time, or all are read and one is written in one compiled kernel.
    """
    if s.one_product == "all":
        return 0.0
    moved = 0.0
    readers = 1
    for p, following in zip(linear, [*linear[1:], None], strict=True):
        readers = readers + 1 if p.shares else 1
        if readers > 1 and (following is None or not following.shares) and s.one_product != p.group:
            each = readers + 1 if s.fused else 3 * (readers - 1)
            moved += float(each * s.item * p.tokens * p.inputs)
    return moved


class Core(Record):
    """Scores and their weighted sum."""

    seconds: float = 0.0
    backward_seconds: float = 0.0
    flops: float = 0.0
    """Operations of a causal forward."""
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0


def _attention(block: Block, s: Shape, rates: Rates) -> Core:
    """Two products over the keys that a query may see: half of them on average, or those of its window.

    Backward takes 2.5 times as many operations as forward: five products instead of two (Dao 2023, section 3.1).
    """
    mixer = block.mixer
    length = s.sequence * s.context
    if isinstance(mixer, Attention):
        width, heads, window = 2 * mixer.head_dim, mixer.heads, mixer.window
    elif isinstance(mixer, LatentAttention):
        width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
        heads, window = mixer.heads, None
    else:
        return Core()
    heads = -(-heads // s.tensor)
    seen = length / 2 if window is None or window >= length else window - window * window / (2 * length)
    queries = s.batch * s.sequence
    flops = 2.0 * queries * seen * heads * width
    if s.attention == "eager":
        # every score: written 2, masked 2 + 2, softmax 2 + 4, cast 4 + 2, read 2; backward twice that
        moved = 20.0 * queries * length * heads
        seconds = 2.0 * queries * length * heads * width / rates.linear
        return Core(
            seconds=seconds, backward_seconds=2.5 * seconds, flops=flops, forward_bytes=moved, backward_bytes=2 * moved
        )
    return Core(flops / rates.attention, 2.5 * flops / rates.attention_backward, flops)


def _recompute(
    block: Block, s: Shape, linear: list[Product], forward: Tally, core: Core, again: Tally
) -> tuple[int, int, bool]:
    """Adds what backward computes again; tensor-parallel exchanges of forward and of the recompute, and routing."""
    split = s.tensor > 1
    halves = int(block.mixer is not None) + int(_has_dense(block, s))
    exchanges = halves if split else 0
    if s.recompute == "full":
        again.arithmetic, again.memory, again.flops = forward.arithmetic, forward.memory, forward.flops
        return exchanges, exchanges, True
    if s.recompute != "selective":
        return exchanges, 0, False
    if s.by_operators:
        # every operation but the kept ones: every second matrix product and attention (activation_checkpoint.py)
        again.memory = forward.memory
        kept = False
        for p in projections(linear):
            kept = not kept
            if not kept or p.group == "experts":
                again.product(p.tokens, p.outputs, p.inputs, batch=p.batch)
        return exchanges, 0, False
    return exchanges, _selected(block, s, linear, core, again), "moe" in s.modules


def _selected(block: Block, s: Shape, linear: list[Product], core: Core, again: Tally) -> int:
    """Megatron's modules (``recompute_modules``): core attention alone by default."""
    exchanges = 0
    if "core_attn" in s.modules:
        again.arithmetic += core.seconds
        again.flops += core.flops
        again.bytes(core.forward_bytes)
    groups: set[str] = set()
    if "mlp" in s.modules:
        groups.add("mlp")
    if "moe" in s.modules:
        groups |= {"experts", "shared_experts", "router"}
    if "shared_experts" in s.modules:
        groups.add("shared_experts")
    for p in linear:
        up = "mla_up_proj" in s.modules and p.name.endswith(("q_b_proj", "kv_b_proj"))
        if p.group in groups or up:
            again.product(p.tokens, p.outputs, p.inputs, batch=p.batch, item=1 if s.fp8 else s.item)
            if s.fp8:
                again.bytes(5.0 * p.cast_inputs)
            exchanges = 1 if s.tensor > 1 and p.group in ("mlp", "shared_experts") else exchanges
    return exchanges


def _has_dense(block: Block, s: Shape) -> bool:
    """Whether the feed-forward half exchanges hidden states over the tensor ranks."""
    m = block.mlp
    if isinstance(m, Moe) and s.own_expert_groups:
        return bool(m.shared_width)  # routed tokens go over groups of their own
    if isinstance(m, Moe):
        return bool(m.shared_width) or s.expert_tensor > 1 or s.expert == 1
    return m is not None


def _kv_bytes(block: Block, s: Shape) -> float:
    if s.context == 1:
        return 0.0
    tokens = s.batch * s.sequence
    mixer = block.mixer
    if isinstance(mixer, Attention):
        width = 2 * -(-(mixer.heads if s.repeats else mixer.kv_heads) // s.tensor) * mixer.head_dim
    elif isinstance(mixer, LatentAttention):
        heads = -(-mixer.heads // s.tensor)
        width = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
    else:
        return 0.0
    return float(s.item * tokens * width)


def _counts(block: Block, s: Shape, *, trained: bool) -> tuple[int, int, int, int]:
    """Parameters on this rank: dense, trained of them, of experts, trained of them."""
    numbers = [0, 0, 0, 0]
    owned: list[tuple[ParameterTensor, object]] = [
        (t, c) for c in (block.mixer, block.beside, block.mlp) if c is not None for t in c.tensors
    ]
    owned += [(t, None) for t in block_tensors(block)[len(owned) :]]
    for t, component in owned:
        size = 1
        shape = local_tensor(t, component, s.tensor, s.expert, s.expert_tensor)
        for d in shape:
            size *= d
        place = 2 if t.group == "experts" else 0
        name = t.name.removesuffix(".weight")
        numbers[place] += size
        if s.adapter is None:
            if trained and not is_frozen(name, s.frozen):
                numbers[place + 1] += size
        elif len(shape) == 2 and is_adapted(s, t, component):
            added = s.adapter.rank * sum(shape)
            numbers[place] += added
            numbers[place + 1] += added
    return numbers[0], numbers[1], numbers[2], numbers[3]
