"""The units at the ends of a model: embedding, and head with loss, each with its tensors and its memory curve."""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.unit import Part, Unit
from memcheck.autograd.completeness import require_covered, touched, whole
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import Leaf, Value
from memcheck.frameworks.layers import layers_of
from memcheck.frameworks.torch.dtypes import embedded_dtype, stream_dtype
from memcheck.frameworks.torch.rank_tensors import (
    closing_tensors,
    embedding_tensors,
    head_tensors,
    holding,
    holding_of,
    idle,
    idle_in_head,
    lookup_tensors,
    multiplied_by_head,
    saves,
    transform_biases,
)
from memcheck.frameworks.torch.trained_parts import HEAD, TABLE, is_head_frozen, is_hooked, is_tied, leaves_beside
from memcheck.frameworks.transformers.embedding import Embedding, embedding_curve, embedding_forward
from memcheck.frameworks.transformers.head import Head, head_forward
from memcheck.job.types import Objective, TrainingJob
from memcheck.models.parameters import head_width
from memcheck.models.types import Architecture, BartModel, DebertaModel, PegasusModel, Qwen2AudioModel, T5GemmaModel

_cached_embedding = lru_cache(maxsize=512)(embedding_curve)


def embedding_unit(
    job: TrainingJob, a: Architecture, base: Setting, trained: bool, tied: bool, adds: bool, inventory: bool
) -> Unit:
    """Return the unit of the embedding. ``trained``: some tensor of it is; ``tied``: the head uses its table."""
    vocab = -(-a.table_rows // base.tensor)
    adapter = holding_of(job, "projector").adapter if a.embedders else None
    e = Embedding(
        # RowwiseParallel on nn.Embedding: the local rows' gradient is a view of the whole table's; else embeddings are
        # vocabulary-parallel modules of their own
        a.table_rows if base.style.modeling_files else vocab,
        a.embedding_size,
        a.learned_positions,
        a.embedding_norm,
        a.embedding_scale not in ("", "tokens"),
        a.embedding_dropout,
        trained,
        tied,
        a.embedding_size != a.hidden_size,
        a.positions_each,
        a.embedding_scale in ("model", "tokens"),
        scaled_behind=a.embedding_scale == "named",
        token_types=a.token_types,
        per_layer=a.per_layer,
        per_layer_rows=next((t.shape[0] for t in a.extra_tensors if "embed_tokens_per_layer" in t.name), 0),
        table_frozen=leaves_beside(job, a),
        sums_in_place=job.objective.fused,
        leaf=(not trained or leaves_beside(job, a)) and is_hooked(job, a),
        fixed_positions=isinstance(a, PegasusModel),
        streams=a.streams,
        cloned=a.embedding_cloned,
        scattered=bool(a.embedders) or (a.vision is not None and not a.vision.crosses),
        embedders=a.embedders,
        embedders_trained=bool(a.embedders) and job.method == "full" and "projector" not in job.freeze,
        embedders_adapter=adapter,
        pictures=job.rows * job.images.pictures if a.embedders and job.images is not None else 0,
        saved=saves(job, TABLE),
        biases=a.biases,
        masked=isinstance(a, DebertaModel),
        apart=a.embeddings_apart,
        sinusoids=a.sinusoids > 0,
        repeated=a.collapses,
        relative=a.relative_positions,
    )
    dtype = embedded_dtype(a, base)
    full = e._replace(vocab=a.table_rows, embedders_adapter=None, embedders_trained=bool(a.embedders), pictures=0)
    _demand_embedding(a, full, whole(base), job.framework.name)
    fresh = _cached_embedding(e, base, dtype, inventory=inventory)
    again = _cached_embedding(e, base.later(), dtype, inventory=inventory) if adds else fresh
    if a.biases[0] and base.trained:
        from memcheck.frameworks.torch.encoder import given_biases

        waits = given_biases(a.blocks[0][0], base)
        fresh, again = (curve._replace(takes=waits) for curve in (fresh, again))
    return Unit("embedding", "embedding", lookup_tensors(job, a, holding(base)), fresh, again)


@lru_cache(maxsize=256)
def _demand_embedding(a: Architecture, e: Embedding, setting: Setting, framework: str) -> None:
    held = sum(t.numel for t in embedding_tensors(a, 1, True)) - multiplied_by_head(a) - idle(a)
    if a.embedders:
        from memcheck.models.parameters import embedder_tensors

        held += sum(t.count for t in embedder_tensors(a))
    seen = touched(lambda ctx: embedding_forward(ctx, e, embedded_dtype(a, setting)), setting)
    require_covered(seen, held, "the embedding", framework)


@lru_cache(maxsize=256)
def _demand_head(a: Architecture, head: Head, setting: Setting, framework: str) -> None:
    held = sum(t.numel for t in head_tensors(a, 1, False, True, (True, True))) + multiplied_by_head(a) - idle_in_head(a)

    def run(ctx: Context) -> None:
        shape, dtype = (ctx.tokens * setting.streams, ctx.hidden), stream_dtype(setting)
        head_forward(ctx, head, Value(ctx.tape.new(shape, dtype, "last hidden state"), shape, dtype, Leaf()))

    require_covered(touched(run, setting), held, "the head", framework)


def head_unit(
    job: TrainingJob,
    a: Architecture,
    base: Setting,
    part: Part,
    adds: bool,
    outside: str | None,
    before: tuple[int, int],
    inventory: bool,
) -> Unit:
    """Final norm, head and loss.

    ``outside``: dtype to which autograd casts the gradient of the head's weights where the root's forward has not used
    them; ``before``: bytes of the graph before it that outlive a backward, and of layers' inputs that nothing saved.
    """
    head = head_of(job, a, base, part, outside, before)
    tensors = closing_tensors(job, a, holding(base), embeds=part.embedding)
    setting = base._replace(frozen=(*base.frozen, "norm")) if "norm" in job.freeze else base
    _demand_head(a, head._replace(objective=Objective(), second=None), whole(base), job.framework.name)
    return layers_of(base.style).head_unit(job, head, setting, tensors, adds, inventory)


def head_of(
    job: TrainingJob, a: Architecture, base: Setting, part: Part, outside: str | None, before: tuple[int, int]
) -> Head:
    """Return the description of final norm, head and loss. ``outside``, ``before``: see :func:`head_unit`."""
    tied = is_tied(a, base.tensor) and part.embedding and not saves(job, TABLE, HEAD)
    trained = (base.trained and not is_head_frozen(job, a)) or saves(job, HEAD)
    loss = job.loss._replace(upcast=False) if a.narrow_loss else job.loss
    loss = loss._replace(shifts="copied") if isinstance(a, Qwen2AudioModel) else loss
    capped = a.final_softcap and not job.framework.caps_hidden
    head = Head(a.vocab_size, a.head_bias, a.final_norm, capped, tied, loss, trained, a.logit_scale)
    head = head._replace(
        hidden_cap=a.final_softcap and job.framework.caps_hidden,
        widened=a.logits_fp32,
        divided=a.head_input_scale,
        transform=a.head_transform,
        transform_name=a.head_tensors[0].name if a.head_transform else "",
        transform_biases=transform_biases(a),
        projects_last=a.embeddings_apart,
        dropout=a.final_dropout,
        returned=isinstance(a, T5GemmaModel),
        waiting=a.per_layer.total if a.per_layer is not None else 0,
        offset=job.recipe.params if isinstance(a, BartModel) else "",  # FSDP2 casts no buffers
        compiled=job.loss.kind in base.style.compiled_losses and job.compiles("loss"),
        graph_before=before[0],
        grad_dtype=outside,
        collapses=a.collapses,
        projection=head_width(a) if head_width(a) != a.hidden_size else 0,
    )
    if a.task is not None:
        return head._replace(task=a.task, trained=trained or base.adapter is not None)
    return _with_objective(job, a, base, head, before[1]) if job.objective.code else head


def run_head(ctx: Context, head: Head, x: Value) -> Value:
    """Run final norm, head and loss on the hidden states ``x`` and return the loss."""
    return head_forward(ctx, head, x)


def _with_objective(job: TrainingJob, a: Architecture, base: Setting, head: Head, states: int) -> Head:
    """Return the head with the loss that a trainer computes from its output. ``states``: see :func:`head_unit`."""
    from memcheck.frameworks.torch.forward_only_pass import forward_only_pass, hidden_states

    return head._replace(
        objective=job.objective,
        second=forward_only_pass(job, a, base),
        states=states,
        all_states=hidden_states(job, a, base.batch * base.sequence, stream_dtype(base)),
    )
