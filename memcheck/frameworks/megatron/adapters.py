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
from memcheck.autograd.operator import add, dropout, operator, scale
from memcheck.autograd.tensor import Parameter, Storage, Value, ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.bridge_adapters import (
    MCORE_BRIDGE,
    OPTION,
    bridged,
    bridged_column,
    bridged_row,
    bridged_whole,
    demand_whole_experts,
    is_bridged,
    normalised_column,
)
from memcheck.frameworks.megatron.linear import (
    Projection,
    base_column,
    fuses_wgrad,
    gather_sequence,
    is_sequence_parallel,
    norm,
    norm_statistics,
    uses_te,
)
from memcheck.frameworks.megatron.tensors import whole_block
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Norm

ROW_PARALLEL = ("linear_proj", "linear_fc2", "out_proj")
"""Row-parallel layers."""
REPLICATED = ("linear_q_down_proj", "linear_kv_down_proj")
"""Layers that every tensor rank holds whole; every other one that can be adapted is column-parallel."""
IN, OUT = ".adapter.linear_in.weight", ".adapter.linear_out.weight"
"""Ends of the names of Megatron-Bridge's two adapter matrices."""


def wraps(adapter: Adapter | None, name: str) -> bool:
    """Whether a layer of this name has an adapter."""
    return adapter is not None and adapts(adapter, name)


def _is_linear(name: str) -> bool:
    """Whether a matrix of this path is a linear layer's: a router's and a gate's are not."""
    return "linear" in name or "in_proj" in name or "out_proj" in name


def demand_whole_rank(rank: int, tensor_ranks: int) -> None:
    """Check that the tensor ranks divide an adapter's rank evenly.

    Raises:
        UnsupportedError: Megatron-core's layers do not divide it (``ensure_divisibility``).
    """
    if rank % tensor_ranks:
        message = f"adapters of rank {rank} are not divided by {tensor_ranks} tensor ranks"
        raise UnsupportedError(message, f"choose a multiple of {tensor_ranks}", "/training/lora/rank")


def tensors_with_adapters(
    tensors: tuple[LocalTensor, ...], adapter: Adapter, backend: object, tensor_ranks: int, expert_tensor_ranks: int
) -> tuple[LocalTensor, ...]:
    """List a layer's frozen tensors and its adapters' tensors, Megatron-Bridge's or mcore-bridge's
    (``bridge_backend``).

    ``tensor_ranks``: tensor ranks that divide a dense matrix. ``expert_tensor_ranks``: those that divide an expert's.
    """
    if backend != MCORE_BRIDGE:
        return with_adapters(tensors, adapter, tensor_ranks, expert_tensor_ranks)
    adapted = [t for t in tensors if t.matrix and _is_linear(t.name) and wraps(adapter, t.name.rpartition(".")[0])]
    if any(t.expert for t in adapted):
        demand_whole_experts(expert_tensor_ranks)
    return bridged(tensors, tuple([t.name for t in adapted]), adapter.rank)


@lru_cache(maxsize=64)
def with_adapters(
    tensors: tuple[LocalTensor, ...], adapter: Adapter, tensor_ranks: int, expert_tensor_ranks: int
) -> tuple[LocalTensor, ...]:
    """List a layer's frozen tensors and Megatron-Bridge's adapter tensors on one rank.

    A column-parallel layer's first matrix is divided by rank; a row-parallel or replicated layer's second one by
    outputs.
    """
    local_tensors = [t._replace(trained=False) for t in tensors]
    for t in tensors:
        name = t.name.removesuffix(".weight")
        if t.expert:
            name = t.name.removesuffix(".weight0")  # one adapter for all local experts
        if name == t.name or not t.matrix or not _is_linear(name) or not wraps(adapter, name):
            continue
        ranks = expert_tensor_ranks if t.expert else tensor_ranks
        outputs, inputs = t.shape
        module = name.rpartition(".")[2]
        in_shape, out_shape = (adapter.rank, inputs), (outputs, adapter.rank)
        if module not in ROW_PARALLEL:
            demand_whole_rank(adapter.rank, ranks)
            in_shape = (adapter.rank // ranks, inputs)
        if module in ROW_PARALLEL or module in REPLICATED:
            out_shape = (ceil_div(outputs, ranks), adapter.rank)
        for suffix, shape in ((IN, in_shape), (OUT, out_shape)):
            local_tensors.append(
                LocalTensor(name + suffix, shape, trained=True, dtype=None, expert=t.expert, matrix=True)
            )
    return tuple(local_tensors)


def adapter_parameters(job: TrainingJob, architecture: Architecture) -> int:
    """Count the elements of all LoRA matrices of the model, before tensor parallelism divides them.

    The experts of a layer share one adapter, or each has its own (mcore-bridge).
    """
    if job.lora is None:
        return 0
    adapter = Adapter(job.lora.rank, job.lora.target_modules, job.recipe.params)
    backend = job.option(OPTION)
    count = 0
    for block, times in architecture.blocks:
        base_tensors = whole_block(block, architecture.hidden_size)
        tensors = tensors_with_adapters(base_tensors, adapter, backend, 1, 1)
        count += times * sum(t.numel for t in tensors if t.trained)
    return count


def column_adapter(ctx: Context, x: Value, base: Value, name: str, outputs: int, tensor_ranks: int) -> Value:
    """Add the LoRA adapter's output to the output ``base`` of a column-parallel layer, [tokens, outputs].

    ``x``: the input of all tokens. ``outputs``: columns on this rank. ``tensor_ranks``: ranks that divide the layer.
    LoRA A is column-parallel, too: its rank / tp columns are gathered before LoRA B (Megatron-Bridge,
    ParallelLinearAdapter).
    """
    tape, adapter, rows = ctx.tape, _adapter(ctx), x.shape[0]
    rank = adapter.rank // tensor_ranks
    low_rank = _product(ctx, dropout(tape, x, adapter.dropout), name + IN, rank)
    del x
    if tensor_ranks > 1:
        low_rank = _gather_columns(ctx, low_rank, (rows, adapter.rank))
    # `x = x * (self.alpha / self.dim)`: the product is passed as a temporary; a variable would hold it during the call
    update = scale(tape, _product(ctx, low_rank, name + OUT, outputs), "adapter scaling")
    return add(tape, base, update, "adapter sum")


def row_adapter(ctx: Context, x: Value, base: Value, name: str, outputs: int, tensor_ranks: int) -> Value:
    """Add the LoRA adapter's output to the output ``base`` of a row-parallel layer, [tokens, outputs].

    ``x``: [tokens, inputs / tp]. ``outputs``: columns of all ranks. LoRA B is column-parallel: its outputs / tp columns
    are gathered. Under sequence parallelism the rank then slices out its own tokens.
    """
    if is_bridged(ctx.setting):
        return bridged_row(ctx, x, base, name)
    tape, adapter, rows = ctx.tape, _adapter(ctx), x.shape[0]
    low_rank = _product(ctx, dropout(tape, x, adapter.dropout), name + IN, adapter.rank)
    del x
    update = _product(ctx, low_rank, name + OUT, ceil_div(outputs, tensor_ranks))
    del low_rank
    if tensor_ranks > 1:
        update = _gather_columns(ctx, update, (rows, outputs))
    if base.shape != update.shape:  # under sequence parallelism: a view of this rank's tokens
        update = _own_tokens(ctx, update, base.shape)
    return _add_scaled(ctx, base, update)


def replicated_adapter(ctx: Context, x: Value, base: Value, weight: Parameter) -> Value:
    """Add the LoRA adapter's output to the output of a replicated layer, for this rank's tokens: [tokens, outputs].

    ``x``: [tokens, inputs]. ``base``: the layer's own output. Each tensor rank computes its columns of both adapter
    products, which are then gathered.
    """
    if is_bridged(ctx.setting):
        return bridged_whole(ctx, x, base, weight.name)
    tape, adapter = ctx.tape, _adapter(ctx)
    rows, tensor_ranks = x.shape[0], ctx.tp
    low_rank = _product(ctx, dropout(tape, x, adapter.dropout), weight.name + IN, adapter.rank // tensor_ranks)
    del x
    if tensor_ranks > 1:
        low_rank = _gather_columns(ctx, low_rank, (rows, adapter.rank))
    update = _product(ctx, low_rank, weight.name + OUT, ceil_div(weight.shape[0], tensor_ranks))
    if tensor_ranks > 1:
        update = _gather_columns(ctx, update, (rows, weight.shape[0]))
    return _add_scaled(ctx, base, update)


def normalise_for_adapter(ctx: Context, x: Value, spec: Norm, label: str) -> Value:
    """Compute the normalised input of TE's LayerNormLinear for all tokens, [tokens, hidden]: the adapter reads it, too.

    Saved are ``x``, the norm's statistics, and this rank's normalised tokens: TE clears them otherwise, but not if the
    layer returns them (``clear_tensor_data(ln_out)``). Backward adds the layer's gradient and the adapter's into a
    third tensor.
    """
    tape, gathers_input = ctx.tape, is_sequence_parallel(ctx)
    norm_parameters = [n for n in ctx.norm_weight(spec, label + ".layer_norm") if n is not None]
    shape, dtype = x.shape, x.dtype
    gathered_shape = (ctx.tokens, shape[-1]) if gathers_input else shape
    out = tape.value(shape, dtype, label + " input")
    statistics = norm_statistics(tape, spec, shape[:-1], label)
    saved = (x.storage, *statistics, out.storage)
    del statistics
    if gathers_input:
        out = tape.value(gathered_shape, dtype, label + " all-gather")

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: the sum of the layer's and the adapter's input gradients, reduce-scattered, then the norm's dX."""
        layer_dx = tape.new(gathered_shape, dtype, label + " dX")
        summed_dx = tape.new(gathered_shape, dtype, label + " dX + adapter's")
        del layer_dx
        if gathers_input:
            reduced = tape.new(shape, dtype, label + " reduce-scatter")
            del reduced
        del summed_dx
        dx = tape.new(shape, dtype, label + " norm backward")
        return [dx, *(None for _ in norm_parameters)]

    return tape.record(out, (x, *map(tape.parameter, norm_parameters)), run, saves=saved)


def adapted_column(ctx: Context, x: Value, projection: Projection, label: str, spec: Norm | None) -> Value:
    """Compute a column-parallel layer with its LoRA adapter: [tokens, outputs / tp].

    ``x``: [this rank's tokens, inputs]. ``spec``: the norm before the layer; None: there is none.
    """
    if uses_te(ctx.setting) and spec is not None:
        return _adapted_norm_column(ctx, x, projection, label, spec)
    x = norm(ctx, spec, x)
    base = base_column(ctx, x, projection, label, None)
    if is_bridged(ctx.setting):
        return bridged_column(ctx, x, base, projection.weight.name, projection.weight.shape[0])
    gathered = gather_sequence(ctx, x, label + " adapter all-gather") if is_sequence_parallel(ctx) else x
    del x
    return column_adapter(ctx, gathered, base, projection.weight.name, projection.weight.shape[0], ctx.tp)


def _adapted_norm_column(ctx: Context, x: Value, projection: Projection, label: str, spec: Norm) -> Value:
    """Compute TE's norm, gather and product, with the LoRA adapter on the normalised input."""
    if is_bridged(ctx.setting):
        return normalised_column(ctx, x, projection, label, spec)
    tape, outputs = ctx.tape, projection.weight.shape[0]
    normalised = normalise_for_adapter(ctx, x, spec, label)
    del x
    out = tape.value((*normalised.shape[:-1], outputs), normalised.dtype, label)
    base = operator(tape, out, normalised, label + " dX")
    return column_adapter(ctx, normalised, base, projection.weight.name, outputs, ctx.tp)


def _adapter(ctx: Context) -> Adapter:
    """Return the job's LoRA adapter, which the caller knows to exist."""
    adapter = ctx.setting.adapter
    if adapter is None:
        raise UnsupportedError("no adapters here")
    return adapter


def _product(ctx: Context, x: Value, name: str, outputs: int) -> Value:
    """Compute a linear layer of Megatron-core, which saves its input; its input gradient is all-reduced in place."""
    tape = ctx.tape
    weight = ctx.register(
        Parameter(name, (outputs, x.shape[-1]), ctx.setting.param_dtype, requires_grad=True, has_grad=True)
    )
    out = tape.value((*x.shape[:-1], outputs), x.dtype, name)
    fused_wgrad = fuses_wgrad(ctx.setting)
    return operator(
        tape, out, (x, tape.parameter(weight)), [name + " dX", None if fused_wgrad else name + " dW"], saves=(x,)
    )


def _gather_columns(ctx: Context, x: Value, shape: tuple[int, ...]) -> Value:
    """Gather the columns of all tensor ranks (``gather_output``); backward takes this rank's slice."""
    tape = ctx.tape
    return operator(tape, tape.value(shape, x.dtype, "adapter all-gather"), x, "adapter split")


def _own_tokens(ctx: Context, x: Value, shape: tuple[int, ...]) -> Value:
    """Take this rank's tokens of ``x``: ``scatter_to_sequence_parallel_region``, to ``shape``.

    A slice of rows is no copy; backward all-gathers the ranks' gradients.
    """
    tape = ctx.tape
    return operator(tape, Value(x.storage, shape, x.dtype), x, "adapter gather backward")


def _add_scaled(ctx: Context, base: Value, update: Value) -> Value:
    """Compute ``linear_output + adapter_output * (alpha / dim)``."""
    update = scale(ctx.tape, update, "adapter scaling")
    return add(ctx.tape, base, update, "adapter sum")
