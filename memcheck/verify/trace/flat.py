"""FSDP1 on fake tensors: an address for every storage, and streams of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from memcheck.verify.trace.account import Account
from memcheck.verify.trace.patch import patched


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
