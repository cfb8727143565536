"""Operators whose CPU path keeps other tensors than CUDA's, replaced by what CUDA would run.

Fake tensors say they are on the CPU. Where PyTorch would then choose another kernel, or would leave a step of autocast
out, the choice that it makes on CUDA is made here. ``scaled_dot_product_attention`` runs the kernel that CUDA would
choose, on its meta function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch.overrides import TorchFunctionMode

from memcheck.verify.build.tensors import is_wrapper
from memcheck.verify.trace.tracer import patched

ALIGNMENT = 8
HALF_PRECISION = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
"""Largest head that the flash kernel takes (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Flash for half precision without a mask and one head size; else memory-efficient; grouped heads there: math.

    No fused kernel broadcasts heads without ``enable_gqa`` (sdp_utils_cpp.h, check_batch_size_and_num_heads_dense).
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (t.to(torch.get_autocast_dtype("cpu")) for t in (query, key, value))
    aten = torch.ops.aten
    fits = query.shape[-1] == value.shape[-1] <= LARGEST_HEAD
    grouped = query.shape[1] != key.shape[1]
    if query.dtype in HALF_PRECISION and attn_mask is None and fits and enable_gqa >= grouped:
        flash: torch.Tensor = aten._scaled_dot_product_flash_attention(  # noqa: SLF001
            query,
            key,
            value,
            dropout_p,
            is_causal,
            False,
            scale=scale,  # return_debug_mask
        )[0]
        return flash
    if attn_mask is not None:
        attn_mask = _additive(attn_mask, query.dtype)
    if grouped:
        with torch.autocast("cpu", enabled=False):  # as inside of every function that autocast casts the arguments of
            if dropout_p:
                return _with_dropout(query, key, value, attn_mask, dropout_p, scale)
            plain: torch.Tensor = aten._scaled_dot_product_attention_math(  # noqa: SLF001
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        return plain
    if attn_mask is not None:
        attn_mask = _aligned(attn_mask).expand(*query.shape[:3], key.shape[2])
    efficient: torch.Tensor = aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        query,
        key,
        value,
        attn_mask,
        True,
        dropout_p,
        is_causal,
        scale=scale,  # compute_log_sumexp
    )[0]
    return efficient


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A boolean mask in the queries' dtype (attention.cpp, convert_boolean_attn_mask); autocast casts any other."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.where(mask, torch.zeros((), dtype=dtype), torch.full((), float("-inf"), dtype=dtype))


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """Rows that are no multiple of 8 long are padded (attention.cpp, pad_bias)."""
    width = mask.shape[-1]
    if width % ALIGNMENT == 0:
        return mask
    return torch.nn.functional.pad(mask, (0, ALIGNMENT - width % ALIGNMENT))[..., :width]


def _with_dropout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    p: float,
    scale: float | None,
) -> torch.Tensor:
    """``_scaled_dot_product_attention_math``, statement by statement: ``at::dropout`` is fused on CUDA alone, where it
    keeps one byte per element (aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable).
    """
    source, groups = query.dtype, query.shape[1] // key.shape[1]
    if source in HALF_PRECISION:
        query, key, value = query.float(), key.float(), value.float()
    if mask is None:
        allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        mask = _additive(allowed, query.dtype)
    if groups > 1:
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    factor = (scale or query.shape[-1] ** -0.5) ** 0.5
    query = query * factor
    weights = torch.matmul(query, key.transpose(-2, -1) * factor)
    weights.add_(mask)
    weights = torch.ops.aten._safe_softmax(weights, -1)  # noqa: SLF001
    weights = torch.ops.aten.native_dropout(weights, p, True)[0]  # an operator's positional flag
    out: torch.Tensor = torch.matmul(weights, value).to(source)
    return out


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
        args, kwargs = autocast_on_cuda(name, args, kwargs)
        return func(*args, **kwargs)


def autocast_on_cuda(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a function as CUDA's autocast would change them, where a CPU's is enabled.

    ``name``: that of the function. CUDA computes more operators in fp32 than a CPU does (``FP32_ON_CUDA``).
    """
    typed = name in FP32_UNLESS_TYPED and kwargs.get("dtype") is not None
    if typed or (name != "sum" and name not in FP32_ON_CUDA) or not torch.is_autocast_enabled("cpu"):
        return args, kwargs
    if name == "sum":
        return args, _summed_in_fp32(args, kwargs)
    return tuple(_fp32(a) for a in args), {k: _fp32(v) for k, v in kwargs.items()}


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
