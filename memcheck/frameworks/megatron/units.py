"""The units of one model chunk: embedding, layers or checkpoints of several layers, head."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.context import Adapter, Context, Setting, elements, require_covered, touched, touched_by, whole
from memcheck.autograd.curve import Curve, replay
from memcheck.autograd.tensor import Leaf, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.adapters import tensors_with_adapters
from memcheck.frameworks.megatron.embedding import MegatronEmbedding, megatron_embedding_curve
from memcheck.frameworks.megatron.fsdp import gradient_dtype, is_sharded
from memcheck.frameworks.megatron.head import Gradients, MegatronHead, megatron_head_curve
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.frameworks.megatron.prediction import prediction_units
from memcheck.frameworks.megatron.stages import Chunk
from memcheck.frameworks.megatron.tensors import (
    block_tensors,
    embedding_tensors,
    head_tensors,
    padded_vocabulary,
    whole_block,
)
from memcheck.frameworks.torch.rank_tensors import TensorPlacement, frozen_layers
from memcheck.frameworks.torch.rank_tensors import block_tensors as whole_block_tensors
from memcheck.frameworks.torch.tower_tensors import idle_blocks
from memcheck.job.types import TrainingJob
from memcheck.models.decoder import norm_tensors
from memcheck.models.parameters import outer_tensors
from memcheck.models.types import Architecture, Block
from memcheck.record import Record


@lru_cache(maxsize=16)
def idle_tower_tensors(architecture: Architecture) -> tuple[LocalTensor, ...]:
    """List the frozen tensors outside the language model, which the first stage holds under mcore-bridge.

    Source: mcore-bridge 1.2 ``model/mm_gpt_model.py`` (MultimodalGPTModel: ``self.visual`` where ``pre_process``) and
    ``model/mm_gpts/utils.py`` (HuggingFaceVit: transformers' own modules in the model's dtype, whole on every tensor
    rank). A batch of text alone sends one blank picture of a few patches through it, of which only a sum is read.
    """
    if architecture.vision is None and not architecture.others:
        return ()

    tensors: list[LocalTensor] = []
    for block, n, _ in idle_blocks(architecture, has_pictures=False):
        tensors += n * whole_block_tensors(block, TensorPlacement(trained=False))
    return tuple(tensors)


class SharedLayers(Record):
    """What the chunks of one job share, so that it is built once."""

    layers: tuple[Block, ...]
    """Every layer of the model."""
    units: dict[tuple[object, ...], Unit]
    """By what they are made of: blocks, recomputation, precision, what is trained."""


def chunk_units(
    job: TrainingJob,
    architecture: Architecture,
    chunk: Chunk,
    setting: Setting,
    *,
    shares_embedding: bool,
    rank_has_embedding: bool = False,
    inventory: bool = False,
    shared_layers: SharedLayers | None = None,
) -> list[Unit]:
    """Build the units of a model chunk in forward order: embedding, layers, multi-token prediction, head.

    Layers that are equal share one unit, unless ``inventory`` asks for their names. ``rank_has_embedding``: some
    chunk of this rank has the embedding. ``shares_embedding``: its table is the output weight too. ``shared_layers``:
    layers of the same job's other chunks, which are not built again.
    """
    shared_layers = SharedLayers(architecture.layers(), {}) if shared_layers is None else shared_layers
    table_trained = setting.adapter is None and "embed" not in job.freeze
    setting = setting._replace(
        needs_input_gradient=table_trained or _input_needs_gradient(job, chunk, setting),
        holds_output_gradient=not chunk.has_head and code_of(setting.style).holds_inputs,
    )
    units: list[Unit] = []
    if chunk.has_embedding:
        units.append(_embedding_unit(job, architecture, setting, shares_embedding, table_trained, inventory))
    layer_units, setting = _layer_units(job, architecture, chunk.layers, setting, shared_layers, inventory)
    units += layer_units
    if chunk.mtp_layers:
        units += _prediction_layers(job, architecture, chunk, setting, inventory, embeds=not rank_has_embedding)
    if chunk.has_head:
        embedding_unit = units[0] if chunk.has_embedding else None
        trained = table_trained if shares_embedding else setting.adapter is None and "head" not in job.freeze
        units.append(_head_unit(job, architecture, setting, embedding_unit, shares_embedding, trained, inventory))
    return units


def _input_needs_gradient(job: TrainingJob, chunk: Chunk, setting: Setting) -> bool:
    """Say whether the first layer of this model chunk computes a gradient of its input.

    A trained embedding, which needs it, is considered elsewhere.
    """
    adapter, frozen = setting.adapter, frozen_layers(job.freeze)
    bridged = setting.option("bridge_backend") == "mcore-bridge"
    if adapter is not None and (bridged or setting.option("recompute_granularity") == "full"):
        return True
    earlier_layers = range(chunk.layers[0] if chunk.layers else 0)
    return any(adapter is not None or i not in frozen for i in earlier_layers)


def _embedding_unit(
    job: TrainingJob, architecture: Architecture, setting: Setting, tied: bool, trained: bool, inventory: bool
) -> Unit:
    """Build the embedding's unit: its tensors on this rank and its memory curve.

    ``tied``: the rank's output layer uses the table, too. ``trained``: the table gets a gradient.
    """
    passes_no_gradient = setting.adapter is not None or 0 in frozen_layers(job.freeze)
    embedding = MegatronEmbedding(
        vocab=padded_vocabulary(architecture.vocab_size, job),
        positions=architecture.learned_positions,
        dropout=architecture.embedding_dropout,
        tied=tied,
        trained=trained,
        output_lives_to_forward_end=not setting.needs_input_gradient and passes_no_gradient,
    )
    _require_embedding_covered(architecture, embedding, whole(setting))
    curve = _embedding_curve(embedding, setting, inventory)
    tensors = _freeze_unless(embedding_tensors(architecture, job), trained) + idle_tower_tensors(architecture)
    return Unit(kind="embedding", name="embedding", tensors=tensors, first_curve=curve, later_curve=curve)


def _head_unit(
    job: TrainingJob,
    architecture: Architecture,
    setting: Setting,
    embedding_unit: Unit | None,
    tied: bool,
    trained: bool,
    inventory: bool,
) -> Unit:
    """Build the unit of final norm, output layer and loss: its tensors on this rank and its memory curve.

    ``embedding_unit``: the chunk's, whose gradients Megatron-FSDP puts into the same buffer. ``tied``: the embedding's
    table is the output weight. ``trained``: that weight gets a gradient.
    """
    main_gradient_dtype = gradient_dtype(job) if is_sharded(job) else None
    other_tensors = [t for t in embedding_unit.tensors if t.trained] if embedding_unit is not None else []
    has_other_tensors = main_gradient_dtype is not None and not tied
    head = MegatronHead(
        vocab=padded_vocabulary(architecture.vocab_size, job),
        final_norm=architecture.final_norm,
        tied=tied,
        trained=trained,
        main_gradient_dtype=main_gradient_dtype,
        other_elements=sum([t.numel for t in other_tensors]) if has_other_tensors else 0,
    )
    _require_head_covered(architecture, head, whole(setting))
    norm_trained = setting.adapter is None and "norm" not in job.freeze
    curve = _head_curve(head, setting._replace(trained=norm_trained), inventory)
    tensors = _freeze_unless(head_tensors(architecture, job, shares=tied), trained)
    return Unit(kind="head", name="head and loss", tensors=tensors, first_curve=curve, later_curve=curve)


def _layer_units(
    job: TrainingJob,
    architecture: Architecture,
    layer_numbers: tuple[int, ...],
    setting: Setting,
    shared_layers: SharedLayers,
    inventory: bool,
) -> tuple[list[Unit], Setting]:
    """Build the units of a chunk's layers, and return the setting of the units after them.

    ``layer_numbers``: the chunk's layers. ``shared_layers``: units that were built for other chunks of the job. After
    the first trained layer every input needs a gradient. Equal layers share one unit object, and so one replay.
    """
    frozen = frozen_layers(job.freeze)
    bf16_numbers = bf16_layers(setting, len(shared_layers.layers))
    units: list[Unit] = []
    layers, numbered = shared_layers.layers, bool(frozen or bf16_numbers or inventory)
    previous: tuple[Block, bool] | None = None
    for group, recompute in recompute_groups(job, setting, layer_numbers):
        # models of thousands of layers: a layer that equals the one before it needs no key
        if previous is not None and len(group) == 1:
            previous_layer, previous_recompute = previous
            if layers[group[0]] is previous_layer and recompute is previous_recompute:
                units.append(units[-1])
                continue
        blocks = tuple([layers[number] for number in group])
        trained = setting.adapter is None and not frozen.issuperset(group)
        is_bf16 = group[0] in bf16_numbers
        key = (
            *map(id, blocks),
            recompute,
            is_bf16,
            trained,
            setting.needs_input_gradient,
            setting.holds_output_gradient,
        )
        unit = shared_layers.units.get(key)
        if unit is None:
            group_setting = (in_bf16(setting) if is_bf16 else setting)._replace(trained=trained)
            unit = _checkpoint_unit(job, architecture.hidden_size, blocks, group_setting, recompute, inventory)
            shared_layers.units[key] = unit
        units.append(Unit("block", _name(group), *unit[2:]) if inventory else unit)
        # the next layer may be equal if its number decides nothing, and its input needs a gradient as this one's does
        repeats = setting.needs_input_gradient and len(group) == 1 and not numbered
        previous = (blocks[0], recompute) if repeats else None
        if not setting.needs_input_gradient:  # the next layer's input needs one if this layer has a graph
            setting = setting._replace(needs_input_gradient=trained or unit.first_curve.output_gradient_bytes > 0)
    return units, setting


def _checkpoint_unit(
    job: TrainingJob, hidden: int, blocks: tuple[Block, ...], setting: Setting, recompute: bool, inventory: bool
) -> Unit:
    """Build the unit of one layer, or of the consecutive layers of one checkpoint: their tensors and their curve.

    ``setting``: the layers' own; its ``trained`` says whether their base weights get gradients. The tensors of a single
    layer are the tuple that all equal layers share.
    """
    for block in blocks:
        _require_block_covered(block, whole(setting))
    curve = _layers_curve(blocks, setting, recompute, inventory)
    tensors_by_block = [block_tensors(block, job, hidden) for block in blocks]
    if setting.adapter is not None:
        tensors_by_block = [_with_adapters(tensors, setting, setting.adapter) for tensors in tensors_by_block]
    tensors = tensors_by_block[0] if len(blocks) == 1 else tuple(chain.from_iterable(tensors_by_block))
    if setting.adapter is None:
        tensors = _freeze_unless(tensors, setting.trained)
    return Unit(kind="block", name="", tensors=tensors, first_curve=curve, later_curve=curve)


def renumbered(job: TrainingJob, setting: Setting, units: list[Unit], chunk: Chunk) -> list[Unit]:
    """Give the units of a chunk the layer numbers of ``chunk``, whose layers are otherwise the same."""
    first = int(chunk.has_embedding)
    names = [_name(group) for group, _ in recompute_groups(job, setting, chunk.layers)]
    layers = zip(units[first:], names, strict=False)
    return [*units[:first], *(Unit(u.kind, name, *u[2:]) for u, name in layers), *units[first + len(names) :]]


def name_of(job: TrainingJob, setting: Setting, chunk: Chunk, place: int) -> str:
    """Return the name of the unit at a place of a chunk, as :func:`renumbered` has it; empty for no layers."""
    count = _uniform_checkpoint_size(job, setting) or 1
    first = (place - int(chunk.has_embedding)) * count
    group = chunk.layers[first : first + count] if first >= 0 else ()
    return _name(group) if group else ""


def _name(group: tuple[int, ...]) -> str:
    """The name of a unit of layers: ``layer 3``, or ``layers 0-3``."""
    return f"layer {group[0]}" if len(group) == 1 else f"layers {group[0]}-{group[-1]}"


def _with_adapters(tensors: tuple[LocalTensor, ...], setting: Setting, adapter: Adapter) -> tuple[LocalTensor, ...]:
    """Return a layer's frozen tensors, and the tensors of its LoRA adapters on one rank."""
    backend = setting.option("bridge_backend")
    return tensors_with_adapters(tensors, adapter, backend, setting.tensor_parallel, setting.expert_tensor_parallel)


def _freeze_unless(tensors: tuple[LocalTensor, ...], trained: bool) -> tuple[LocalTensor, ...]:
    """Return the tensors as they are if ``trained``, else all frozen."""
    return tensors if trained else tuple(t._replace(trained=False) for t in tensors)


def bf16_layers(setting: Setting, layers: int) -> set[int]:
    """Return the layers that ``first_last_layers_bf16`` keeps out of fp8.

    Source: core/fp8_utils.py, is_first_last_bf16_layer.
    """
    if not setting.option("first_last_layers_bf16"):
        return set()
    start = int(str(setting.option("num_layers_at_start_in_bf16", 1)))
    end = int(str(setting.option("num_layers_at_end_in_bf16", 1)))
    return {*range(start), *range(layers - end, layers)}


def in_bf16(setting: Setting) -> Setting:
    """Return the setting without fp8."""
    return setting._replace(options=tuple((name, value) for name, value in setting.options if name != "fp8_format"))


def recompute_groups(job: TrainingJob, setting: Setting, layers: tuple[int, ...]) -> list[tuple[tuple[int, ...], bool]]:
    """Group the layers of a chunk by checkpoints: (layers, whether they are checkpointed together).

    ``uniform``: every ``recompute_num_layers`` consecutive layers are one checkpoint. ``block``: the first
    ``recompute_num_layers`` layers of each chunk are checkpointed one by one (transformer_block.py).

    Raises:
        UnsupportedError: ``recompute_num_layers`` is 0.
    """
    if setting.option("recompute_granularity") != "full":
        return [((i,), False) for i in layers]
    if setting.option("recompute_method", "uniform") == "block":
        count = _layers_per_checkpoint(setting)
        return [((i,), n < count) for n, i in enumerate(layers)]
    together = _uniform_checkpoint_size(job, setting)
    if together is None:
        return [((i,), i % job.checkpointing.every_n_layers == 0) for i in layers]
    if together < 1:
        raise UnsupportedError(
            "recompute_num_layers: 0 makes checkpoints of no layer, one after the other without end",
            "state how many layers a checkpoint has, or recompute_method: block",
            "/training/options/recompute_num_layers",
        )
    return [(layers[n : n + together], True) for n in range(0, len(layers), together)]


def _uniform_checkpoint_size(job: TrainingJob, setting: Setting) -> int | None:
    """Return how many consecutive layers one checkpoint has; None: each layer is a unit of its own."""
    block = setting.option("recompute_method", "uniform") == "block"
    if setting.option("recompute_granularity") != "full" or block or job.checkpointing.every_n_layers > 1:
        return None
    return _layers_per_checkpoint(setting)


def _layers_per_checkpoint(setting: Setting) -> int:
    """``recompute_num_layers``: consecutive layers of one checkpoint."""
    return int(str(setting.option("recompute_num_layers", 1)))


@lru_cache(maxsize=1024)
def _require_block_covered(block: Block, setting: Setting) -> None:
    """Check that Megatron's layout and forward pass of a layer cover all parameters that the model has."""
    numel = sum(t.numel for t in whole_block(block, setting.hidden))
    require_covered(numel, max(numel, elements(block)), "a layer's parameters", "megatron")
    used = touched_by(lambda ctx, x: code_of(setting.style).layers(ctx, (block,), x, recompute=False), setting)
    require_covered(used, numel, "a layer", "megatron")


@lru_cache(maxsize=256)
def _require_embedding_covered(architecture: Architecture, embedding: MegatronEmbedding, setting: Setting) -> None:
    """Check that the embedding's forward pass covers all its parameters. ``embedding``: its table is padded."""
    numel = sum(
        t.count for t in outer_tensors(architecture._replace(final_norm=None, head=False, vocab_size=embedding.vocab))
    )
    require_covered(
        touched(lambda ctx: code_of(setting.style).embedding(ctx, embedding), setting),
        numel,
        "the embedding",
        "megatron",
    )


@lru_cache(maxsize=256)
def _require_head_covered(architecture: Architecture, head: MegatronHead, setting: Setting) -> None:
    """Check that the head's forward pass covers the final norm and the output weight.

    ``head``: its weight is padded, and counted even where the embedding's table is the same tensor.
    """
    norm = architecture.final_norm
    numel = sum(t.count for t in norm_tensors(norm)) + head.vocab * (
        architecture.hidden_size + int(architecture.head_bias)
    )

    def run(ctx: Context) -> None:
        shape = (ctx.tokens, ctx.hidden)
        x = Value(ctx.tape.new(shape, setting.compute_dtype, "last hidden state"), shape, setting.compute_dtype, Leaf())
        code_of(setting.style).head(ctx, head, x, Gradients([], []))

    require_covered(touched(run, setting), numel, "the head", "megatron")


@lru_cache(maxsize=1024)
def _layers_curve(blocks: tuple[Block, ...], setting: Setting, recompute: bool, inventory: bool) -> Curve:
    """Replay consecutive layers forward and backward, and return their memory curve in bytes.

    ``recompute``: they are checkpointed as one. ``inventory``: also list every live tensor by name.
    """
    rows = setting.batch * setting.sequence
    if setting.sequence_parallel:
        rows //= setting.tensor_parallel

    def forward(ctx: Context, x: Value) -> Value:
        return code_of(setting.style).layers(ctx, blocks, x, recompute=recompute)

    return replay(forward, setting, (rows, setting.hidden), setting.compute_dtype, inventory=inventory)


@lru_cache(maxsize=256)
def _embedding_curve(embedding: MegatronEmbedding, setting: Setting, inventory: bool) -> Curve:
    """The memory curve of the embedding, forward and backward; equal settings share it."""
    return megatron_embedding_curve(embedding, setting, code_of(setting.style).embedding, inventory=inventory)


@lru_cache(maxsize=256)
def _head_curve(head: MegatronHead, setting: Setting, inventory: bool) -> Curve:
    """The memory curve of head and loss, forward and backward; equal settings share it."""
    return megatron_head_curve(head, setting, code_of(setting.style).head, inventory=inventory)


def _prediction_layers(
    job: TrainingJob, architecture: Architecture, chunk: Chunk, setting: Setting, inventory: bool, *, embeds: bool
) -> list[Unit]:
    """Build the units of a chunk's multi-token-prediction layers (MTP).

    ``embeds``: the units include the embedding's table, because the rank has no other copy. ``inventory``: every tensor
    is listed by name.
    """
    return prediction_units(job, architecture, chunk.mtp_layers, setting, embeds=embeds, inventory=inventory)
