"""Temporaries of transformers' own Adafactor."""

from __future__ import annotations

from memcheck.autograd.tensor import rounded


def adafactor_step(tensors: list[tuple[int, bool]]) -> int:
    """Peak bytes of transformers' Adafactor, which steps in fp32. ``(grad**2) + eps`` makes two tensors while the
    previous tensor's ``update`` is still live. A 16-bit gradient and a 16-bit parameter are copied to fp32 first, and
    variables hold the copies (transformers 5.23 optimization.py, ``Adafactor.step``).

    ``tensors``: per tensor, the number of elements that the rank updates, and whether it is stored in 16 bits.
    """
    highest = update = copies = 0
    for numel, narrow in tensors:
        size = rounded(4 * numel)
        first = update + copies + size if narrow else 0
        copies = 2 * size if narrow else 0
        highest = max(highest, first, update + copies + 2 * size)
        update = size
    return highest
