"""The plan's ranks without the ranks: one process, a process group that does nothing, fake tensors.

A fake tensor has no values, and the code of vision towers asks for some: it splits rows by the size of each picture,
and looks for the places of image tokens. So values of small integer tensors (grids, ids, indices) are kept next to the
fake ones, and what is computed from whole numbers alone is computed on them. They are no part of the count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from math import prod
from typing import Any, final

import torch
import torch.distributed as dist
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from memcheck.verify.trace.kernels import CudaKernels, recomputes
from memcheck.verify.trace.tracer import patched

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


MESH_ARITHMETIC = (
    "__getitem__",
    "_concatenate",
    "_create_flatten_mesh",
    "_create_sub_mesh",
    "_flatten",
    "_unflatten",
)


@contextmanager
def fake_ranks(world_size: int, rank: int, *, alone: bool = False) -> Iterator[None]:
    """A process group of the plan's true size whose collectives return at once. ``alone``: of one rank, too."""
    if world_size == 1 and not alone:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        _forget_meshes()
        dist.destroy_process_group()


def _forget_meshes() -> None:
    """What DTensor keeps by mesh: equal ones of later ranks would find groups that are gone."""
    from torch.distributed.tensor import _redistribute, debug

    for owner, name in ((debug, "_clear_sharding_prop_cache"), (_redistribute, "_gen_transform_infos")):
        found = getattr(owner, name, None)
        forget = getattr(found, "cache_clear", found)
        if forget is not None:
            forget()


@contextmanager
def fake_tensors(*, masks: bool = False, values: bool = False) -> Iterator[None]:
    """Tensors without data, CUDA's kernels, and answers where libraries ask for values. ``masks``: rows have one;
    ``values``: whole numbers keep theirs.
    """
    with ExitStack() as stack:
        stack.enter_context(_real_meshes())
        stack.enter_context(_packed_sequences(found=masks))
        stack.enter_context(_unpadded_sequences(found=masks))
        stack.enter_context(_no_value_checks())
        stack.enter_context(recomputes())
        stack.enter_context(autocast_asked_for())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(known_values() if values else nullcontext())
        stack.enter_context(CudaKernels())
        yield


@contextmanager
def autocast_asked_for() -> Iterator[None]:
    """Without a device type the question is about CUDA, for which the CPU stands here (modeling_nemotron.py asks)."""
    ask = torch.is_autocast_enabled

    def enabled(device_type: str = "cpu") -> bool:
        return bool(ask(device_type))

    with patched(torch, "is_autocast_enabled", enabled):
        yield


@contextmanager
def _real_meshes() -> Iterator[None]:
    """Device meshes compute with tensors of ranks, which must have values."""
    from torch.distributed.device_mesh import DeviceMesh

    with ExitStack() as stack:
        for name in MESH_ARITHMETIC:
            raw = vars(DeviceMesh).get(name)
            if raw is None:
                continue
            wraps = isinstance(raw, (staticmethod, classmethod))
            function = _real(raw.__func__ if wraps else raw)
            stack.enter_context(patched(DeviceMesh, name, type(raw)(function) if wraps else function))
        yield


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily(), torch._C.DisableTorchFunction():  # noqa: SLF001
            return function(*args, **kwargs)

    return run


@contextmanager
def _packed_sequences(*, found: bool) -> Iterator[None]:
    """transformers looks for packed sequences in the values of position ids, and makes a mask where it finds some."""
    from transformers import masking_utils

    if not hasattr(masking_utils, "find_packed_sequence_indices"):
        yield
        return

    def indices(position_ids: torch.Tensor) -> torch.Tensor | None:
        return torch.zeros_like(position_ids) if found else None

    with patched(masking_utils, "find_packed_sequence_indices", indices):
        yield


@contextmanager
def _no_value_checks() -> Iterator[None]:
    """DDP compares parameters across ranks and broadcasts them before the first step."""
    from torch.nn.parallel import distributed

    with (
        patched(distributed, "_verify_param_shape_across_processes", lambda *_, **__: None),
        patched(distributed, "_sync_module_states", lambda *_, **__: None),
    ):
        yield


@contextmanager
def _unpadded_sequences(*, found: bool) -> Iterator[None]:
    """transformers reads in the values of a padding mask whether it masks anything; on unpadded data it does not.
    ``found``: that of an encoder's words does, whereas a decoder's is all ones.
    """
    from transformers import masking_utils

    names = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
    with ExitStack() as stack:
        for name in names[:1] if found else names:
            asked = getattr(masking_utils, name, None)
            if asked is not None:
                stack.enter_context(patched(masking_utils, name, _without_padding(asked)))
        yield


def _without_padding(asked: Callable[..., bool]) -> Callable[..., bool]:
    def ignores(padding_mask: object, *args: Any, **kwargs: Any) -> bool:
        known = getattr(padding_mask, "constant", None)  # of pictures, whose masks keep their values
        with unset_fake_temporarily():
            pads = known is not None and not bool(known.all())
        return not pads and asked(None, *args, **kwargs)

    return ignores
