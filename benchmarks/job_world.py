"""The world around a traced job: ranks that are not there, and a CPU that stands for a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from memcheck.verify.trace.tracer import patched
from memcheck.verify.trace.world import autocast_asked_for, fake_ranks

ENVIRONMENT = {
    "ACCELERATE_TORCH_DEVICE": "cpu:0",
    "ACCELERATE_BYPASS_DEVICE_MAP": "true",  # DDP without device ids, as a CPU has none
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # modes that follow tensors are of one thread
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@contextmanager
def around(record: dict[str, Any]) -> Iterator[None]:
    """A process of a world of the plan's size."""
    from accelerate import state
    from transformers import training_args

    ranks = record["plan"]["hardware"].get("gpus_per_node", 1)

    def backend(*_: object, **__: object) -> tuple[str | None, Any]:
        return ("fake", state.DistributedType.MULTI_GPU) if ranks > 1 else (None, state.DistributedType.NO)

    os.environ |= ENVIRONMENT
    if "deepspeed" in record["versions"]:
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed  # noqa: F401  # before the trainer, so that its engine is watched

        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]  # ranks that are not there
    if "bitsandbytes" in record["versions"]:
        import bitsandbytes  # noqa: F401  # likewise: it makes its tables on the GPU
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
    with ExitStack() as stack:
        stack.enter_context(patched(state.PartialState, "_prepare_backend", backend))
        stack.enter_context(patched(training_args, "is_torch_bf16_gpu_available", lambda: True))
        stack.enter_context(autocast_asked_for())
        stack.enter_context(fake_ranks(ranks, 0))
        yield
