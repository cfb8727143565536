"""One training step of the plan, in the order in which a training loop writes it.

``build_single`` puts model, wrappers, loss and optimizer together for a rank that holds the whole depth of the model.

The plan's loss on a model's output, with what Liger's fused linear cross entropy allocates.

Each loss gets the token ids and labels of one micro-batch, and puts on ``kept`` what the training loop's own variables
would still refer to during backward. Liger (linkedin/Liger-Kernel ops/fused_linear_cross_entropy.py) takes tokens in
chunks; a chunk's logits are overwritten by their gradient in the kernel, so that one chunk of them is all there is. The
gradients of hidden states and head are made in the forward and kept for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

from memcheck.frameworks.torch.data_parallel import autocast_dtype
from memcheck.job.training import encoder_length, target_length
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Rough
from memcheck.record import Record
from memcheck.verify.build.model import base_of, body_of, build_model, compared_columns, head_of, labels_of, mark_loss
from memcheck.verify.build.pictures import picture_batch, sees
from memcheck.verify.build.tensors import DTYPES
from memcheck.verify.build.trained import adapt, freeze, make_optimizers, trained_parameters
from memcheck.verify.build.wrap import Mesh, Wrapped, recompute, wrap
from memcheck.verify.compare import Watch, enter_loss


def rows_per_chunk(rows: int, vocabulary: int, hidden: int) -> int:
    """Liger's rule: as many chunks as the vocabulary is wider than the hidden size, rounded up to a power of two."""
    parts = -(-vocabulary // hidden)
    each = -(-rows // parts)
    return 1 << max(0, (each - 1).bit_length())


class FusedLinearCrossEntropy(torch.autograd.Function):
    """``apply(hidden, weight, labels)``: the summed loss."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss and both gradients, chunk by chunk."""
        del labels  # they decide no size
        rows, width = hidden.shape
        each = rows_per_chunk(rows, weight.shape[0], width)
        hidden_gradient = torch.zeros_like(hidden)
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # a frozen head has none
        losses = torch.zeros(rows, dtype=torch.float32, device=hidden.device)
        for start in range(0, rows, each):
            part = hidden[start : start + each]
            logits = part @ weight.t()
            hidden_gradient[start : start + each] = logits @ weight
            if weight_gradient is not None:
                weight_gradient += logits.t() @ part
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """The gradients are there already; the kernel scales them in place."""
        del gradient
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient, weight_gradient, None


Brought: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"
"""Token ids, or a dict by name: token ids and all else that a model of pictures takes."""
LossOf = Callable[[Brought, torch.Tensor, list[Any]], torch.Tensor]


def named(brought: Brought) -> dict[str, torch.Tensor]:
    """Inputs by the names of the model's arguments."""
    if isinstance(brought, dict):
        return brought
    return {"input_features" if brought.is_floating_point() else "input_ids": brought}  # sounds are features


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """Each position's label is the next token; the last has none (transformers loss_utils.py, ForCausalLMLoss)."""
    return F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1)


def make_loss(job: TrainingJob, model: nn.Module, inner: nn.Module, watch: Watch) -> LossOf:
    """The loss of one micro-batch. ``model`` is called; ``inner`` is what a wrapper may have put it into."""
    kind, keep = job.loss.kind, job.loss.keep_logits
    if job.head.kind == "embedding":
        return compared_columns(model, watch, lambda ids: autocast(job, ids.device.type))
    if kind == "fused-linear":
        return _fused(model, inner, watch)
    if kind == "chunked":
        return _chunked(model, inner, watch, job.loss.chunks)
    if kind == "vocab-parallel" or not job.loss.upcast:
        return _on_logits(model, upcast=job.loss.upcast, keep=keep)
    return _standard(model, keep=keep, masks=job.needs_attention_mask and reads_both_ways(job))


def reads_both_ways(job: TrainingJob) -> bool:
    """Whether the model is an encoder, or has one of words: it is told of padding by a mask of its own."""
    a = job.architecture
    if isinstance(a, Rough):
        return False
    if a.encoder is not None:
        return not a.encoder.mel_bins
    return all(isinstance(block.mixer, Attention) and block.mixer.bidirectional for block, _ in a.blocks)


def _standard(model: nn.Module, *, keep: bool, masks: bool) -> LossOf:
    """transformers' own: the model is given the labels, casts its logits to fp32 and returns both."""

    def loss_of(ids: Brought, labels: torch.Tensor, kept: list[Any]) -> torch.Tensor:
        given = named(ids)
        more = {"attention_mask": torch.ones_like(given["input_ids"])} if masks else {}
        out = model(**given, **more, labels=labels, use_cache=False)
        if keep:
            kept.append(out)
        loss: torch.Tensor = out.loss
        return loss

    return loss_of


def _on_logits(model: nn.Module, *, upcast: bool, keep: bool) -> LossOf:
    """torch's cross entropy on the logits, cast to fp32 or not."""

    def loss_of(ids: Brought, labels: torch.Tensor, kept: list[Any]) -> torch.Tensor:
        logits = model(**named(ids), use_cache=False).logits
        if keep:
            kept.append(logits)
        flat = logits.flatten(0, 1)
        return F.cross_entropy(flat.float() if upcast else flat, shifted(labels))

    return loss_of


def _chunked(model: nn.Module, inner: nn.Module, watch: Watch, chunks: int) -> LossOf:
    """Head and loss on slices of tokens, each recomputed in backward, outside of the model's forward."""
    from torch.utils.checkpoint import checkpoint

    base, head = base_of(inner), head_of(inner)

    def hidden(input_ids: torch.Tensor, **more: Any) -> torch.Tensor:  # PEFT passes all that a model may take
        states: torch.Tensor = body_of(base)(input_ids=input_ids, use_cache=False, **_tensors(more))[0]
        return states

    def part(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head(rows).float(), labels, reduction="sum")

    def loss_of(ids: Brought, labels: torch.Tensor, kept: list[Any]) -> torch.Tensor:
        with _forward_is(base, hidden):
            states = model(**named(ids))
        enter_loss(watch)
        rows = states.reshape(-1, states.shape[-1]).chunk(chunks)
        del states
        total: Any = 0.0
        for x, y in zip(rows, shifted(labels).chunk(chunks), strict=True):
            total = total + checkpoint(part, x, y, use_reentrant=False)
        loss: torch.Tensor = total / labels.numel()
        return loss

    return loss_of


def _fused(model: nn.Module, inner: nn.Module, watch: Watch) -> LossOf:
    """Head and loss in one operation inside the model's forward, as Liger patches it in."""
    base, head = base_of(inner), head_of(inner)

    def forward(input_ids: torch.Tensor, labels: torch.Tensor, **more: Any) -> torch.Tensor:
        states = body_of(base)(input_ids=input_ids, use_cache=False, **_tensors(more))[0]
        enter_loss(watch)
        loss: torch.Tensor = FusedLinearCrossEntropy.apply(
            states.reshape(-1, states.shape[-1]), head.weight, shifted(labels)
        )
        return loss

    def loss_of(ids: Brought, labels: torch.Tensor, kept: list[Any]) -> torch.Tensor:
        with _forward_is(base, forward):
            loss: torch.Tensor = model(**named(ids), labels=labels)
        return loss

    return loss_of


def _tensors(more: dict[str, Any]) -> dict[str, Any]:
    """What a model of pictures takes in addition to token ids; PEFT hands on everything else that it may take, too."""
    return {name: value for name, value in more.items() if isinstance(value, torch.Tensor)}


@contextmanager
def _forward_is(base: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Another forward under the model's own hooks: FSDP's and DDP's stay where they are."""
    base.forward = forward
    try:
        yield
    finally:
        del base.forward


def autocast(job: TrainingJob, device: str) -> AbstractContextManager[Any]:
    """``torch.autocast`` where the plan's precision or the framework's trainer means that."""
    dtype = autocast_dtype(job)
    if dtype is None:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.autocast(device, dtype=DTYPES[dtype])
    return context


def loss_parallel(job: TrainingJob) -> AbstractContextManager[Any]:
    """DTensor's cross entropy on vocabulary shards, where the plan asks for it."""
    if job.loss.kind != "vocab-parallel" or job.layout.tensor == 1:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel as on_shards

    context: AbstractContextManager[Any] = on_shards()
    return context


ENOUGH_MICRO_BATCHES = 3
"""The second adds to existing gradients, the last synchronises; every other one repeats the second."""


class StepParts(Record):
    """What a step is made of."""

    model: nn.Module
    """What is called."""
    inner: nn.Module
    """What holds the parameters."""
    optimizers: list[torch.optim.Optimizer]
    inputs: list[Any]
    """Token ids and labels of every micro-batch."""
    received: Callable[[], list[Any]]
    """Buffers that pipeline neighbours write to."""
    step: Callable[[], None]
    brought: str = "token ids and labels"
    """What the inputs are."""


def micro_batches(job: TrainingJob) -> int:
    """How many have to be run to see every kind."""
    return min(job.gradient_accumulation_steps, ENOUGH_MICRO_BATCHES)


def token_batches(job: TrainingJob, architecture: Architecture, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random token ids and labels; an encoder's input, and labels of the decoder's length."""
    vocabulary, encoder, batch = architecture.vocab_size, architecture.encoder, job.micro_batch_size
    if job.head.kind != "lm":
        columns = (job.head.text_columns,) if job.head.text_columns > 1 else ()
        ids = (*columns, batch, job.sequence_length)
        return [(torch.randint(0, vocabulary, ids), labels_of(job, batch, job.sequence_length)) for _ in range(count)]
    shape = labels = (batch // job.sequences_per_row, job.sequence_length * job.sequences_per_row)
    if encoder is not None:
        shape, labels = (batch, encoder_length(job, encoder)), (batch, target_length(job, encoder))
        if encoder.mel_bins:
            features = (batch, encoder.mel_bins, 2 * shape[1])
            dtype = DTYPES[job.recipe.params]
            return [(torch.randn(features, dtype=dtype), torch.randint(0, vocabulary, labels)) for _ in range(count)]
    return [(torch.randint(0, vocabulary, shape), torch.randint(0, vocabulary, labels)) for _ in range(count)]


def make_step(
    job: TrainingJob,
    wrapped: Wrapped,
    loss_of: LossOf,
    optimizers: list[torch.optim.Optimizer],
    batches: Sequence[tuple[Brought, torch.Tensor]],
    watch: Watch,
    device: str,
) -> Callable[[], None]:
    """Forward, loss and backward of every micro-batch, then the optimizer."""
    count = len(batches)

    def micro_batch(ids: Brought, labels: torch.Tensor) -> None:
        kept: list[Any] = []
        watch.enter("forward")
        with loss_parallel(job):
            with autocast(job, device) if job.head.text_columns == 1 else nullcontext():
                loss = loss_of(ids, labels, kept)
            if count > 1:
                loss = loss / count
            watch.enter("backward")
            loss.backward()

    def step() -> None:
        for i, (ids, labels) in enumerate(batches):
            with wrapped.synchronised(i == count - 1):
                micro_batch(ids, labels)
        finish(job, wrapped.inner, optimizers, watch)

    return step


def finish(job: TrainingJob, inner: nn.Module, optimizers: list[torch.optim.Optimizer], watch: Watch) -> None:
    """Clip, step, and let go of the gradients."""
    watch.enter("optimizer")
    if job.clip_grad_norm:
        nn.utils.clip_grad_norm_(trained_parameters(inner), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def _ready(model: nn.Module) -> None:
    """Do nothing: the model is ready."""


class DevicePlacement(Record):
    """Devices, and what has to happen between wrapping a model and making its optimizer."""

    device: str = "cpu"
    """Where the step runs."""
    model: str = "cpu"
    """Where the model is first made: ``meta`` when a whole one has no room on the device."""
    ready: Callable[[nn.Module], None] = _ready


HERE = DevicePlacement()


def build_single(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    mesh: Mesh,
    watch: Watch,
    place: DevicePlacement = HERE,
) -> StepParts:
    """Everything that one step needs."""
    with torch.device(place.model):
        model = build_model(job, architecture, config)
    freeze(model, architecture, job.freeze)
    if job.lora is not None:
        model = adapt(model, job, job.lora)
    recompute(model, job)
    wrapped = wrap(model, job, architecture, mesh)
    place.ready(wrapped.model)
    optimizers = make_optimizers(wrapped.inner, job)
    if job.head.kind != "lm":
        mark_loss(job, wrapped.inner, watch)
    elif job.loss.kind in ("standard", "vocab-parallel"):
        head_of(wrapped.inner).register_forward_pre_hook(lambda *_: enter_loss(watch))
    loss_of = make_loss(job, wrapped.model, wrapped.inner, watch)
    # one micro-batch's tokens at a time, as a training loop moves them to the device
    batches = _batches(job, architecture, wrapped.inner)
    step = make_step(job, wrapped, loss_of, optimizers, batches, watch, place.device)
    return StepParts(
        model=wrapped.model,
        inner=wrapped.inner,
        optimizers=optimizers,
        inputs=list(batches),
        received=list,
        step=step,
        brought="pictures, token ids and labels" if sees(job, architecture) else "token ids and labels",
    )


def _batches(job: TrainingJob, architecture: Architecture, model: Any) -> Sequence[tuple[Brought, torch.Tensor]]:
    if architecture.vision is not None and sees(job, architecture):
        return [picture_batch(job, architecture.vision, base_of(model).config)] * micro_batches(job)
    return token_batches(job, architecture, 1) * micro_batches(job)
