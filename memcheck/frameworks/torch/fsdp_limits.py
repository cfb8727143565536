"""Limits of FSDP: steps that end in an error before there is a peak, and steps that memcheck has no model of.

Each was run in real processes over gloo with torch 2.13, transformers 5.23 and peft 0.21, and ended in the error that
is named with it.

Shards of the states: a lower bound of the peak, and what padding adds to each shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from memcheck.accounts.ranks import Part
from memcheck.accounts.state import LocalTensor, StateBytes
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.data_parallel import (
    all_gather_dtype,
    fsdp_group,
    has_adapter_units,
    mixes_adapters,
    uses_flat_parameters,
    uses_fsdp,
)
from memcheck.frameworks.torch.pipelining import SPLIT, stage_parts
from memcheck.frameworks.torch.rank_tensors import block_tensors, frozen_layers, placement_of
from memcheck.frameworks.torch.resident import own_adafactor, shard_placement, sharding, state_bytes
from memcheck.frameworks.torch.tower_tensors import model_tensors, tensors_of
from memcheck.job.types import TrainingJob
from memcheck.job.versions import WRAPS
from memcheck.models.types import Architecture, Block, Moe
from memcheck.record import Record


class Stop(Record):
    """Why a step does not run."""

    message: str
    pointer: str
    """The key that decides it."""
    help: str


def fsdp_limits(job: TrainingJob, architecture: Architecture) -> Iterator[Stop]:
    """Yield every reason why FSDP raises an error in this step; nothing for a job that FSDP does not wrap."""
    if not uses_fsdp(job) or job.layout.pipeline > 1:
        return
    units = list(model_tensors(job, architecture))
    groups = [(*units[0], *units[-1]), *units[1:-1]]
    if uses_flat_parameters(job):
        yield from _mixed_flat(job, groups)
        yield from _mixed_product(job, groups)
        yield from _late_head(job, groups[0])
    else:
        yield from _mixed_group(job, groups)
        yield from _statistics(job)
        yield from _shared_twice(job, architecture)


def _dtype(job: TrainingJob, tensor: LocalTensor) -> str:
    return tensor.dtype or job.recipe.params


def _mixed_group(job: TrainingJob, groups: Sequence[tuple[LocalTensor, ...]]) -> Iterator[Stop]:
    """Yield a stop for trained parameters of several dtypes in one FSDP2 group.

    AssertionError: FSDP expects uniform original parameter dtype (_fsdp_param_group.py, _init_mp_dtypes).
    """
    for tensors in groups:
        dtypes = sorted({_dtype(job, t) for t in tensors if t.trained})
        if len(dtypes) > 1:
            odd = next(t.name for t in tensors if t.trained and t.dtype is not None and t.dtype != job.recipe.params)
            message = f"FSDP2 trains no {' and '.join(dtypes)} in one group: `{odd}` alone stays in fp32"
            yield Stop(message, "/training/precision", _in_one_dtype(job))
            return


def _statistics(job: TrainingJob) -> Iterator[Stop]:
    """Yield a stop for Adafactor under FSDP2, whose row and column statistics do not work with DTensor gradients.

    RuntimeError: aten.add_.Tensor got mixed torch.Tensor and DTensor: transformers' statistics are plain tensors (5.23
    optimization.py, ``Adafactor.step``). RuntimeError: aten.pow_.Scalar: in-place operations that require placement
    changes are not supported: torch's norm of a column is partial on every rank (torch/optim/_adafactor.py,
    ``_single_tensor_adafactor`` and ``_multi_tensor_adafactor``).
    """
    if job.optimizer.name != "adafactor":
        return
    if own_adafactor(job):
        message = "transformers' Adafactor has plain tensors for rows and columns, to which it adds FSDP2's DTensors"
        yield Stop(message, "/training/optimizer", "write `optimizer: adamw`, or `options.fsdp_version: 1`")
    else:
        message = "torch's Adafactor squares in place the norm of a column, of which FSDP2's ranks have a part each"
        yield Stop(message, "/training/optimizer", "write `optimizer: adamw`")


def _shared_twice(job: TrainingJob, architecture: Architecture) -> Iterator[Stop]:
    """Yield a stop for a tied matrix that Accelerate wraps into two FSDP2 groups.

    ValueError: Parameter is shared with a parameter already managed by another FSDP group (_fsdp_state.py). Accelerate
    asks whether head and embedding share a matrix (accelerate 1.15 utils/fsdp_utils.py, ``fsdp2_prepare_model``). For a
    module in ``modules_to_save`` it sees peft's copy, so that the original is in both groups.
    """
    copied = job.lora is not None and {"lm_head", "embed_tokens"} & set(job.lora.modules_to_save)
    if job.groups_embedding_and_head and architecture.tie_word_embeddings and copied:
        name = min(copied)
        yield Stop(
            f"Accelerate wraps the copy of `{name}` and its tied matrix into two FSDP2 groups",
            "/training/lora/modules_to_save",
            "leave it out, or write `options.fsdp_version: 1`",
        )


def _mixed_flat(job: TrainingJob, groups: Sequence[tuple[LocalTensor, ...]]) -> Iterator[Stop]:
    """Yield a stop for tensors of several dtypes in one flat parameter of FSDP1.

    ValueError: Must flatten tensors with uniform dtype (_flat_param.py, _validate_tensors_to_flatten). Trained tensors
    inside frozen modules are a unit of their own, unless only layers are units. A quantised base is stored in the dtype
    that its units need.
    """
    if job.base_format:
        return
    for tensors in groups:
        flat_tensors = [t for t in tensors if not (t.trained and has_adapter_units(job))]
        dtypes = sorted({_dtype(job, t) for t in flat_tensors})
        if len(dtypes) > 1:
            odd = next(t.name for t in flat_tensors if _dtype(job, t) != job.recipe.params)
            message = f"FSDP1 flattens no {' and '.join(dtypes)} into one tensor: `{odd}` alone stays in fp32"
            yield Stop(message, "/training/precision", _in_one_dtype(job))
            return


def _in_one_dtype(job: TrainingJob) -> str:
    mixed = "`precision: bf16-mixed`" if job.recipe.params == "bf16" else "`precision: fp16-mixed`"
    return f"write {mixed}, which loads all parameters in fp32, or replicate the model (`zero_stage: 0`)"


def _mixed_product(job: TrainingJob, groups: Sequence[tuple[LocalTensor, ...]]) -> Iterator[Stop]:
    """Yield a refusal if FSDP1 gathers adapters in another dtype than the one to which peft casts their inputs.

    torch then raises "expected m1 and m2 to have the same dtype". peft casts an adapter's input to the dtype of its
    stored weights (tuners/tuners_utils.py, _cast_input_dtype). FSDP1, which wraps each adapter as a unit, gathers these
    weights after that, in ``MixedPrecision(param_dtype)``. FSDP2 has gathered them with their layer before.
    """
    if not job.framework.has_user_loop or mixes_adapters(job):
        return  # accelerate's autocast casts rows and weights alike; adapters of a layer's unit are gathered with it
    gathered = all_gather_dtype(job)
    stored_dtypes = {_dtype(job, t) for tensors in groups for t in tensors if ".lora_" in t.name}
    for dtype in sorted(stored_dtypes - {gathered} if gathered is not None else ()):
        yield Stop(
            f"FSDP1 gathers adapters that rest in {dtype} as {gathered}, after peft has cast their rows to {dtype}",
            "/training/lora/dtype",
            f"write `lora.dtype: {gathered}`, or `options.fsdp_version: 2`",
        )


def _late_head(job: TrainingJob, ends: tuple[LocalTensor, ...]) -> Iterator[Stop]:
    """Yield a stop for a chunked loss that runs the head after FSDP1's root has been resharded.

    RuntimeError: size mismatch. After the root's forward its parameters are views of a shard (_flat_param.py, reshard),
    unless ``reshard_after_forward`` is false.
    """
    head_trained_apart = job.lora is not None and any(
        t.trained and t.name.startswith("lm_head") and ".lora_" not in t.name for t in ends
    )
    if job.loss.kind == "chunked" and job.layout.reshard_after_forward and not head_trained_apart:
        yield Stop(
            "FSDP1 has put the root's shard in place of the head when the model's forward returns, and a chunked loss "
            "runs the head after that",
            "/training/loss",
            "write `reshard_after_forward: false`, `options.fsdp_version: 2` or `loss: fused-linear`",
        )


def require_modelled(job: TrainingJob, architecture: Architecture) -> None:
    """Check that memcheck has a model of how FSDP and the pipeline run the job.

    Raises:
        UnsupportedError: it has none.
    """
    _require_own_tensors(job, architecture)
    _require_whole_recompute(job)
    _require_plain_units(job, architecture)


def _require_own_tensors(job: TrainingJob, architecture: Architecture) -> None:
    """Check that no layer borrows the tensors of another one while FSDP wraps layers.

    Raises:
        UnsupportedError: groups of tensors that several layers use.
    """
    if uses_fsdp(job) and any(block.shared_with.later for block, _ in architecture.blocks):
        raise UnsupportedError(
            "memcheck has no model of layers that share tensors under FSDP",
            "replicate the model, or cut it by DeepSpeed's ZeRO",
            "/parallelism",
        )


def _require_plain_units(job: TrainingJob, architecture: Architecture) -> None:
    """Check that no flat parameter holds adapters together with packed weights, or with weights of a tower.

    Raises:
        UnsupportedError: one flat parameter would hold both.
    """
    if not mixes_adapters(job):
        return
    if job.base_format and job.framework.adapters.are_own_code:
        # NotImplementedError (litgpt finetune/lora.py, setup)
        message = f"the scripts of {job.framework.name} refuse to train a quantised model on several GPUs"
        raise UnsupportedError(message, "train on one GPU, or write `method: lora`", "/training/method")
    what = "quantised weights" if job.base_format else ""
    if architecture.vision is not None or architecture.encoder is not None or architecture.others:
        what = "a tower or an encoder"
    if what:
        raise UnsupportedError(
            f"memcheck has no model of FSDP1 units in which adapters share one flat parameter with {what}",
            f"write `options.{WRAPS}: true`, or `options.fsdp_version: 2`",
            "/training/method",
        )


def _require_whole_recompute(job: TrainingJob) -> None:
    """Check that no layer is recomputed under a schedule that splits the backward.

    Raises:
        UnsupportedError: layers would be recomputed for the inputs, and again for each of their weights.
    """
    layout = job.layout
    if layout.pipeline == 1 or layout.pipeline_schedule not in SPLIT or job.checkpointing.mode == "none":
        return
    why = "memcheck has no model of layers that are recomputed for each of their weights, which saves next to nothing"
    if job.checkpointing.mode == "selective":
        why = "torch stops at a second backward of layers of which some operators' outputs are kept"
    raise UnsupportedError(
        f"`{layout.pipeline_schedule}` splits the backward: {why}",
        "choose activation_checkpointing: none, or pipeline_schedule: interleaved-1f1b",
        "/training/activation_checkpointing",
    )


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Return a lower bound of the peak in bytes: the resident states of the fullest pipeline rank."""
    frozen = frozen_layers(job.freeze)
    layers = [(id(block), i in frozen) for i, block in enumerate(architecture.layers())]
    # ranks with as many layers of each kind rest on as many bytes
    distinct_parts: dict[tuple[bool, bool, frozenset[tuple[tuple[int, bool], int]]], Part] = {}
    for stage in stage_parts(architecture.num_layers, job.layout.pipeline, job.layout.fewer_layers):
        counts = Counter(layers[stage.first_layer : stage.end_layer])
        distinct_parts.setdefault((stage.has_embedding, stage.has_head, frozenset(counts.items())), stage)
    return max(_state_bytes_of(job, architecture, stage) for stage in distinct_parts.values())


def _state_bytes_of(job: TrainingJob, architecture: Architecture, stage: Part) -> int:
    """Return the resident bytes of parameters, adapters, master weights and optimizer states of one pipeline rank."""
    total = StateBytes()
    units = list(tensors_of(job, architecture, stage))
    counts = Counter(map(id, units))  # layers that are alike share their tensors
    for tensors in {id(unit): unit for unit in units}.values():
        total = total.plus(state_bytes(job, tensors), counts[id(tensors)])
    states, shards = total.optimizer_states, sharding(job)
    if job.layout.zero_stage == 1 and not shards.uses_flat_buffers:
        states //= shards.optimizer_ranks  # whole tensors are dealt out: the fullest rank has the mean or more
    return total.parameters + total.adapters + total.master_weights + states


LEAST_BYTES = 2**28
LEAST_SHARE = 1 / 4


class PaddedLayer(Record):
    """One layer while its parameters are gathered."""

    experts: int
    """Experts that a rank holds before FSDP2 divides them."""
    shards: int
    """Ranks over which FSDP2 divides these experts."""
    padded_bytes: int
    """Bytes."""
    unpadded_bytes: int
    """Bytes without padding."""


def padded_layer(job: TrainingJob, model: Architecture) -> PaddedLayer | None:
    """Return the layer of experts with most padding while gathered.

    None if no layer's padding is at least a quarter of its size and 256 MiB.
    """
    if not uses_fsdp(job) or job.fsdp_version == 1 or (job.base_format is not None and not job.has_four_bit_base):
        return None  # a base in other bits is one that FSDP does not shard: MEM408
    layers = [_padded_layer(job, model, block) for block, _ in model.blocks if isinstance(block.mlp, Moe)]
    most_padded = max(layers, key=lambda layer: layer.padded_bytes - layer.unpadded_bytes, default=None)
    if most_padded is None:
        return None
    padding = most_padded.padded_bytes - most_padded.unpadded_bytes
    return most_padded if padding >= max(LEAST_BYTES, most_padded.unpadded_bytes * LEAST_SHARE) else None


def ranks_without_padding(job: TrainingJob, layer: PaddedLayer) -> int:
    """The most ranks that divide the sharding group and are no more than the layer's experts."""
    return max(n for n in range(1, layer.experts + 1) if job.layout.shard_group % n == 0)


def _padded_layer(job: TrainingJob, model: Architecture, block: Block) -> PaddedLayer:
    """Return the bytes of a layer of experts while it is gathered, with the padding of its shards and without.

    FSDP2 shards along the first dimension, the experts: if they do not divide, every rank's shard is padded.
    """

    def gathered_bytes(tensors_and_shards: list[tuple[LocalTensor, int]]) -> int:
        """Return the bytes of the gathered parameters of one FSDP2 group."""
        group = fsdp_group(
            tensors_and_shards, job.recipe, casts_every_tensor=False, accumulation_dtype=job.recipe.reduce
        )
        return group.unsharded_params

    sharded = [shard_placement(job, t, job.layout.shard_group) for t in block_tensors(block, placement_of(job))]
    padded, unpadded = gathered_bytes(sharded), gathered_bytes([(t, 1) for t, _ in sharded])
    experts, shards = max((t.shape[0], shards_of_tensor) for t, shards_of_tensor in sharded if t.expert)
    return PaddedLayer(experts=experts, shards=shards, padded_bytes=padded, unpadded_bytes=unpadded)
