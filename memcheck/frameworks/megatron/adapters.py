"""LoRA on Megatron's parallel linear layers, as Megatron-Bridge and NeMo wrap them.

Source: NVIDIA-NeMo/Megatron-Bridge ``peft/utils.py`` (ParallelLinearAdapter, get_adapter_attributes_from_linear) and
``peft/lora_layers.py`` (LoRALinear); TransformerEngine ``pytorch/module/layernorm_linear.py`` with
``return_layernorm_output`` and ``return_layernorm_output_gathered``.

The two matrices are Megatron-core's own parallel layers. On a column-parallel layer the first is divided by rank and
its output gathered, the second by outputs. On a row-parallel layer the first is divided by inputs and its output
summed, the second by outputs, which are gathered; under sequence parallelism each rank takes its tokens of them. The
first keeps the *whole* normalised input of all tokens under sequence parallelism, too: the base layer hands it on
gathered. A mixture's local experts share one adapter. Weights are in the model's dtype and their gradients in DDP's
buffers, as any trained weight's; the base is in no buffer.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.context import Adapter, Context, adapts
from memcheck.autograd.elementwise import add, dropout, scale
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.bridge_adapters import (
    MCORE_BRIDGE,
    OPTION,
    bridged,
    bridged_row,
    bridged_whole,
    demand_whole_experts,
    is_bridged,
    normalised_column,
)
from memcheck.frameworks.megatron.linear import Projection, fuses_wgrad, gather_sequence, scatters
from memcheck.frameworks.megatron.tensors import whole_block
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Norm

ROWS = ("linear_proj", "linear_fc2", "out_proj")
"""Row-parallel layers."""
WHOLE = ("linear_q_down_proj", "linear_kv_down_proj")
"""Layers that every tensor rank holds whole; every other one that can be adapted is column-parallel."""
IN, OUT = ".adapter.linear_in.weight", ".adapter.linear_out.weight"


def wraps(adapter: Adapter | None, name: str) -> bool:
    """Whether a layer of this name has an adapter."""
    return adapter is not None and adapts(adapter, name)


def _is_linear(name: str) -> bool:
    """Whether a matrix of this path is a linear layer's: a router's and a gate's are not."""
    return "linear" in name or "in_proj" in name or "out_proj" in name


def demand_whole_rank(rank: int, ways: int) -> None:
    """Check that the tensor ranks divide an adapter's rank evenly.

    Raises:
        UnsupportedError: Megatron-core's layers do not divide it (``ensure_divisibility``).
    """
    if rank % ways:
        message = f"adapters of rank {rank} are not divided by {ways} tensor ranks"
        raise UnsupportedError(message, f"choose a multiple of {ways}", "/training/lora/rank")


def adapters_beside(
    tensors: tuple[LocalTensor, ...], adapter: Adapter, backend: object, ways: int, expert_ways: int
) -> tuple[LocalTensor, ...]:
    """A layer's frozen tensors and its adapters, Megatron-Bridge's or mcore-bridge's (``bridge_backend``)."""
    if backend != MCORE_BRIDGE:
        return with_adapters(tensors, adapter, ways, expert_ways)
    found = [t for t in tensors if t.matrix and _is_linear(t.name) and wraps(adapter, t.name.rpartition(".")[0])]
    if any(t.expert for t in found):
        demand_whole_experts(expert_ways)
    return bridged(tensors, tuple([t.name for t in found]), adapter.rank)


@lru_cache(maxsize=64)
def with_adapters(
    tensors: tuple[LocalTensor, ...], adapter: Adapter, ways: int, expert_ways: int
) -> tuple[LocalTensor, ...]:
    """A layer's frozen tensors and its adapters. ``ways``: ranks that divide its matrices; and those of an expert."""
    found = [t._replace(trained=False) for t in tensors]
    for t in tensors:
        name = t.name.removesuffix(".weight")
        if t.expert:
            name = t.name.removesuffix(".weight0")  # one adapter for all local experts
        if name == t.name or not t.matrix or not _is_linear(name) or not wraps(adapter, name):
            continue
        divided = expert_ways if t.expert else ways
        outputs, inputs = t.shape
        last = name.rpartition(".")[2]
        down, up = (adapter.rank, inputs), (outputs, adapter.rank)
        if last not in ROWS:
            demand_whole_rank(adapter.rank, divided)
            down = (adapter.rank // divided, inputs)
        if last in ROWS or last in WHOLE:
            up = (-(-outputs // divided), adapter.rank)
        for end, shape in ((IN, down), (OUT, up)):
            found.append(LocalTensor(name + end, shape, trained=True, dtype=None, expert=t.expert, matrix=True))
    return tuple(found)


def adapter_parameters(job: TrainingJob, architecture: Architecture) -> int:
    """Elements of all adapters; a mixture has one for all experts, or one for each (mcore-bridge)."""
    if job.lora is None:
        return 0
    adapter = Adapter(job.lora.rank, job.lora.target_modules, job.recipe.params, quantized=False)
    layers = ((whole_block(block, architecture.hidden_size), times) for block, times in architecture.blocks)
    backend = job.option(OPTION)
    found = ((adapters_beside(tensors, adapter, backend, 1, 1), times) for tensors, times in layers)
    return sum(times * t.numel for tensors, times in found for t in tensors if t.trained)


def column_adapter(ctx: Context, x: Value, base: Value, name: str, outputs: int, ways: int) -> Value:
    """The column-parallel layer's output and its adapter's. ``x``: all tokens."""
    tape, adapter, rows = ctx.tape, _adapter(ctx), x.shape[0]
    rank = adapter.rank // ways
    low = _product(ctx, dropout(tape, x, adapter.dropout), name + IN, rank)
    del x
    if ways > 1:
        low = _gathered(ctx, low, (rows, adapter.rank))
    # `x = x * (self.alpha / self.dim)`: not handed on unscaled, which CPython 3.10 would hold throughout the call.
    high = scale(tape, _product(ctx, low, name + OUT, outputs), "adapter scaling")
    return add(tape, base, high, "adapter sum")


def row_adapter(ctx: Context, x: Value, base: Value, name: str, outputs: int, ways: int) -> Value:
    """The row-parallel layer's output and its adapter's. ``x``: this rank's part of the input."""
    if is_bridged(ctx.setting):
        return bridged_row(ctx, x, base, name)
    tape, adapter, rows = ctx.tape, _adapter(ctx), x.shape[0]
    low = _product(ctx, dropout(tape, x, adapter.dropout), name + IN, adapter.rank)
    del x
    high = _product(ctx, low, name + OUT, -(-outputs // ways))
    del low
    if ways > 1:
        high = _gathered(ctx, high, (rows, outputs))
    if base.shape != high.shape:  # under sequence parallelism: a view of this rank's tokens
        high = _own_tokens(ctx, high, base.shape)
    return _added(ctx, base, high)


def whole_adapter(ctx: Context, x: Value, base: Value, weight: Parameter) -> Value:
    """The output of a layer that every rank holds whole, for its own tokens, and its adapter's."""
    if is_bridged(ctx.setting):
        return bridged_whole(ctx, x, base, weight.name)
    tape, adapter, rows, ways = ctx.tape, _adapter(ctx), x.shape[0], ctx.tp
    low = _product(ctx, dropout(tape, x, adapter.dropout), weight.name + IN, adapter.rank // ways)
    del x
    low = _gathered(ctx, low, (rows, adapter.rank)) if ways > 1 else low
    high = _product(ctx, low, weight.name + OUT, -(-weight.shape[0] // ways))
    return _added(ctx, base, _gathered(ctx, high, (rows, weight.shape[0])) if ways > 1 else high)


def normalised(ctx: Context, x: Value, spec: Norm | None, label: str) -> Value:
    """The input that TE's fused layer multiplies, of all tokens, which it hands to the adapter.

    The rank's own tokens are saved as well: the layer does not clear what it hands on (``clear_tensor_data(ln_out)``).
    Backward adds the layer's own gradient and the adapter's into a third tensor.
    """
    tape, gathers = ctx.tape, scatters(ctx)
    if spec is None:
        return gather_sequence(ctx, x, label + " all-gather") if gathers else x
    weight, bias = ctx.norm_weight(spec, label + ".layer_norm")
    shape, dtype = x.shape, x.dtype
    rows = shape[:-1]
    out = tape.value(shape, dtype, label + " input")
    stats = [tape.new(rows, "fp32", label + " rstd")]
    if spec.kind.startswith("layernorm"):
        stats.append(tape.new(rows, "fp32", label + " mean"))
    full = (ctx.tokens, shape[-1]) if gathers else shape
    norms = [n for n in (weight, bias) if n is not None]
    kept = (x.storage, *stats, out.storage)
    if gathers:
        out = tape.value(full, dtype, label + " all-gather")
    del stats

    def run(grad: Storage) -> list[Storage | None]:
        own = tape.new(full, dtype, label + " dX")
        total = tape.new(full, dtype, label + " dX + adapter's")
        del own
        if gathers:
            reduced = tape.new(shape, dtype, label + " reduce-scatter")
            del reduced
        del total
        gx = tape.new(shape, dtype, label + " norm backward")
        return [gx, *(None for _ in norms)]

    return tape.record(out, (x, *(tape.parameter(n) for n in norms)), run, saves=kept)


def adapted_column(ctx: Context, x: Value, p: Projection, label: str, spec: Norm | None) -> Value:
    """TE's norm, gather and product with the adapter between them."""
    if is_bridged(ctx.setting) and spec is not None:
        return normalised_column(ctx, x, p, label, spec)
    tape, outputs = ctx.tape, p.weight.shape[0]
    whole = normalised(ctx, x, spec, label)
    del x
    out = tape.value((*whole.shape[:-1], outputs), whole.dtype, label)
    base = operator(tape, out, whole, label + " dX")
    return column_adapter(ctx, whole, base, p.weight.name, outputs, ctx.tp)


def _adapter(ctx: Context) -> Adapter:
    adapter = ctx.setting.adapter
    if adapter is None:
        raise UnsupportedError("no adapters here")
    return adapter


def _product(ctx: Context, x: Value, name: str, outputs: int) -> Value:
    """A linear layer of Megatron-core: keeps its input; what tensor ranks have of its gradient is summed in place."""
    tape = ctx.tape
    weight = ctx.register(Parameter(name, (outputs, x.shape[-1]), ctx.setting.params, True, has_grad=True))
    out = tape.value((*x.shape[:-1], outputs), x.dtype, name)
    fused = fuses_wgrad(ctx.setting)
    return operator(tape, out, (x, tape.parameter(weight)), [name + " dX", None if fused else name + " dW"], saves=(x,))


def _gathered(ctx: Context, x: Value, shape: tuple[int, ...]) -> Value:
    """``gather_output``: the columns of all ranks; backward takes this rank's."""
    tape = ctx.tape
    return operator(tape, tape.value(shape, x.dtype, "adapter all-gather"), x, "adapter split")


def _own_tokens(ctx: Context, x: Value, shape: tuple[int, ...]) -> Value:
    """``scatter_to_sequence_parallel_region``: a slice of rows is no copy; backward gathers all of them."""
    tape = ctx.tape
    return operator(tape, Value(x.storage, shape, x.dtype), x, "adapter gather backward")


def _added(ctx: Context, base: Value, high: Value) -> Value:
    """``linear_output + adapter_output * (alpha / dim)``."""
    high = scale(ctx.tape, high, "adapter scaling")
    return add(ctx.tape, base, high, "adapter sum")
