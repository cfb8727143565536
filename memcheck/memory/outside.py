"""What a process takes of a GPU outside its caching allocator, by how well it is known."""

from __future__ import annotations

from memcheck.memory.residuals import Residuals, Spread
from memcheck.record import Record

EXACT = Spread(n=0, low=1.0, median=1.0, high=1.0)


class OutsideBytes(Record):
    """Bytes that one rank takes of its GPU outside PyTorch's caching allocator, by owner."""

    context: int
    """The driver's context with kernels, or what a plan states in place of all overhead."""
    libraries: int
    """Workspaces, constants of their source, and CUDA graphs."""
    communicators: int
    """NCCL's buffers and kernels."""
    read: bool = False
    """The context was read on a GPU of this very kind, not on the largest of its architecture."""
    in_host: int = 0
    """What of the communicators may lie in host memory."""

    @property
    def total(self) -> int:
        """Context, libraries and communicators together, in bytes."""
        return self.context + self.libraries + self.communicators

    def ends(self, tables: Residuals) -> tuple[int, int]:
        """Return the lowest and the highest total in bytes, by measured spreads of context and communicators.

        Libraries' bytes are constants of their source. The lower end leaves out communicators that may be in host
        memory.
        """
        low = high = self.libraries
        context = "context, read" if self.read else "context"
        for name, size in ((context, self.context), ("communicators", self.communicators)):
            seen = tables.outside.get(name, EXACT)
            low += int(size * min(1.0, seen.low))
            high += int(size * max(1.0, seen.high))
        communicators_low = min(1.0, tables.outside.get("communicators", EXACT).low)
        return low - int(self.in_host * communicators_low), high


NOTHING_OUTSIDE = OutsideBytes(0, 0, 0)
