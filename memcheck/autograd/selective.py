"""Selective recompute operator by operator: some outputs are kept in forward, the rest is computed again in backward.

Source: torch/utils/checkpoint.py, create_selective_checkpoint_contexts: kept outputs are handed out again, in order,
when the region is recomputed.
"""

from __future__ import annotations

from memcheck.autograd.checkpoint import CheckpointFrame, Run
from memcheck.autograd.tensor import Storage, Tape, Value


class KeptOutputs:
    """Which outputs stay. Every second matrix product is recomputed; products with an excluded matrix always are."""

    __slots__ = ("always", "count", "kept", "kinds", "position", "recomputing")

    def __init__(self, kinds: frozenset[str], always: frozenset[tuple[int, ...]]) -> None:
        self.kinds = kinds
        self.always = always
        """Matrices ([outputs, inputs]) whose products are always recomputed, and not counted (the router's gate)."""
        self.kept: list[Storage | None] = []
        self.count = 0
        self.position = 0
        self.recomputing = False

    def output(
        self, tape: Tape, kind: str, shape: tuple[int, ...], dtype: str, label: str, matrix: tuple[int, ...] | None
    ) -> Storage:
        """A new storage, or the one that was kept in forward."""
        if not self._keeps(kind, matrix):
            return tape.new(shape, dtype, label)
        if self.recomputing:
            storage = self.kept[self.position]
            self.kept[self.position] = None
            self.position += 1
            if storage is not None:
                return storage
        storage = tape.new(shape, dtype, label)
        self.kept.append(storage)
        return storage

    def again(self) -> None:
        """Begin the recomputation: the operators of the forward come by a second time."""
        self.recomputing = True
        self.count = self.position = 0

    def _keeps(self, kind: str, matrix: tuple[int, ...] | None) -> bool:
        if kind not in self.kinds:
            return False
        if kind != "mm":
            return True
        if matrix in self.always:
            return False
        self.count += 1
        return self.count % 2 == 1


class WholeFrame(CheckpointFrame):
    """A checkpointed call without early stop, which may keep some operators' outputs."""

    def __init__(self, tape: Tape, forward: Run, x: Value, selection: KeptOutputs | None) -> None:
        super().__init__(tape, forward, x, early_stop=False)
        self.selection = selection

    def recompute(self) -> None:
        """Run the forward again around the outputs that were kept."""
        if self.selection is not None:
            self.selection.again()
        self.tape.selection = self.selection
        super().recompute()
        self.tape.selection = self.selection = None


def checkpoint_whole(tape: Tape, forward: Run, x: Value, selection: KeptOutputs | None = None) -> Value:
    """``checkpoint(forward, x, early_stop=False, context_fn=...)``."""
    if not tape.grad_enabled:
        return forward(x)
    tape.frame = frame = WholeFrame(tape, forward, x, selection)
    tape.selection = selection
    y = forward(x)
    tape.frame = tape.selection = None
    del frame
    return y
