"""One rank of a pipeline, its stage or stages, run by ``torch.distributed.pipelining``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

from memcheck.accounts.ranks import Part
from memcheck.frameworks.torch.pipelining import stage_parts
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.verify.build.model import body_of, build_model, head_of
from memcheck.verify.build.step import HERE, DevicePlacement, StepParts, autocast, finish
from memcheck.verify.build.tensors import DTYPES
from memcheck.verify.build.trained import freeze, make_optimizers
from memcheck.verify.build.wrap import Mesh, recompute, shard
from memcheck.verify.compare import UntraceableError, Watch, enter_loss

BODY = ("embed_tokens", "layers", "rotary_emb", "norm")
"""What the body of a model has to consist of to be cut into stages."""


class StageModule(nn.Module):
    """A run of layers; the first stage embeds, the last one has the final norm and the head."""

    def __init__(self, model: nn.Module, part: Part, job: TrainingJob, device: str) -> None:
        super().__init__()
        body = body_of(model)
        self.embed_tokens = body.embed_tokens if part.has_embedding else None
        self.layers = nn.ModuleList(body.layers[part.first_layer : part.end_layer])
        self.rotary_emb = body.rotary_emb
        self.norm = body.norm if part.has_head else None
        self.lm_head = head_of(model) if part.has_head else None
        self.job, self.device = job, device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Token ids or hidden states in, hidden states or logits out."""
        with autocast(self.job, self.device):
            states = x if self.embed_tokens is None else self.embed_tokens(x)
            positions = torch.arange(states.shape[1], device=states.device).unsqueeze(0)
            tables = self.rotary_emb(states, positions)
            for layer in self.layers:
                out = layer(states, attention_mask=None, position_ids=positions, position_embeddings=tables)
                states = out[0] if isinstance(out, tuple) else out
            if self.norm is not None:
                states = self.norm(states)
            return states if self.lm_head is None else self.lm_head(states)


def build_stage(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    mesh: Mesh,
    watch: Watch,
    rank: int,
    place: DevicePlacement = HERE,
) -> StepParts:
    """Everything that one step of a pipeline rank needs.

    Raises:
        UntraceableError: a model that cannot be cut into layers of one kind, or a layout that is not traced.
    """
    with torch.device(place.model):
        model = build_model(job, architecture, config)
    body = body_of(model)
    missing = [name for name in BODY if not hasattr(body, name)]
    if missing:
        raise UntraceableError(
            f"pipelines are traced for models shaped like Llama; {architecture.model_type} has no {', '.join(missing)}",
            "verify with --set parallelism.pipeline=1",
        )
    freeze(model, architecture, job.freeze)
    recompute(model, job)
    ways, chunks = job.layout.pipeline, job.layout.virtual_stages
    every = stage_parts(architecture.num_layers, ways * chunks)
    mine = {number: every[number] for number in range(rank, ways * chunks, ways)}
    modules = {number: StageModule(model, part, job, place.device).train() for number, part in mine.items()}
    del model, body
    for module in modules.values():
        if job.layout.zero_stage == 3 and job.layout.data > 1:
            shard(module, list(module.layers), job, mesh)
        place.ready(module)
        if module.lm_head is not None:
            module.lm_head.register_forward_pre_hook(lambda *_: enter_loss(watch))
    stages = [_stage(job, architecture, modules[n], mine[n], n, mesh, place) for n in mine]
    run = job.run_micro_batches
    schedule = _schedule(job, stages, run, place)
    agree_on_shapes(schedule)
    whole = next(iter(modules.values())) if chunks == 1 else nn.ModuleList(modules.values())
    optimizers = make_optimizers(whole, job)
    tokens = torch.randint(0, architecture.vocab_size, (run * job.micro_batch_size, job.sequence_length))
    for stage in stages:
        report_chunks(stage, watch)
    first, head = every[0] in mine.values(), every[-1] in mine.values()

    def step() -> None:
        for _ in range(job.gradient_accumulation_steps // run):
            watch.enter("forward")
            inputs = (tokens,) if first else ()
            target = {"target": tokens, "losses": []} if head else {}
            schedule.step(*inputs, **target, return_outputs=False)
        finish(job, whole, optimizers, watch)

    held = [tokens] if first or head else []
    return StepParts(
        model=whole, inner=whole, optimizers=optimizers, inputs=held, received=received_by(stages), step=step
    )


def received_by(stages: list[Any]) -> Callable[[], list[Any]]:
    """Looks up the buffers that neighbours of some stages write to."""

    def received() -> list[Any]:
        infos = [info for each in stages for info in (*each.args_recv_info.values(), *each.grad_recv_info.values())]
        return [info.buffer for group in infos for info in group if hasattr(info, "buffer")]

    return received


def _stage(
    job: TrainingJob,
    architecture: Architecture,
    module: nn.Module,
    part: Part,
    number: int,
    mesh: Mesh,
    place: DevicePlacement,
) -> Any:
    from torch.distributed.pipelining import PipelineStage

    states, ids, logits = _examples(job, architecture, (job.micro_batch_size, job.sequence_length))
    return PipelineStage(
        module,
        number,
        job.layout.pipeline * job.layout.virtual_stages,
        torch.device(place.device),
        input_args=ids if part.has_embedding else states,
        output_args=logits if part.has_head else states,
        group=mesh["pipeline"].get_group(),
    )


def _schedule(job: TrainingJob, stages: list[Any], run: int, place: DevicePlacement) -> Any:
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    if job.layout.virtual_stages > 1:
        return ScheduleInterleaved1F1B(stages, n_microbatches=run, loss_fn=_loss(job, place.device), scale_grads=False)
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[job.layout.pipeline_schedule]
    return kind(stages[0], n_microbatches=run, loss_fn=_loss(job, place.device), scale_grads=False)


def _examples(job: TrainingJob, architecture: Architecture, shape: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """One micro-batch at the stage's borders, from which the schedule takes shapes."""
    sharded = job.layout.zero_stage == 3 and job.layout.data > 1
    stream = DTYPES[job.recipe.compute if sharded else job.recipe.params]
    logits = DTYPES[job.recipe.compute] if job.recipe.autocast else stream
    return (
        torch.empty(*shape, architecture.hidden_size, dtype=stream, requires_grad=True),
        torch.randint(0, architecture.vocab_size, shape),
        torch.empty(*shape, architecture.vocab_size, dtype=logits),
    )


def _loss(job: TrainingJob, device: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def loss_fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        flat = logits.flatten(0, 1)
        with autocast(job, device):  # as around the whole schedule.step
            return F.cross_entropy(flat.float() if job.loss.upcast else flat, target.flatten(0, 1))

    return loss_fn


def agree_on_shapes(schedule: Any) -> None:
    """Neighbours vote on whether shapes are known by exchanging values; here they are known."""
    if not hasattr(schedule, "_warmup_p2p"):
        return  # torch before 2.12
    from torch.distributed.pipelining.stage import InferenceMode

    def static(stages: list[Any], *_: Any) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC  # noqa: SLF001

    schedule._warmup_p2p = static  # noqa: SLF001


def report_chunks(stage: Any, watch: Watch) -> None:
    """Tell the watch which chunk of work runs: forward or backward; the loss begins with the head."""
    forward, backward = stage.forward_one_chunk, stage.backward_one_chunk

    def forward_one_chunk(*args: Any, **kwargs: Any) -> Any:
        watch.enter("forward")
        return forward(*args, **kwargs)

    def backward_one_chunk(*args: Any, **kwargs: Any) -> Any:
        watch.enter("backward")
        return backward(*args, **kwargs)

    stage.forward_one_chunk, stage.backward_one_chunk = forward_one_chunk, backward_one_chunk
