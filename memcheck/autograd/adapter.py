"""LoRA as the ledger sees it."""

from __future__ import annotations

from memcheck.record import Record


class Adapter(Record):
    """The adapters of one part of a model, over base weights that may rest quantised."""

    rank: int
    targets: str | tuple[str, ...]
    dtype: str
    quantized: bool
    """The base weights are quantised."""
    storage: str = "nf4"
    """What those rest in, a word of ``memcheck.accounts.quantised``."""
    held: str = ""
    """What the base weights rest in where peft adapts another library's layers; empty: they are the framework's own."""
    dropout: float = 0.0
    dora: bool = False
    parameters: tuple[str, ...] = ()
    """Stacked experts that are adapted by their parameters' names (``target_parameters``)."""
    expert_rank: int = 0
    """The rank of those; 0: that of the others."""
    quantizes_experts: bool = False
    """Experts are linear layers, whose weights are 4-bit as the others."""
    stacked: bool = False
    """Stacked experts rest as the linear layers do, and are dequantised whole where a forward reads them."""
    computes: str | None = None
    """The dtype in which 4-bit products are computed; None: that of their input."""
    gathered: str | None = None
    """The dtype in which modules see the adapters; None: that in which they are stored."""
    rows: str | None = None
    """The dtype to which rows are cast before FSDP1 gathers the adapters, by themselves; None: as they are seen."""
    unquantised: tuple[str, ...] = ()
    """Parts of the names of linear layers that are not quantised."""

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether a parameter of experts is stored as the linear layers are: stacked matrices, or whole
        layers of them.
        """
        return self.quantizes_experts or (self.stacked and len(shape) > 2)

    def quantises(self, name: str) -> bool:
        """Whether the base weight of a linear layer is quantised."""
        return self.quantized and not any(part in name for part in self.unquantised)

    @property
    def seen(self) -> str:
        """The dtype in which modules see the adapters."""
        return self.gathered or self.dtype
