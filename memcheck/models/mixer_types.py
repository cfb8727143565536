"""Token mixers that are not softmax attention."""

from __future__ import annotations

from memcheck.models.attention_types import ParameterTensor
from memcheck.record import Record


class Mixer(Record):
    """A token mixer that is not softmax attention: Mamba-2, gated delta net, lightning attention."""

    kind: str
    heads: int
    head_dim: int
    state_bytes_per_sequence: int
    """fp32 recurrent state (plus convolution state) that inference keeps per sequence."""
    width: int
    """Channels of the widest activation inside the mixer."""
    key_heads: int
    """Heads of queries and keys, where there are fewer than of values (delta nets); 0 = as many as ``heads``."""
    key_dim: int
    """Width of one head's keys, or of the state of a state-space model."""
    kernel: int
    """Columns of the causal convolution."""
    tensors: tuple[ParameterTensor, ...]
    chunk: int
    """Tokens of a chunk of the scan, where the configuration says it."""
    groups: int = 1
    """Groups of heads that share B and C (Mamba-2)."""
    output: str = "out_proj"
    """Name of the last linear layer."""
    normed_inputs: bool = False
    """Time steps, B and C are normalised in front of the scan (Falcon Mamba, Jamba)."""
    buffer_numel: int = 0
    """Elements of constant tables that each such layer keeps on the device (MiniMax's decay matrices)."""


class DoubledBetaMixer(Mixer):
    """A delta net whose beta is doubled, so that eigenvalues may be negative (OLMo's hybrids)."""


class FalconH1Mixer(Mixer):
    """Mamba-2 whose first matrix's output is multiplied by a constant vector, and whose norm's weight in fp32."""


class NormFirstMixer(FalconH1Mixer):
    """Falcon-H1's mixer with the gate after its norm."""


class LingDelta(Mixer):
    """Kimi's delta net with one matrix for each of the gates of decay and output (Ling 3)."""


class BoundedLingDelta(LingDelta):
    """Ling 3's delta net with a decay that is a sigmoid times a constant, not a softplus."""
