"""Distributed wrappers on fake tensors: DDP buckets, DTensor exchanges, FSDP1 storages, torchtitan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from memcheck.verify.trace.kernels import ROUTED
from memcheck.verify.trace.tracer import Account, patched

REGION = "bucket"


class FixedBuckets:
    """DDP's reducer without the new order of buckets after the first step: that one reads values. Same total bytes."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        """Everything else is the reducer's own."""
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def settle(model: nn.Module, account: Account) -> None:
    """Let DDP reduce its buckets in place, and know them by their region; any other model stays as it is."""
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(model, DistributedDataParallel):
        return
    wrapped: Any = model

    def reduce(_, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  # DDP reads annotations
        buffer = bucket.buffer()
        account.tag(buffer, REGION)
        done = torch.futures.Future()
        done.set_result(buffer)
        return done

    wrapped.register_comm_hook(None, reduce)  # the fake backend's all-reduce has no result to wait for
    wrapped.reducer = FixedBuckets(wrapped.reducer)


@contextmanager
def exchanges(per_host: int) -> Iterator[None]:
    """Every exchange allocates what it does on GPUs. ``per_host``: those of a node."""
    from torch.distributed.device_mesh import _mesh_resources
    from torch.distributed.tensor import placement_types

    with (
        patched(placement_types, "shard_dim_alltoall", exchanged),
        patched(_mesh_resources, "num_devices_per_host", lambda device_type: per_host),
    ):
        yield


def exchanged(tensor: torch.Tensor, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int) -> torch.Tensor:
    """The tensors of csrc/distributed/c10d/Functional.cpp, shard_dim_alltoall: sent, received, put together."""
    ways, sizes = mesh.size(mesh_dim), list(tensor.shape)
    sizes[shard_dim] //= ways
    sent = tensor.view(*sizes[:shard_dim], ways, *sizes[shard_dim:]).movedim(shard_dim, 0).contiguous()
    received = torch.empty_like(sent)
    sizes[gather_dim] *= ways
    return received.movedim(0, gather_dim).contiguous().view(sizes)


class CpuHandle:
    """What FSDP1 asks of an accelerator's module, which it refuses to ask of a CPU's."""

    def __getattr__(self, name: str) -> Any:
        """Streams and events are the CPU's own."""
        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        """Whether there is a device: always true here."""
        return True

    def current_device(self) -> torch.device:
        """Where the tensors are."""
        return torch.device("cpu")


class NotedEvent:
    """An event of which the account takes down when it is recorded and waited for."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._name: int | None = None

    def record(self, *_: object) -> None:
        """Now."""
        if self._account.sequence is not None:
            self._name = self._account.sequence.marked()

    def synchronize(self) -> None:
        """The program waits for it."""
        if self._account.sequence is not None and self._name is not None:
            self._account.sequence.awaited(self._name)


@contextmanager
def recorded_streams(account: Account) -> Iterator[None]:
    """FSDP1 tells the allocator which stream works on a block, and waits for the second last all-gather to be let go of
    (``limit_all_gathers``); on a CPU it does neither.
    """
    from torch.distributed.fsdp import _flat_param, _runtime_utils

    with ExitStack() as stack:
        for module in (_flat_param, _runtime_utils):
            stack.enter_context(patched(module, "_no_dispatch_record_stream", account.recorded))
        stack.enter_context(patched(CpuHandle, "Event", lambda _: NotedEvent(account)))
        yield


@contextmanager
def flat_parameters() -> Iterator[None]:
    """FSDP1 tells by addresses whether a flat parameter is sharded, gathered or freed; fake tensors have none."""
    from torch.distributed.fsdp import fully_sharded_data_parallel as fsdp

    def handle(state: Any, *_: object) -> Any:
        state._device_handle = CpuHandle()  # noqa: SLF001
        return state

    with ExitStack() as stack:
        stack.enter_context(patched(torch.UntypedStorage, "data_ptr", _storage_address))
        stack.enter_context(patched(torch.Tensor, "data_ptr", _address))
        stack.enter_context(patched(fsdp, "_init_device_handle", handle))
        yield


def _storage_address(storage: Any) -> int:
    return int(storage._cdata) if storage.size() else 0  # noqa: SLF001


def _address(tensor: torch.Tensor) -> int:
    start = _storage_address(tensor.untyped_storage())
    return start + tensor.storage_offset() * tensor.element_size() if start else 0


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """Meshes on the CPU, and a perfectly balanced router."""
    from torchtitan.tools import utils

    with ExitStack() as stack:
        stack.enter_context(patched(utils, "device_type", "cpu"))
        stack.enter_context(patched(utils, "device_module", torch.cpu))
        from torchtitan.models.common import token_dispatcher  # this and much else take the device when imported

        dispatcher = getattr(token_dispatcher, "AllToAllTokenDispatcher", None)
        if dispatcher is not None:
            stack.enter_context(patched(dispatcher, "dispatch", _balanced(dispatcher.dispatch)))
        _value_heads()
        yield


def _balanced(dispatch: Any) -> Any:
    """The sizes that expert-parallel ranks exchange are values: every peer gets the same."""

    def run(self: Any, x: Any, scores: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
        ROUTED.each = ids.numel() // self.ep_mesh.size() if self.ep_mesh is not None else 0
        return dispatch(self, x, scores, ids, *args, **kwargs)

    return run


def _value_heads() -> None:
    """torch's fake kernel for packed sequences gives the output the queries' head size; with MLA it has the values'."""
    import torch.nn.attention.varlen  # registers the operator

    def fake(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        rows, heads = query.shape[:2]
        return (
            query.new_empty(rows, heads, value.shape[-1]),
            query.new_empty(heads, rows, dtype=torch.float32),
            query.new_empty(2, dtype=torch.uint64),
        )

    torch.library.register_fake("torch_attn::_varlen_attn", fake, allow_override=True)
