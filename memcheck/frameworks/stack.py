"""What the engine asks of a framework's folder: a stack that estimates ranks, and what decides the time of a step."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.process_groups import UsedGroups
from memcheck.accounts.ranks import Part
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, ParameterTensor
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.frameworks.host import HostMemory
else:
    Protocol = object  # what a protocol is to a running program


class WorstRank(Protocol):
    """Finds the worst rank of jobs that differ in their batch alone."""

    def rank(self, job: TrainingJob) -> RankEstimate:
        """The rank with the highest peak, with that instant alone."""


class Stack(Record):
    """The doors of one folder. ``arch`` is that of the GPU, as ``sm_90``; None: not known."""

    ranks: Callable[[TrainingJob, Architecture, str | None, bool], tuple[RankEstimate, ...]]
    """One estimate per pipeline rank; the last argument: with the largest tensors and the formulas."""
    worst: Callable[[TrainingJob, Architecture, str | None], WorstRank]
    """What finds the worst rank, given one of the jobs."""
    states_floor: Callable[[TrainingJob, Architecture], int]
    """Bytes that are allocated at every instant of a step on the fullest rank; 0 where no bound is known."""
    trainable: Callable[[TrainingJob, Architecture], tuple[int, int]]
    """Trained parameters of the whole model, and adapter parameters added to it."""
    exchanges: Callable[[TrainingJob], UsedGroups]
    """The process groups that a step uses."""
    host: HostMemory
    """What its processes hold in host memory."""


class Timing(Record):
    """How the code of one stack computes and exchanges, where stacks differ."""

    ranks: Callable[[int, TrainingJob, int], list[list[tuple[Part, int]]]]
    """Arguments: number of layers, job, number of pipeline ranks. Result: for each rank its runs of layers, each with
    the number of multi-token-prediction layers after it.
    """
    context: Callable[[TrainingJob], str]
    """Whose context parallelism runs over more than one rank: a kind of ``memcheck/timing/exchanges.py``."""
    dispatch: Callable[[TrainingJob], str]
    """How tokens get to their experts: ``copies`` (every tensor rank sends its own to each expert), ``allgather`` (all
    ranks get all tokens), ``alltoall`` (to the ranks of the experts, then gathered over those that share one) or
    ``flex`` (to all of them, once to each node)."""
    overlaps: Callable[[TrainingJob], tuple[bool, bool]]
    """Whether the reduction of gradients and the gathering of parameters overlap computation."""
    fuses: Callable[[TrainingJob], bool]
    """Whether element-wise operations of a layer run in few kernels."""
    copies_gathered: Callable[[TrainingJob], bool]
    """Whether hidden states are gathered and scattered over the tensor ranks along another dimension than the first,
    which takes one more copy."""
    repeats_kv_heads: Callable[[TrainingJob], bool]
    """Whether keys and values are repeated for every query head before attention."""
    fused_products: Callable[[TrainingJob], str]
    """Which layers that read one input run as one product: empty for none, ``attention`` or ``all``."""
    experts_padding: Callable[[TrainingJob, int], float] = lambda _job, _experts: 1.0
    """Padding factor of the gathers and reductions of a layer's experts. The last argument is their number; 1.0 = no
    padding.
    """
    fused_norms: bool = False
    """A norm is one kernel. Else RMSNorm is one operation after the other."""
    latent_inputs: str = "own"
    """What the whole matrices that compress latents read: each rank's ``own`` tokens, the ``gathered`` ones of all
    tensor ranks, or each rank's own, whose latents are ``exchanged`` in place of hidden states."""
    float8_tensors: bool = False
    """fp8 is torchao's: operands are cast once, before they are gathered, and copied where a product needs them
    transposed."""
    adapted_module_name: Callable[[ParameterTensor, object], str] | None = None
    """What adapters' targets call the layer of a component's tensor, where that is not the tensor's own name."""
    gathers_twice: bool = False
    """The input of a column-parallel product is gathered once more for the gradient of its weight."""
