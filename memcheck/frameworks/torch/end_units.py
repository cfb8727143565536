"""The units at the ends of a model: embedding, and head with loss, each with its tensors and its memory curve."""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import Part, Unit
from memcheck.autograd.context import Context, Setting, require_covered, touched, whole
from memcheck.autograd.tensor import Leaf, Value, ceil_div
from memcheck.frameworks.registry import layers_of
from memcheck.frameworks.torch.rank_tensors import (
    HEAD,
    TABLE,
    embedded_dtype,
    embedding_tensors,
    embedding_unit_tensors,
    head_tensors,
    head_unit_tensors,
    is_head_frozen,
    is_hooked,
    is_tied,
    leaves_beside,
    multiplied_by_head,
    placement_of,
    saves_copy,
    setting_placement,
    stream_dtype,
    unused_in_embedding,
    unused_in_head,
)
from memcheck.frameworks.transformers.embedding import Embedding, embedding_curve, embedding_forward
from memcheck.frameworks.transformers.head import Head, HeadTransform, head_forward
from memcheck.job.types import Loss, Objective, TrainingJob
from memcheck.models.parameters import embedder_tensors, head_width
from memcheck.models.types import (
    Architecture,
    BartModel,
    DebertaModel,
    PegasusModel,
    Qwen2AudioModel,
    T5GemmaModel,
)
from memcheck.record import Record

_cached_embedding = lru_cache(maxsize=512)(embedding_curve)


def embedding_unit(
    job: TrainingJob, architecture: Architecture, base: Setting, trained: bool, tied: bool, adds: bool, inventory: bool
) -> Unit:
    """Return the embedding's unit: its tensors on one rank, and its memory curves.

    ``base``: the setting that all units share. ``trained``: some tensor of the embedding is trained. ``tied``: the head
    uses its table. ``adds``: some micro-batch adds to existing gradients, so that the unit has a second curve.
    """
    embedding = _embedding_modules(job, architecture, base, trained=trained, tied=tied)
    embedding = _with_other_modalities(job, architecture, embedding)
    _require_embedding(architecture, _without_layout(architecture, embedding), whole(base), job.framework.name)
    dtype = embedded_dtype(architecture, base)
    first_curve = later_curve = _cached_embedding(embedding, base, dtype, inventory=inventory)
    if adds:
        later_curve = _cached_embedding(embedding, base.for_later_micro_batches(), dtype, inventory=inventory)
    if architecture.biases[0] and base.trained:
        from memcheck.frameworks.torch.encoder import given_biases

        first_layer, _ = architecture.blocks[0]
        bias_gradients = given_biases(first_layer, base)
        first_curve = first_curve._replace(gradient_bytes_of_later_units=bias_gradients)
        later_curve = later_curve._replace(gradient_bytes_of_later_units=bias_gradients)
    tensors = embedding_unit_tensors(job, architecture, setting_placement(base))
    return Unit(kind="embedding", name="embedding", tensors=tensors, first_curve=first_curve, later_curve=later_curve)


def _embedding_modules(
    job: TrainingJob, architecture: Architecture, base: Setting, *, trained: bool, tied: bool
) -> Embedding:
    """Describe the text's embedding for its replay: tables, positions, norm, scale, and the hook on its output.

    ``base``, ``trained``, ``tied``: see :func:`embedding_unit`.
    """
    table_frozen = leaves_beside(job, architecture)
    # transformers' RowwiseParallel shards nn.Embedding, whose local gradient is a view of the whole table's. Other
    # frameworks have vocabulary-parallel modules, with rows for this rank alone
    local_rows = ceil_div(architecture.table_rows, base.tensor_parallel)
    return Embedding(
        vocab=architecture.table_rows if base.style.runs_transformers_modules else local_rows,
        width=architecture.embedding_size,
        position_rows=architecture.learned_positions,
        norm=architecture.embedding_norm,
        scale=architecture.embedding_scale,
        dropout=architecture.embedding_dropout,
        trained=trained,
        tied=tied,
        projects_rows=architecture.embedding_size != architecture.hidden_size,
        positions_each=architecture.positions_each,
        positions_are_frozen=isinstance(architecture, PegasusModel),
        positions_are_buffer=architecture.sinusoids > 0,
        token_type_rows=architecture.embedding_module.token_types,
        is_separate_module=architecture.embedding_module.is_separate,
        per_layer=architecture.per_layer,
        per_layer_rows=next((t.shape[0] for t in architecture.extra_tensors if "embed_tokens_per_layer" in t.name), 0),
        table_frozen=table_frozen,
        trains_copy_of_table=saves_copy(job, TABLE),
        adds_to_head_gradient=job.objective.loss_from_hidden_states,
        rows_are_leaf=(not trained or table_frozen) and is_hooked(job, architecture),
        leaf_is_unsaved=job.hooks_embedding and job.checkpointing.mode == "none",
        streams=architecture.streams,
        streams_are_copies=architecture.collapses,
        layers_read_copy=architecture.embedding_cloned,
        bias_table_shape=architecture.biases,
        masks_rows=isinstance(architecture, DebertaModel),
        relative_positions=architecture.relative_positions,
    )


def _with_other_modalities(job: TrainingJob, architecture: Architecture, embedding: Embedding) -> Embedding:
    """Return the embedding with the tables and image tokens of other modalities, if the model has any."""
    reads_pictures = architecture.vision is not None and not architecture.vision.text_layers_that_read_images
    if not architecture.embedders:
        return embedding._replace(takes_image_tokens=reads_pictures)
    return embedding._replace(
        takes_image_tokens=True,
        embedders=architecture.embedders,
        embedders_trained=job.method == "full" and "projector" not in job.freeze,
        embedders_adapter=placement_of(job, "projector").adapter,
        pictures_without_graph=job.rows * job.images.pictures_per_sample if job.images is not None else 0,
    )


def _without_layout(architecture: Architecture, embedding: Embedding) -> Embedding:
    """Return the embedding with all rows of its table, trained and without adapters or pictures, to count elements."""
    return embedding._replace(
        vocab=architecture.table_rows,
        embedders_adapter=None,
        embedders_trained=bool(architecture.embedders),
        pictures_without_graph=0,
    )


@lru_cache(maxsize=256)
def _require_embedding(architecture: Architecture, embedding: Embedding, setting: Setting, framework: str) -> None:
    """Check that the replay of the embedding reads every element of its tensors; raise an error otherwise."""
    expected_numel = (
        sum(t.numel for t in embedding_tensors(architecture, 1, trained=True))
        - multiplied_by_head(architecture)
        - unused_in_embedding(architecture)
    )
    if architecture.embedders:
        expected_numel += sum(t.count for t in embedder_tensors(architecture))
    touched_tensors = touched(
        lambda ctx: embedding_forward(ctx, embedding, embedded_dtype(architecture, setting)), setting
    )
    require_covered(touched_tensors, expected_numel, "the embedding", framework)


class LayersBeforeHead(Record):
    """Bytes of the layers that the loss, or the model's output, keeps alive."""

    graph: int = 0
    """Bytes of the layers' graph that live until the next step's loss replaces the old one (``until_graph_freed``)."""
    unsaved_inputs: int = 0
    """Bytes of the layers' inputs that no backward function has saved: an output with all hidden states keeps them."""


def head_unit(
    job: TrainingJob,
    architecture: Architecture,
    base: Setting,
    part: Part,
    adds: bool,
    gradient_dtype: str | None,
    layers: LayersBeforeHead,
    inventory: bool,
) -> Unit:
    """Return the unit of final norm, head and loss: its tensors on one rank, and its memory curves.

    ``base``: the setting that all units share. ``part``: layers and ends of the rank. ``adds``: some micro-batch adds
    to existing gradients. ``gradient_dtype``: dtype to which autograd casts the gradient of the head's weights if the
    root's forward has not used them. ``layers``: bytes that the loss keeps of the layers.
    """
    head = head_of(job, architecture, base, part, gradient_dtype, layers)
    tensors = head_unit_tensors(job, architecture, setting_placement(base), embeds=part.has_embedding)
    setting = base._replace(frozen_modules=(*base.frozen_modules, "norm")) if "norm" in job.freeze else base
    _require_head(
        architecture, head._replace(objective=Objective(), reference_pass=None), whole(base), job.framework.name
    )
    return layers_of(base.style).head_unit(job, head, setting, tensors, adds, inventory)


@lru_cache(maxsize=256)
def _require_head(architecture: Architecture, head: Head, setting: Setting, framework: str) -> None:
    """Check that the replay of the head reads every element of its tensors; raise an error otherwise."""
    expected_numel = (
        sum(t.numel for t in head_tensors(architecture, 1, tied=False, trained=True, ends_trained=(True, True)))
        + multiplied_by_head(architecture)
        - unused_in_head(architecture)
    )

    def run(ctx: Context) -> None:
        shape, dtype = (ctx.tokens * setting.streams, ctx.hidden), stream_dtype(setting)
        head_forward(ctx, head, Value(ctx.tape.new(shape, dtype, "last hidden state"), shape, dtype, Leaf()))

    require_covered(touched(run, setting), expected_numel, "the head", framework)


def head_of(
    job: TrainingJob,
    architecture: Architecture,
    base: Setting,
    part: Part,
    gradient_dtype: str | None,
    layers: LayersBeforeHead,
) -> Head:
    """Describe final norm, head and loss of a job, for their replay.

    ``base``, ``part``, ``gradient_dtype``, ``layers``: see :func:`head_unit`.
    """
    shares_table = is_tied(architecture, base.tensor_parallel) and part.has_embedding
    trained = (base.trained and not is_head_frozen(job, architecture)) or saves_copy(job, HEAD)
    head = _head_modules(job, architecture)._replace(
        tied=shares_table and not saves_copy(job, TABLE, HEAD),
        trained=trained,
        loss_is_compiled=job.loss.kind in base.style.compiled_losses and job.compiles("loss"),
        previous_graph_bytes=layers.graph,
        grad_dtype=gradient_dtype,
    )
    if architecture.task is not None:
        return head._replace(task=architecture.task, trained=trained or base.adapter is not None)
    if not job.objective.loss_code:  # the loss is the model's own
        return head
    from memcheck.frameworks.torch.forward_only_pass import forward_only_pass, hidden_states

    return head._replace(
        objective=job.objective,
        reference_pass=forward_only_pass(job, architecture, base),
        hidden_states_in_output_bytes=layers.unsaved_inputs,
        all_hidden_states_bytes=hidden_states(job, architecture, base.batch * base.sequence, stream_dtype(base)),
    )


def _head_modules(job: TrainingJob, architecture: Architecture) -> Head:
    """Describe the modules from the final norm to the loss, without what depends on layout and trained parts."""
    caps_hidden, width = job.framework.caps_hidden_states, head_width(architecture)
    return Head(
        vocab=architecture.vocab_size,
        bias=architecture.head_bias,
        final_norm=architecture.final_norm,
        caps_logits=architecture.final_softcap and not caps_hidden,
        caps_hidden_states=architecture.final_softcap and caps_hidden,
        tied=False,
        loss=_loss(job, architecture),
        scales_logits=architecture.logit_scale,
        casts_logits_to_fp32=architecture.logit_casts.in_model,
        divides_hidden_states=architecture.head_input_scale,
        transform=_head_transform(architecture),
        width=width if width != architecture.hidden_size else 0,
        projects_out=width != architecture.hidden_size and not architecture.embedding_module.is_separate,
        dropout=architecture.final_dropout,
        returns_hidden_states=isinstance(architecture, T5GemmaModel),
        shared_gradient_width=architecture.per_layer.total if architecture.per_layer is not None else 0,
        # `final_logits_bias` is a buffer, which FSDP2 does not cast
        logit_offset_dtype=job.recipe.params if isinstance(architecture, BartModel) else "",
        collapses_streams=architecture.collapses,
    )


def _head_transform(architecture: Architecture) -> HeadTransform | None:
    """Return BERT's layers before the head, or None if the model has none.

    In ``head_layer.tensors`` the matrix comes first, then its bias; the norm's weight and bias come last.
    """
    tensors, activation = architecture.head_layer.tensors, architecture.head_layer.activation
    if not activation:
        return None
    width = head_width(architecture)
    narrows = architecture.embedding_module.is_separate and width != architecture.hidden_size
    return HeadTransform(
        name=tensors[0].name,
        activation=activation,
        outputs=width if narrows else 0,
        bias=len(tensors) > 1 and tensors[1].name.endswith(".bias"),
        norm_bias=tensors[-1].name.endswith(".bias"),
        inner_width=tensors[0].shape[0] if len([t for t in tensors if t.linear]) > 1 else 0,
    )


def _loss(job: TrainingJob, architecture: Architecture) -> Loss:
    """Return the job's loss as the model's forward computes it: some models cast no logits, or shift them."""
    loss = job.loss if architecture.logit_casts.in_loss else job.loss._replace(upcast=False)
    return loss._replace(shifts="copied") if isinstance(architecture, Qwen2AudioModel) else loss


def run_head(ctx: Context, head: Head, x: Value) -> Value:
    """Run final norm, head and loss on the hidden states ``x``, [tokens, hidden], and return the loss."""
    return head_forward(ctx, head, x)
