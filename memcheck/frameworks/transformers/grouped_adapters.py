"""LoRA on the experts of a rank, as NeMo AutoModel has it: grouped products of their own beside those of the experts.

Source: NVIDIA-NeMo/Automodel 36044ad3 ``components/_peft/lora_experts.py`` (GroupedExpertsLoRA,
GroupedExpertsDeepEPLoRA). Both matrices of every expert have factors A and B, which lie where the expert lies. What
they yield is scaled and added, each time into a new tensor; nothing is merged into the experts. ``torch._grouped_mm``
wants rows of 16 bytes, to which narrower ranks are padded; ``grouped_gemm`` takes them as they are.
"""

from __future__ import annotations

from math import prod

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.adapter import Adapter
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, convert_weight, scale
from memcheck.autograd.indexing import grouped_mm
from memcheck.autograd.tensor import ITEM_BYTES, Parameter, Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.adapters import Factors, names_parameter, stacked_experts
from memcheck.models.types import Moe

ROW_BYTES = 16
"""What a row of ``torch._grouped_mm``'s operands is a multiple of."""
POINTER = "/training/lora/target_parameters"


def demand_both(adapter: Adapter | None, m: Moe) -> None:
    """Nothing, if no matrix of the experts is adapted, or all are.

    Raises:
        UnsupportedError: some are, which AutoModel's classes cannot be told.
    """
    named = [names_parameter(adapter.parameters, t.name) for t in stacked_experts(m)] if adapter is not None else []
    if any(named) and not all(named):
        message = "experts on several ranks have adapters of all their matrices, or none"
        help = f"name them all: {', '.join(t.name for t in stacked_experts(m))}"
        raise UnsupportedError(message, help, POINTER)


def factors_here(m: Moe, adapter: Adapter | None, ways: int) -> tuple[Factors, ...]:
    """A [experts here, inputs, rank] and B [experts here, rank, outputs] of up (with gate) and of down; or none.

    ``ways``: ranks over which whole experts are dealt out.
    """
    stacked = stacked_experts(m)
    if adapter is None or not any(names_parameter(adapter.parameters, t.name) for t in stacked):
        return ()
    rank, local = adapter.expert_rank or adapter.rank, -(-m.experts // ways)
    hidden = prod(stacked[-1].shape) // (m.experts * m.width)
    wide = 2 * m.width if m.gated else m.width
    path = stacked[0].name.rpartition(".")[0]
    return (
        Factors(path + ".lora_gate_and_up", (local, hidden, rank), (local, rank, wide)),
        Factors(path + ".lora_down", (local, m.width, rank), (local, rank, hidden)),
    )


def factors_resting(m: Moe, adapter: Adapter, ways: int) -> list[LocalTensor]:
    """Those tensors on a rank: FSDP2 divides them behind the experts (``parallelizer.py``, _moe_shard_placement)."""
    return [
        LocalTensor(
            name=f"{f.name}_{end}",
            shape=shape,
            trained=True,
            dtype=adapter.dtype,
            expert=True,
            matrix=True,
            divided=1,
        )
        for f in factors_here(m, adapter, ways)
        for end, shape in (("A", f.down), ("B", f.up))
    ]


Operands = tuple[Value, Value]


def operands(ctx: Context, m: Moe, dtype: str) -> tuple[Operands, ...]:
    """Both factors of both matrices as the products take them (``_to_grouped_mm_operand``,
    ``_pad_lora_rank_for_grouped_mm``); none without adapters.
    """
    tape, found = ctx.tape, list[Operands]()
    for f in factors_here(m, ctx.setting.adapter, ctx.setting.expert):
        down, up = (
            convert_weight(tape, tape.parameter(ctx.register(_factor(ctx, name, shape))), dtype)
            for name, shape in ((f.name + "_A", f.down), (f.name + "_B", f.up))
        )
        rank = f.up[1]
        padded = rank + -rank % (ROW_BYTES // ITEM_BYTES[dtype])
        if padded > rank:
            down = _padded(tape, down, (*f.down[:2], padded))
            up = _padded(tape, up, (f.up[0], padded, f.up[2]))
        found.append((down, up))
    return tuple(found)


def _factor(ctx: Context, name: str, shape: tuple[int, ...]) -> Parameter:
    adapter = ctx.setting.adapter
    dtype = adapter.seen if adapter is not None else ctx.setting.params
    return Parameter(name, shape, dtype, True, has_grad=ctx.setting.has_grad)


def _padded(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``F.pad``: a copy, as is its gradient without the padding."""
    out = tape.value(shape, x.dtype, "padded factor")
    narrow, dtype = x.shape, x.dtype
    return tape.record(out, (x,), lambda grad: [tape.new(narrow, dtype, "padding's gradient")])


def with_adapter(
    tape: Tape, product: Value, x: Value, factors: Operands, offsets: Storage, named: list[Value]
) -> Value:
    """``product + grouped_mm(grouped_mm(x, A), B) * scale``; ``named``: what the forward has names for to its end."""
    down, up = factors
    inner = grouped_mm(tape, x, down, down.shape[2], offsets, "experts' lora_A", down.shape)
    outer = grouped_mm(tape, inner, up, up.shape[2], offsets, "experts' lora_B", up.shape)
    named += (inner, outer)
    return add(tape, product, scale(tape, outer, "scaled adapter"), "with adapter")
