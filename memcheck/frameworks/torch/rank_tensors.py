"""The parameter tensors of each unit on one rank, and which of them are trained."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor, block_component_tensors, expert_slices, local_tensor
from memcheck.autograd.context import Adapter, Setting, is_frozen
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.end_tensors import output_tensors, saves, table_tensors
from memcheck.frameworks.torch.fp32_params import as_stored
from memcheck.frameworks.torch.trained_parts import (
    TABLE,
    is_table_frozen,
    is_tied,
    leaves_beside,
    module_patterns,
)
from memcheck.job.types import TrainingJob
from memcheck.models.embedders import embedder_tensors
from memcheck.models.types import Architecture, Block, ParameterTensor
from memcheck.record import Record
from memcheck.remembered import lru_cache


class Holding(Record):
    """What decides which tensors of a layer a rank holds, and which of these get gradients."""

    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1
    trained: bool = True
    frozen: tuple[str, ...] = ()
    """Modules inside the layer that get none."""
    adapter: Adapter | None = None


def holding_of(job: TrainingJob, part: str = "language") -> Holding:
    """What decides the tensors of one part of a job's model. Parts other than its language model are whole on every
    rank.
    """
    trained, adapter = (job.method == "full" or job.whole_gradients) and part not in job.freeze, None
    if job.lora is not None and job.method != "full":
        from memcheck.frameworks.torch.adapters import adapter_of

        adapter = adapter_of(job, job.lora, part)
    if part != "language":
        return Holding(trained=trained, adapter=adapter)
    layout = job.layout
    slices = expert_slices(layout, job.framework.own_engine)
    return Holding(
        tensor=layout.tensor,
        expert=layout.expert,
        expert_tensor=slices,
        trained=trained,
        frozen=module_patterns(job.freeze),
        adapter=adapter,
    )


def holding(setting: Setting) -> Holding:
    """What of a unit's setting decides its tensors."""
    return Holding(
        tensor=setting.tensor,
        expert=setting.expert,
        expert_tensor=setting.expert_tensor,
        trained=setting.trained,
        frozen=setting.frozen,
        adapter=setting.adapter,
    )


def dispatcher_of(job: TrainingJob) -> str:
    """How tokens reach experts on other ranks; empty where the framework's own classes decide it."""
    apart = job.layout.expert > 1 and job.framework.fsdp2.leaves_whole_experts
    return str(job.option("dispatcher", "torch")) if apart else ""


def as_held(job: TrainingJob, a: Architecture) -> Architecture:
    """The architecture with the tensors that the framework's own classes make of it."""
    if job.lora is not None and dispatcher_of(job):
        from memcheck.models.named_experts import with_names

        a = a._replace(blocks=with_names(a.blocks, ""))  # adapters of these classes go by the names of modules
    return a._replace(tie_word_embeddings=False) if job.framework.unties_head else a


def as_built(job: TrainingJob, a: Architecture) -> Architecture:
    """The architecture with what the framework builds in its own way.

    Raises:
        UnsupportedError: layers are checkpointed, and ``gradient_checkpointing_enable`` of the class raises an error.
    """
    if job.checkpointing.mode != "none" and not a.checkpointable:
        said = f"{a.model_type} does not support gradient checkpointing in transformers"
        raise UnsupportedError(said, "write activation_checkpointing: none", "/training/activation_checkpointing")
    if job.masks and job.framework.style.makes_masks:
        from memcheck.models.padding import padded

        a = padded(a)
    return as_held(job, a)


@lru_cache(maxsize=4096)
def block_tensors(block: Block, held: Holding) -> tuple[LocalTensor, ...]:
    """The block's parameter tensors on one rank, adapters included."""
    if held.adapter is not None:
        from memcheck.frameworks.torch.adapters import adapted_block

        return adapted_block(block, held.adapter, held.expert, lambda t, component: block_tensor(t, component, held))
    return tuple([block_tensor(t, component, held) for t, component in block_component_tensors(block)])


def block_tensor(t: ParameterTensor, component: object, held: Holding) -> LocalTensor:
    """One tensor of a block on one rank."""
    shape = local_tensor(t, component, held.tensor, held.expert, held.expert_tensor)
    wants = held.trained and not t.fixed and not is_frozen(t.name.removesuffix(".weight"), held.frozen)
    return LocalTensor(t.name, shape, wants, expert=t.group == "experts", matrix=len(shape) > 1)


def layer_tensors(job: TrainingJob, block: Block, held: Holding) -> tuple[LocalTensor, ...]:
    """The tensors of a layer of the language model, with fp32 for those that are stored in it."""
    return as_stored(job, block_tensors(block, held))


def trains_table(job: TrainingJob, a: Architecture, held: Holding) -> bool:
    """Whether the embedding's table is trained, or a copy of it."""
    return (held.trained and not is_table_frozen(job, a)) or saves(job, TABLE)


def lookup_tensors(job: TrainingJob, a: Architecture, held: Holding) -> tuple[LocalTensor, ...]:
    """The tensors of the embedding, with those of tables of other tokens."""
    trained = trains_table(job, a, held) or (held.trained and leaves_beside(job, a))
    found = as_stored(job, table_tensors(job, a, held.tensor, trained))
    if a.embedders:
        found += block_tensors(as_block(embedder_tensors(a)), holding_of(job, "projector"))
    return found


def closing_tensors(job: TrainingJob, a: Architecture, held: Holding, *, embeds: bool) -> tuple[LocalTensor, ...]:
    """The tensors of final norm and head. ``embeds``: the rank has the embedding, whose matrix may be the head's."""
    tied = is_tied(a, held.tensor) and embeds
    found = output_tensors(job, a, held.tensor, tied, held.trained)
    found = as_stored(job, found)
    if job.held_in and job.framework.quantizes_head:
        found = tuple(t._replace(dtype=job.held_in) if t.name == "lm_head.weight" else t for t in found)
    return found


@lru_cache(maxsize=256)
def as_block(tensors: tuple[ParameterTensor, ...]) -> Block:
    """Tensors outside layers, for what reads blocks."""
    return Block(mixer=None, mlp=None, input_norm=None, mlp_norm=None, extra_tensors=tensors)
