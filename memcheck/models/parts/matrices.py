"""Parameter tensors by what they are."""

from __future__ import annotations

from memcheck.models.types import Norm, ParameterTensor


def linear(
    name: str, out: int, inp: int, group: str, shard: str, *, bias: bool = False, transposed: bool = False
) -> tuple[ParameterTensor, ...]:
    """``nn.Linear(inp, out)``, or transformers' Conv1D when ``transposed``.

    A column-parallel bias is cut with its matrix; a row-parallel one is replicated, because it is added after the sum.
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
    """Weight and bias of a normalisation; one tensor of ``rows`` x ``size`` where heads have weights of their own."""
    if norm is None or not norm.weight:
        return ()
    path = norm.name or name
    shape = (norm.rows, norm.size) if norm.rows > 1 else (norm.size,)
    weight = ParameterTensor(path + ".weight", shape, "norm")
    return (weight, ParameterTensor(path + ".bias", shape, "norm")) if norm.bias else (weight,)
