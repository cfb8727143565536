"""FSDP1 on fake tensors: an address for every storage, and streams of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

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
