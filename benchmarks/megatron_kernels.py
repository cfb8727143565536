"""TransformerEngine's C++ on CPU tensors: what its functions allocate and give back, without the kernels.

Read at TransformerEngine 2.20, ``pytorch/csrc/extensions`` (gemm, normalization, attention, softmax, cast) and
``pytorch/csrc/quantizer.cpp`` (create_tensor); flash-attn 2.8, ``csrc/flash_attn/flash_api.cpp``; cuDNN's backward of
attention sums dQ in fp32, which is its workspace.
"""

from __future__ import annotations

import enum
import importlib.metadata
import importlib.util
import math
import os
import sys
from itertools import accumulate
from types import ModuleType
from typing import Any

import torch

from benchmarks import megatron_cuda

DType = enum.IntEnum("DType", "kByte kInt32 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 kFloat4E2M1")
DTYPES = dict(
    zip(
        DType, (torch.uint8, torch.int32, torch.float32, torch.float16, torch.bfloat16, *[torch.uint8] * 3), strict=True
    )
)
WORKSPACE = 512
"""Bytes of each of its cuBLAS workspaces, in place of 32 MiB: of small models they would be nearly all."""


class _Words(type):
    """An enumeration whose members are made when somebody asks for them."""

    seen: dict[str, int]

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls.seen.setdefault(name, len(cls.seen))


class _Extension(ModuleType):
    """``transformer_engine_torch``: what is not here are enumerations with all members, and functions that stop."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith(("multi_tensor_", "fp8_block_scaling_", "mxfp8_scaling_")) or name in IN_PLACE:
            return lambda *args, **kwargs: None
        if name.startswith("NVTE") or name.endswith(("Type", "Algo", "Format", "Role")):
            return self.__dict__.setdefault(name, _Words(name, (int,), {"seen": {}}))

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"TransformerEngine's {name} is not among benchmarks/megatron_kernels.py")

        return missing


IN_PLACE = (
    "fused_amax_and_scale_update_after_reduction swizzle_scales_for_gemm_ compute_amax "
    "fused_topk_with_score_function_bwd fused_score_for_moe_aux_loss_bwd"
)


def install() -> Any:
    """Take the place of CUDA, flash-attn and TransformerEngine's extension; its package, imported."""
    megatron_cuda.install()
    found = importlib.util.find_spec("transformer_engine")
    if found is None or not found.submodule_search_locations:
        sys.exit("TransformerEngine is not installed: pip install --no-deps transformer-engine")
    (folder,) = found.submodule_search_locations
    read = importlib.metadata.version
    version = read("transformer-engine")
    _flash_attention()
    importlib.metadata.version = lambda name: (
        "2.8.3" if name == "flash-attn" else version if name.startswith("transformer") else read(name)
    )
    _extension()
    engine = megatron_cuda.module("transformer_engine", __version__=version)
    engine.__path__ = [folder]
    engine.common = common = megatron_cuda.module(
        "transformer_engine.common", kind=_Common, decode_cudnn_version=lambda encoded: (9, 20, 0)
    )
    common.__path__ = [os.path.join(folder, "common")]
    for name in ("transformer_engine.pytorch.onnx_extensions", "onnxscript"):
        megatron_cuda.module(name, kind=type(sys.modules["triton"]))
    import transformer_engine.pytorch
    from transformer_engine.pytorch.cpp_extensions import gemm

    gemm.get_cublas_workspace_size_bytes = lambda: WORKSPACE
    return transformer_engine.pytorch


class _Common(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: (True, "transformer_engine_cu12", "") if "info" in name else None


def _extension() -> None:
    tex = megatron_cuda.module("transformer_engine_torch", kind=_Extension, DType=DType)
    for name in ["CommOverlapHelper", "CommOverlap", "CommOverlapP2P", "CommOverlapBase", "FP8TensorMeta"]:
        setattr(tex, name, type(name, (), {}))
    products = [f"GEMM{n}_{what}" for n in (1, 2, 3) for what in ("INPUT", "WEIGHT", "OUTPUT")]
    tex.FP8FwdTensors = enum.IntEnum("FP8FwdTensors", products, start=0)
    backwards = [f"GRAD_{what}{n}" for n in (1, 2, 3) for what in ("OUTPUT", "INPUT")]
    tex.FP8BwdTensors = enum.IntEnum("FP8BwdTensors", backwards, start=0)
    tex.NVTERoutingMapFormat = enum.IntEnum("NVTERoutingMapFormat", "BYTEMAP BITMAP_U8", start=0)
    backend = enum.IntEnum(
        "NVTE_Fused_Attn_Backend", {"NVTE_No_Backend": -1, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2}
    )
    tex.NVTE_Fused_Attn_Backend = backend
    tex.get_fused_attn_backend = lambda *args, **kwargs: (backend.NVTE_F16_arbitrary_seqlen, "")
    tex.get_num_cublas_streams = lambda: 4
    tex.get_cublasLt_version = lambda: 130000
    tex.get_cudnn_version = lambda: 92000
    for kind in ("scaled", "scaled_masked", "scaled_upper_triang_masked", "scaled_aligned_causal_masked"):
        setattr(tex, kind + "_softmax_forward", lambda scores, *args: torch.zeros_like(scores))
        setattr(tex, kind + "_softmax_backward", lambda grad, *args: torch.zeros_like(grad))
        old = {"forward": lambda scores, *args: torch.zeros_like(scores), "backward": lambda grad, *args: grad}
        megatron_cuda.module(kind + "_softmax_cuda", get_batch_per_block=lambda *args: 4, **old)  # apex's
    tex.fused_moe_aux_loss_fwd_graph_safe = fused_moe_aux_loss_fwd
    for function in FUNCTIONS:
        setattr(tex, function.__name__, function)
    nothing = dict.fromkeys(("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"), lambda *args: None)
    megatron_cuda.module("fused_weight_gradient_mlp_cuda", **nothing)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.size() if hasattr(tensor, "size") else tensor.shape)


def _dtype(dtype: Any, like: torch.dtype) -> torch.dtype:
    return like if dtype is None else DTYPES[DType(int(dtype))]


def generic_gemm(  # noqa: PLR0913, PLR0917  # its signature
    a: Any, transa: bool, b: Any, transb: bool, d: Any, quantizer: Any, out_dtype: Any, bias: Any, bias_type: Any,
    gelu: bool, gelu_in: Any, grad: bool, *rest: Any, extra_output: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """A product of column-major matrices: with A transposed B Aᵀ, with none B A, with B transposed Bᵀ A."""
    sizes, others = _shape(a), _shape(b)
    rows = (others[-1],) if transb else others[:-1]
    columns = math.prod(sizes[:-1]) if transa else sizes[-1]
    out = d
    if out is None:
        out = torch.zeros((*rows, columns), dtype=_dtype(out_dtype, getattr(a, "dtype", torch.bfloat16)))
        out = out if quantizer is None else quantize(out, quantizer)
    sums = torch.zeros(others[-1], dtype=bias.dtype) if bias is not None and grad else None
    return out, sums, None, extra_output


def te_general_grouped_gemm(*args: Any) -> Any:
    """Products into outputs that are there."""
    return args[7]


def rmsnorm_fwd(x: Any, weight: Any, eps: float, out: Any, quantizer: Any, dtype: Any, *rest: Any) -> Any:
    """The output, no mean, and a reciprocal of each row in fp32."""
    return _norm(x, out, quantizer, dtype, 1)


def layernorm_fwd(x: Any, weight: Any, bias: Any, eps: float, out: Any, quantizer: Any, dtype: Any, *rest: Any) -> Any:
    """The output, a mean and a reciprocal of each row in fp32."""
    return _norm(x, out, quantizer, dtype, 2)


def _norm(x: Any, out: Any, quantizer: Any, dtype: Any, statistics: int) -> Any:
    """Only per-tensor scales that are known beforehand are applied by the norm's own kernel."""
    rows = math.prod(x.shape[:-1])
    stats = [torch.zeros(rows, dtype=torch.float32) for _ in range(statistics)]
    dtype = _dtype(dtype, x.dtype)
    if out is None:
        out = (
            torch.zeros(x.shape, dtype=dtype)
            if quantizer is None
            else create_empty_quantized_tensor(quantizer, x.shape, dtype)
        )
    if quantizer is not None and type(quantizer).__name__ != "Float8Quantizer":
        torch.zeros(x.shape, dtype=dtype)
    return [out, None, *stats] if statistics == 1 else [out, *stats]


def rmsnorm_bwd(grad: Any, x: Any, reciprocal: Any, weight: Any, *rest: Any) -> Any:
    """Gradients of input and weight."""
    return torch.zeros_like(x), torch.zeros_like(weight)


def layernorm_bwd(grad: Any, x: Any, mean: Any, reciprocal: Any, weight: Any, *rest: Any) -> Any:
    """Gradients of input, weight and bias."""
    return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)


def fused_rope_forward(x: Any, *rest: Any) -> Any:
    """Rotated."""
    return torch.zeros(x.shape, dtype=x.dtype)


def fused_rope_backward(grad: Any, *rest: Any) -> Any:
    """Rotated back."""
    return torch.zeros(grad.shape, dtype=grad.dtype)


def _attended(args: tuple[Any, ...]) -> list[Any]:
    """Queries, keys, values and what comes behind them."""
    return [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() >= 3 and arg.is_floating_point()]


def fused_attn_fwd(*args: Any, **kwargs: Any) -> list[Any]:
    """From [sequence, batch, heads, width]: the output, fp32 statistics of each row, and a state of random numbers."""
    q, _, v = _attended(args)[:3]
    out = torch.zeros((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
    statistics = torch.zeros((q.shape[1], q.shape[2], q.shape[0], 1), dtype=torch.float32)
    return [out, statistics, torch.empty(2, dtype=torch.int64)]


def fused_attn_bwd(*args: Any, **kwargs: Any) -> list[Any]:
    """Gradients of queries, keys and values, in three tensors."""
    q, k, v = _attended(args)[:3]
    made = [torch.zeros(each.shape, dtype=each.dtype) for each in (q, k, v)]
    torch.zeros(q.shape, dtype=torch.float32)
    return [*made, None, None]


def multi_tensor_l2norm(chunk: int, noop: Any, lists: Any, per_tensor: bool = False, *rest: Any) -> Any:
    """The norm of all, and of each if asked for."""
    return torch.zeros(1), torch.zeros(len(lists[0]) if per_tensor else 0)


def multi_tensor_unscale_l2norm(chunk: int, noop: Any, lists: Any, *rest: Any) -> Any:
    """The norm of all."""
    return torch.zeros(1), torch.zeros(0)


def create_empty_quantized_tensor(quantizer: Any, shape: Any, dtype: Any, *rest: Any) -> Any:
    """Rows, columns where they are asked for, and their scales."""
    from transformer_engine.pytorch.tensor import float8_blockwise_tensor as blockwise
    from transformer_engine.pytorch.tensor import float8_tensor as per_tensor
    from transformer_engine.pytorch.tensor import mxfp8_tensor as mx

    shape = tuple(shape)
    turned = (shape[-1], *shape[:-1])
    rows = torch.zeros(shape, dtype=torch.uint8) if quantizer.rowwise_usage else None
    kind = type(quantizer).__name__
    known: dict[str, Any] = {"fp8_dtype": quantizer.dtype, "quantizer": quantizer}
    if not quantizer.internal:
        known.update(shape=shape, dtype=dtype)
    known["fake_dtype"] = dtype
    if kind in ("Float8Quantizer", "Float8CurrentScalingQuantizer"):
        made: Any = per_tensor.Float8TensorStorage if quantizer.internal else per_tensor.Float8Tensor
        turns = quantizer.columnwise_usage and torch.cuda.get_device_capability() < (10, 0)
        columns = torch.zeros(turned, dtype=torch.uint8) if turns else None
        return made(data=rows, data_transpose=columns, fp8_scale_inv=torch.zeros(1), **known)
    if kind == "MXFP8Quantizer":
        made, scale, turned = (mx.MXFP8TensorStorage if quantizer.internal else mx.MXFP8Tensor), torch.uint8, shape
        known["with_gemm_swizzled_scales"] = quantizer.optimize_for_gemm
    elif kind == "Float8BlockQuantizer":
        made = blockwise.Float8BlockwiseQTensorStorage if quantizer.internal else blockwise.Float8BlockwiseQTensor
        scale = torch.float32
        known["is_2D_scaled"] = quantizer.block_scaling_dim == 2
    else:
        raise NotImplementedError(kind)

    def scales(columnwise: bool) -> Any:
        return torch.zeros(tuple(quantizer.get_scale_shape(shape, columnwise)), dtype=scale)

    columns = torch.zeros(turned, dtype=torch.uint8) if quantizer.columnwise_usage else None
    return made(
        rowwise_data=rows,
        columnwise_data=columns,
        rowwise_scale_inv=None if rows is None else scales(False),
        columnwise_scale_inv=None if columns is None else scales(True),
        **known,
    )


def quantize(tensor: Any, quantizer: Any, out: Any = None, noop: Any = None) -> Any:
    """A new tensor, or one that is there."""
    return out if out is not None else create_empty_quantized_tensor(quantizer, tensor.shape, tensor.dtype)


def bgrad_quantize(grad: Any, quantizer: Any) -> Any:
    """The sum over rows, and the gradient in fp8."""
    return torch.zeros(grad.shape[-1], dtype=grad.dtype), quantize(grad, quantizer)


def split_quantize(tensor: Any, sections: list[int], quantizers: list[Any], *rest: Any, **kwargs: Any) -> list[Any]:
    """Parts by rows."""
    rows = tensor.reshape(-1, tensor.shape[-1])
    ends = list(accumulate(sections))
    parts = [rows[end - n : end] for n, end in zip(sections, ends, strict=True)]
    return [quantize(part, quantizer) for part, quantizer in zip(parts, quantizers, strict=False)]


def dequantize(tensor: Any, dtype: Any) -> Any:
    """In 16 or 32 bits."""
    return torch.zeros(_shape(tensor), dtype=_dtype(dtype, torch.bfloat16))


def fp8_transpose(tensor: Any, dtype: Any, out: Any = None) -> Any:
    """By columns."""
    return torch.zeros((tensor.shape[-1], *tensor.shape[:-1]), dtype=torch.uint8) if out is None else out


def fused_topk_with_score_function_fwd(logits: Any, topk: int, *rest: Any) -> Any:
    """Probabilities, the map of those chosen, which get the same number of tokens, and scores in fp32."""
    tokens, experts = logits.shape
    chosen = torch.zeros((tokens, experts), dtype=torch.bool)
    numbers = torch.arange(tokens * topk)
    chosen[numbers // topk, numbers % experts] = True
    return torch.zeros_like(logits), chosen, torch.zeros((tokens, experts), dtype=torch.float32)


def fused_score_for_moe_aux_loss_fwd(logits: Any, topk: int, **kwargs: Any) -> Any:
    """Scores in fp32, the map of those chosen, and what the scores are made of."""
    _, chosen, scores = fused_topk_with_score_function_fwd(logits, topk)
    return scores, chosen, torch.zeros_like(scores)


def fused_moe_aux_loss_fwd(probs: Any, **kwargs: Any) -> Any:
    """The loss and its factors."""
    return torch.zeros((), dtype=probs.dtype), torch.zeros(2)


def fused_moe_aux_loss_bwd(num_rows: int, num_cols: int, grad_aux_loss: Any, **kwargs: Any) -> Any:
    """The gradient of the probabilities."""
    return torch.zeros((num_rows, num_cols), dtype=grad_aux_loss.dtype)


FUNCTIONS = (
    generic_gemm, te_general_grouped_gemm, rmsnorm_fwd, layernorm_fwd, rmsnorm_bwd, layernorm_bwd, fused_rope_forward,
    fused_rope_backward, fused_attn_fwd, fused_attn_bwd, multi_tensor_l2norm, multi_tensor_unscale_l2norm,
    fused_topk_with_score_function_fwd, fused_score_for_moe_aux_loss_fwd, fused_moe_aux_loss_fwd,
    fused_moe_aux_loss_bwd,
    create_empty_quantized_tensor, quantize, bgrad_quantize, split_quantize, dequantize, fp8_transpose,
)  # fmt: skip


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.zeros((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
        statistics = torch.zeros((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, statistics)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> Any:
        q, k, v, _, statistics = ctx.saved_tensors
        made = tuple(torch.zeros(each.shape, dtype=q.dtype) for each in (q, k, v))
        held = [torch.zeros_like(statistics), torch.zeros(q.shape, dtype=torch.float32)]
        if k.shape[2] != q.shape[2]:
            held += [torch.zeros((*q.shape[:3], each.shape[3]), dtype=q.dtype) for each in (k, v)]
        del held
        return made


def _flash_attention() -> None:
    face = megatron_cuda.module(
        "flash_attn.flash_attn_interface",
        kind=_Extension,
        flash_attn_func=lambda q, k, v, *args, **kwargs: _Flash.apply(q, k, v),
    )
    megatron_cuda.module("flash_attn", flash_attn_interface=face)
    megatron_cuda.module("flash_attn_2_cuda", kind=_Extension)
