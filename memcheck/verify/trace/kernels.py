"""Operators whose CPU path keeps other tensors than CUDA's, replaced by what CUDA would run.

Fake tensors say they are on the CPU. Where PyTorch would then choose another kernel, or would leave a step of autocast
out, the choice that it makes on CUDA is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch.overrides import TorchFunctionMode

from memcheck.verify.build.subclass import is_wrapper
from memcheck.verify.trace.attention import scaled_dot_product_attention
from memcheck.verify.trace.patch import patched

HALF = (torch.bfloat16, torch.float16)

FP32_ON_CUDA = frozenset(
    """
    __pow__ __rpow__ cross_entropy cumprod cumsum exp expm1 group_norm layer_norm log log1p log_softmax mse_loss
    nll_loss norm pow prod reciprocal rsqrt softmax softplus sum
    """.split()  # noqa: SIM905  # a list of quoted names is harder to read
)
"""What autocast computes in fp32 on CUDA and leaves alone on the CPU (aten/src/ATen/autocast_mode.h)."""
FP32_UNLESS_TYPED = frozenset(("cumprod", "cumsum", "log_softmax", "prod", "softmax", "sum"))
"""Operators that autocast computes in fp32 on CUDA unless the call states a dtype."""


class Routed:
    """How many tokens each expert-parallel peer gets: sizes that are values, so they have to be said."""

    each = 0


ROUTED = Routed()


class CudaKernels(TorchFunctionMode):
    """The replacements, for everything that runs inside."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the replacement, or the operator itself, in fp32 if CUDA's autocast would."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is F.scaled_dot_product_attention:
            return scaled_dot_product_attention(*args, **kwargs)
        if func is F.dropout and isinstance(args[0], torch.Tensor):
            return _dropout(*args, **kwargs)
        if name == "rms_norm" and args and isinstance(args[0], torch.Tensor):
            return rms_norm(*args, **kwargs)
        if name == "item" and isinstance(args[0], torch.Tensor):
            if args[0].is_floating_point():
                return 1.0  # fake tensors have no values; Adafactor asks for a norm, which decides no shape
            if ROUTED.each and args[0].dtype in (torch.int32, torch.int64):
                return ROUTED.each
        typed = name in FP32_UNLESS_TYPED and kwargs.get("dtype") is not None
        if name == "sum" and not typed and torch.is_autocast_enabled("cpu"):
            return func(*args, **_summed_in_fp32(args, kwargs))
        if name in FP32_ON_CUDA and not typed and torch.is_autocast_enabled("cpu"):
            args = tuple(_fp32(a) for a in args)
            kwargs = {k: _fp32(v) for k, v in kwargs.items()}
        return func(*args, **kwargs)


def _summed_in_fp32(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """CUDA's sum reads half precision and writes fp32 without a copy (aten/src/ATen/native/ReduceOpsUtils.h,
    ``make_reduction_from_out_ty``: ``gpu_lowp_to_f32``).
    """
    half = bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype in HALF
    return {**kwargs, "dtype": torch.float32} if half else kwargs


def _fp32(value: object) -> object:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value


def _dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA keeps one byte per element as the mask."""
    if not training or not p:
        return x
    out: torch.Tensor = torch.ops.aten.native_dropout(x, p, True)[0]  # an operator's positional flag
    return out


class _FusedRmsNorm(torch.autograd.Function):
    """ATen's fused kernel keeps its input, the weight and one fp32 figure per row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, dims: int) -> torch.Tensor:
        rows = x.shape[: x.dim() - dims]
        ctx.save_for_backward(x, weight, x.new_empty(*rows, *([1] * dims), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        x, weight, _ = ctx.saved_tensors
        del gradient
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight), None


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> torch.Tensor:
    """``F.rms_norm`` as one kernel, on the local part of DTensors."""
    dims = len(normalized_shape)
    if not is_wrapper(type(x)):
        local = weight.to_local() if is_wrapper(type(weight)) else weight
        out: torch.Tensor = _FusedRmsNorm.apply(x, local, dims)
        return out
    from torch.distributed.tensor import DTensor, Partial

    if is_wrapper(type(weight)):
        # every rank normalises its own rows: their gradients of the weight are added up over the ranks
        placements = [Partial() if p.is_shard() else p for p in x.placements]
        weight = weight.to_local(grad_placements=placements)
    local = _FusedRmsNorm.apply(x.to_local(), weight, dims)
    return DTensor.from_local(local, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride())


@contextmanager
def recomputes() -> Iterator[None]:
    """The replacements for what is recomputed in backward, too, where autograd switches function modes off."""
    from torch.utils import checkpoint

    backward = checkpoint.CheckpointFunction.backward
    start = checkpoint._CheckpointFrame.__init__  # noqa: SLF001  # where every version hands over the recompute

    def reentrant(ctx: Any, *gradients: Any) -> Any:
        with CudaKernels():
            return backward(ctx, *gradients)

    def frame(self: Any, recompute: Callable[..., None], *rest: Any, **kwargs: Any) -> None:
        def as_on_cuda(*args: Any) -> None:
            with CudaKernels():
                recompute(*args)

        start(self, as_on_cuda, *rest, **kwargs)

    with (
        patched(checkpoint.CheckpointFunction, "backward", staticmethod(reentrant)),
        patched(checkpoint._CheckpointFrame, "__init__", frame),  # noqa: SLF001
    ):
        yield
