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
    transform_biases,
    unused_in_embedding,
    unused_in_head,
)
from memcheck.frameworks.transformers.embedding import Embedding, embedding_curve, embedding_forward
from memcheck.frameworks.transformers.head import Head, head_forward
from memcheck.job.types import Objective, TrainingJob
from memcheck.models.parameters import embedder_tensors, head_width
from memcheck.models.types import Architecture, BartModel, DebertaModel, PegasusModel, Qwen2AudioModel, T5GemmaModel

_cached_embedding = lru_cache(maxsize=512)(embedding_curve)


def embedding_unit(
    job: TrainingJob, architecture: Architecture, base: Setting, trained: bool, tied: bool, adds: bool, inventory: bool
) -> Unit:
    """Return the embedding's unit: its tensors on one rank, and its memory curves.

    ``base``: the setting that all units share. ``trained``: some tensor of the embedding is. ``tied``: the head uses
    its table. ``adds``: some micro-batch adds to existing gradients, so that it has a second curve.
    """
    vocab = ceil_div(architecture.table_rows, base.tensor_parallel)
    adapter = placement_of(job, "projector").adapter if architecture.embedders else None
    embedding = Embedding(
        # RowwiseParallel on nn.Embedding: the local rows' gradient is a view of the whole table's; else embeddings are
        # vocabulary-parallel modules of their own
        vocab=architecture.table_rows if base.style.modeling_files else vocab,
        width=architecture.embedding_size,
        positions=architecture.learned_positions,
        norm=architecture.embedding_norm,
        scaled=architecture.embedding_scale not in ("", "tokens"),
        dropout=architecture.embedding_dropout,
        trained=trained,
        tied=tied,
        projected=architecture.embedding_size != architecture.hidden_size,
        positions_each=architecture.positions_each,
        scaled_outside=architecture.embedding_scale in ("model", "tokens"),
        scaled_behind=architecture.embedding_scale == "named",
        token_types=architecture.embedding_module.token_types,
        per_layer=architecture.per_layer,
        per_layer_rows=next((t.shape[0] for t in architecture.extra_tensors if "embed_tokens_per_layer" in t.name), 0),
        table_frozen=leaves_beside(job, architecture),
        sums_in_place=job.objective.loss_from_hidden_states,
        leaf=(not trained or leaves_beside(job, architecture)) and is_hooked(job, architecture),
        leaf_unsaved=job.hooks_embedding and job.checkpointing.mode == "none",
        fixed_positions=isinstance(architecture, PegasusModel),
        streams=architecture.streams,
        cloned=architecture.embedding_cloned,
        scattered=bool(architecture.embedders) or (architecture.vision is not None and not architecture.vision.crosses),
        embedders=architecture.embedders,
        embedders_trained=bool(architecture.embedders) and job.method == "full" and "projector" not in job.freeze,
        embedders_adapter=adapter,
        pictures=job.rows * job.images.pictures if architecture.embedders and job.images is not None else 0,
        saved=saves_copy(job, TABLE),
        biases=architecture.biases,
        masked=isinstance(architecture, DebertaModel),
        apart=architecture.embedding_module.apart,
        sinusoids=architecture.sinusoids > 0,
        repeated=architecture.collapses,
        relative=architecture.relative_positions,
    )
    dtype = embedded_dtype(architecture, base)
    full = embedding._replace(
        vocab=architecture.table_rows,
        embedders_adapter=None,
        embedders_trained=bool(architecture.embedders),
        pictures=0,
    )
    _demand_embedding(architecture, full, whole(base), job.framework.name)
    first_curve = _cached_embedding(embedding, base, dtype, inventory=inventory)
    later_curve = (
        _cached_embedding(embedding, base.for_later_micro_batches(), dtype, inventory=inventory)
        if adds
        else first_curve
    )
    if architecture.biases[0] and base.trained:
        from memcheck.frameworks.torch.encoder import given_biases

        first_layer, _ = architecture.blocks[0]
        bias_gradients = given_biases(first_layer, base)
        first_curve, later_curve = (
            curve._replace(taken_gradient_bytes=bias_gradients) for curve in (first_curve, later_curve)
        )
    tensors = embedding_unit_tensors(job, architecture, setting_placement(base))
    return Unit(kind="embedding", name="embedding", tensors=tensors, first_curve=first_curve, later_curve=later_curve)


@lru_cache(maxsize=256)
def _demand_embedding(architecture: Architecture, embedding: Embedding, setting: Setting, framework: str) -> None:
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


@lru_cache(maxsize=256)
def _demand_head(architecture: Architecture, head: Head, setting: Setting, framework: str) -> None:
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


def head_unit(
    job: TrainingJob,
    architecture: Architecture,
    base: Setting,
    part: Part,
    adds: bool,
    gradient_dtype: str | None,
    graph_and_inputs: tuple[int, int],
    inventory: bool,
) -> Unit:
    """Return the unit of final norm, head and loss: its tensors on one rank, and its memory curves.

    ``base``: the setting that all units share. ``part``: layers and ends of the rank. ``adds``: some micro-batch adds
    to existing gradients. ``gradient_dtype``: dtype to which autograd casts the gradient of the head's weights if the
    root's forward has not used them. ``graph_and_inputs``: bytes of the layers' graph that outlive a backward, and
    bytes of layers' inputs that nothing saved.
    """
    head = head_of(job, architecture, base, part, gradient_dtype, graph_and_inputs)
    tensors = head_unit_tensors(job, architecture, setting_placement(base), embeds=part.embedding)
    setting = base._replace(frozen_modules=(*base.frozen_modules, "norm")) if "norm" in job.freeze else base
    _demand_head(architecture, head._replace(objective=Objective(), second=None), whole(base), job.framework.name)
    return layers_of(base.style).head_unit(job, head, setting, tensors, adds, inventory)


def head_of(
    job: TrainingJob,
    architecture: Architecture,
    base: Setting,
    part: Part,
    gradient_dtype: str | None,
    graph_and_inputs: tuple[int, int],
) -> Head:
    """Describe final norm, head and loss of a job, for their replay.

    ``base``, ``part``, ``gradient_dtype``, ``graph_and_inputs``: see :func:`head_unit`.
    """
    tied = is_tied(architecture, base.tensor_parallel) and part.embedding and not saves_copy(job, TABLE, HEAD)
    trained = (base.trained and not is_head_frozen(job, architecture)) or saves_copy(job, HEAD)
    loss = job.loss._replace(upcast=False) if not architecture.logit_casts.in_loss else job.loss
    loss = loss._replace(shifts="copied") if isinstance(architecture, Qwen2AudioModel) else loss
    capped = architecture.final_softcap and not job.framework.caps_hidden
    graph_before, hidden_states = graph_and_inputs
    head = Head(
        vocab=architecture.vocab_size,
        bias=architecture.head_bias,
        final_norm=architecture.final_norm,
        softcap=capped,
        tied=tied,
        loss=loss,
        trained=trained,
        logit_scale=architecture.logit_scale,
        hidden_cap=architecture.final_softcap and job.framework.caps_hidden,
        widened=architecture.logit_casts.in_model,
        divided=architecture.head_input_scale,
        transform_activation=architecture.head_layer.activation,
        transform_name=architecture.head_layer.tensors[0].name if architecture.head_layer.activation else "",
        transform_biases=transform_biases(architecture),
        projects_last=architecture.embedding_module.apart,
        dropout=architecture.final_dropout,
        returns_hidden_states=isinstance(architecture, T5GemmaModel),
        shared_gradient_width=architecture.per_layer.total if architecture.per_layer is not None else 0,
        logit_offset_dtype=job.recipe.params if isinstance(architecture, BartModel) else "",  # FSDP2 casts no buffers
        compiled=job.loss.kind in base.style.compiled_losses and job.compiles("loss"),
        graph_before=graph_before,
        grad_dtype=gradient_dtype,
        collapses_streams=architecture.collapses,
        projection=head_width(architecture) if head_width(architecture) != architecture.hidden_size else 0,
    )
    if architecture.task is not None:
        return head._replace(task=architecture.task, trained=trained or base.adapter is not None)
    return _with_objective(job, architecture, base, head, hidden_states) if job.objective.code else head


def run_head(ctx: Context, head: Head, x: Value) -> Value:
    """Run final norm, head and loss on the hidden states ``x`` and return the loss."""
    return head_forward(ctx, head, x)


def _with_objective(job: TrainingJob, architecture: Architecture, base: Setting, head: Head, states: int) -> Head:
    """Return the head with the loss that a trainer computes from its output. ``states``: see :func:`head_unit`."""
    from memcheck.frameworks.torch.forward_only_pass import forward_only_pass, hidden_states

    return head._replace(
        objective=job.objective,
        second=forward_only_pass(job, architecture, base),
        states=states,
        all_states=hidden_states(job, architecture, base.batch * base.sequence, stream_dtype(base)),
    )
