"""CUDA, Triton and compiled functions on CPU tensors, for Megatron-core and TransformerEngine: whoever asks for a GPU
gets the CPU, streams and events do nothing, and compiled functions run as they are written.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

CPU = torch.device("cpu")
MAKERS = [
    "empty",
    "zeros",
    "ones",
    "full",
    "tensor",
    "arange",
    "rand",
    "randn",
    "randint",
    "eye",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "linspace",
    "as_tensor",
    "empty_strided",
    "triu_indices",
]
TRITON = ("", ".language", ".language.extra", ".language.standard", ".runtime", ".runtime.jit", ".runtime.autotuner")
TRITON_COMPILER = (".compiler", ".compiler.compiler", ".backends", ".backends.compiler")
Function = Callable[..., Any]

compiled: list[Callable[[Function], Function]] = [lambda function: function]
"""How a compiled function is counted: set by whoever traces."""


def install() -> None:
    """Take the place of torch's CUDA, of ``torch.compile`` and of Triton."""
    import torch._dynamo
    import torch._inductor.utils
    import torch.utils.checkpoint  # looks for Triton as it is imported

    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    _tensors_on_the_cpu()
    _modules_on_the_cpu()
    _quiet_cuda()
    torch.compile = _compile
    for name in TRITON + TRITON_COMPILER:
        module("triton" + name, kind=_Triton)
    sys.modules["triton"].__dict__["__version__"] = "3.4.0"


def module(name: str, *, kind: type[ModuleType] = ModuleType, **contents: Any) -> ModuleType:
    """A module that can be imported by its name."""
    found = kind(name)
    found.__dict__.update(contents, __path__=[], __spec__=ModuleSpec(name, None, is_package=True))
    sys.modules[name] = found
    return found


def _on_cpu(device: Any) -> Any:
    """The CPU in place of a GPU."""
    if type(device) is int or (isinstance(device, str) and device.startswith("cuda")):
        return CPU
    return CPU if isinstance(device, torch.device) and device.type == "cuda" else device


def _made(function: Function) -> Function:
    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return make


def _tensors_on_the_cpu() -> None:
    for name in MAKERS:
        setattr(torch, name, _made(getattr(torch, name)))
    kind: Any = torch.Tensor
    for name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"):
        setattr(kind, name, _made(getattr(kind, name)))
    move, describe = kind.to, kind.type

    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return move(tensor, *map(_on_cpu, args), **{name: _on_cpu(value) for name, value in kwargs.items()})

    def named(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return describe(tensor, *args, **kwargs) if args or kwargs else describe(tensor).replace("torch", "torch.cuda")

    kind.to, kind.type = to, named
    kind.cuda = kind.pin_memory = lambda tensor, *args, **kwargs: tensor
    kind.record_stream = lambda *args: None
    kind.is_cuda, kind.is_cpu = property(lambda tensor: True), property(lambda tensor: False)
    kind.get_device = lambda tensor: 0


def _modules_on_the_cpu() -> None:
    kind: Any = torch.nn.Module
    move = kind.to

    def to(owner: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device", None)
        left = [arg for arg in args if not isinstance(arg, (str, torch.device, int))]
        return move(owner, *left, **kwargs) if left or kwargs else owner

    kind.to = to
    kind.cuda = lambda owner, *args, **kwargs: owner


class Quiet:
    """A stream or an event."""

    cuda_stream = priority = 0
    device = CPU

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: True if name == "query" else None

    def record_event(self, *args: Any) -> Quiet:
        """An event."""
        return Quiet()


class _GPU:
    """An H100, until :func:`be_blackwell`."""

    major, minor, multi_processor_count, total_memory, name, uuid = 9, 0, 132, 80 << 30, "NVIDIA H100", "GPU-0"


def be_blackwell() -> None:
    """MXFP8 needs one."""
    _GPU.major = 10


def _quiet_cuda() -> None:
    from torch.cuda import random

    cuda: Any = torch.cuda
    for name in [
        "set_device",
        "synchronize",
        "reset_peak_memory_stats",
        "empty_cache",
        "set_rng_state",
        "manual_seed",
        "_lazy_call",
        "_lazy_init",
        "init",
        "graph_pool_handle",
    ]:
        setattr(cuda, name, lambda *args, **kwargs: None)
    for name in ["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"]:
        setattr(cuda, name, lambda *args, **kwargs: 0)
    for name in ("stream", "device"):
        setattr(cuda, name, lambda *args, **kwargs: nullcontext())
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, lambda *args, **kwargs: Quiet())
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.is_current_stream_capturing = lambda: False
    cuda.Stream = cuda.Event = Quiet
    cuda.current_device = random.current_device = lambda: CPU
    cuda.device_count = lambda: 1
    cuda.get_device_capability = lambda *args: (_GPU.major, _GPU.minor)
    cuda.get_device_properties = lambda *args: _GPU
    cuda.get_device_name = lambda *args: _GPU.name
    cuda.mem_get_info = lambda *args: (_GPU.total_memory, _GPU.total_memory)
    cuda.memory_stats = lambda *args, **kwargs: {}
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random.get_rng_state, random.set_rng_state = cuda.get_rng_state, cuda.set_rng_state
    cuda.default_generators = {CPU: torch.default_generator}
    for name in (
        "FloatTensor",
        "HalfTensor",
        "BFloat16Tensor",
        "IntTensor",
        "LongTensor",
        "ByteTensor",
        "DoubleTensor",
    ):
        setattr(cuda, name, _Kind(name, (), {"dtype": getattr(torch, name).dtype}))
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *args: None
    cuda.nvtx.range = lambda *args, **kwargs: nullcontext()
    torch.version.cuda = "12.9"
    torch.get_autocast_gpu_dtype = lambda: torch.bfloat16


class _Kind(type):
    """``torch.cuda.FloatTensor`` and the like: kinds of tensors, and functions that make them."""

    dtype: torch.dtype

    def __instancecheck__(cls, tensor: object) -> bool:
        return isinstance(tensor, torch.Tensor) and tensor.dtype == cls.dtype

    def __call__(cls, *args: Any) -> Any:
        make = torch.tensor if args and isinstance(args[0], list) else torch.empty
        return make(*args, dtype=cls.dtype)


def _compile(function: Any = None, *args: Any, **kwargs: Any) -> Any:
    if function is None or not callable(function):
        return _compile
    if isinstance(function, torch.nn.Module):
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return compiled[0](function)(*args, **kwargs)

    return run


class _Anything:
    """Whatever Triton is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else _Anything()

    def __getitem__(self, index: object) -> Any:
        return _Anything()

    def __or__(self, other: object) -> Any:
        return _Anything()

    __ror__ = __or__


class _Kernel(_Anything):
    """A kernel, which does nothing."""

    def __getitem__(self, grid: object) -> Any:
        return lambda *args, **kwargs: None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None


def _jit(function: Any = None, **kwargs: Any) -> Any:
    return _jit if function is None else _Kernel()


class _Triton(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("autotune", "heuristics"):
            return lambda *args, **kwargs: lambda function: function
        known: dict[str, Any] = {
            "jit": _jit,
            "language": sys.modules.get("triton.language"),
            "cdiv": lambda a, b: -(-a // b),
            "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
        }
        return known.get(name, _Anything())
