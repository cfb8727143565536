"""The layers of a job by kind, with their costs, and how pipeline stages share them out. Remembered between jobs.

The time of a vision tower: its layers cost what layers of text of the same shape cost, picture by picture.

The patch embedding, the merger and the projector, one or two products on a quarter of the rows, are left out.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import expert_slices
from memcheck.autograd.context import Adapter
from memcheck.autograd.tensor import ceil_div
from memcheck.frameworks.registry import timing_of
from memcheck.job.images import pictures_of
from memcheck.job.training import encoder_length, target_length
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.parameters import outer_tensors
from memcheck.models.types import Architecture, Attention, Block
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record
from memcheck.timing.exchanges import context_kind
from memcheck.timing.layer import LayerCost, Tally, block_cost
from memcheck.timing.rates import Rates
from memcheck.timing.shape import Shape, loss_traffic
from memcheck.timing.types import RooflineSeconds

REMEMBERED = 8192
"""Entries of each cache; a full one starts again."""


class Stage(Record):
    """The layers, embedding and head of a pipeline rank, and how many ranks hold the same."""

    layers_by_run: tuple[int, ...]
    """Number of layers of each run of equal layers (:func:`kinds`), and of each kind of tower layer."""
    has_embedding: bool
    """The ranks hold the embedding."""
    has_head: bool
    """The ranks hold the LM head."""
    ranks: int
    """How many ranks are like this."""
    mtp_layers: int = 0
    """Megatron's multi-token-prediction layers, which are among ``layers``, as more of the last kind."""


class HeadCost(Record):
    """Embedding, final norm, head and loss for one micro-batch on one rank."""

    forward: RooflineSeconds
    backward: RooflineSeconds
    recomputed: RooflineSeconds
    """Seconds of what a chunked loss computes again in backward."""
    flops: float
    """FLOPs of the forward pass."""
    backward_flops: float
    """FLOPs of the gradients of the input and of the weight."""
    embedding_parameters: int
    """Parameters of the embedding on this rank."""
    head_parameters: int
    """Parameters of the LM head on this rank; 0 where it shares the embedding's."""
    embedding_is_trained: bool
    """The embedding gets gradients."""
    head_is_trained: bool
    """The LM head gets gradients."""
    mtp_projection: RooflineSeconds = RooflineSeconds(0.0, 0.0)
    """Seconds of the product that makes the input of a multi-token-prediction layer, forward and backward."""
    mtp_projection_parameters: int = 0


class ModelCost(Record):
    """Costs of one job: of every kind of layer, and of the embedding and head."""

    layer_costs: tuple[LayerCost, ...]
    head_cost: HeadCost


def shape_of(job: TrainingJob) -> Shape:
    """Collect the settings of a job that decide the time of its layers; they are the key of the cost caches."""
    layout, recipe, lora = job.layout, job.recipe, job.lora
    adapter = None
    if lora is not None and job.method != "full":
        adapter = Adapter(
            rank=lora.rank, targets=lora.targets_in("language"), dtype=lora.dtype, base_format=job.base_format
        )
    framework, timing = job.framework, timing_of(job.framework)
    recompute = job.checkpointing.mode
    if framework.checkpointable_modules and {"self_attn", "mlp"} <= {*job.checkpointing.modules}:
        recompute = "full"  # every product of a layer runs again
    by_operators = framework.selective_recompute == "operators"
    compute, fused = recipe.compute, timing.fuses_elementwise(job)
    own_loss = framework.losses.vocab_parallel_when == "always"
    return Shape(
        batch=job.rows * job.head.text_columns,
        sequence=ceil_div(_tokens(job), layout.context),
        context_parallel=layout.context,
        tensor_parallel=layout.tensor,
        sequence_parallel=layout.sequence and layout.tensor > 1,
        expert_parallel=layout.expert,
        expert_tensor_parallel=expert_slices(layout, own_degree=job.framework.has_sharding_engine),
        item_bytes=DTYPE_BYTES[compute],
        autocast=recipe.autocast and compute != "fp32",
        fp8_products=recipe.recipe == "fp8-mixed",
        fuses_elementwise=fused,
        attention=job.attention,
        adapter=adapter,
        frozen_modules=job.freeze,
        expert_imbalance=job.expert_imbalance,
        recompute=recompute,
        recompute_modules=_modules(job) if recompute == "selective" and not by_operators else (),
        loss_is_vocab_parallel=layout.tensor > 1 and (job.loss.kind == "vocab-parallel" or own_loss),
        loss_kind="chunked" if job.objective.loss_in_chunks else job.loss.kind,
        loss_chunks=job.loss.chunks,
        upcasts_logits=job.loss.upcast,
        base_trained=adapter is None and "language" not in job.freeze,
        context_kind=context_kind(job),
        repeats_kv_heads=timing.repeats_kv_heads(job),
        fused_products=timing.fused_products(job),
        fused_norms=timing.fused_norms,
        fused_loss=fused and not own_loss,
        latent_input_tokens=timing.latent_input_tokens,
        adapted_module_name=timing.adapted_module_name,
        uses_torchao_float8=timing.uses_torchao_float8,
        recompute_selects_operators=by_operators,
        experts_have_own_groups=framework.has_expert_tensor_groups,
        fp8_saved_input=job.option("activation_func_fp8_input_store") is True,
        has_mtp=bool(job.option("mtp_num_layers")),
        tower_shape=_tower(job),
    )


def _tokens(job: TrainingJob) -> int:
    """Count the tokens per sample that the layers of the decoder read: the target's for an encoder-decoder model."""
    architecture = job.architecture
    if not isinstance(architecture, Architecture) or architecture.encoder is None:
        return job.sequence_length

    return target_length(job, architecture.encoder)


def _tower(job: TrainingJob) -> TowerShape | None:
    """Return the settings that decide the time of the vision tower or encoder; None for a model without either."""
    architecture = job.architecture
    if not isinstance(architecture, Architecture) or (architecture.vision is None and architecture.encoder is None):
        return None

    return tower_shape(job, architecture)


def _modules(job: TrainingJob) -> tuple[str, ...]:
    """Modules that selective recompute runs again; Megatron's default is core attention."""
    named = job.option("recompute_modules") or job.checkpointing.modules
    if isinstance(named, str):
        return tuple(named.replace(",", " ").split())
    return tuple(map(str, named)) if isinstance(named, tuple) and named else ("core_attn",)


_parts: dict[tuple[int, Shape, Rates], tuple[Architecture, ModelCost]] = {}
_layers: dict[tuple[int, Shape, Rates], tuple[Architecture, tuple[LayerCost, ...]]] = {}
_stages: dict[tuple[object, ...], tuple[Architecture, tuple[Stage, ...]]] = {}


def parts_of(architecture: Architecture, shape: Shape, rates: Rates) -> ModelCost:
    """Compute the costs of every kind of layer, of the embedding and of the head, or return them from the cache."""
    key = (id(architecture), shape, rates)
    cached = _parts.get(key)
    if cached is not None and cached[0] is architecture:
        return cached[1]
    layers = shape._replace(
        loss_is_vocab_parallel=False, loss_kind="", loss_chunks=0, upcasts_logits=False, fused_loss=False
    )
    cost = ModelCost(_layers_of(architecture, layers, rates), _head(architecture, shape, rates))
    if len(_parts) >= REMEMBERED:
        _parts.clear()
    _parts[key] = (architecture, cost)
    return cost


def _layers_of(architecture: Architecture, shape: Shape, rates: Rates) -> tuple[LayerCost, ...]:
    """Compute the cost of every kind of layer, in the order of :func:`kinds`, then of tower or encoder layers.

    ``shape``: the settings without those that only the head reads, so that jobs with other losses share the cache.
    """
    key = (id(architecture), shape, rates)
    cached = _layers.get(key)
    if cached is not None and cached[0] is architecture:
        return cached[1]
    hidden = architecture.hidden_size
    # layers with and without a window may alternate: then there are as many runs as layers, of two kinds
    known: dict[tuple[Block, bool, bool], LayerCost] = {}
    costs: tuple[LayerCost, ...] = ()
    for run in kinds(architecture, shape.frozen_modules):
        kind = (run.block, run.trained, run.input_grad)
        if kind not in known:
            trained = shape.base_trained and run.trained
            known[kind] = block_cost(run.block, hidden, shape, rates, trained=trained, input_grad=run.input_grad)
        costs += (known[kind],)
    if shape.tower_shape is not None:
        costs += _tower_costs(architecture, shape, rates)
    if len(_layers) >= REMEMBERED:
        _layers.clear()
    _layers[key] = (architecture, costs)
    return costs


def _tower_costs(architecture: Architecture, shape: Shape, rates: Rates) -> tuple[LayerCost, ...]:
    """Compute the cost of every kind of layer of the vision tower or encoder, in the order of ``side_kinds``."""
    tower = shape.tower_shape
    if tower is None:
        return ()
    inside = shape_inside(shape, tower)
    return tuple(
        block_cost(block, hidden, inside, rates, trained=tower.trained, input_grad=tower.has_graph)
        for block, _, hidden in side_kinds(architecture)
    )


def _frozen_layers(freeze: tuple[str, ...]) -> set[int]:
    """Return the numbers of the layers that a plan's ``freeze`` names as ``layers:FIRST-LAST`` (excluded)."""
    import re

    frozen: set[int] = set()
    for pattern in freeze:
        match = re.fullmatch(r"layers:(\d+)-(\d+)", pattern)
        if match:
            frozen.update(range(int(match[1]), int(match[2])))
    return frozen


class LayerRun(Record):
    """Consecutive layers that take the same time."""

    block: Block
    trained: bool
    """The base weights of the layers get gradients."""
    input_grad: bool
    """The input of the layers gets a gradient, because the embedding or a layer below is trained."""
    layers: int
    """How many layers."""


def kinds(architecture: Architecture, freeze: tuple[str, ...]) -> list[LayerRun]:
    """List the runs of equal layers, first layer first. ``freeze``: the plan's patterns of frozen parameters."""
    frozen = _frozen_layers(freeze) if freeze else set()
    if not frozen:
        return [LayerRun(block, trained=True, input_grad=True, layers=count) for block, count in architecture.blocks]
    runs: list[LayerRun] = []
    trained_below = "embed" not in freeze
    for index, block in enumerate(architecture.layers()):
        layer = LayerRun(block, trained=index not in frozen, input_grad=trained_below, layers=1)
        last = runs[-1] if runs else None
        continues = last is not None and last.block is block and last[1:3] == layer[1:3]
        if last is not None and continues:
            runs[-1] = last._replace(layers=last.layers + 1)
        else:
            runs.append(layer)
        trained_below = trained_below or layer.trained
    return runs


def stages_of(architecture: Architecture, job: TrainingJob, pipeline: int) -> tuple[Stage, ...]:
    """List the distinct contents of ``pipeline`` pipeline ranks, each with the number of ranks that have it.

    A content is the number of layers of each kind, and whether the rank has embedding, head and prediction layers. The
    answer is cached.
    """
    freeze = job.freeze
    key = (id(architecture), pipeline, freeze, job.framework, job.layout.virtual_stages, job.options, job.images)
    cached = _stages.get(key)
    if cached is not None and cached[0] is architecture:
        return cached[1]
    tower_counts: list[int] = []
    if _tower(job) is not None:
        tower_counts = [count for _, count, _ in side_kinds(architecture)]
    distinct: dict[Stage, int] = {}  # number of ranks by content, for which every stage is written as that of one rank
    for pieces in timing_of(job.framework).layers_by_rank(architecture.num_layers, job, pipeline):
        layers, start = [], 0
        for run in kinds(architecture, freeze):
            end = start + run.layers
            layers_on_rank = 0
            for piece, _ in pieces:
                layers_on_rank += max(0, min(piece.end_layer, end) - max(piece.first_layer, start))
            layers.append(layers_on_rank)
            start = end
        predictions = sum(mtp_layers for _, mtp_layers in pieces)
        layers[-1] += predictions
        content = Stage(
            layers_by_run=(*layers, *tower_counts),
            has_embedding=any(piece.has_embedding for piece, _ in pieces),
            has_head=any(piece.has_head for piece, _ in pieces),
            ranks=1,
            mtp_layers=predictions,
        )
        distinct[content] = distinct.get(content, 0) + 1
    answer = tuple(content._replace(ranks=ranks) for content, ranks in distinct.items())
    if len(_stages) >= REMEMBERED:
        _stages.clear()
    _stages[key] = (architecture, answer)
    return answer


def _head(architecture: Architecture, shape: Shape, rates: Rates) -> HeadCost:
    """Compute the time of logits, loss and embedding for one micro-batch on one rank.

    The head's product stays in 16 bits under fp8. Logits have shape [tokens, vocabulary / tensor ranks] if the loss is
    vocabulary-parallel, else [tokens, vocabulary].
    """
    tokens = shape.batch * shape.sequence
    vocabulary_shards = shape.tensor_parallel if shape.loss_is_vocab_parallel else 1
    vocabulary = ceil_div(architecture.vocab_size, vocabulary_shards)
    width = architecture.embedding_size
    frozen_head = "head" in shape.frozen_modules
    forward, backward, recomputed = Tally(rates), Tally(rates), Tally(rates)
    if architecture.head:
        forward.product(tokens, vocabulary, width)
        backward.product(tokens, width, vocabulary)
        if shape.base_trained and not frozen_head:
            backward.product(vocabulary, width, tokens)
        per_logit = loss_traffic(shape.loss_kind, fused=shape.fused_loss, upcast=shape.upcasts_logits)
        forward.bytes(per_logit.forward_bytes * tokens * vocabulary)
        backward.bytes(per_logit.backward_bytes * tokens * vocabulary)
        if shape.loss_kind == "chunked":  # the logits of each chunk are computed again in backward
            recomputed.product(tokens, vocabulary, width)
            recomputed.bytes(per_logit.forward_bytes * tokens * vocabulary)
    # the embedding reads and writes one row per token; its backward does the same with the gradient
    forward.bytes(2.0 * shape.item_bytes * tokens * width)
    backward.bytes(2.0 * shape.item_bytes * tokens * width)
    embedding = sum(t.count for t in outer_tensors(architecture) if t.group in ("embedding", "position"))
    head = sum(t.count for t in outer_tensors(architecture) if t.group == "head")
    return HeadCost(
        forward=forward.seconds,
        backward=backward.seconds,
        recomputed=recomputed.seconds,
        flops=forward.flops,
        backward_flops=backward.flops,
        embedding_parameters=embedding // shape.tensor_parallel,
        head_parameters=head // shape.tensor_parallel,
        embedding_is_trained=shape.base_trained and "embed" not in shape.frozen_modules,
        head_is_trained=shape.base_trained and not frozen_head,
        mtp_projection=_mtp_projection_seconds(architecture.hidden_size, shape, rates),
        mtp_projection_parameters=_mtp_projection_parameters(architecture.hidden_size, shape),
    )


def _mtp_projection_parameters(hidden: int, shape: Shape) -> int:
    """Count the parameters on this rank of the projection before a multi-token-prediction layer; 0 without one.

    Its weight has the shape [hidden, 2 * hidden], and is divided over the tensor ranks by rows.
    """
    return 2 * hidden * ceil_div(hidden, shape.tensor_parallel) if shape.has_mtp else 0


MTP_NORMS = 3
"""Norms of a multi-token-prediction layer beyond those of its transformer layer: ``enorm``, ``hnorm``,
``final_layernorm``."""
MTP_NORM_BYTES = 10.0
"""Bytes per element of a fused norm on 16 bits: forward reads and writes, backward reads two tensors and writes one."""
MTP_CONCATENATION_BYTES = 8.0
"""Bytes per element of either input that is copied into the concatenation, and of its gradient that is copied out."""


def _mtp_projection_seconds(hidden: int, shape: Shape, rates: Rates) -> RooflineSeconds:
    """Compute the seconds of the projection before a multi-token-prediction layer, forward and backward.

    It maps [tokens, 2 * hidden], the embedding next to the hidden states, to [tokens, hidden], after norms of both.
    Source: Megatron-core ``transformer/multi_token_prediction.py``, eh_proj.
    """
    if not shape.has_mtp:
        return RooflineSeconds(0.0, 0.0)
    tokens = shape.batch * shape.sequence
    inputs, outputs = 2 * hidden, ceil_div(hidden, shape.tensor_parallel)
    item_bytes = 1 if shape.fp8_products else shape.item_bytes
    tally = Tally(rates)
    tally.product(tokens, outputs, inputs, item_bytes=item_bytes)  # forward
    tally.product(tokens, inputs, outputs, item_bytes=item_bytes)  # gradient of the input
    tally.product(outputs, inputs, tokens, item_bytes=item_bytes)  # gradient of the weight
    residual_tokens = tokens // shape.tensor_parallel if shape.sequence_parallel else tokens
    bytes_per_channel = MTP_NORMS * MTP_NORM_BYTES + 2 * MTP_CONCATENATION_BYTES
    tally.bytes(bytes_per_channel * hidden * residual_tokens)
    return tally.seconds


class TowerShape(Record):
    """The settings of a job that decide the time of its vision tower, or of its encoder."""

    pictures: int
    """Pictures of one micro-batch; samples, for an encoder."""
    rows_per_picture: int
    """Patch rows of one picture; tokens of one sample, for an encoder."""
    trained: bool
    """The base weights of the tower get gradients."""
    adapted: bool
    """LoRA matrices are added to its layers."""
    has_graph: bool
    """Gradients go through it: it, or something below it, is trained, or checkpointing woke it."""


def tower_shape(job: TrainingJob, architecture: Architecture) -> TowerShape | None:
    """Return the settings that decide the tower's time; None without pictures. A sample of an encoder counts as one."""
    if architecture.encoder is not None:
        trained = job.method == "full" and "encoder" not in job.freeze
        adapted = job.method != "full" and job.lora is not None
        rows, batch = encoder_length(job, architecture.encoder), job.micro_batch_size
        return TowerShape(
            pictures=batch, rows_per_picture=rows, trained=trained, adapted=adapted, has_graph=trained or adapted
        )
    if architecture.vision is None:
        return None
    images = pictures_of(job, architecture.vision)
    if not images.patches:
        return None
    trained = job.method == "full" and "vision" not in job.freeze
    adapted = job.method != "full" and job.lora is not None and (not job.lora.parts or "vision" in job.lora.parts)
    woken = architecture.vision.embedding_can_be_hooked and job.checkpointing.mode != "none"
    pictures = max(1, images.pictures)
    return TowerShape(
        pictures=pictures,
        rows_per_picture=ceil_div(images.patches, pictures),
        trained=trained,
        adapted=adapted,
        has_graph=trained or adapted or woken,
    )


def tower_kinds(vision: Vision) -> tuple[tuple[Block, int], ...]:
    """List the kinds of layers of a vision tower, written as layers of a text model, each with the number of layers."""
    return tuple((_as_text(block), count) for block, count in (*vision.blocks, *vision.idle_blocks))


def side_kinds(architecture: Architecture) -> tuple[tuple[Block, int, int], ...]:
    """List the kinds of layers of a tower or an encoder, each with the number of layers and their hidden size."""
    if architecture.encoder is not None:
        return tuple((block, count, architecture.hidden_size) for block, count in architecture.encoder.blocks)
    vision = architecture.vision
    if vision is None:
        return ()
    return tuple((block, count, vision.hidden) for block, count in tower_kinds(vision))


def shape_inside(shape: Shape, tower: TowerShape) -> Shape:
    """Return the settings for the layers of the tower: ``shape``, with the tower's batch, rows and trained weights."""
    return shape._replace(
        batch=tower.pictures,
        sequence=tower.rows_per_picture,
        adapter=shape.adapter if tower.adapted else None,
        base_trained=tower.trained,
        frozen_modules=(),
        fp8_products=False,
    )


@lru_cache(maxsize=64)
def _as_text(block: Block) -> Block:
    """Return a tower's layer with the attention record of text models, which :func:`block_cost` can time."""
    mixer = block.mixer
    if not isinstance(mixer, TowerAttention):
        return block
    return block._replace(
        mixer=Attention(
            mixer.heads,
            mixer.heads,
            mixer.head_dim,
            rotary_dim=mixer.head_dim,
            tensors=mixer.tensors,
            dropout=0.0,
            qkv_bias=False,
            out_bias=False,
            query_norm=None,
            key_norm=None,
            window=None,
        )
    )
