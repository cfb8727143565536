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
from memcheck.autograd.operator import add, dropout, operator, scale
from memcheck.autograd.tensor import Parameter, Storage, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.linear import Projection, fuses_wgrad, is_sequence_parallel, norm_statistics
from memcheck.models.types import Norm

OPTION, MCORE_BRIDGE = "bridge_backend", "mcore-bridge"
"""The option that says whose adapters run, and its value for mcore-bridge."""
IN, OUT = ".lora_A.default.weight", ".lora_B.default.weight"
"""Ends of the names of mcore-bridge's two adapter matrices."""


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
    """List a layer's frozen tensors and mcore-bridge's adapter tensors on one rank.

    ``adapted``: names of the weights with adapters. A weight of this rank is [outputs, inputs]. Where one of the two is
    divided, the adapter's matrix of that side is divided too.
    """
    local_tensors = [t._replace(trained=False) for t in tensors]
    for t in tensors:
        if t.name not in adapted:
            continue
        outputs, inputs = t.shape
        for suffix, shape in ((IN, (rank, inputs)), (OUT, (outputs, rank))):
            local_tensors.append(
                LocalTensor(t.name + suffix, shape, trained=True, dtype=None, expert=t.expert, matrix=True)
            )
    return tuple(local_tensors)


def bridged_column(ctx: Context, x: Value, base: Value, name: str, outputs: int) -> Value:
    """Add mcore-bridge's adapter output to a column-parallel layer's output ``base``. ``x``: this rank's own tokens."""
    adapter = _adapter(ctx)
    low_rank = _product(ctx, dropout(ctx.tape, x, adapter.dropout), name + IN, (adapter.rank,))
    update = _column_product(ctx, low_rank, name + OUT, outputs)
    del low_rank
    return _add_scaled(ctx, base, update)


def normalised_column(ctx: Context, x: Value, projection: Projection, label: str, spec: Norm) -> Value:
    """Compute TE's LayerNormLinear, and add the output of its LoRA adapter, [tokens, outputs / tp].

    ``projection``: the layer's weight. ``spec``: the norm. The layer also returns its normalised input for the adapter
    (``layernorm_linear.py``, return_layernorm_output). Its backward runs when both outputs have their gradients: that
    of the product is live until then. The adapter's gradient is added after the reduce-scatter.
    """
    tape, gathers_input = ctx.tape, is_sequence_parallel(ctx)
    norm_parameters = [n for n in ctx.norm_weight(spec, label + ".layer_norm") if n is not None]
    shape, dtype = x.shape, x.dtype
    gathered_shape = (ctx.tokens, shape[-1]) if gathers_input else shape
    product_gradient: list[Storage] = []
    normalised = tape.value(shape, dtype, label + " input")
    statistics = norm_statistics(tape, spec, shape[:-1], label)
    saved = (x.storage, *statistics, normalised.storage)  # TE does not clear a normalised input that it returns
    del statistics

    def normalise(grad: Storage) -> list[Storage | None]:
        """Backward of norm and product, when both have their gradients: dX of the product, the adapter's added, the
        norm's dX.
        """
        dx = tape.new(gathered_shape, dtype, label + " dX")
        reduced = tape.new(shape, dtype, label + " reduce-scatter") if gathers_input else dx
        del dx
        summed = tape.new(shape, dtype, label + " dX + adapter's")
        del reduced
        norm_dx = tape.new(shape, dtype, label + " norm backward")
        del summed
        product_gradient.clear()
        return [norm_dx, *(None for _ in norm_parameters)]

    def multiply(grad: Storage) -> list[Storage | None]:
        """Keep the product's gradient alive until the norm's backward runs."""
        product_gradient.append(grad)
        return [None]

    normalised = tape.record(normalised, (x, *map(tape.parameter, norm_parameters)), normalise, saves=saved)
    del x
    weight = projection.weight
    gathered = tape.new(gathered_shape, dtype, label + " all-gather") if gathers_input else None
    product = tape.value((*gathered_shape[:-1], weight.shape[0]), dtype, label)
    base = tape.record(product, (normalised,), multiply)
    del product, gathered
    return bridged_column(ctx, normalised, base, weight.name, weight.shape[0])


def bridged_row(ctx: Context, x: Value, base: Value, name: str) -> Value:
    """Add mcore-bridge's adapter output to a row-parallel layer's output ``base``. ``x``: this rank's part of the
    input.
    """
    adapter = _adapter(ctx)
    low_rank = _product(ctx, dropout(ctx.tape, x, adapter.dropout), name + IN, (adapter.rank,))
    if is_sequence_parallel(ctx):
        low_rank = _reduce_scatter(ctx, low_rank)
    update = _product(ctx, low_rank, name + OUT, (base.shape[-1],))
    del low_rank
    return _add_scaled(ctx, base, update)


def bridged_whole(ctx: Context, x: Value, base: Value, name: str) -> Value:
    """Add mcore-bridge's adapter output to the output of a layer that every rank holds whole, for its own tokens."""
    adapter = _adapter(ctx)
    low_rank = _product(ctx, dropout(ctx.tape, x, adapter.dropout), name + IN, (adapter.rank,))
    update = _product(ctx, low_rank, name + OUT, (base.shape[-1],))
    del low_rank
    return _add_scaled(ctx, base, update)


def bridged_experts(ctx: Context, x: Value, base: Value, weight: Parameter) -> Value:
    """Add the adapters' output to the output of all local experts, for the tokens that they have."""
    adapter = _adapter(ctx)
    local_experts, outputs, _ = weight.shape
    low_rank = _product(ctx, dropout(ctx.tape, x, adapter.dropout), weight.name + IN, (local_experts, adapter.rank))
    update = _product(ctx, low_rank, weight.name + OUT, (local_experts, outputs))
    del low_rank
    return _add_scaled(ctx, base, update)


def _adapter(ctx: Context) -> Adapter:
    """Return the job's LoRA adapter, which the caller knows to exist."""
    adapter = ctx.setting.adapter
    if adapter is None:
        raise UnsupportedError("no adapters here")
    return adapter


def _product(ctx: Context, x: Value, name: str, rows: tuple[int, ...]) -> Value:
    """Compute TE's linear layer, which saves its input.

    ``rows``: outputs, preceded by the number of matrices where there are several.
    """
    tape = ctx.tape
    weight = ctx.register(
        Parameter(name, (*rows, x.shape[-1]), ctx.setting.param_dtype, requires_grad=True, has_grad=True)
    )
    out = tape.value((*x.shape[:-1], rows[-1]), x.dtype, name)
    fused_wgrad = fuses_wgrad(ctx.setting)
    return operator(
        tape, out, (x, tape.parameter(weight)), [name + " dX", None if fused_wgrad else name + " dW"], saves=(x,)
    )


def _column_product(ctx: Context, x: Value, name: str, outputs: int) -> Value:
    """Compute a column-parallel layer: under sequence parallelism it gathers all tokens' input, in backward again."""
    if not is_sequence_parallel(ctx):
        return _product(ctx, x, name, (outputs,))
    tape = ctx.tape
    weight = ctx.register(
        Parameter(name, (outputs, x.shape[-1]), ctx.setting.param_dtype, requires_grad=True, has_grad=True)
    )
    dtype, fused_wgrad = x.dtype, fuses_wgrad(ctx.setting)
    gathered_shape = (ctx.tokens, x.shape[-1])
    gathered = tape.new(gathered_shape, dtype, name + " all-gather")
    out = tape.value((ctx.tokens, outputs), dtype, name)
    del gathered
    return operator(
        tape,
        out,
        (x, tape.parameter(weight)),
        [name + " reduce-scatter", None if fused_wgrad else name + " dW"],
        saves=(x,),
        temporaries=[(gathered_shape, dtype, name + " all-gather"), (gathered_shape, dtype, name + " dX")],
    )


def _reduce_scatter(ctx: Context, x: Value) -> Value:
    """Compute the sum of the ranks' parts for this rank's tokens; backward gathers the gradients of all."""
    tape = ctx.tape
    out = tape.value((ctx.residual_tokens, x.shape[-1]), x.dtype, "adapter reduce-scatter")
    return operator(tape, out, x, "adapter all-gather")


def _add_scaled(ctx: Context, base: Value, update: Value) -> Value:
    """Compute ``result + lora_result * scaling``."""
    update = scale(ctx.tape, update, "adapter scaling")
    return add(ctx.tape, base, update, "adapter sum")
