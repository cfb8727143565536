"""dtypes of a plan as torch's, and tensors that wrap others: DTensor, the results of functional collectives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHORT = {
    **{v: k for k, v in DTYPES.items()},
    torch.float64: "fp64",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.uint8: "uint8",
    torch.bool: "bool",
    torch.complex64: "complex64",
}


def short(dtype: torch.dtype) -> str:
    """``bf16``, as the plan writes it."""
    return SHORT.get(dtype) or str(dtype).removeprefix("torch.")


def is_wrapper(kind: type) -> bool:
    """Whether a tensor type desugars to operators on plain tensors."""
    return issubclass(kind, _wrappers())


@lru_cache(maxsize=1)
def _wrappers() -> tuple[type, ...]:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor import DTensor

    return DTensor, AsyncCollectiveTensor


def plain_tensors(found: object) -> Iterator[torch.Tensor]:
    """Every plain tensor in nested containers and wrappers."""
    if isinstance(found, torch.Tensor):
        if type(found).__name__ == "AsyncCollectiveTensor":
            yield from plain_tensors(found.elem)
        elif is_traceable_wrapper_subclass(found):
            for name in found.__tensor_flatten__()[0]:
                yield from plain_tensors(getattr(found, name))
        else:
            yield found
    elif isinstance(found, dict):
        for value in found.values():
            yield from plain_tensors(value)
    elif isinstance(found, (list, tuple, set)):
        for value in found:
            yield from plain_tensors(value)
