"""``scaled_dot_product_attention`` by the kernel that CUDA would choose, on its meta function."""

from __future__ import annotations

import torch

ALIGNMENT = 8
HALF = (torch.bfloat16, torch.float16)
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
    if query.dtype in HALF and attn_mask is None and fits and enable_gqa >= grouped:
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
    if source in HALF:
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
