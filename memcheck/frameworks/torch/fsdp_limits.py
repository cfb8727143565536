"""Limits of FSDP: steps that end in an error before there is a peak, and steps that memcheck has no model of.

Each was run in real processes over gloo with torch 2.13, transformers 5.23 and peft 0.21, and ended in the error that
is named with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memcheck.accounts.state import LocalTensor
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.fsdp import (
    all_gather_dtype,
    has_adapter_units,
    mixes_adapters,
    uses_flat_parameters,
    uses_fsdp,
)
from memcheck.frameworks.torch.pipelining import SPLIT
from memcheck.frameworks.torch.resident import own_adafactor
from memcheck.frameworks.torch.whole_model import model_tensors
from memcheck.job.types import TrainingJob
from memcheck.job.versions import WRAPS
from memcheck.models.types import Architecture
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
    if not job.framework.own_loop or mixes_adapters(job):
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
    if (
        job.base_format and job.framework.adapters.from_framework
    ):  # NotImplementedError (litgpt finetune/lora.py, setup)
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
