"""DTensor's choices and exchanges as on GPUs (torch/distributed/tensor/_collective_utils.py).

On a mesh of CPUs, PyTorch gathers a whole tensor where CUDA exchanges one sharded dimension for another, because Gloo
has no all-to-all; and what costs least, by which DTensor decides where an operation runs, is estimated from the number
of devices of a host, which are this machine's CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcheck.verify.trace.patch import patched


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
