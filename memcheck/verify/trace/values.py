"""Values of small integer tensors, kept next to fake ones: grids, ids and indices, by which pictures find their places.

A fake tensor has no values, and the code of vision towers asks for some: it splits rows by the size of each picture,
and looks for the places of image tokens. What is computed from whole numbers alone is computed in truth, too, on small
real tensors that are no part of the count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, final

import torch
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from memcheck.verify.trace.patch import patched

WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
MAKERS = frozenset(
    """
    arange linspace zeros ones full scalar_tensor eye tril_indices triu_indices empty
    """.split()  # noqa: SIM905  # a list of quoted names is harder to read
)
"""Operators that make a tensor of no other."""
OF_FLOATS = frozenset(("arange", "linspace", "lift_fresh", "lift_fresh_copy"))
"""Operators that make floating-point tensors which later become indices."""
RANDOM = ("rand", "bernoulli", "multinomial", "normal", "uniform", "dropout", "exponential")
INDEXED = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"))
SHAPED_BY_VALUES = frozenset(
    ("nonzero", "repeat_interleave", "unique_consecutive", "masked_select", "bincount", "index")
)
"""Operators whose result has a shape that values decide."""
LIMIT, FLOATS = 1 << 26, 1 << 22
"""Elements of a tensor whose values are kept."""


@final
class Values(TorchDispatchMode):
    """Keeps the values of whole numbers, and of what is computed from them alone."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator on fake tensors, and on the values where all are known."""
        kwargs = kwargs or {}
        if active_fake_mode() is None:
            return func(*args, **kwargs)
        name = func._schema.name.rpartition("::")[2]  # noqa: SLF001
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(word in name for word in RANDOM) or not _worth(name, given, args, kwargs):
            return func(*args, **kwargs)
        if any(isinstance(t, FakeTensor) and t.constant is None for t in given):
            return _in_part(func, name, args, kwargs)
        try:
            with unset_fake_temporarily():
                real_args, real_kwargs = tree_map_only(torch.Tensor, _value, (args, kwargs))
                real = func(*real_args, **real_kwargs)
        except (RuntimeError, NotImplementedError, IndexError, ValueError):
            return func(*args, **kwargs)  # it says so itself, or needs no values
        if not any(isinstance(t, torch.Tensor) for t in tree_leaves(real)):
            return real
        shaped = (
            torch.Tag.dynamic_output_shape in func.tags
            or name in SHAPED_BY_VALUES
            or name.startswith(("_unique", "lift_fresh"))
        )
        out = tree_map_only(torch.Tensor, _like, real) if shaped else func(*args, **kwargs)
        for fake, value in zip(tree_leaves(out), tree_leaves(real), strict=False):
            if isinstance(fake, FakeTensor) and isinstance(value, torch.Tensor):
                fake.constant = value if value.numel() <= (LIMIT if value.dtype in WHOLE else FLOATS) else None
        return out


def _worth(name: str, given: list[torch.Tensor], args: Any, kwargs: Any) -> bool:
    """Whether values may matter: of operators on few floating-point numbers, and of those that make whole ones."""
    if str(kwargs.get("device")) == "meta":
        return False
    if given:
        return True
    if name not in MAKERS:
        return False
    size = args[0] if args else None
    if isinstance(size, (list, tuple)) and prod(int(each) for each in size) > LIMIT:
        return False
    return name in OF_FLOATS or kwargs.get("dtype") in WHOLE


def _value(tensor: Any) -> Any:
    return tensor.constant if isinstance(tensor, FakeTensor) else tensor


def _like(real: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=real.device)


def _in_part(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Run an operator of which some tensors alone have values: known masks become indices; what is written forgets."""
    if name in INDEXED and len(args) > 1:
        args = (args[0], [index for each in args[1] for index in _indices(each, name)], *args[2:])
    if name == "eq" and args[1] == 0.0 and args[0].is_floating_point() and args[0].dim() >= 4:  # no picture is black
        out = func(*args, **kwargs)
        with unset_fake_temporarily():
            out.constant = torch.zeros(out.shape, dtype=torch.bool)
        return out
    if name == "masked_select" and isinstance(args[1], FakeTensor) and args[1].constant is not None:
        with unset_fake_temporarily():
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            count = int(args[1].constant.expand(shape).sum())
        return torch.empty(count, dtype=args[0].dtype)
    if name.endswith("_") and args and isinstance(args[0], FakeTensor):
        args[0].constant = None
    return func(*args, **kwargs)


def _indices(index: Any, name: str) -> Iterator[Any]:
    """A boolean mask as indices of its dimensions; a mask of unknown values keeps all of its pictures."""
    if not isinstance(index, FakeTensor) or index.dtype is not torch.bool:
        yield index
    elif index.constant is not None:
        with unset_fake_temporarily():
            places = index.constant.nonzero().unbind(1)
        for place in places:
            made = _like(place)
            made.constant = place
            yield made
    elif name == "index" and index.dim() == 1:
        yield torch.empty(index.shape[0], dtype=torch.int64)
    else:
        yield index


@contextmanager
def known_values() -> Iterator[None]:
    """Whole numbers keep their values inside; outside of it ``torch.tensor`` reads no fake numbers, for it asks C++."""
    make = torch.tensor

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(data, (list, tuple)) and any(isinstance(each, FakeTensor) for each in data):
            data = [each.item() if isinstance(each, FakeTensor) else each for each in data]
        return make(data, *args, **kwargs)

    with patched(torch, "tensor", tensor), Values():
        yield
