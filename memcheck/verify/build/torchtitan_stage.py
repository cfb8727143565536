"""A pipeline rank of torchtitan's: its own split into stages, and torch's schedules as it runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.verify.build.dtypes import DTYPES
from memcheck.verify.build.optimizer import make_optimizers
from memcheck.verify.build.stage import agree_on_shapes, received_by, report_chunks
from memcheck.verify.build.step import StepParts
from memcheck.verify.watch import Watch, enter_loss


def build_stages(job: TrainingJob, architecture: Architecture, titan: Any, model: nn.Module, watch: Watch) -> StepParts:
    """Everything that one step of a pipeline rank needs."""
    from torchtitan.config import CompileConfig

    from memcheck.verify.build.torchtitan import batch, finish_step

    loss_of = titan.loss.build(compile_config=CompileConfig())
    with _known_shapes(job, architecture, titan):
        schedule, parts, first, last = titan.spec.pipelining_fn(
            model,
            parallel_dims=titan.dims,
            training=titan.training,
            parallelism=titan.parallelism,
            compile_config=CompileConfig(),
            ac_config=titan.recompute,
            dump_folder="",
            device=torch.device("cpu"),
            model_config=titan.spec.model,
            parallelize_fn=titan.spec.parallelize_fn,
            loss_fn=loss_of,
        )
    for part in parts:
        part.train()
        if part.lm_head is not None:
            part.lm_head.register_forward_pre_hook(lambda *_: enter_loss(watch))
            if job.loss.kind == "chunked":
                loss_of.set_lm_head(part.lm_head)
                part._skip_lm_head = True  # noqa: SLF001  # torchtitan's own switch for this loss
    agree_on_shapes(schedule)
    whole = parts[0] if len(parts) == 1 else nn.ModuleList(parts)
    optimizers = make_optimizers(whole, job)
    stages = getattr(schedule, "_stages", None) or [schedule._stage]  # noqa: SLF001
    for stage in stages:
        report_chunks(stage, watch)
    run = job.run_micro_batches
    batches = [batch(job, architecture) for _ in range(run)]

    def step() -> None:
        for _ in range(job.gradient_accumulation_steps // run):
            watch.enter("forward")
            with titan.context():
                for stage in stages:  # what schedule.step does first; it takes whole batches up to torch 2.13
                    stage.has_backward = True
                    stage.clear_runtime_states()
                schedule._step_microbatches(  # noqa: SLF001
                    arg_mbs=[(ids,) for ids, *_ in batches] if first else None,
                    kwarg_mbs=[{"positions": at, "attention_masks": masks} for _, _, at, _, masks in batches],
                    target_mbs=[labels for _, labels, *_ in batches] if last else None,
                    losses=[] if last else None,
                    loss_kwargs={"global_valid_tokens": batches[0][3]},
                    return_outputs=False,
                )
        finish_step(job, whole, optimizers, watch)

    inputs = [[each if first or i else None for i, each in enumerate(some)] for some in batches]
    return StepParts(
        model=whole, inner=whole, optimizers=optimizers, inputs=inputs, received=received_by(stages), step=step
    )


@contextmanager
def _known_shapes(job: TrainingJob, architecture: Architecture, titan: Any) -> Iterator[None]:
    """Stages that are told what they exchange: otherwise they would ask their neighbours."""
    from torchtitan.distributed import pipeline_parallel

    kind = pipeline_parallel.PipelineStage
    tokens = job.micro_batch_size * job.sequence_length
    states = _states(job, architecture, titan, tokens)
    ids = torch.randint(0, architecture.vocab_size, (tokens,))
    logits = torch.empty(tokens, architecture.vocab_size, dtype=DTYPES[job.recipe.compute])
    end = states if job.loss.kind == "chunked" else logits

    def made(module: nn.Module, index: int, count: int, *args: Any, **kwargs: Any) -> Any:
        kwargs["input_args"] = ids if index == 0 else states
        kwargs["output_args"] = end if index == count - 1 else states
        if job.layout.tensor > 1:  # whose gradients are DTensors, too
            kwargs["input_grads"] = None if index == 0 else states.detach()
            kwargs["output_grads"] = None if index == count - 1 else states.detach()
        return kind(module, index, count, *args, **kwargs)

    pipeline_parallel.PipelineStage = made
    try:
        yield
    finally:
        pipeline_parallel.PipelineStage = kind


def _states(job: TrainingJob, architecture: Architecture, titan: Any, tokens: int) -> torch.Tensor:
    """Hidden states between two stages: a DTensor with tensor parallelism, whole or divided over the sequence."""
    dtype, ways = DTYPES[job.recipe.compute], job.layout.tensor
    if ways == 1:
        return torch.empty(tokens, architecture.hidden_size, dtype=dtype, requires_grad=True)
    from torch.distributed.tensor import DTensor, Replicate, Shard

    split = job.layout.sequence
    local = torch.empty(-(-tokens // ways) if split else tokens, architecture.hidden_size, dtype=dtype)
    there = DTensor.from_local(local, titan.dims.get_mesh(["tp"]), [Shard(0) if split else Replicate()])
    return there.requires_grad_()
