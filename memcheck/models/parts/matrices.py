"""Parameter tensors by what they are."""

from __future__ import annotations

from memcheck.models.types import Norm, ParameterTensor


def linear(
    name: str, out: int, inp: int, group: str, shard: str, *, bias: bool = False, transposed: bool = False
) -> tuple[ParameterTensor, ...]:
    """List the weight, and the bias if there is one, of an ``nn.Linear`` with ``inp`` inputs and ``out`` outputs.

    ``group``: group of the parameter table. ``shard``: how tensor parallelism cuts it: ``column``, ``row`` or ``none``.
    A column-parallel bias is cut with its matrix; a row-parallel one is replicated, because it is added after the
    all-reduce. ``transposed``: the weight is transformers' Conv1D, [in, out].
    """
    shape = (inp, out) if transposed else (out, inp)
    weight = ParameterTensor(name + ".weight", shape, group, shard=shard, linear=True, transposed=transposed)
    if not bias:
        return (weight,)
    return weight, ParameterTensor(name + ".bias", (out,), group, shard="column" if shard == "column" else "none")


def vector(name: str, size: int, group: str, shard: str = "none") -> ParameterTensor:
    """A parameter of one dimension."""
    return ParameterTensor(name, (size,), group, shard=shard)


def norm_tensors(norm: Norm | None, name: str = "") -> tuple[ParameterTensor, ...]:
    """List the weight and the bias of a norm; none for None or a norm without a weight.

    If ``rows`` heads have weights of their own, each tensor is [rows, size]. ``name``: path, if the norm has none.
    """
    if norm is None or not norm.weight:
        return ()
    path = norm.name or name
    shape = (norm.rows, norm.size) if norm.rows > 1 else (norm.size,)
    weight = ParameterTensor(path + ".weight", shape, "norm")
    return (weight, ParameterTensor(path + ".bias", shape, "norm")) if norm.bias else (weight,)
