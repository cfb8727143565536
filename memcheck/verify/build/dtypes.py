"""Names of the plan to dtypes of torch."""

from __future__ import annotations

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHORT = {
    **{v: k for k, v in DTYPES.items()},
    torch.float64: "fp64",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.uint8: "uint8",
    torch.bool: "bool",
    torch.complex64: "complex64",
}


def short(dtype: torch.dtype) -> str:
    """``bf16``, as the plan writes it."""
    return SHORT.get(dtype) or str(dtype).removeprefix("torch.")
