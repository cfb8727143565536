"""The plan's ranks without the ranks: one process, a process group that does nothing, fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from memcheck.verify.trace.kernels import CudaKernels, recomputes
from memcheck.verify.trace.patch import patched
from memcheck.verify.trace.values import known_values

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
        stack.enter_context(_autocast_asked_for())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(known_values() if values else nullcontext())
        stack.enter_context(CudaKernels())
        yield


@contextmanager
def _autocast_asked_for() -> Iterator[None]:
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
