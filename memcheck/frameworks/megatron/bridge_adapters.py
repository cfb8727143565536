"""LoRA on Megatron's parallel linear layers, as mcore-bridge wraps them for ms-swift.

Source: modelscope/mcore-bridge 1.6.5 ``tuners/lora.py`` (LoraParallelLinear), ``model/gpt_model.py`` (_preprocess).

On a column-parallel layer the first matrix is whole on every tensor rank and works on the rank's own tokens. The second
is column-parallel, so that under sequence parallelism outputs of the rank's width are gathered. On a row-parallel layer
the first is row-parallel, and the second whole. On a layer that every rank holds whole, both are whole. Every local
expert has matrices of its own, in two grouped layers. The input is a variable of the forward to its end, what dropout
makes of it is kept.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.context import Adapter, Context, Setting
from memcheck.autograd.elementwise import add, dropout, scale
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.linear import Projection, fuses_wgrad, scatters
from memcheck.models.types import Norm

OPTION, MCORE_BRIDGE = "bridge_backend", "mcore-bridge"
IN, OUT = ".lora_A.default.weight", ".lora_B.default.weight"


def is_bridged(setting: Setting) -> bool:
    """Whether the adapters are mcore-bridge's."""
    return setting.option(OPTION) == MCORE_BRIDGE


def demand_whole_experts(expert_tensor: int) -> None:
    """Check that no expert is divided over tensor ranks.

    Raises:
        UnsupportedError: LoraParallelLinear raises ("Currently, LoRA does not support ETP").
    """
    if expert_tensor > 1:
        message = f"mcore-bridge has no adapters of experts that {expert_tensor} tensor ranks divide"
        raise UnsupportedError(message, "set it to 1", "/parallelism/expert_tensor")


@lru_cache(maxsize=64)
def bridged(tensors: tuple[LocalTensor, ...], adapted: tuple[str, ...], rank: int) -> tuple[LocalTensor, ...]:
    """A layer's frozen tensors and its adapters'. ``adapted``: names of the weights that have some.

    A weight of this rank is [outputs, inputs]. If one of the two is divided, the adapter's matrix of that side is, too.
    """
    found = [t._replace(trained=False) for t in tensors]
    for t in tensors:
        if t.name not in adapted:
            continue
        outputs, inputs = t.shape
        for end, shape in ((IN, (rank, inputs)), (OUT, (outputs, rank))):
            found.append(LocalTensor(t.name + end, shape, trained=True, dtype=None, expert=t.expert, matrix=True))
    return tuple(found)


def bridged_column(ctx: Context, x: Value, base: Value, name: str, outputs: int) -> Value:
    """A column-parallel layer's output and its adapter's. ``x``: this rank's own tokens."""
    adapter = _adapter(ctx)
    low = _product(ctx, dropout(ctx.tape, x, adapter.dropout), name + IN, (adapter.rank,))
    high = _gathering_product(ctx, low, name + OUT, outputs)
    del low
    return _added(ctx, base, high)


def normalised_column(ctx: Context, x: Value, p: Projection, label: str, spec: Norm) -> Value:
    """A layer that normalises first, and its adapter's output, which takes the normalised tokens of this rank.

    TE's fused node (``layernorm_linear.py``, return_layernorm_output) runs backward when both of its outputs have their
    gradients: that of the product waits meanwhile. The adapter's is added after the reduce-scatter.
    """
    tape, gathers = ctx.tape, scatters(ctx)
    shape, dtype = x.shape, x.dtype
    full = (ctx.tokens, shape[-1]) if gathers else shape
    weight, bias = ctx.norm_weight(spec, label + ".layer_norm")
    norms = [n for n in (weight, bias) if n is not None]
    waiting: list[Storage] = []
    inner = tape.value(shape, dtype, label + " input")
    stats = [tape.new(shape[:-1], "fp32", label + " rstd")]
    if spec.kind.startswith("layernorm"):
        stats.append(tape.new(shape[:-1], "fp32", label + " mean"))
    kept = (x.storage, *stats, inner.storage)  # what it hands on is not cleared
    del stats

    def normalise(grad: Storage) -> list[Storage | None]:
        gx = tape.new(full, dtype, label + " dX")
        reduced = tape.new(shape, dtype, label + " reduce-scatter") if gathers else gx
        del gx
        total = tape.new(shape, dtype, label + " dX + adapter's")
        del reduced
        result = tape.new(shape, dtype, label + " norm backward")
        del total
        waiting.clear()
        return [result, *(None for _ in norms)]

    def multiply(grad: Storage) -> list[Storage | None]:
        waiting.append(grad)
        return [None]

    inner = tape.record(inner, (x, *(tape.parameter(n) for n in norms)), normalise, saves=kept)
    del x
    total = tape.new(full, dtype, label + " all-gather") if gathers else None
    base = tape.record(tape.value((*full[:-1], p.weight.shape[0]), dtype, label), (inner,), multiply)
    del total
    return bridged_column(ctx, inner, base, p.weight.name, p.weight.shape[0])


def bridged_row(ctx: Context, x: Value, base: Value, name: str) -> Value:
    """A row-parallel layer's output and its adapter's. ``x``: this rank's part of the input."""
    adapter = _adapter(ctx)
    low = _product(ctx, dropout(ctx.tape, x, adapter.dropout), name + IN, (adapter.rank,))
    if scatters(ctx):
        low = _scattered(ctx, low)
    high = _product(ctx, low, name + OUT, (base.shape[-1],))
    del low
    return _added(ctx, base, high)


def bridged_whole(ctx: Context, x: Value, base: Value, name: str) -> Value:
    """The output of a layer that every rank holds whole, for its own tokens, and its adapter's."""
    adapter = _adapter(ctx)
    low = _product(ctx, dropout(ctx.tape, x, adapter.dropout), name + IN, (adapter.rank,))
    high = _product(ctx, low, name + OUT, (base.shape[-1],))
    del low
    return _added(ctx, base, high)


def bridged_experts(ctx: Context, x: Value, base: Value, weight: Parameter) -> Value:
    """The output of all local experts and that of their adapters, for the tokens that they have."""
    adapter = _adapter(ctx)
    local, outputs, _ = weight.shape
    low = _product(ctx, dropout(ctx.tape, x, adapter.dropout), weight.name + IN, (local, adapter.rank))
    high = _product(ctx, low, weight.name + OUT, (local, outputs))
    del low
    return _added(ctx, base, high)


def _adapter(ctx: Context) -> Adapter:
    adapter = ctx.setting.adapter
    if adapter is None:
        raise UnsupportedError("no adapters here")
    return adapter


def _product(ctx: Context, x: Value, name: str, rows: tuple[int, ...]) -> Value:
    """TE's linear layer: keeps its input. ``rows``: outputs, preceded by the number of matrices where there are
    several.
    """
    tape = ctx.tape
    weight = ctx.register(Parameter(name, (*rows, x.shape[-1]), ctx.setting.params, True, has_grad=True))
    out = tape.value((*x.shape[:-1], rows[-1]), x.dtype, name)
    fused = fuses_wgrad(ctx.setting)
    return operator(tape, out, (x, tape.parameter(weight)), [name + " dX", None if fused else name + " dW"], saves=(x,))


def _gathering_product(ctx: Context, x: Value, name: str, outputs: int) -> Value:
    """A column-parallel layer: under sequence parallelism it gathers all tokens' input, in backward again."""
    if not scatters(ctx):
        return _product(ctx, x, name, (outputs,))
    tape = ctx.tape
    weight = ctx.register(Parameter(name, (outputs, x.shape[-1]), ctx.setting.params, True, has_grad=True))
    dtype, fused = x.dtype, fuses_wgrad(ctx.setting)
    full = (ctx.tokens, x.shape[-1])
    total = tape.new(full, dtype, name + " all-gather")
    out = tape.value((ctx.tokens, outputs), dtype, name)
    del total
    return operator(
        tape,
        out,
        (x, tape.parameter(weight)),
        [name + " reduce-scatter", None if fused else name + " dW"],
        saves=(x,),
        temporaries=[(full, dtype, name + " all-gather"), (full, dtype, name + " dX")],
    )


def _scattered(ctx: Context, x: Value) -> Value:
    """The sum of the ranks' parts for this rank's tokens; backward gathers the gradients of all."""
    tape = ctx.tape
    out = tape.value((ctx.residual_tokens, x.shape[-1]), x.dtype, "adapter reduce-scatter")
    return operator(tape, out, x, "adapter all-gather")


def _added(ctx: Context, base: Value, high: Value) -> Value:
    """``result + lora_result * scaling``."""
    high = scale(ctx.tape, high, "adapter scaling")
    return add(ctx.tape, base, high, "adapter sum")
