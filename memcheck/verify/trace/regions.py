"""Parts of torch whose allocations mean something of their own: FSDP2's collectives, DTensor's shape arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from memcheck.verify.trace.patch import patched

ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"

FSDP_FUNCTIONS = {
    "foreach_all_gather": ALL_GATHER,
    "foreach_all_gather_copy_out": ALL_GATHER,
    "foreach_reduce": REDUCE_SCATTER,
}
PROPAGATION = ("_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached", "propagate")


class Counter(Protocol):
    """What a region is told to."""

    region: str
    paused: bool


@contextmanager
def collectives(counter: Counter) -> Iterator[None]:
    """Tag what FSDP2 allocates to gather parameters and to reduce gradients."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group

    with ExitStack() as stack:
        for name, region in FSDP_FUNCTIONS.items():
            function = getattr(group, name, None)
            if function is not None:
                stack.enter_context(patched(group, name, _tagged(function, counter, region)))
        yield


def _tagged(function: Callable[..., Any], counter: Counter, region: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        outside, counter.region = counter.region, region
        try:
            return function(*args, **kwargs)
        finally:
            counter.region = outside

    return run


@contextmanager
def shape_propagation(counter: Counter) -> Iterator[None]:
    """Do not count the tensors on which DTensor works out global shapes: outside of a trace they have no memory."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    with ExitStack() as stack:
        for name in PROPAGATION:
            function = vars(ShardingPropagator).get(name)
            if callable(function):
                stack.enter_context(patched(ShardingPropagator, name, _uncounted(function, counter)))
        yield


def _uncounted(function: Callable[..., Any], counter: Counter) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        outside, counter.paused = counter.paused, True
        try:
            return function(*args, **kwargs)
        finally:
            counter.paused = outside

    return run
