"""DistributedDataParallel on fake tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memcheck.verify.trace.account import Account

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
