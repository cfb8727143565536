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
    tensors: tuple[ParameterTensor, ...] = ()
    key_heads: int = 0
    """Heads of queries and keys, where there are fewer than of values (delta nets); 0 = as many as ``heads``."""
    key_dim: int = 0
    """Width of one head's keys, or of the state of a state-space model."""
    groups: int = 1
    """Groups of heads that share B and C (Mamba-2)."""
    kernel: int = 0
    """Columns of the causal convolution."""
    output: str = "out_proj"
    """Name of the last linear layer."""
    negative_eigenvalues: bool = False
    """Beta is doubled (OLMo's hybrids)."""
    norm_fp32: bool = False
    """The gated norm's weight multiplies in fp32, and its result is cast back (Falcon-H1)."""
    norm_first: bool = False
    """The gate multiplies after the norm (Falcon-H1 on request)."""
    multiplied: bool = False
    """What in_proj makes is multiplied by a constant vector (Falcon-H1)."""
    chunk: int = 0
    """Tokens of a chunk of the scan, where the configuration says it."""
    normed_inputs: bool = False
    """Time steps, B and C are normalised in front of the scan (Falcon Mamba, Jamba)."""
    whole_gates: bool = False
    """Gates of decay and output are one matrix each, not two of low rank (Ling 3)."""
    bounded: bool = False
    """The decay is a sigmoid times a constant, no softplus (Ling 3)."""
    buffer_numel: int = 0
    """Elements of constant tables that each such layer keeps on the device (MiniMax's decay matrices)."""
