"""The parameter tensors of each unit on one rank, and which of them are trained.

Which parts of a model a job trains, ties, hooks and recomputes.

Dtypes that a model does not share: parameters that stay in fp32, and the stream from layer to layer.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import LocalTensor, block_component_tensors, expert_slices, local_tensor
from memcheck.autograd.context import Adapter, Setting, is_frozen
from memcheck.autograd.tensor import ceil_div
from memcheck.autograd.weight_formats import INT8, Gptq
from memcheck.errors import UnsupportedError
from memcheck.job.types import TrainingJob
from memcheck.models.module_types import T5Mlp
from memcheck.models.parameters import embedder_tensors, head_width, task_tensors
from memcheck.models.types import (
    AltUpBlock,
    Architecture,
    Block,
    Moe,
    Norm,
    ParameterTensor,
    PegasusModel,
    Rough,
    WideStreamBlock,
    is_saved,
)
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.vision import Vision


ENDS = "fp32_embeddings"
"""The option for what Axolotl does without adapters and FSDP, where no flash attention follows (``loaders/model.py``,
``_convert_embedding_modules_dtype``): whatever has ``norm`` in its name, routers, embedding and head.
"""
UPCAST = ("norm", ".gate.", "embed_tokens", "lm_head")


def kept_names(job: TrainingJob) -> tuple[str, ...]:
    """Return parts of the names of parameters that stay in fp32 in a model of 16 bits.

    The class lists them (``_keep_in_fp32_modules``), or the trainer upcasts them. An engine of its own casts the whole
    model when it takes it over (DeepSpeed runtime/engine.py, ``_configure_distributed_model``).
    """
    profile, architecture = job.framework, job.architecture
    if not profile.runs_transformers or profile.has_sharding_engine or isinstance(architecture, Rough):
        return ()
    upcast = UPCAST if upcasts_ends(job) else ()
    return {
        "bf16": architecture.fp32_params.always + upcast,
        "fp16": architecture.fp32_params.always + architecture.fp32_params.of_fp16 + upcast,
    }.get(job.recipe.params, ())


def upcasts_ends(job: TrainingJob) -> bool:
    """Whether the trainer makes norms, embeddings and head fp32 when the model is loaded (``ENDS``)."""
    return bool(job.option(ENDS, default=False)) and job.recipe.params != "fp32"


def unquantised(job: TrainingJob) -> tuple[str, ...]:
    """Return parts of the names of linear layers that are not quantised.

    These are those of ``_keep_in_fp32_modules``, in any dtype (quantizers/base.py, ``get_modules_to_not_convert``).
    GPTQ's files say themselves what they quantise.
    """
    architecture, by_class = (
        job.architecture,
        job.framework.runs_transformers and not isinstance(job.base_format, Gptq),
    )
    return architecture.fp32_params.of_fp16 if by_class and not isinstance(architecture, Rough) else ()


def as_stored(job: TrainingJob, tensors: tuple[LocalTensor, ...]) -> tuple[LocalTensor, ...]:
    """The tensors, with fp32 for those that are stored in fp32 in a model of another dtype."""
    return widened(tensors, kept_names(job), trained=job.upcasts_before_sharding)


@lru_cache(maxsize=4096)
def widened(tensors: tuple[LocalTensor, ...], names: tuple[str, ...], *, trained: bool) -> tuple[LocalTensor, ...]:
    """Return the tensors, of which some are stored in fp32.

    ``names``: substrings of the names of these; a tensor that has a dtype already, such as an adapter, keeps it.
    ``trained``: all trained tensors are in fp32.
    """
    if not (names or trained):
        return tensors
    with_dtypes = []
    for t in tensors:
        is_named = t.dtype is None and any(name in t.name for name in names)
        with_dtypes.append(t._replace(dtype="fp32") if is_named or (trained and t.trained) else t)
    in_fp32 = tuple(with_dtypes)
    return tensors if in_fp32 == tensors else in_fp32  # an equal tuple is shared by its identity


def stream_dtype(setting: Setting) -> str:
    """Dtype of the residual stream: under autocast that of the embedding's weights, unless something widened it."""
    return setting.residual_dtype or setting.param_dtype


def embedded_dtype(architecture: Architecture, setting: Setting) -> str:
    """Return the dtype of the embedding's rows: that of its weights, also where what follows makes the stream fp32."""
    widened = widens_stream(architecture, autocast=bool(setting.autocast_dtype)) or widens_inside(architecture, setting)
    return setting.param_dtype if widened else stream_dtype(setting)


def widens_stream(architecture: Architecture, *, autocast: bool) -> bool:
    """Say whether the stream is fp32 over narrower weights: by the embedding's LayerNorm, or by the first layer."""
    layers = [block for block, _ in architecture.blocks]
    if any(isinstance(block, WideStreamBlock) for block in layers):
        return True
    stream_norms = [architecture.embedding_norm]  # norms whose output is the stream
    stream_norms += [block.mlp_norm for block in layers if block.residual == "post-norm" or _keeps_dtype(block)]
    has_layernorm = any(_is_layernorm(norm) for norm in stream_norms)  # autocast computes it in fp32
    has_altup = any(isinstance(block, AltUpBlock) for block in layers)  # scales the other streams by fp32 magnitudes
    return autocast and (has_layernorm or has_altup)


def _keeps_dtype(block: Block) -> bool:
    """Say whether the feed-forward network returns its input's dtype.

    Sums of experts do, whose matrices are in autocast's dtype (transformers integrations/moe.py).
    """
    return isinstance(block.mlp, Moe) and not block.parallel


def widens_inside(architecture: Architecture, setting: Setting) -> bool:
    """Say whether feed-forward networks make the stream fp32: their last matrix is, to which they cast (T5's in
    fp16).
    """
    if setting.autocast_dtype:
        return False
    last_matrices = [b.mlp.tensors[-1].name for b, _ in architecture.blocks if isinstance(b.mlp, T5Mlp)]
    return any(stores_in_fp32(name, setting) for name in last_matrices)


def stores_in_fp32(name: str, setting: Setting) -> bool:
    """Say whether a parameter of this name is stored in fp32 (``_keep_in_fp32_modules``)."""
    return any(part in name for part in setting.fp32_params)


def widens_encoded(architecture: Architecture) -> bool:
    """Whether the encoder's output is fp32 under autocast: a LayerNorm follows its layers."""
    return architecture.encoder is not None and _is_layernorm(architecture.encoder.final_norm)


def widened_tower(vision: Vision, base: Setting) -> str | None:
    """Dtype of a tower's stream where CLIP's LayerNorm in front of its layers makes it; None where the weights do."""
    return (
        "fp32"
        if base.autocast_dtype and any(t.name.endswith("pre_layrnorm.weight") for t in vision.stem_tensors)
        else None
    )


def _is_layernorm(norm: Norm | None) -> bool:
    return norm is not None and norm.kind == "layernorm"


LAYERS = "layers:"
"""What begins a range of layers; the schema checks the two numbers after it."""
WORDS = ("embed", "head", "norm", "vision", "projector", "language", "audio", "encoder")
"""Words of ``training.freeze`` that are no module patterns."""

TABLE, HEAD = "embed_tokens", "lm_head"
"""Modules that ``modules_to_save`` may name."""


def module_patterns(freeze: tuple[str, ...]) -> tuple[str, ...]:
    """What of ``training.freeze`` names modules."""
    return tuple(f for f in freeze if f not in WORDS and ":" not in f)


def frozen_layers(freeze: tuple[str, ...]) -> set[int]:
    """Return the numbers of the layers that patterns such as ``layers:0-3`` in ``freeze`` name."""
    frozen: set[int] = set()
    for pattern in freeze:
        if pattern.startswith(LAYERS):
            first, _, last = pattern.removeprefix(LAYERS).partition("-")
            frozen.update(range(int(first), int(last)))
    return frozen


def recompute_mode(job: TrainingJob, layer: int) -> str:
    """Return how one layer is recomputed: ``none``, ``selective``, ``full``, or ``parts:`` and the names of its
    modules.
    """
    checkpointing = job.checkpointing
    is_skipped = layer % checkpointing.every_n_layers != 0 if checkpointing.every_n_layers > 1 else False
    if checkpointing.mode == "none" or is_skipped:
        return "none"
    if checkpointing.modules and job.framework.checkpointable_modules:
        return f"parts:{','.join(checkpointing.modules)}"
    return checkpointing.mode


def is_hooked(job: TrainingJob, architecture: Architecture) -> bool:
    """Return whether the looked-up rows are made to require a gradient (``enable_input_require_grads``).

    A script asks for it before reentrant checkpoints. transformers 5.23 does so by itself for every model whose main
    input is ``input_ids`` (modeling_utils.py, ``activation_checkpointing_enable``), and for towers. peft does so in any
    version.
    """
    checkpointing = job.checkpointing
    if job.hooks_embedding:  # the trainer asks for it, whether or not layers are recomputed
        return True
    if checkpointing.mode == "none":
        return False
    if checkpointing.reentrant:
        return True
    reads_sound = architecture.encoder is not None and architecture.encoder.mel_bins  # not `input_ids`
    hooked_by_library = (job.framework.runs_transformers and not reads_sound) or job.base_format == INT8
    # a script that wraps parts of layers asks for no hook
    return hooked_by_library and not checkpointing.modules


def is_tied(architecture: Architecture, tensor: int) -> bool:
    """Whether head and embedding are one tensor on a rank: parallelize_module unties them (two DTensors)."""
    return architecture.tie_word_embeddings and tensor == 1


def is_table_frozen(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether ``freeze`` names the embedding, or the head that is the same tensor."""
    return "embed" in job.freeze or (architecture.tie_word_embeddings and "head" in job.freeze)


def leaves_beside(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether only the table is frozen, as a tied head: the positions, types and norms around it are trained."""
    return is_table_frozen(job, architecture) and "embed" not in job.freeze


def has_tensors_beside(architecture: Architecture) -> bool:
    """Say whether trained tensors other than the table contribute to the first layer's input."""
    has_norm = architecture.embedding_norm is not None
    trains_positions = architecture.learned_positions > 0 and not isinstance(architecture, PegasusModel)
    has_token_types = architecture.embedding_module.token_types > 0
    return has_norm or trains_positions or has_token_types or architecture.per_layer is not None


def is_head_frozen(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether ``freeze`` names the head, or the embedding that is the same tensor when the parts are frozen."""
    return "head" in job.freeze or (architecture.tie_word_embeddings and "embed" in job.freeze)


def _norm_tensors(norm: Norm | None, name: str, trained: bool) -> list[LocalTensor]:
    """List weight and bias of a norm, as far as it has them. ``name``: of the module."""
    if norm is None:
        return []
    shape = (norm.rows, norm.size) if norm.rows > 1 else (norm.size,)
    tensors = []
    if norm.weight:
        tensors.append(LocalTensor(name + ".weight", shape, trained))
    if norm.bias:
        tensors.append(LocalTensor(name + ".bias", shape, trained))
    return tensors


def saves_copy(job: TrainingJob, *names: str) -> bool:
    """Whether peft trains a copy of one of these modules and keeps the frozen original (ModulesToSaveWrapper)."""
    return job.lora is not None and any(name in job.lora.modules_to_save for name in names)


def _saved_copy(job: TrainingJob, architecture: Architecture, tensor_parallel: int, name: str) -> LocalTensor:
    """Return the copy of embedding or head that peft trains (``modules_to_save``), [vocabulary rows of the rank,
    width].

    It has the dtype of the original, which ``prepare_model_for_kbit_training`` has cast to fp32.
    """
    shape = (ceil_div(architecture.vocab_size, tensor_parallel), architecture.embedding_size)
    name += ".modules_to_save.weight"
    return LocalTensor(name=name, shape=shape, trained=True, dtype="fp32" if job.prepares_kbit else None)


def embedding_with_adapters(
    job: TrainingJob, architecture: Architecture, tensor_parallel: int, trained: bool
) -> tuple[LocalTensor, ...]:
    """Return the embedding's parameter tensors on one rank, with adapters and the copy that ``modules_to_save`` asks
    for.

    ``trained``: the embedding has trained tensors, whether or not its table is one of them.
    """
    adapters: tuple[LocalTensor, ...] = ()
    if job.lora is not None:
        from memcheck.frameworks.torch.adapters import table_adapters

        adapters = table_adapters(job.lora, architecture)
    if not saves_copy(job, TABLE):
        return (
            *embedding_tensors(
                architecture, tensor_parallel, trained, trained and not is_table_frozen(job, architecture)
            ),
            *adapters,
        )
    return (
        *embedding_tensors(architecture, tensor_parallel, trained=False),
        _saved_copy(job, architecture, tensor_parallel, TABLE),
        *adapters,
    )


def head_with_adapters(
    job: TrainingJob, architecture: Architecture, tensor_parallel: int, tied: bool, body_trained: bool
) -> tuple[LocalTensor, ...]:
    """List the tensors of the final norm and of the head on one rank, with adapters and the copy of
    ``modules_to_save``.

    ``tensor_parallel``: ranks that divide the vocabulary. ``tied``: the head's matrix is the embedding's; a copy never
    is. ``body_trained``: modules that ``freeze`` does not name are trained.
    """
    ends_trained = (body_trained and "norm" not in job.freeze, body_trained)
    if job.lora is None:
        return head_tensors(
            architecture,
            tensor_parallel,
            tied,
            body_trained and not is_head_frozen(job, architecture),
            ends_trained,
        )
    from memcheck.frameworks.torch.adapters import head_adapters

    frozen_head = head_tensors(
        architecture, tensor_parallel, tied, trained=False, ends_trained=ends_trained, has_adapters=True
    )

    if not saves_copy(job, HEAD):
        return (
            *frozen_head,
            *head_adapters(job.lora, architecture, tensor_parallel),
        )
    return (
        *frozen_head,
        _saved_copy(job, architecture, tensor_parallel, HEAD),
    )


@lru_cache(maxsize=256)
def embedding_tensors(
    architecture: Architecture, tensor_parallel: int, trained: bool, table_trained: bool = True
) -> tuple[LocalTensor, ...]:
    """List the embedding's tensors on one rank: tables of tokens and positions, norm, and those of some families.

    ``tensor_parallel``: number of ranks that divide the token table. ``trained``: the tensors are trained.
    ``table_trained``: False if the token table alone is frozen.
    """
    shape = (ceil_div(architecture.table_rows, tensor_parallel), architecture.embedding_size)
    tensors = [LocalTensor("embed_tokens.weight", shape, trained and table_trained)]
    if architecture.learned_positions:
        width = architecture.embedding_size if architecture.embedding_module.is_separate else architecture.hidden_size
        positions_trained = trained and not isinstance(architecture, PegasusModel)
        tensors.append(
            LocalTensor("embed_positions.weight", (architecture.learned_positions, width), positions_trained)
        )
    tensors += _norm_tensors(architecture.embedding_norm, "embedding_norm", trained)
    tensors += [
        LocalTensor(t.name, t.shape, trained and not t.fixed, matrix=len(t.shape) > 1)
        for t in architecture.extra_tensors
    ]
    return tuple(tensors)


def multiplied_by_head(architecture: Architecture) -> int:
    """Number of elements that are resident with the embedding, and that the head multiplies."""
    return sum(t.count for t in architecture.extra_tensors if "project_out" in t.name or "altup_unembed" in t.name)


def unused_in_embedding(architecture: Architecture) -> int:
    """Count the elements that are resident with the embedding and get no gradient.

    No loss reads them (ESM's head for contacts), or they are fixed.
    """
    return sum(t.count for t in architecture.extra_tensors if "contact_head" in t.name or t.fixed)


def unused_in_head(architecture: Architecture) -> int:
    """Number of elements that are resident with the head, and whose result no loss reads."""
    return sum(t.count for t in architecture.task.unused) if architecture.task is not None else 0


@lru_cache(maxsize=256)
def head_tensors(
    architecture: Architecture,
    tensor_parallel: int,
    tied: bool,
    trained: bool,
    ends_trained: tuple[bool, bool],
    has_adapters: bool = False,
) -> tuple[LocalTensor, ...]:
    """List the tensors of the final norm and of the head on one rank, including those of a classification head.

    ``tensor_parallel``: ranks that divide the vocabulary. ``tied``: the head's matrix is the embedding's, listed there.
    ``trained``: the head's matrix is trained. ``ends_trained``: whether the final norm is trained, and whether the
    layers before the head are. ``has_adapters``: peft keeps a frozen original of each of ``modules_to_save``.
    """
    norm_trained, layers_trained = ends_trained
    tensors = _norm_tensors(architecture.final_norm, "final_norm", norm_trained)
    vocab = ceil_div(architecture.vocab_size, tensor_parallel)
    if not tied and architecture.head:
        tensors.append(LocalTensor("lm_head.weight", (vocab, head_width(architecture)), trained))
    if architecture.head_bias:
        tensors.append(LocalTensor("lm_head.bias", (vocab,), trained))
    tensors += [
        LocalTensor(t.name, t.shape, layers_trained, matrix=len(t.shape) > 1) for t in architecture.head_layer.tensors
    ]
    for t in task_tensors(architecture):
        copied = has_adapters and is_saved(t.name)
        if copied:
            tensors.append(LocalTensor("frozen " + t.name, t.shape, trained=False, matrix=len(t.shape) > 1))
        tensors.append(LocalTensor(t.name, t.shape, trained or copied, matrix=len(t.shape) > 1))
    unused_in_embedding = architecture.task.unused if architecture.task is not None else ()
    tensors += [LocalTensor(t.name, t.shape, trained=False, matrix=len(t.shape) > 1) for t in unused_in_embedding]
    return tuple(tensors)


class TensorPlacement(Record):
    """What decides which tensors of a layer a rank holds, and which of these get gradients.

    ``tensor``, ``expert``, ``expert_tensor``: degrees of parallelism. ``adapter``: the adapters that peft adds.
    """

    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1
    trained: bool = True
    """The part of the model is trained, except for what ``frozen`` names."""
    frozen: tuple[str, ...] = ()
    """Patterns of names of modules inside the layer that are frozen."""
    adapter: Adapter | None = None


def placement_of(job: TrainingJob, part: str = "language") -> TensorPlacement:
    """Return the placement of the tensors of one part of a job's model, such as ``language`` or ``vision``.

    Parts other than the language model are not divided by tensor or expert parallelism.
    """
    trained, adapter = (job.method == "full" or job.flat_param_gradients) and part not in job.freeze, None
    if job.lora is not None and job.method != "full":
        from memcheck.frameworks.torch.adapters import adapter_of

        adapter = adapter_of(job, job.lora, part)
    if part != "language":
        return TensorPlacement(trained=trained, adapter=adapter)
    layout = job.layout
    expert_tensor = expert_slices(layout, own_degree=job.framework.has_sharding_engine)
    return TensorPlacement(
        tensor=layout.tensor,
        expert=layout.expert,
        expert_tensor=expert_tensor,
        trained=trained,
        frozen=module_patterns(job.freeze),
        adapter=adapter,
    )


def setting_placement(setting: Setting) -> TensorPlacement:
    """Return the placement of a unit's tensors from the unit's setting."""
    return TensorPlacement(
        tensor=setting.tensor_parallel,
        expert=setting.expert_parallel,
        expert_tensor=setting.expert_tensor_parallel,
        trained=setting.trained,
        frozen=setting.frozen_modules,
        adapter=setting.adapter,
    )


def dispatcher_of(job: TrainingJob) -> str:
    """Name of the library that sends tokens to experts on other ranks, such as ``torch`` or ``deepep``.

    Empty where the framework's own classes decide it.
    """
    apart = job.layout.expert > 1 and job.framework.fsdp2.leaves_whole_experts
    return str(job.option("dispatcher", "torch")) if apart else ""


def as_framework_builds(job: TrainingJob, architecture: Architecture) -> Architecture:
    """Build the architecture with the tensors that a framework's own model classes create in place of transformers'
    ones.
    """
    if job.lora is not None and dispatcher_of(job):
        from memcheck.models.variants import with_names

        architecture = architecture._replace(
            blocks=with_names(architecture.blocks, "")
        )  # adapters of these classes go by the names of modules
    return architecture._replace(tie_word_embeddings=False) if job.framework.unties_head else architecture


def checked_architecture(job: TrainingJob, architecture: Architecture) -> Architecture:
    """Return the architecture as the framework builds it, with masks for padded batches.

    Raises:
        UnsupportedError: layers are checkpointed, and ``gradient_checkpointing_enable`` of the class raises an error.
    """
    if job.checkpointing.mode != "none" and not architecture.checkpointable:
        message = f"{architecture.model_type} does not support gradient checkpointing in transformers"
        raise UnsupportedError(message, "write activation_checkpointing: none", "/training/activation_checkpointing")
    if job.needs_attention_mask and job.framework.style.runs_transformers_modules:
        from memcheck.models.variants import padded

        architecture = padded(architecture)
    return as_framework_builds(job, architecture)


@lru_cache(maxsize=4096)
def block_tensors(block: Block, placement: TensorPlacement) -> tuple[LocalTensor, ...]:
    """Return the block's parameter tensors on one rank, adapters included."""
    if placement.adapter is not None:
        from memcheck.frameworks.torch.adapters import adapted_block

        return adapted_block(
            block, placement.adapter, placement.expert, lambda t, component: block_tensor(t, component, placement)
        )
    return tuple([block_tensor(t, component, placement) for t, component in block_component_tensors(block)])


def block_tensor(t: ParameterTensor, component: object, placement: TensorPlacement) -> LocalTensor:
    """Return one tensor of a block with its shape on one rank, and whether it is trained.

    ``component``: the part of the block that has the tensor. ``placement``: parallelism, and what is frozen.
    """
    shape = local_tensor(t, component, placement.tensor, placement.expert, placement.expert_tensor)
    needs_grad = placement.trained and not t.fixed and not is_frozen(t.name.removesuffix(".weight"), placement.frozen)
    return LocalTensor(t.name, shape, needs_grad, expert=t.group == "experts", matrix=len(shape) > 1)


def layer_tensors(job: TrainingJob, block: Block, placement: TensorPlacement) -> tuple[LocalTensor, ...]:
    """The tensors of a layer of the language model, with fp32 for those that are stored in it."""
    return as_stored(job, block_tensors(block, placement))


def trains_table(job: TrainingJob, architecture: Architecture, placement: TensorPlacement) -> bool:
    """Whether the embedding's table is trained, or a copy of it."""
    return (placement.trained and not is_table_frozen(job, architecture)) or saves_copy(job, TABLE)


def embedding_unit_tensors(
    job: TrainingJob, architecture: Architecture, placement: TensorPlacement
) -> tuple[LocalTensor, ...]:
    """Return the tensors of the embedding's unit on one rank, with those of embedders of other modalities."""
    trained = trains_table(job, architecture, placement) or (placement.trained and leaves_beside(job, architecture))
    tensors = as_stored(job, embedding_with_adapters(job, architecture, placement.tensor, trained))
    if architecture.embedders:
        tensors += block_tensors(as_block(embedder_tensors(architecture)), placement_of(job, "projector"))
    return tensors


def head_unit_tensors(
    job: TrainingJob, architecture: Architecture, placement: TensorPlacement, *, embeds: bool
) -> tuple[LocalTensor, ...]:
    """Return the tensors of the unit of final norm and head on one rank.

    ``embeds``: the rank also has the embedding, whose matrix a tied head shares.
    """
    tied = is_tied(architecture, placement.tensor) and embeds
    tensors = head_with_adapters(job, architecture, placement.tensor, tied, placement.trained)
    tensors = as_stored(job, tensors)
    if job.base_format is not None and job.framework.quantizes_head:
        tensors = tuple(t._replace(dtype=job.base_format.name) if t.name == "lm_head.weight" else t for t in tensors)
    return tensors


@lru_cache(maxsize=256)
def as_block(tensors: tuple[ParameterTensor, ...]) -> Block:
    """A block without modules that holds tensors outside layers, for functions that take a block."""
    return Block(mixer=None, mlp=None, input_norm=None, mlp_norm=None, extra_tensors=tensors)
