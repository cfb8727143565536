"""Temporaries of torchao's steps on moments in few bits."""

from __future__ import annotations

from memcheck.accounts.state import EIGHT_BIT_MINIMUM, LOW_BITS
from memcheck.autograd.tensor import rounded

STEPPED_BYTES = {"adamw-torchao-8bit": 8, "adamw-torchao-4bit": 26, "adamw-torchao-fp8": 0}
"""Bytes of torchao's compiled step (``single_param_adam``), for each element: what Inductor allocates (its wrapper's
``empty_strided`` calls, torch 2.13). Where codes are searched in a table both moments in fp32, divided by their scales;
of 4 bits the unpacked codes of both, too, and the new ones as int64."""


def low_bit_step(numel: int, optimizer: str) -> int:
    """Bytes for one tensor: torchao steps one after the other, and moments that are not quantised are one kernel."""
    kind = LOW_BITS[optimizer]
    if numel < EIGHT_BIT_MINIMUM or numel % kind.block:
        return 0
    return rounded(STEPPED_BYTES[optimizer] * numel) + 2 * rounded(numel // kind.block * 4)
