"""Serving: weights, KV cache, and the working set of a prefill.

KV cache per token and layer: 2 x kv_heads x head_dim (a sliding-window layer keeps its window only), or
kv_lora_rank + qk_rope_head_dim with multi-head latent attention, which tensor parallelism does not divide.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import prod

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.program import Timeline
from memcheck.accounts.ranks import Part
from memcheck.accounts.state import block_component_tensors, expert_slices, local_tensor
from memcheck.autograd import Tape, Value, rounded
from memcheck.autograd.context import Context, Setting, elements, touched_by, whole
from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.pipelining import stage_parts
from memcheck.frameworks.transformers.layers import recomputing
from memcheck.frameworks.transformers.profile import STYLE
from memcheck.job.engines.types import Transients
from memcheck.job.images import filling
from memcheck.job.types import DTYPE_BYTES, InferenceJob
from memcheck.memory.serving import ServingRank, Weight, formulas, layer_bytes, ledger
from memcheck.models.module_types import Compressed
from memcheck.models.parameters import outer_tensors, tower_runs
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mixer, ParameterTensor, Rough

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.vision import Vision

QUANTIZED_MILLIBITS = {"int8": 8125, "fp8": 8000, "int4": 4156, "fp4": 4500}
"""Thousandths of a bit per weight of a quantised matrix, scales included: int8 one fp16 scale per 128 (8 + 16 / 128);
fp8 per-tensor scales; int4 (GPTQ, AWQ) fp16 scale and 4-bit zero per 128 (4 + 20 / 128); NVFP4 one fp8 scale per 16."""
BYTE_MILLIBITS = 8000
"""Thousandths of a bit in a byte."""


def weight_bytes(tensor: ParameterTensor, numel: int, weights: str) -> int:
    """Compute the bytes of one resident weight of ``numel`` elements. Only matrices are quantised; others are bf16."""
    dtype = weight_dtype(tensor, weights)
    if dtype in QUANTIZED_MILLIBITS:
        return rounded(ceil_div(numel * QUANTIZED_MILLIBITS[dtype], BYTE_MILLIBITS))
    return rounded(numel * DTYPE_BYTES[dtype])


def weight_dtype(tensor: ParameterTensor, weights: str) -> str:
    """Return the dtype in which a weight is stored. ``weights``: the plan's format.

    Quantisation leaves the head, and all tensors that are not matrices, in bf16.
    """
    if weights not in QUANTIZED_MILLIBITS:
        return weights
    is_matrix = tensor.linear or tensor.group in ("experts", "shared_experts")
    return weights if is_matrix and tensor.group != "head" else "bf16"


def kv_bytes_per_sequence(block: Block, tokens: int, dtype: str, tensor: int) -> int:
    """Compute the bytes of one layer's cache for one sequence of ``tokens``, on one tensor-parallel rank.

    ``dtype``: of the KV cache. ``tensor``: the degree of tensor parallelism.
    """
    mixer, item_bytes = block.mixer, DTYPE_BYTES[dtype]
    if isinstance(block.second_mixer, LatentAttention):  # two latent attentions of equal sizes, each with its cache
        return 2 * kv_bytes_per_sequence(block._replace(second_mixer=None), tokens, dtype, tensor)
    if block.second_mixer is not None:  # attention and a state-space mixer in parallel: a KV cache and a state
        state = ceil_div(block.second_mixer.state_bytes_per_sequence, tensor)
        return state + kv_bytes_per_sequence(block._replace(second_mixer=None), tokens, dtype, tensor)
    if isinstance(mixer, Attention):  # keys and values
        heads = max(1, ceil_div(mixer.kv_heads, tensor))
        cached_tokens = min(tokens, mixer.window) if mixer.window else tokens
        return 2 * heads * mixer.head_dim * cached_tokens * item_bytes
    if isinstance(mixer, LatentAttention):
        return (mixer.kv_lora_rank + mixer.qk_rope_head_dim) * tokens * item_bytes
    if isinstance(mixer, Mixer):
        return ceil_div(mixer.state_bytes_per_sequence, tensor)
    return 0


def inference_ranks(job: InferenceJob, *, inventory: bool = False) -> tuple[RankEstimate, ...]:
    """Predict the peak memory of every pipeline rank of a serving job: weights, KV cache and a prefill.

    ``inventory``: also list the largest tensors and the formulas of each rank.

    Raises:
        UnsupportedError: memcheck has no model of serving this architecture.
    """
    if isinstance(job.architecture, Rough):
        raise UnsupportedError(
            "`rough` models have no attention shape, so their KV cache cannot be estimated",
            "describe the model by name, config or architecture",
            "/model/rough",
        )
    _require_served(job.architecture)
    stages = stage_parts(job.architecture.num_layers, job.layout.pipeline)
    return tuple([_rank(job, job.architecture, stage, rank, inventory) for rank, stage in enumerate(stages)])


def _require_served(architecture: Architecture) -> None:
    """Check that memcheck has a model of serving this architecture.

    Raises:
        UnsupportedError: it is an encoder-decoder, DeepSeek V4, or has a tower that memcheck cannot serve.
    """
    train_only = "size its training, or exclude the plan"
    language_alone = "size its language model alone: `model: {part: language}`"
    if architecture.encoder is not None:
        message = "an encoder-decoder, whose decoder reads what its encoder makes once"
        raise UnsupportedError(f"memcheck has no model of serving {message}", train_only, "/model")
    if any(_has_compressed_cache(block) for block, _ in architecture.blocks):
        message = "DeepSeek V4, whose cache has compressed keys and those of its window"
        raise UnsupportedError(f"memcheck has no model of serving {message}", train_only, "/model")
    if architecture.vision is not None and architecture.vision.text_layers_that_read_images:
        message = "a model whose layers read pictures by cross attention"
        raise UnsupportedError(f"memcheck has no model of serving {message}", language_alone, "/model")
    if architecture.vision is None and any(tower.part in ("vision", "audio") for tower in architecture.others):
        message = f"{architecture.model_type} with its tower"
        raise UnsupportedError(f"memcheck has no model of serving {message}", language_alone, "/model")


def _has_compressed_cache(block: Block) -> bool:
    """Say whether a layer caches compressed keys next to those of its window (DeepSeek V4)."""
    return isinstance(block.mixer, Attention) and isinstance(block.mixer.extension, Compressed)


def _rank(job: InferenceJob, architecture: Architecture, stage: Part, rank: int, inventory: bool) -> RankEstimate:
    """Predict the memory of one pipeline rank at two moments: weights loaded, and a prefill with a full KV cache.

    ``stage``: the layers and ends of the model that are on this rank. ``inventory``: also list the largest tensors.
    """
    content = _tensors(job, architecture, stage, inventory)
    timeline = Timeline()
    timeline.hold("parameters", sum([times * weight.bytes for weight, times in content.weights]))
    timeline.mark("init", "weights at rest")
    timeline.hold("kv_cache", sum([times * size for _, size, times in content.caches]))
    timeline.hold("activations", content.working)
    timeline.hold("logits_and_loss", content.logits(job.batch_size))
    timeline.mark("prefill", "prefill of one sequence with a full cache")
    numel = sum([times * weight.elements for weight, times in content.weights])
    if not inventory:
        return RankEstimate(rank, timeline.instants(), numel)
    return RankEstimate(
        pipeline_rank=rank,
        instants=timeline.instants(),
        parameters=numel,
        ledger=ledger(job, content),
        formulas=formulas(job, content),
    )


def _on_stage(architecture: Architecture, tensor: ParameterTensor, stage: Part) -> bool:
    """Say whether a tensor outside the layers is on a pipeline stage.

    A table that is embedding and head at once (tied) is on the first and on the last stage.
    """
    tied_table = architecture.tie_word_embeddings and tensor.name == f"{architecture.paths.embedding}.weight"
    if tied_table and tensor.group == "embedding":
        return stage.has_embedding or stage.has_head
    if tied_table or tensor.group == "head":
        return stage.has_head
    if tensor.group in ("embedding", "position"):
        return stage.has_embedding
    return True  # norms, counted on every stage


def _tensors(job: InferenceJob, architecture: Architecture, stage: Part, inventory: bool) -> ServingRank:
    """Collect weights, KV caches, prefill activations and logits of one pipeline rank, with bytes.

    Equal layers are listed once, with their number.
    """
    layout, layers = job.layout, architecture.layers()[stage.first_layer : stage.end_layer]
    numbers_of_block: dict[int, list[int]] = {}  # layer numbers, by the identity of the block that equal layers share
    for number, block in enumerate(layers, stage.first_layer):
        numbers_of_block.setdefault(id(block), []).append(number)
    distinct = list({id(block): block for block in layers}.values())
    weights: list[tuple[Weight, int]] = []
    for block in distinct:
        weights += [(weight, len(numbers_of_block[id(block)])) for weight in _of_block(job, block)]
    for tensor in outer_tensors(architecture):
        if not _on_stage(architecture, tensor, stage):
            continue
        weights.append((_weight(tensor, local_tensor(tensor, None, layout.tensor, 1, 1), job.weights), 1))
    if stage.has_embedding:
        for tensors, times, _ in tower_runs(architecture):
            weights += [(_weight(tensor, tensor.shape, job.weights), times) for tensor in tensors]
    tape = _working_set(job, architecture, distinct, inventory=inventory)
    if stage.has_embedding and architecture.vision is not None:
        tower = _tower_working_set(job, architecture.vision, inventory=inventory)
        tape = max(tape, tower, key=lambda replayed: replayed.peak)
    vocabulary = ceil_div(architecture.vocab_size, layout.tensor) if stage.has_head else 0
    return ServingRank(
        weights=tuple(weights),
        caches=_caches(job, architecture, stage, [(block, numbers_of_block[id(block)]) for block in distinct]),
        working=tape.peak,
        inventory=tuple(tape.peak_inventory),
        vocabulary=vocabulary,
    )


def _caches(
    job: InferenceJob, architecture: Architecture, stage: Part, layers: list[tuple[Block, list[int]]]
) -> tuple[tuple[Block, int, int], ...]:
    """Return the KV caches of a rank as (layer, bytes for all sequences, number of such layers).

    ``layers``: each distinct layer of the stage with the numbers of the layers that are equal to it.
    """
    caches: list[tuple[Block, int, int]] = []
    paged_bytes = layer_bytes(job, architecture, stage.first_layer, stage.end_layer)
    for block, numbers in layers:
        if paged_bytes is None:  # how an engine pages this model's cache is not known: its size without paging
            sequence_bytes = kv_bytes_per_sequence(block, job.context_length, job.kv_cache, job.layout.tensor)
            caches.append((block, rounded(job.batch_size * sequence_bytes), len(numbers)))
            continue
        layers_by_size = Counter([paged_bytes.get(number, 0) for number in numbers])
        caches += [(block, size, count) for size, count in layers_by_size.items()]
    return tuple(caches)


def profile_run(job: InferenceJob, architecture: Architecture) -> Transients:
    """Return the peak activation bytes of one forward pass: of the highest layer, and of the vision tower."""
    blocks = list(dict.fromkeys(block for block, _ in architecture.blocks))
    vision = architecture.vision
    loads_tower = job.engine is None or job.engine.pictures
    tower = 0
    if vision is not None and not vision.text_layers_that_read_images and loads_tower:
        tower = _tower_working_set(job, vision, inventory=False).peak
    return Transients(layer=_working_set(job, architecture, blocks, inventory=False).peak, tower=tower)


def _tower_working_set(job: InferenceJob, vision: Vision, *, inventory: bool) -> Tape:
    """Run the forward of each layer of a vision tower without a graph; return the tape of the highest one.

    Its input are the pictures that fill one forward pass of the language model (``pass_tokens``).
    """
    dtype = "fp32" if job.weights == "fp32" else "bf16"
    pictures = filling(vision, job.pass_tokens)
    setting = Setting(
        style=STYLE,
        batch=1,
        sequence=pictures.patches_per_sample,
        images=pictures.pictures_per_sample,
        hidden=vision.hidden,
        param_dtype=dtype,
        compute_dtype=dtype,
        attention="flash",
        trained=False,
        needs_input_gradient=False,
    )
    return _highest([block for block, _ in vision.blocks], setting, "rows of the vision tower", inventory)


def _of_block(job: InferenceJob, block: Block) -> list[Weight]:
    """List the weights of one layer on this rank."""
    layout = job.layout
    weights = []
    for tensor, component in block_component_tensors(block):
        shape = local_tensor(tensor, component, layout.tensor, layout.expert, expert_slices(layout))
        weights.append(_weight(tensor, shape, job.weights))
    return weights


def _weight(tensor: ParameterTensor, shape: tuple[int, ...], weights: str) -> Weight:
    """Return the record of one weight, whose shape on this rank is ``shape``. ``weights``: the plan's format."""
    elements = prod(shape)
    return Weight(
        tensor=tensor,
        shape=shape,
        elements=elements,
        dtype=weight_dtype(tensor, weights),
        bytes=weight_bytes(tensor, elements, weights),
    )


def _working_set(job: InferenceJob, architecture: Architecture, blocks: list[Block], *, inventory: bool) -> Tape:
    """Run the forward of each distinct layer without a graph; return the tape of the highest one.

    Its peak is what a prefill needs for activations. The input has the tokens of the longest forward pass: one chunk of
    a prompt.
    """
    dtype = "fp32" if job.weights == "fp32" else "bf16"
    setting = Setting(
        style=STYLE,
        batch=1,
        sequence=job.pass_tokens,
        hidden=architecture.hidden_size,
        tensor_parallel=job.layout.tensor,
        expert_parallel=job.layout.expert,
        expert_tensor_parallel=expert_slices(job.layout),
        param_dtype=dtype,
        compute_dtype=dtype,
        attention="flash",
        trained=False,
        needs_input_gradient=False,
        streams=architecture.streams,
    )
    return _highest(list(dict.fromkeys(blocks)), setting, "hidden states", inventory)


@lru_cache(maxsize=256)
def _require_block_covered(block: Block, setting: Setting) -> None:
    """Check that the forward pass of a layer meets all of its weights.

    Raises:
        UnsupportedError: the forward pass skips some weights, so that their products would count as 0 bytes.
    """
    read, elements_of_layer = touched_by(recomputing(block, "none")[0], setting), elements(block)
    if read != elements_of_layer:
        message = (
            f"memcheck has no model of serving a layer that meets {read:,} of its {elements_of_layer:,} parameters"
        )
        raise UnsupportedError(message, "size its training, or exclude the plan", "/model")


def _highest(blocks: list[Block], setting: Setting, label: str, inventory: bool) -> Tape:
    """Replay each block alone without a graph, and return the tape with the highest peak. ``label``: of the input."""
    worst = Tape()
    shape, dtype = (setting.sequence * setting.streams, setting.hidden), setting.compute_dtype
    for block in blocks:
        tape = Tape(inventory=inventory)
        tape.grad_enabled = False
        # the loop over the layers holds a layer's input in a variable of its own until the layer returns
        hidden = Value(tape.new(shape, dtype, label), shape, dtype)
        forward, _ = recomputing(block, "none")
        _require_block_covered(block, whole(setting))
        forward(Context(tape, setting), hidden)
        worst = max(worst, tape, key=lambda replayed: replayed.peak)
    return worst
