"""Every framework that memcheck knows. A new one is a folder and a line here: then run ``python -m docs.generate``.

An engine that wraps the model and runs its steps, as DeepSpeed's does: what torch's steps ask it for.

What the engine asks of a framework's folder: a stack that estimates ranks, and what decides the time of a step.

The doors to a framework's model code: fixed names in its folder's layers, objectives and encoder.

What the processes of one node hold in host memory, where stacks differ, and what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.process_groups import UsedGroups
from memcheck.accounts.ranks import Components, Part
from memcheck.accounts.state import LOW_BITS, STATES_PER_PARAMETER
from memcheck.autograd.context import Style
from memcheck.edge.imports import import_module
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture, ParameterTensor, Rough
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.accounts.ranks import Unit
    from memcheck.accounts.state import LocalTensor
    from memcheck.autograd.context import Context, Setting
    from memcheck.autograd.curve import Curve, Forward
    from memcheck.autograd.kernels import Weights
    from memcheck.autograd.tensor import Value
    from memcheck.frameworks.torch.data_parallel import Strategy
    from memcheck.frameworks.transformers.head import Head
    from memcheck.job.framework import Framework
    from memcheck.models.encoder import Encoder, Words
    from memcheck.models.types import Block, Norm
else:
    Protocol = object


FOLDERS = {
    "huggingface": "transformers",
    "pytorch": "torch",
    "torchtitan": "torchtitan",
    "megatron": "megatron",
    "deepspeed": "deepspeed",
    "litgpt": "litgpt",
    "torchtune": "torchtune",
    "nanotron": "nanotron",
}
"""Names that a plan gives, and the folder next to this file whose code estimates each."""
TRAINERS = {"unsloth": "unsloth"}
"""Trainers with a profile of their own (``Framework.variants``), and their folders."""


class Frameworks(Mapping[str, "Framework"]):
    """Profiles by the name that a plan gives. One is loaded when it is asked for: a check needs its own.

    The profiles of ``TRAINERS`` are found by their names, and are not listed among the frameworks.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Framework] = {}

    def __getitem__(self, name: str) -> Framework:
        """What memcheck knows of a framework; KeyError for one that it does not know."""
        profile = self._loaded.get(name)
        if profile is None:
            folder = TRAINERS.get(name) or FOLDERS[name]
            profile = self._loaded[name] = import_module(f"memcheck.frameworks.{folder}.profile").FRAMEWORK
        return profile

    def __contains__(self, name: object) -> bool:
        """Whether it is a name that ``training.framework`` may have."""
        return name in FOLDERS

    def __iter__(self) -> Iterator[str]:
        return iter(FOLDERS)

    def __len__(self) -> int:
        return len(FOLDERS)


FRAMEWORKS = Frameworks()


@lru_cache(maxsize=16)
def stack_of(framework: Framework) -> Stack:
    """The functions that estimate a framework's ranks, which are loaded for a job that runs on it."""
    stack: Stack = import_module(f"memcheck.frameworks.{framework.stack}.stack").STACK
    return stack


@lru_cache(maxsize=16)
def timing_of(framework: Framework) -> Timing:
    """Import and return what a framework's step time depends on."""
    timing: Timing = import_module(f"memcheck.frameworks.{framework.timing}.stack").TIMING
    return timing


if TYPE_CHECKING:
    Tensors = Sequence[tuple[LocalTensor, ...]]

    class ResidentBuffers(Protocol):
        """Bytes of an engine's buffers on one rank that a step's record does not count."""

        @property
        def from_start(self) -> int:
            """Bytes of buffers that exist from the engine's start."""

        @property
        def persistent_params(self) -> int:
            """Bytes of unsharded parameters, which are freed while the optimizer runs."""

        @property
        def gathered_in_forward(self) -> int:
            """Gathered parameters during a forward."""

        @property
        def gathered_in_evaluation(self) -> int:
            """Gathered parameters during an evaluation."""

        @property
        def fp32_partition_copy(self) -> int:
            """A second copy of parameters, which the optimizer steps on."""

        @property
        def persistent_gradients(self) -> int:
            """Gradients that stay allocated from step to step."""

        @property
        def step_temporaries(self) -> int:
            """Copies of gradients while the optimizer runs."""

        @property
        def other_streams(self) -> int:
            """The most that comes on streams of the engine's own."""

    class BuffersOf(Protocol):
        """A function from a rank's parameters, unit by unit, to the engine's buffers."""

        def __call__(self, job: TrainingJob, units: Tensors, *, recomputes: bool | None = None) -> ResidentBuffers:
            """``recomputes``: autograd saves nothing of a layer; None: what a step gathers is not asked for."""


class GatheredOfReference(Record):
    """Bytes of a second, frozen model that are gathered at once in its forward."""

    around: int = 0
    """While its embedding or its head is gathered."""
    layers: int = 0
    """While its layers run."""
    head: int = 0
    """While its head runs."""


class Engine(Record):
    """What estimates a data-parallel engine with buffers of its own (DeepSpeed's ZeRO), as functions of a job.

    The engine's folder defines it as ``ENGINE`` in its ``step.py``.
    """

    buffers: BuffersOf
    """Bytes of the engine's buffers on one rank."""
    strategy: Callable[[TrainingJob, Tensors], tuple[Strategy, tuple[int, ...]]]
    """The hooks with which the engine takes part in a step, and the sizes of its buffers in bytes."""
    casts_gradients_to_fp32: Callable[[TrainingJob], bool]
    """Whether a hook casts each gradient that has arrived to fp32, to add it to a sum."""
    saves_linear_inputs: Callable[[TrainingJob], bool]
    """Whether the engine replaces ``F.linear`` by a function of its own, which saves its input whatever is trained."""
    undivided_model_bytes: Callable[[TrainingJob, Sequence[LocalTensor]], int]
    """Bytes of a second, frozen model, such as the reference of DPO, that the engine does not divide over ranks."""
    gathered_model_bytes: Callable[[TrainingJob, Tensors, str], GatheredOfReference]
    """What is gathered of a second, frozen model; the last argument is its dtype."""


@lru_cache(maxsize=16)
def engine_code(framework: Framework) -> Engine | None:
    """Import and return the data-parallel engine of a framework; None where torch's own data parallelism runs."""
    if framework.data_parallel != "zero":
        return None
    engine: Engine = import_module(f"memcheck.frameworks.{FOLDERS[framework.name]}.step").ENGINE
    return engine


class WorstRank(Protocol):
    """Finds the worst rank of jobs that differ in their batch alone."""

    def rank(self, job: TrainingJob) -> RankEstimate:
        """The rank with the highest peak, with that instant alone."""


class Stack(Record):
    """The doors of one folder. ``arch`` is that of the GPU, as ``sm_90``; None: not known."""

    ranks: Callable[[TrainingJob, Architecture, str | None, bool], tuple[RankEstimate, ...]]
    """One estimate per pipeline rank; the last argument: with the largest tensors and the formulas."""
    worst_rank: Callable[[TrainingJob, Architecture, str | None], WorstRank]
    """What finds the worst rank, given one of the jobs."""
    states_floor: Callable[[TrainingJob, Architecture], int]
    """Bytes that are allocated at every instant of a step on the fullest rank; 0 where no bound is known."""
    trained_parameters: Callable[[TrainingJob, Architecture], tuple[int, int]]
    """Trained parameters of the whole model, and adapter parameters added to it."""
    process_groups: Callable[[TrainingJob], UsedGroups]
    """The process groups that a step uses."""
    host_memory: HostMemory
    """What its processes hold in host memory."""


class Timing(Record):
    """How the code of one stack computes and exchanges, where stacks differ."""

    layers_by_rank: Callable[[int, TrainingJob, int], list[list[tuple[Part, int]]]]
    """Arguments: number of layers, job, number of pipeline ranks. Result: for each rank its runs of layers, each with
    the number of multi-token-prediction layers after it.
    """
    context_kind: Callable[[TrainingJob], str]
    """Whose context parallelism runs over more than one rank: a kind of ``memcheck/timing/exchanges.py``."""
    token_dispatch: Callable[[TrainingJob], str]
    """How tokens get to their experts: ``copies`` (every tensor rank sends its own to each expert), ``allgather`` (all
    ranks get all tokens), ``alltoall`` (to the ranks of the experts, then gathered over those that share one) or
    ``flex`` (to all of them, once to each node)."""
    overlaps_reduction_and_gather: Callable[[TrainingJob], tuple[bool, bool]]
    """Whether the reduction of gradients and the gathering of parameters overlap computation."""
    fuses_elementwise: Callable[[TrainingJob], bool]
    """Whether element-wise operations of a layer run in few kernels."""
    copies_gathered_states: Callable[[TrainingJob], bool]
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
    latent_input_tokens: str = "own"
    """What the whole matrices that compress latents read: each rank's ``own`` tokens, the ``gathered`` ones of all
    tensor ranks, or each rank's own, whose latents are ``exchanged`` in place of hidden states."""
    uses_torchao_float8: bool = False
    """fp8 is torchao's: operands are cast once, before they are gathered, and copied where a product needs them
    transposed."""
    adapted_module_name: Callable[[ParameterTensor, object], str] | None = None
    """What adapters' targets call the layer of a component's tensor, where that is not the tensor's own name."""
    gathers_inputs_twice: bool = False
    """The input of a column-parallel product is gathered once more for the gradient of its weight."""


if TYPE_CHECKING:

    class OwnLosses(Protocol):
        """What each ``objectives.py`` has."""

        def own_loss(self, ctx: Context, head: Head, box: list[Value], weights: Weights, /) -> Value:
            """Head and loss of an objective. ``box``: holds the only reference to what the head reads."""


@lru_cache(maxsize=16)
def own_losses_of(style: Style) -> OwnLosses:
    """Return the losses of a framework's own recipes."""
    module: OwnLosses = import_module(f"memcheck.frameworks.{style.folder}.objectives")  # a module with that name
    return module


if TYPE_CHECKING:

    class EncoderCode(Protocol):
        """What ``encoder.py`` has."""

        def source(self, ctx: Context, encoder: Encoder, words: Words, /) -> Value:
            """The rows of an encoder's first layer."""

        def source_curve(self, encoder: Encoder, words: Words, setting: Setting, inventory: bool, /) -> Curve:
            """The curve of what makes them."""

        def end(self, ctx: Context, encoder: Encoder, x: Value, /) -> Value:
            """The encoder's output of its last layer's rows."""

        def masks(self, encoder: Encoder, setting: Setting, /) -> tuple[int, int, int]:
            """Bytes of the stack's masks: kept by backward functions, given to its layers, made for none."""


@lru_cache(maxsize=8)
def encoder_code(style: Style) -> EncoderCode:
    """Return the framework's functions for what surrounds the layers of an encoder: embedding, final norm, masks."""
    module: EncoderCode = import_module(f"memcheck.frameworks.{style.folder}.encoder")  # a module with those names
    return module


if TYPE_CHECKING:

    class Layers(Protocol):
        """What each ``layers.py`` has."""

        def block(self, ctx: Context, block: Block, x: Value, /) -> Value:
            """One decoder layer, from the residual stream [tokens, hidden] to it."""

        def recomputing(self, block: Block, mode: str, /) -> tuple[Forward, bool]:
            """Return the layer's forward under a recompute mode (``none`` | ``full`` | ``selective``), and whether
            ``replay`` has to checkpoint it.
            """

        def norm(self, ctx: Context, norm: Norm | None, x: Value, /) -> Value:
            """A normalisation as the framework writes it; ``None`` is none."""

        def loss_in_pieces(self, ctx: Context, head: Head, h: Value, weights: Weights, /) -> Value | None:
            """Head and loss where they run piece by piece; ``None`` where the logits are one tensor."""

        def head_unit(
            self,
            job: TrainingJob,
            head: Head,
            setting: Setting,
            tensors: tuple[LocalTensor, ...],
            adds: bool,
            inventory: bool,
            /,
        ) -> Unit:
            """Return the unit of final norm, head and loss with its memory curves. ``adds``: some micro-batch adds to
            existing gradients.
            """

        def rotary_tables(self, architecture: Architecture, setting: Setting, /) -> int:
            """Bytes of cos and sin that each forward of the model makes."""

        def rotary_caches(self, architecture: Architecture, sequence: int, layers: int, /, *, adapted: bool) -> int:
            """Return the bytes of the tables that ``layers`` layers hold, for ``sequence`` tokens. ``adapted``: the
            model has adapters.
            """


@lru_cache(maxsize=16)
def layers_of(style: Style) -> Layers:
    """Return the forward passes of a framework's modules."""
    module: Layers = import_module(f"memcheck.frameworks.{style.folder}.layers")  # a module with those names
    return module


Saving = tuple[str, Components]
"""What happens in words, and what the processes of a node hold for it in addition to what is resident there."""
NO_SAVING: Saving = ("", ())

BITS_PER_BYTE = 8


class ModelStateBytes(Record):
    """Bytes of the whole model's state."""

    parameters: int
    master_weights: int
    optimizer_states: int


class HostMemory(Record):
    """Moments of a run in host memory. Parameters are counted over the whole model."""

    loaded: Callable[[TrainingJob, int], int]
    """Parameters that each process holds in memory of its own when the model is made on the host."""
    laid_out: Callable[[TrainingJob, int, int], Components]
    """What is moved through host memory to be laid out anew; ``room``, the last argument: bytes of a GPU without its
    context.
    """
    states: Callable[[TrainingJob], Components]
    """What stays in host memory while the steps run, because the plan offloads it."""
    saving: Callable[[TrainingJob, ModelStateBytes], Saving]
    """What saving takes; the checkpoint is one that saves."""


def state_bytes(job: TrainingJob, total: int, trained: int) -> ModelStateBytes:
    """Return the bytes of parameters, master weights and optimizer states. Optimizer states count if they are saved."""
    recipe = job.recipe
    parameter_bytes = total * DTYPE_BYTES[recipe.params]
    if not job.checkpoint.optimizer:
        return ModelStateBytes(parameters=parameter_bytes, master_weights=0, optimizer_states=0)
    if job.optimizer.name in LOW_BITS:
        state_bits = LOW_BITS[job.optimizer.name].bits
    elif job.optimizer.name.endswith("8bit"):
        state_bits = 8
    else:
        state_bits = BITS_PER_BYTE * DTYPE_BYTES[recipe.optimizer_states]
    states = STATES_PER_PARAMETER[job.optimizer.name] * trained
    return ModelStateBytes(
        parameters=parameter_bytes,
        master_weights=trained * DTYPE_BYTES[recipe.master] if recipe.master != "none" else 0,
        optimizer_states=states * state_bits // BITS_PER_BYTE,
    )


def of_node(job: TrainingJob, n_bytes: int) -> int:
    """Return the bytes in host memory that the ranks of one node keep of a sharded state of ``n_bytes`` per rank.

    Groups that replicate the state keep as many copies of it.
    """
    layout = job.layout
    copies = max(1, layout.data * layout.context // max(1, layout.shard_group))
    return n_bytes * copies * layout.gpus_per_node // layout.world_size


def optimizer_on_host(job: TrainingJob) -> tuple[tuple[str, int], ...]:
    """Return the bytes on a node's host of optimizer states, master weights and their gradients, for all of its
    ranks.
    """
    layout, model = job.layout, job.architecture
    total = model.parameters if isinstance(model, Rough) else count_parameters(model)
    copies = max(1, layout.data * layout.context)
    if layout.zero_stage >= 1:
        copies = max(1, layout.data * layout.context // layout.shard_group)
    per_node = total * copies * layout.gpus_per_node // layout.world_size
    states = per_node * STATES_PER_PARAMETER[job.optimizer.name] * DTYPE_BYTES[job.recipe.optimizer_states]
    if job.optimizer.offload != "cpu":
        return ()
    components = (("optimizer_states", states), ("master_weights", per_node * 4), ("gradients", per_node * 4))
    return tuple((name, count) for name, count in components if count)


def block(n_bytes: int, *, pinned: bool) -> int:
    """Bytes of one buffer of host memory: what is pinned is rounded up to a power of two."""
    return 1 << (n_bytes - 1).bit_length() if pinned and n_bytes else n_bytes
