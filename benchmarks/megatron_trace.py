"""Trace steps of Megatron-core's own code: python -m benchmarks.megatron_trace [--only REGEX] [--draw SEED COUNT].

Needs the extra ``verify``, Megatron-core and TransformerEngine's Python, of which nothing is compiled here
(``CONTRIBUTING.md`` has the versions). Each record of ``data/megatron_core.json`` is a plan. For every stage of its
pipeline Megatron-core builds the model, wraps it, runs its schedule and steps its optimizer, three times, on CPU
tensors and fake process groups, and the highest bytes of the third step are recorded. Experts get the same number of
tokens. ``--draw`` makes plans up and prints what is predicted of them; nothing is recorded.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from importlib.metadata import version
from typing import Any

from benchmarks.cases import HERE, load

FILE = "megatron_core.json"
STEPS = 3
PATIENCE = 300
"""Seconds for the step of one rank."""


def main() -> int:
    """Trace the recorded plans again, and write what was seen after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="records whose id matches")
    parser.add_argument("--draw", nargs=2, type=int, metavar=("SEED", "COUNT"), help="trace made-up plans")
    options = parser.parse_args()
    if options.draw:
        from benchmarks.megatron_draw import drawn

        return drawn(*options.draw, options.only)
    data = load(FILE)
    data["source"] = SOURCE.format(version("megatron-core"), version("transformer-engine"))
    for record in data["steps"]:
        if not re.search(options.only, record["id"]):
            continue
        try:
            record["ranks"] = ranks_of(record["plan"])
        except RuntimeError as error:
            print(record["id"], "was not traced:", error, flush=True)
            continue
        print(record["id"], record["ranks"], flush=True)
        write(data)
    return 0


SOURCE = (
    "one rank on the CPU with fake process groups: Megatron-core {} over TransformerEngine {}'s Python "
    "(benchmarks/megatron_trace.py); the third step. Each of TransformerEngine's cuBLAS workspaces is 512 bytes, and "
    "there are none of torch's."
)


def write(data: dict[str, Any]) -> None:
    """One record a line."""
    lines = ",\n".join(json.dumps(record) for record in data["steps"])
    with open(os.path.join(HERE, "data", FILE), "w", encoding="utf-8") as file:
        file.write(f'{{"source": {json.dumps(data["source"])},\n"steps": [\n{lines}\n]}}\n')


def ranks_of(plan: dict[str, Any]) -> dict[str, dict[str, int]]:
    """What the first rank of every stage takes at each instant."""
    stages = plan.get("parallelism", {}).get("pipeline", 1)
    return {str(stage): traced(plan, stage) for stage in range(stages)}


def traced(plan: dict[str, Any], stage: int) -> dict[str, int]:
    """The highest bytes of each instant on one pipeline rank, in a process of its own."""
    from benchmarks import megatron_kernels

    if "megatron.core" not in sys.modules:
        megatron_kernels.install()
        import megatron.core.models.gpt
        import megatron.core.optimizer
        import megatron.core.pipeline_parallel  # noqa: F401  # once, before processes are forked
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply_async(_quietly, (plan, stage)).get(PATIENCE)
    if isinstance(found, str):
        raise RuntimeError(found)  # noqa: TRY004  # what went wrong there
    return dict(found)


def _quietly(plan: dict[str, Any], stage: int) -> dict[str, int] | str:
    with open(os.devnull, "w", encoding="utf-8") as null, redirect_stdout(null), redirect_stderr(null):
        try:
            return _instants(plan, stage)
        except Exception:  # noqa: BLE001  # any line of their code can raise, and the parent says which
            return traceback.format_exc()


def _instants(plan: dict[str, Any], stage: int) -> dict[str, int]:
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from benchmarks import megatron_cuda
    from benchmarks.base_trace import subject_of
    from memcheck.verify.trace.tracer import Tracer

    torch.set_num_threads(1)
    job = subject_of(plan).job
    world = job.layout.world_size
    rank = stage * world // job.layout.pipeline
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world))
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    if job.option("fp8_recipe") == "mxfp8":
        from transformer_engine.pytorch import utils

        megatron_cuda.be_blackwell()
        utils._get_device_compute_capability.cache_clear()  # noqa: SLF001
    tracer = Tracer(lambda: False, lambda *_: None, in_place=True)
    _fuse(tracer)
    with tracer:
        return _steps(plan, job, tracer)


def _fuse(tracer: Any) -> None:
    """Of a compiled function only those tensors count that outlive it: what it gives back, and what autograd saved."""
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from benchmarks import megatron_cuda

    class Inside(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.made: list[Any] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            self.made += [
                (weakref.ref(leaf.untyped_storage()), leaf.dtype)
                for leaf in tree_leaves(found)
                if isinstance(leaf, torch.Tensor)
            ]
            return found

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if tracer.paused:
                return function(*args, **kwargs)
            tracer.paused = True
            try:
                with Inside() as inside:
                    found = function(*args, **kwargs)
            finally:
                tracer.paused = False
            for reference, dtype in inside.made:
                storage = reference()
                if storage is not None:
                    tensor = torch.empty(0, dtype=dtype).set_(storage)
                    tracer.account.add(tensor, function.__name__, tracer.phase, "", "")
            tracer.mark(function.__name__)
            return found

        return run

    megatron_cuda.compiled[0] = counted


def _steps(plan: dict[str, Any], job: Any, tracer: Any) -> dict[str, int]:
    """Build a rank's model and run three steps."""
    from megatron.core.pipeline_parallel import get_forward_backward_func, schedules

    from benchmarks.megatron_model import parts_of

    _stand_in()
    parts = parts_of(plan, job)
    backward_step = schedules.backward_step

    def backward(*args: Any, **kwargs: Any) -> Any:
        tracer.enter("backward")
        try:
            return backward_step(*args, **kwargs)
        finally:
            tracer.enter("forward")

    schedules.backward_step = backward
    run = get_forward_backward_func()
    chunks, optimizer = parts.chunks, parts.optimizer
    for _ in range(STEPS):
        gc.collect()
        tracer.enter("init")
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        tracer.account.begin_step()
        rests = tracer.account.total
        tracer.enter("forward")
        gc.disable()
        losses = run(
            forward_step_func=parts.forward_step,
            data_iterator=[None] * len(chunks) if len(chunks) > 1 else None,
            model=chunks,
            num_microbatches=job.gradient_accumulation_steps,
            seq_length=job.sequence_length,
            micro_batch_size=job.micro_batch_size,
            decoder_seq_length=job.sequence_length,
            forward_only=False,
        )
        tracer.enter("optimizer")
        optimizer.step()
        del losses
        gc.enable()
    tops = tracer.account.tops
    return {"init": rests, **{name: tops[name].bytes for name in ("forward", "backward", "optimizer")}}


def _stand_in() -> None:
    """Functions whose CPU kernels allocate what CUDA's do not, random states, and the choice of experts."""
    import megatron.core.tensor_parallel.random as states
    import torch
    from megatron.core.transformer import torch_norm

    from memcheck.verify.trace import kernels

    functional: Any = torch.nn.functional
    functional.dropout = kernels._dropout  # noqa: SLF001
    torch.nn.Dropout.forward = lambda layer, x: kernels._dropout(x, layer.p, layer.training)  # noqa: SLF001
    functional.rms_norm = torch.rms_norm = kernels.rms_norm
    torch.nn.RMSNorm.forward = lambda layer, x: kernels.rms_norm(x, layer.normalized_shape, layer.weight, layer.eps)

    def norm(kind: type, config: Any, hidden_size: int, eps: float = 1e-5, *args: Any, **kwargs: Any) -> Any:
        found = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        return found(hidden_size, eps=eps)

    torch_norm.WrappedTorchNorm.__new__ = staticmethod(norm)
    states.CudaRNGStatesTracker.fork = lambda tracker, name=None: nullcontext()
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("megatron") and hasattr(module, "apply_random_logits"):
            module.apply_random_logits = even_logits


def even_logits(logits: Any, *args: Any) -> Any:
    """Logits that give each expert the same number of tokens."""
    import torch

    from benchmarks.megatron_model import NORMALISED_SCORES

    experts = logits.shape[-1]
    tokens = logits.numel() // experts

    class Even(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: Any) -> Any:
            out = torch.zeros((tokens, experts), dtype=x.dtype)
            chosen = torch.arange(tokens * NORMALISED_SCORES[0])
            out[chosen // NORMALISED_SCORES[0], chosen % experts] = 1.0
            return out.view(x.shape)

        @staticmethod
        def backward(_ctx: Any, grad: Any) -> Any:
            return grad

    return Even.apply(logits)


if __name__ == "__main__":
    sys.exit(main())
