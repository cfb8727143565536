"""Tensors that wrap others: DTensor, the results of functional collectives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


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
