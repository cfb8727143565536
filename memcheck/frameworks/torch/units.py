"""What one pipeline rank runs: embedding, blocks, head; each with its tensors and its memory curve."""

from __future__ import annotations

from memcheck.accounts.unit import Part, Unit
from memcheck.autograd.completeness import demand, elements, met, met_by, whole
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, replay
from memcheck.autograd.tensor import Dim, Leaf, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.layers import layers_of
from memcheck.frameworks.torch.end_tensors import (
    HEAD,
    TABLE,
    embedding_tensors,
    head_tensors,
    idle,
    idle_in_head,
    multiplied_by_head,
    saves,
    transform_biases,
)
from memcheck.frameworks.torch.fsdp import autocast_of, gathered_dtype
from memcheck.frameworks.torch.kept_wide import kept_names, upcasts_ends
from memcheck.frameworks.torch.optimizer import step_in_backward
from memcheck.frameworks.torch.rank_tensors import (
    as_held,
    closing_tensors,
    dispatcher_of,
    holding,
    holding_of,
    layer_tensors,
    lookup_tensors,
)
from memcheck.frameworks.torch.stream import embedded_dtype, stream_dtype, widens_encoded, widens_inside, widens_stream
from memcheck.frameworks.torch.trained_parts import is_head_frozen, is_hooked, is_tied, leaves_beside
from memcheck.frameworks.transformers.embedding import Embedding, embedding_curve, embedding_forward
from memcheck.frameworks.transformers.head import Head, head_forward
from memcheck.frameworks.transformers.kernel_choice import fused_kernels
from memcheck.frameworks.transformers.states import wide_width
from memcheck.job.images import pictures_of
from memcheck.job.objective_types import Objective
from memcheck.job.types import TrainingJob
from memcheck.models.parameters import head_width
from memcheck.models.types import Architecture, Block, Mixer
from memcheck.remembered import lru_cache


def base_setting(job: TrainingJob, architecture: Architecture, grad_dtype: str | None) -> Setting:
    """The setting that all units of a job share. ``grad_dtype``: :class:`Accumulation`'s."""
    layout, recipe, style = job.layout, job.recipe, job.framework.style
    held = holding_of(job)
    unit_dtype = recipe.compute if not recipe.autocast else recipe.params
    if job.prepares_kbit:
        unit_dtype = "fp32"
    autocast = autocast_of(job)
    narrow = autocast is not None and unit_dtype != "fp32"
    decoded, encoded = job.sequence_length, 0
    if architecture.encoder is not None:
        from memcheck.job.target import lengths

        encoded, decoded = lengths(job, architecture.encoder)
    found = Setting(
        style=style,
        batch=job.rows // job.joined,
        sequence=-(-decoded * job.joined // layout.context),
        encoded=encoded,
        hidden=architecture.hidden_size,
        tensor=held.tensor,
        context=layout.context,
        exchanges_heads=layout.context > 1 and job.framework.context_parallel == "ulysses",
        sequence_parallel=layout.sequence and layout.tensor > 1,
        expert=held.expert,
        expert_tensor=held.expert_tensor,
        params=unit_dtype,
        compute=unit_dtype,
        autocast=autocast,
        attention=job.attention,
        trained=held.trained,
        frozen=held.frozen,
        adapter=held.adapter,
        expert_imbalance=job.expert_imbalance,
        dispatcher=dispatcher_of(job),
        compiled=style.compiles_blocks and job.compiles("model"),
        stepped=step_in_backward(job.optimizer),
        grad_dtype=grad_dtype,
        hooked=job.framework.data_parallel == "zero",
        reentrant=job.checkpointing.mode == "full" and job.checkpointing.reentrant,
        stream="fp32" if upcasts_ends(job) or widens_stream(architecture, autocast=narrow) else None,
        encoded_dtype="fp32" if narrow and widens_encoded(architecture) else None,
        ssm=job.ssm_kernels,
        liger=fused_kernels(job, architecture),
        exchanges_again=job.framework.predates(job.framework_version, "kept exchanges"),
        streams=architecture.streams,
        kept=kept_names(job) if unit_dtype == recipe.params and gathered_dtype(job) is None else (),
        options=job.options,
    )
    if widens_inside(architecture, found):  # a norm after the encoder's layers makes its output as narrow as itself
        found = found._replace(stream="fp32", encoded_dtype=found.params)
    if gathered_dtype(job) is not None and job.fsdp == 2 and style.makes_masks:  # of transformers' own classes
        found = found._replace(table_rows=found.sequence * (found.batch if architecture.rotary_each else 1))
    vision = architecture.vision
    if vision is None or not vision.crosses:
        return found
    encoded = pictures_of(job, vision).pictures * vision.tile_tokens // job.rows
    return found._replace(encoded=encoded, encoded_dtype=found.autocast)


def block_curve(block: Block, setting: Setting, recompute: str, inventory: bool = False) -> Curve:
    """The curve of one block; equal blocks are replayed once.

    Where layers run on packed tokens, softmax attention keeps nothing of a sequence by itself: as many tokens in one
    sequence have the same curve. What Inductor keeps was traced.
    """
    if setting.style.layout == "packed" and not setting.compiled and not isinstance(block.mixer, Mixer):
        setting = setting._replace(batch=1, sequence=setting.batch * setting.sequence)
    return replayed_block(block, setting, recompute, inventory)


@lru_cache(maxsize=4096)
def replayed_block(block: Block, setting: Setting, recompute: str, inventory: bool = False) -> Curve:
    """The curve of one block whose tokens are in as many sequences as the setting says."""
    rows = setting.batch * setting.sequence * setting.streams
    divided = setting.sequence_parallel and setting.tensor > 1
    if divided:
        rows //= setting.tensor
    shape = (Dim(rows, "T/tp" if divided else "T"), Dim(setting.hidden, "h"))
    forward, whole = layers_of(setting.style).recomputing(block, recompute)
    table, dtype = (setting.table_rows, wide_width(block) if setting.table_rows else 0), stream_dtype(setting)
    return replay(forward, setting, shape, dtype, recompute=whole, inventory=inventory, table=table)


_cached_embedding = lru_cache(maxsize=512)(embedding_curve)


def block_unit(job: TrainingJob, block: Block, setting: Setting, recompute: str, adds: bool, inventory: bool) -> Unit:
    """A layer. ``adds``: some micro-batch adds to gradients that are there."""
    tensors = layer_tensors(job, block, holding(setting))
    _demand_block(block, whole(setting), job.framework.name)
    fresh = block_curve(block, setting, recompute, inventory)
    again = block_curve(block, setting.later(), recompute, inventory) if adds else fresh
    frozen = not any(t.trained for t in tensors if ".lora_" not in t.name)
    unit = Unit("block", "layer", tensors, fresh, again, adapted=frozen and recompute == "full" and setting.input_grad)
    return _offloaded(unit) if job.checkpointing.offload == "cpu" else unit


@lru_cache(maxsize=1024)
def _demand_block(block: Block, setting: Setting, framework: str) -> None:
    forward, _ = layers_of(setting.style).recomputing(block, "none")
    demand(met_by(forward, setting), elements(block), "a layer", framework)


def _offloaded(unit: Unit) -> Unit:
    """Saved tensors leave the GPU after the unit's forward and come back for its backward, whose curve counts them."""
    gone = unit.fresh.saved
    fresh, again = (c._replace(saved=0, saved_components=(), saved_inventory=()) for c in (unit.fresh, unit.again))
    return unit._replace(fresh=fresh, again=again, offloaded=gone)


def embedding_unit(
    job: TrainingJob, a: Architecture, base: Setting, trained: bool, tied: bool, adds: bool, inventory: bool
) -> Unit:
    """The embedding, which is trained or not, and whose table may be the head's."""
    vocab = -(-a.table_rows // base.tensor)
    adapter = holding_of(job, "projector").adapter if a.embedders else None
    e = Embedding(
        # RowwiseParallel on nn.Embedding: the local rows' gradient is a view of the whole table's; else embeddings are
        # vocabulary-parallel modules of their own
        a.table_rows if base.style.whole_table_gradient else vocab,
        a.embedding_size,
        a.learned_positions,
        a.embedding_norm,
        a.embedding_scale,
        a.embedding_dropout,
        trained,
        tied,
        a.embedding_size != a.hidden_size,
        a.positions_each,
        a.scales_outside,
        scaled_behind=a.scales_behind,
        token_types=a.token_types,
        per_layer=a.per_layer,
        per_layer_rows=next((t.shape[0] for t in a.extra_tensors if "embed_tokens_per_layer" in t.name), 0),
        table_frozen=leaves_beside(job, a),
        sums_in_place=job.objective.fused,
        leaf=(not trained or leaves_beside(job, a)) and is_hooked(job, a),
        fixed_positions=a.fixed_positions,
        streams=a.streams,
        cloned=a.embedding_cloned,
        scattered=bool(a.embedders)
        or (a.vision is not None and not a.vision.crosses)
        or a.blocks[0][0].handed is not None,
        embedders=a.embedders,
        embedders_trained=bool(a.embedders) and job.method == "full" and "projector" not in job.freeze,
        embedders_adapter=adapter,
        pictures=job.rows * job.images.pictures if a.embedders and job.images is not None else 0,
        saved=saves(job, TABLE),
        projects_last=a.projects_last,
        relative_norm=a.relative_norm,
        biases=a.biases,
        masked=a.masked_rows,
        apart=a.embeddings_apart,
        table_norm=a.table_norm,
        sinusoids=a.sinusoids > 0,
        repeated=a.collapses,
        relative=next((t.shape[0] for t in a.extra_tensors if "rel_embeddings" in t.name), 0),
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
        from memcheck.models.embedders import embedder_tensors

        held += sum(t.count for t in embedder_tensors(a))
    seen = met(lambda ctx: embedding_forward(ctx, e, embedded_dtype(a, setting)), setting)
    demand(seen, held, "the embedding", framework)


@lru_cache(maxsize=256)
def _demand_head(a: Architecture, head: Head, setting: Setting, framework: str) -> None:
    held = sum(t.numel for t in head_tensors(a, 1, False, True, (True, True))) + multiplied_by_head(a) - idle_in_head(a)

    def run(ctx: Context) -> None:
        shape, dtype = (ctx.tokens * setting.streams, ctx.hidden), stream_dtype(setting)
        head_forward(ctx, head, Value(ctx.tape.new(shape, dtype, "last hidden state"), shape, dtype, Leaf()))

    demand(met(run, setting), held, "the head", framework)


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
    """What the last unit consists of. ``outside`` and ``before``: as :func:`head_unit` has them."""
    tied = is_tied(a, base.tensor) and part.embedding and not saves(job, TABLE, HEAD)
    trained = (base.trained and not is_head_frozen(job, a)) or saves(job, HEAD)
    loss = job.loss._replace(upcast=False) if a.narrow_loss else job.loss
    loss = loss._replace(shifts="copied") if a.copied_logits else loss
    capped = a.final_softcap and not base.style.caps_hidden
    head = Head(a.vocab_size, a.head_bias, a.final_norm, capped, tied, loss, trained, a.logit_scale)
    head = head._replace(
        hidden_cap=a.final_softcap and base.style.caps_hidden,
        widened=a.logits_fp32,
        divided=a.head_input_scale,
        sources=a.last_sources,
        kept_words=a.kept_words,
        transform=a.head_transform,
        transform_name=a.head_tensors[0].name if a.head_transform else "",
        transform_biases=transform_biases(a),
        projects_last=a.projects_last,
        dropout=a.final_dropout,
        returned=a.returns_states,
        waiting=a.per_layer.total if a.per_layer is not None else 0,
        offset=job.recipe.params if a.logit_bias else "",  # FSDP2 casts no buffers
        compiled=job.loss.kind in base.style.compiled_losses and job.compiles("loss"),
        graph_before=before[0],
        grad_dtype=outside,
        collapses=a.collapses,
        apart=a.collapses and a.blocks[0][0].connections == 0,
        projection=head_width(a) if head_width(a) != a.hidden_size else 0,
    )
    if a.task is not None:
        return head._replace(task=a.task, trained=trained or base.adapter is not None)
    return _with_objective(job, a, base, head, before[1]) if job.objective.code else head


def run_head(ctx: Context, head: Head, x: Value) -> Value:
    """Final norm, head and loss of hidden states, on the context's own terms."""
    return head_forward(ctx, head, x)


def _with_objective(job: TrainingJob, a: Architecture, base: Setting, head: Head, states: int) -> Head:
    """The head with the loss that a trainer takes of it. ``states``: as :func:`head_unit` has them."""
    from memcheck.frameworks.torch.second_models import hidden_states, second_pass

    return head._replace(
        objective=job.objective,
        second=second_pass(job, a, base),
        states=states,
        all_states=hidden_states(job, a, base.batch * base.sequence, stream_dtype(base)),
    )
