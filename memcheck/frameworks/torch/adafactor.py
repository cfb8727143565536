"""Temporaries of transformers' own Adafactor."""

from __future__ import annotations

from memcheck.autograd.tensor import rounded


def adafactor_step(tensors: list[tuple[int, bool]]) -> int:
    """Transformers' Adafactor, which steps in fp32: ``(grad**2) + eps`` is two tensors beside the ``update`` of the
    tensor before; a gradient and a parameter of 16 bits are copied first, and their variables hold them, too
    (transformers 5.23 optimization.py, ``Adafactor.step``).

    ``tensors``: elements that the rank updates of each, and whether it rests in 16 bits.
    """
    highest = update = copies = 0
    for numel, narrow in tensors:
        size = rounded(4 * numel)
        first = update + copies + size if narrow else 0
        copies = 2 * size if narrow else 0
        highest = max(highest, first, update + copies + 2 * size)
        update = size
    return highest
