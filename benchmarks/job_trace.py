"""Trace whole jobs in the trainer's own objects: python -m benchmarks.job_trace [--only REGEX].

Each record of ``data/jobs.json`` says which launcher is called with which arguments, and which releases it needs.
Those of other releases are left alone. A small model is saved to disk, and the launcher does all the rest: it loads,
prepares, trains two steps, evaluates and saves. Tensors are real, collectives return at once, and a CPU stands for both
the GPU and the host. ``cpu:0`` is the GPU, to which PyTorch copies from ``cpu``: :class:`Placing` follows which storage
is where. Recorded are the highest bytes of the GPU and of the host at each moment.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any, final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from benchmarks.cases import HERE, load
from memcheck.verify.build.tensors import is_wrapper
from memcheck.verify.trace.kernels import autocast_on_cuda
from memcheck.verify.trace.tracer import Account, Tracer, patched
from memcheck.verify.trace.wrappers import FixedBuckets, settle

PATH = os.path.join(HERE, "data", "jobs.json")
GPU, HOST = "cpu:0", "cpu"


@final
class Placed(Account):
    """An account of the GPU's storages, with another of the host's."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Account()
        self.place = HOST

    def on_gpu(self, tensor: torch.Tensor) -> bool:
        """Whether the storage of a tensor is on the GPU."""
        return self._known(self, tensor)

    @staticmethod
    def _known(account: Account, tensor: torch.Tensor) -> bool:
        entry = account.live.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
        return entry is not None and entry.reference is not None and entry.reference() is not None

    def add(self, tensor: torch.Tensor, operation: str, phase: str, module: str, region: str) -> None:
        """Count a storage where it is; a new one at the place of the operator that runs."""
        if tensor.device.type == "meta":
            return
        known = self._known(self, tensor) or (not self._known(self.host, tensor) and self.place == GPU)
        if known:
            super().add(tensor, operation, phase, module, region)
        else:
            self.host.add(tensor, operation, phase, module, region)
            self.host.note(phase, operation)

    def begin_step(self) -> None:
        """Forget the highest points of both."""
        super().begin_step()
        self.host.begin_step()


@final
class Placing(TorchDispatchMode):
    """Decides where an operator allocates: where one of its inputs is on the GPU, there."""

    def __init__(self, account: Placed) -> None:
        super().__init__()
        self.account = account
        self.default = HOST
        self.moment = "load"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator at its place."""
        if any(is_wrapper(kind) for kind in types):
            return NotImplemented  # DTensor and its like first become operators on plain tensors
        kwargs = kwargs or {}
        if self.moment == "backward" and func in IN_PLACE and not torch.is_grad_enabled():
            func = IN_PLACE[
                func
            ]  # autograd does so unless it sees a mode (isTensorSubclassLike in FunctionsManual.cpp)
        outside = self.account.place
        given = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor) and type(t) in PLAIN]
        here = any(self.account.on_gpu(t) for t in given)
        asked = kwargs.get("device")
        if asked is not None and torch.device(asked).index == 0 and torch.device(asked).type == "cpu":
            here = True
        self.account.place = GPU if here else outside if outside == GPU else self.default
        try:
            return func(*args, **kwargs)
        finally:
            self.account.place = outside


IN_PLACE = {
    getattr(torch.ops.aten, name).default: getattr(torch.ops.aten, f"{name}_").default
    for name in ("scatter_add", "index_add", "index_put", "index_fill")
    if hasattr(getattr(torch.ops.aten, name), "default")
}
"""Operators of a gradient's formula that write into the zeros which the same formula made."""
PLAIN = (torch.Tensor, nn.Parameter)


@final
class Moving(TorchFunctionMode):
    """Moves a tensor to the host where a program says ``cpu``, and never to the GPU where it is already."""

    def __init__(self, placing: Placing) -> None:
        super().__init__()
        self.account, self.placing = placing.account, placing
        self.to_mesh = False
        """``cpu`` is the device of a mesh, which is the GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Watch ``to`` and ``cpu``."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cpu:
            return self._to_host(args[0])
        if getattr(func, "__name__", "") != "to":
            args, kwargs = autocast_on_cuda(getattr(func, "__name__", ""), args, kwargs)
        if func is not torch.Tensor.to or type(args[0]) not in PLAIN:
            return func(*args, **kwargs)
        tensor, *rest = args
        given = [*rest, kwargs.get("device"), kwargs.get("dtype")]
        dtype = next((each for each in given if isinstance(each, torch.dtype)), tensor.dtype)
        device = next((each for each in given if isinstance(each, (str, torch.device))), None)
        if not self.account.on_gpu(tensor):
            moves = self.to_mesh and device in (HOST, torch.device(HOST))
            return func(tensor, GPU, dtype) if moves else func(*args, **kwargs)
        if not self.to_mesh and (device == HOST or (self.placing.moment == "save" and device == torch.device(HOST))):
            return self._to_host(tensor).to(dtype)
        return func(tensor, dtype) if str(device) == GPU else func(*args, **kwargs)

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy there; the tensor itself where it is there already."""
        if not self.account.on_gpu(tensor):
            return tensor
        before, self.placing.default = self.placing.default, HOST
        try:
            return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
        finally:
            self.placing.default = before


@final
class Moments:
    """Which moment it is, told by the objects that every trainer shares."""

    def __init__(self, tracer: Tracer, account: Placed, placing: Placing) -> None:
        self.tracer, self.account, self.placing = tracer, account, placing
        self.steps: list[dict[str, int]] = []
        self.found: dict[str, int] = {}
        self.host: dict[str, int] = {}
        self.rest: list[int] = []
        self.stepping = False

    def enter(self, name: str) -> None:
        """From now on it is this moment."""
        self.tracer.enter(name)
        self.placing.moment = name
        self.placing.default = GPU if name in ("forward", "backward", "optimizer", "evaluation") else HOST
        self.tracer.mark("begins")
        self.account.host.note(name, "begins")

    def close(self) -> None:
        """Take down what was highest since the last time, and begin anew."""
        tops = {name: top.bytes for name, top in self.account.tops.items()}
        if "forward" in tops and "evaluation" not in tops:
            self.steps.append({name: tops[name] for name in ("forward", "backward", "optimizer") if name in tops})
        else:
            self.found |= {name: tops[name] for name in ("load", "prepare", "evaluation", "save") if name in tops}
        for name, top in self.account.host.tops.items():
            self.host[name] = max(self.host.get(name, 0), top.bytes)
        self.account.begin_step()

    def after(self, function: Callable[..., Any], name: str, then: str = "") -> Callable[..., Any]:
        """A function in a moment of its own."""

        def run(*args: Any, **kwargs: Any) -> Any:
            before = self.tracer.phase
            self.enter(name)
            found = function(*args, **kwargs)
            self.enter(then or before)
            return found

        return run

    def at(self, function: Callable[..., Any], place: str, moving: Moving | None = None) -> Callable[..., Any]:
        """A function whose new tensors are at a place unless their inputs say otherwise.

        ``moving``: it moves what goes to ``cpu`` there, which is the GPU.
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            before, self.placing.default = self.placing.default, place
            if moving is not None:
                moving.to_mesh = True
            try:
                return function(*args, **kwargs)
            finally:
                self.placing.default = before
                if moving is not None:
                    moving.to_mesh = False

        return run

    @contextmanager
    def watched(self, moving: Moving) -> Iterator[None]:
        """Objects of accelerate and transformers say where they are."""
        from accelerate import Accelerator
        from accelerate.optimizer import AcceleratedOptimizer
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data.dataloader import _BaseDataLoaderIter
        from transformers import Trainer

        def ended(function: Callable[..., Any], name: str) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                self.close()
                self.enter(name)
                found = function(*args, **kwargs)
                self.close()
                self.enter("prepare")
                return found

            return run

        def begun(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                if trainer.accelerator.gradient_state.sync_gradients is not None and not self.stepping:
                    self.close()
                    self.stepping = True
                    gc.collect()
                    self.rest.append(self.account.total)
                if isinstance(args[0], DistributedDataParallel) and not isinstance(args[0].reducer, FixedBuckets):
                    settle(args[0], self.account)
                self.enter("forward")
                return function(trainer, *args, **kwargs)

            return run

        def stepped(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                self.enter("optimizer")
                found = function(*args, **kwargs)
                self.stepping = False
                return found

            return run

        def made(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                model = kwargs.get("model", args[0] if args else None)
                if self.tracer.phase == "load":
                    if isinstance(model, nn.Module):
                        self.hold(model)
                    self.close()
                    self.enter("prepare")
                return function(trainer, *args, **kwargs)

            return run

        with ExitStack() as stack:
            self.watch_engines(stack, moving, stepped)
            for owner, name, wrapped in (
                (Trainer, "__init__", made(Trainer.__init__)),
                (Trainer, "training_step", begun(Trainer.training_step)),
                (Trainer, "evaluate", ended(Trainer.evaluate, "evaluation")),
                (Trainer, "save_model", ended(Trainer.save_model, "save")),
                (Accelerator, "backward", self.after(Accelerator.backward, "backward", "between")),
                (AcceleratedOptimizer, "step", stepped(AcceleratedOptimizer.step)),
                (DistributedDataParallel, "__init__", self.at(DistributedDataParallel.__init__, GPU)),
                (_BaseDataLoaderIter, "__next__", self.at(_BaseDataLoaderIter.__next__, HOST)),
            ):
                stack.enter_context(patched(owner, name, wraps(getattr(owner, name))(wrapped)))
            yield

    def watch_engines(self, stack: ExitStack, moving: Moving, stepped: Callable[..., Any]) -> None:
        """Follow DeepSpeed's engine and bitsandbytes' tables, where a job has imported them.

        ``stepped``: marks a function that runs the optimizer.
        """
        if "deepspeed" in sys.modules:  # its engine is on the GPU as a whole, and steps by itself
            from deepspeed.runtime.engine import DeepSpeedEngine
            from deepspeed.runtime.zero.partition_parameters import Init

            divided = Init._convert_to_deepspeed_param  # noqa: SLF001  # zero.Init makes shards on the GPU
            stack.enter_context(patched(Init, divided.__name__, self.shards_on_gpu(divided)))
            at_gpu = self.at(DeepSpeedEngine.__init__, GPU, moving)
            stack.enter_context(patched(DeepSpeedEngine, "__init__", wraps(DeepSpeedEngine.__init__)(at_gpu)))
            stack.enter_context(patched(DeepSpeedEngine, "step", stepped(DeepSpeedEngine.step)))
            moved = DeepSpeedEngine._configure_distributed_model  # noqa: SLF001  # the load that the GPU sees
            stack.enter_context(patched(DeepSpeedEngine, moved.__name__, self.loading(moved)))
        if "bitsandbytes" in sys.modules:  # which moves its tables to where the weight is
            from bitsandbytes import functional

            for name in ("create_dynamic_map", "get_4bit_type"):
                stack.enter_context(patched(functional, name, self.at(getattr(functional, name), GPU)))

    def loading(self, moved: Callable[..., Any]) -> Callable[..., Any]:
        """The function of DeepSpeed's engine that moves a model to the GPU, as the load."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self.tracer.enter("load")
            found = moved(*args, **kwargs)
            self.tracer.enter("prepare")
            return found

        return run

    def shards_on_gpu(self, divided: Callable[..., Any]) -> Callable[..., Any]:
        """A function of ``zero.Init`` that gives a parameter its methods, of which ``partition`` makes its shard."""

        def run(init: Any, parameter: Any) -> None:
            divided(init, parameter)
            parameter.partition = self.at(parameter.partition, GPU)

        return run

    def hold(self, model: nn.Module) -> None:
        """Count parameters that were loaded out of sight, where they are: on the host."""
        outside, self.account.place = self.account.place, HOST
        self.tracer.hold([*model.parameters(), *model.buffers()])
        self.account.place = outside


def trace(record: dict[str, Any]) -> dict[str, Any]:
    """Run one job in this process; return its moments."""
    from benchmarks.job_launch import LAUNCHERS
    from benchmarks.job_world import around

    account = Placed()
    tracer = Tracer(lambda: False, lambda *_: None, in_place=True)
    tracer.account = account
    placing = Placing(account)
    moments = Moments(tracer, account, placing)
    with tempfile.TemporaryDirectory() as folder, around(record):
        LAUNCHERS[record["launcher"]](record, folder, lambda: entered(tracer, placing, account, moments))
    first, *_, second = moments.steps
    return {
        "gpu_bytes": {**moments.found, "first": first, "second": {"init": moments.rest[-1], **second}},
        "host_bytes": moments.host,
    }


@contextmanager
def entered(tracer: Tracer, placing: Placing, account: Placed, moments: Moments) -> Iterator[None]:
    """What a launcher does inside is followed."""
    from accelerate.utils import fsdp_utils
    from torch.distributed.fsdp._fully_shard import _fsdp_init

    moving = Moving(placing)
    load_shards = fsdp_utils.fsdp2_load_full_state_dict

    def onto_mesh(*args: Any, **kwargs: Any) -> Any:
        before, placing.default, moving.to_mesh = placing.default, GPU, True
        try:
            return load_shards(*args, **kwargs)
        finally:
            placing.default, moving.to_mesh = before, False

    def move(parameters: list[torch.Tensor], buffers: list[torch.Tensor], _: torch.device) -> None:
        for each in (*parameters, *buffers):  # as there; a CPU is never another device
            if each.device.type != "meta" and not is_wrapper(type(each)) and not account.on_gpu(each):
                each.data = each.to(GPU)

    run_backward = torch.autograd._engine_run_backward  # noqa: SLF001

    def backward(*args: Any, **kwargs: Any) -> Any:
        with moving:  # PyTorch has switched it off for ``Tensor.backward``, and so for what is recomputed in it
            return run_backward(*args, **kwargs)

    with (
        moments.watched(moving),
        patched(torch.autograd, run_backward.__name__, backward),
        patched(_fsdp_init, "_move_states_to_device", move),
        patched(fsdp_utils, load_shards.__name__, onto_mesh),
        tracer,
        placing,
        moving,
    ):
        moments.enter("load")
        yield
        moments.close()


def apart(record: dict[str, Any]) -> dict[str, Any]:
    """The trace in a forked process: libraries keep state between jobs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            with os.fdopen(writer, "w") as out:
                json.dump(trace(record), out)
        finally:
            if sys.exc_info()[0]:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    if not text:
        sys.exit(f"{record['id']} failed")
    found: dict[str, Any] = json.loads(text)
    return found


def _version(package: str) -> str:
    try:
        return installed(package).partition("+")[0]
    except PackageNotFoundError:
        return ""


def main() -> int:
    """Trace the recorded jobs again, those whose id matches ``--only``, and write what was seen after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose id matches")
    only = parser.parse_args().only
    data = load("jobs.json")
    torch.set_num_threads(1)
    for record in data["cases"]:
        here = {name: _version(name) for name in record["versions"]}
        if not re.search(only, record["id"]) or here != record["versions"]:
            continue  # of another environment
        record.update(apart(record))
        print(record["id"], record["gpu_bytes"], record["host_bytes"], flush=True)
        with open(PATH, "w", encoding="utf-8") as file:
            file.write('{"cases": [\n' + ",\n".join(json.dumps(each) for each in data["cases"]) + "\n]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
