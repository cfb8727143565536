"""The parameter tensors of each unit on one rank, and which of them are trained."""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import LocalTensor, block_component_tensors, expert_slices, local_tensor
from memcheck.autograd.context import Adapter, Setting, is_frozen
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.dtypes import as_stored
from memcheck.frameworks.torch.trained_parts import (
    HEAD,
    TABLE,
    is_head_frozen,
    is_table_frozen,
    is_tied,
    leaves_beside,
    module_patterns,
)
from memcheck.job.types import TrainingJob
from memcheck.models.parameters import embedder_tensors, head_width, task_tensors
from memcheck.models.task import is_saved
from memcheck.models.types import Architecture, Block, Norm, ParameterTensor, PegasusModel
from memcheck.record import Record


def _norm_tensors(norm: Norm | None, name: str, trained: bool) -> list[LocalTensor]:
    if norm is None:
        return []
    shape = (norm.rows, norm.size) if norm.rows > 1 else (norm.size,)
    found = [LocalTensor(name + ".weight", shape, trained)] if norm.weight else []
    return found + ([LocalTensor(name + ".bias", shape, trained)] if norm.bias else [])


def saves(job: TrainingJob, *names: str) -> bool:
    """Whether peft trains a copy of one of these modules and keeps the frozen original (ModulesToSaveWrapper)."""
    return job.lora is not None and any(name in job.lora.modules_to_save for name in names)


def _saved_copy(job: TrainingJob, architecture: Architecture, tensor: int, name: str) -> LocalTensor:
    """The trained copy, in the original's dtype; ``prepare_model_for_kbit_training`` has made that fp32."""
    shape = (-(-architecture.vocab_size // tensor), architecture.embedding_size)
    name += ".modules_to_save.weight"
    return LocalTensor(name=name, shape=shape, trained=True, dtype="fp32" if job.prepares_kbit else None)


def table_tensors(job: TrainingJob, architecture: Architecture, tensor: int, trained: bool) -> tuple[LocalTensor, ...]:
    """The embedding's parameter tensors on one rank, with the copy of it that adapters' config may ask for.

    ``trained``: something of them is, whether or not the table is.
    """
    adapters: tuple[LocalTensor, ...] = ()
    if job.lora is not None:
        from memcheck.frameworks.torch.adapters import table_adapters

        adapters = table_adapters(job.lora, architecture)
    if not saves(job, TABLE):
        return (
            *embedding_tensors(architecture, tensor, trained, trained and not is_table_frozen(job, architecture)),
            *adapters,
        )
    return (*embedding_tensors(architecture, tensor, False), _saved_copy(job, architecture, tensor, TABLE), *adapters)


def output_tensors(
    job: TrainingJob, architecture: Architecture, tensor: int, tied: bool, body: bool
) -> tuple[LocalTensor, ...]:
    """The final norm's and the head's parameter tensors on one rank, with the copy that adapters' config may ask for.

    ``tied``: the original is the embedding's matrix; a copy never is. ``body``: what nothing freezes is trained.
    """
    norm = body and "norm" not in job.freeze
    if job.lora is None:
        return head_tensors(
            architecture, tensor, tied, body and not is_head_frozen(job, architecture), (norm, body), False
        )
    from memcheck.frameworks.torch.adapters import head_adapters

    if not saves(job, HEAD):
        return (
            *head_tensors(architecture, tensor, tied, False, (norm, body), True),
            *head_adapters(job.lora, architecture, tensor),
        )
    return (
        *head_tensors(architecture, tensor, tied, False, (norm, body), True),
        _saved_copy(job, architecture, tensor, HEAD),
    )


@lru_cache(maxsize=256)
def embedding_tensors(
    architecture: Architecture, tensor: int, trained: bool, table: bool = True
) -> tuple[LocalTensor, ...]:
    """The embedding's parameter tensors on one rank. ``table``: that of the words is trained as the others are."""
    shape = (-(-architecture.table_rows // tensor), architecture.embedding_size)
    tensors = [LocalTensor("embed_tokens.weight", shape, trained and table)]
    if architecture.learned_positions:
        width = architecture.embedding_size if architecture.embeddings_apart else architecture.hidden_size
        wanted = trained and not isinstance(architecture, PegasusModel)
        tensors.append(LocalTensor("embed_positions.weight", (architecture.learned_positions, width), wanted))
    tensors += _norm_tensors(architecture.embedding_norm, "embedding_norm", trained)
    tensors += [
        LocalTensor(t.name, t.shape, trained and not t.fixed, matrix=len(t.shape) > 1)
        for t in architecture.extra_tensors
    ]
    return tuple(tensors)


def multiplied_by_head(architecture: Architecture) -> int:
    """Elements that are resident with the embedding, and that the head multiplies."""
    return sum(t.count for t in architecture.extra_tensors if "project_out" in t.name or "altup_unembed" in t.name)


def idle(architecture: Architecture) -> int:
    """Elements that are resident with the embedding, and that no loss reads (ESM's head for contacts) or gradient
    reaches.
    """
    return sum(t.count for t in architecture.extra_tensors if "contact_head" in t.name or t.fixed)


def idle_in_head(architecture: Architecture) -> int:
    """Elements that are resident with the head, and whose result is unused."""
    return sum(t.count for t in architecture.task.idle) if architecture.task is not None else 0


@lru_cache(maxsize=256)
def head_tensors(
    architecture: Architecture,
    tensor: int,
    tied: bool,
    trained: bool,
    ends_trained: tuple[bool, bool],
    adapts: bool = False,
) -> tuple[LocalTensor, ...]:
    """The final norm's and the head's parameter tensors on one rank.

    ``ends_trained``: whether the final norm is trained, and whether what precedes the head is. What ``freeze``
    calls the head is the output embedding alone, and what it calls the norm the final one.
    """
    tensors = _norm_tensors(architecture.final_norm, "final_norm", ends_trained[0])
    vocab = -(-architecture.vocab_size // tensor)
    if not tied and architecture.head:
        tensors.append(LocalTensor("lm_head.weight", (vocab, head_width(architecture)), trained))
    if architecture.head_bias:
        tensors.append(LocalTensor("lm_head.bias", (vocab,), trained))
    tensors += [
        LocalTensor(t.name, t.shape, ends_trained[1], matrix=len(t.shape) > 1) for t in architecture.head_tensors
    ]
    for t in task_tensors(architecture):
        copied = adapts and is_saved(t.name)
        if copied:
            tensors.append(LocalTensor("frozen " + t.name, t.shape, False, matrix=len(t.shape) > 1))
        tensors.append(LocalTensor(t.name, t.shape, trained or copied, matrix=len(t.shape) > 1))
    idle = architecture.task.idle if architecture.task is not None else ()
    tensors += [LocalTensor(t.name, t.shape, False, matrix=len(t.shape) > 1) for t in idle]
    return tuple(tensors)


def transform_biases(architecture: Architecture) -> tuple[bool, bool, int]:
    """Whether the layer in front of the head and its norm have a bias: one-dimensional tensors after the matrix, the
    norm's weight last or last but one. The third: width between two layers without a norm (UltraBERT); 0 = one layer.
    """
    names = [t.name for t in architecture.head_tensors]
    inner = architecture.head_tensors[0].shape[0] if sum(t.linear for t in architecture.head_tensors) > 1 else 0
    return len(names) > 1 and names[1].endswith(".bias"), bool(names) and names[-1].endswith(".bias"), inner


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


def as_held(job: TrainingJob, architecture: Architecture) -> Architecture:
    """The architecture with the tensors that the framework's own classes make of it."""
    if job.lora is not None and dispatcher_of(job):
        from memcheck.models.named_experts import with_names

        architecture = architecture._replace(
            blocks=with_names(architecture.blocks, "")
        )  # adapters of these classes go by the names of modules
    return architecture._replace(tie_word_embeddings=False) if job.framework.unties_head else architecture


def as_built(job: TrainingJob, architecture: Architecture) -> Architecture:
    """The architecture with what the framework builds in its own way.

    Raises:
        UnsupportedError: layers are checkpointed, and ``gradient_checkpointing_enable`` of the class raises an error.
    """
    if job.checkpointing.mode != "none" and not architecture.checkpointable:
        said = f"{architecture.model_type} does not support gradient checkpointing in transformers"
        raise UnsupportedError(said, "write activation_checkpointing: none", "/training/activation_checkpointing")
    if job.masks and job.framework.style.modeling_files:
        from memcheck.models.padding import padded

        architecture = padded(architecture)
    return as_held(job, architecture)


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


def trains_table(job: TrainingJob, architecture: Architecture, held: Holding) -> bool:
    """Whether the embedding's table is trained, or a copy of it."""
    return (held.trained and not is_table_frozen(job, architecture)) or saves(job, TABLE)


def lookup_tensors(job: TrainingJob, architecture: Architecture, held: Holding) -> tuple[LocalTensor, ...]:
    """The tensors of the embedding, with those of tables of other tokens."""
    trained = trains_table(job, architecture, held) or (held.trained and leaves_beside(job, architecture))
    found = as_stored(job, table_tensors(job, architecture, held.tensor, trained))
    if architecture.embedders:
        found += block_tensors(as_block(embedder_tensors(architecture)), holding_of(job, "projector"))
    return found


def closing_tensors(
    job: TrainingJob, architecture: Architecture, held: Holding, *, embeds: bool
) -> tuple[LocalTensor, ...]:
    """The tensors of final norm and head. ``embeds``: the rank has the embedding, whose matrix may be the head's."""
    tied = is_tied(architecture, held.tensor) and embeds
    found = output_tensors(job, architecture, held.tensor, tied, held.trained)
    found = as_stored(job, found)
    if job.held_in and job.framework.quantizes_head:
        found = tuple(t._replace(dtype=job.held_in) if t.name == "lm_head.weight" else t for t in found)
    return found


@lru_cache(maxsize=256)
def as_block(tensors: tuple[ParameterTensor, ...]) -> Block:
    """Tensors outside layers, for what reads blocks."""
    return Block(mixer=None, mlp=None, input_norm=None, mlp_norm=None, extra_tensors=tensors)
