"""nanotron's parameters on fake tensors, of which torch makes no subclasses: the class's own methods on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


def take_fake_ones() -> None:
    """Let ``NanotronParameter`` make and know fake tensors."""
    from nanotron import trainer
    from nanotron.models import base
    from nanotron.optim import gradient_accumulator
    from nanotron.parallel.parameters import NanotronParameter

    trainer.create_pg_for_tied_weights = lambda **_: None  # ranks that are there already
    gradient_accumulator.get_untyped_storage = _Slices
    gradient_accumulator.tensor_from_untyped_storage = lambda untyped_storage, dtype: untyped_storage
    base.init_on_device_and_dtype = in_dtype
    name = NanotronParameter.NANOTRON_PARAMETER_METADATA_ATTRIBUTE_NAME
    for each, method in vars(NanotronParameter).items():
        if not each.startswith("__"):
            setattr(FakeTensor, each, method)

    def make(cls: Any, tensor: torch.Tensor, requires_grad: bool = True) -> Any:
        del cls
        found = nn.Parameter(tensor.detach(), requires_grad=requires_grad)
        setattr(found, name, dict(getattr(tensor, name, {})))
        return found

    NanotronParameter.__new__ = make
    meta: Any = type(nn.Parameter)
    usual = meta.__instancecheck__
    meta.__instancecheck__ = lambda cls, one: hasattr(one, name) if cls is NanotronParameter else usual(cls, one)


class _Slices:
    """Slices of a storage as slices of its tensor: fake storages have no bytes to slice."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, found: slice) -> torch.Tensor:
        item = self.tensor.element_size()
        return self.tensor[found.start // item : found.stop // item]


@contextmanager
def in_dtype(device: object, dtype: torch.dtype) -> Iterator[None]:
    """In place of ``init_on_device_and_dtype``, whose patches reach the constructors inside fake tensors."""
    del device
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)
