"""torchtitan's own model, parallelism and recompute, where a torchtitan can be imported.

It is no stable library: what is used here is that of its commit b5bcd76c6. Sequences are packed and run through the
flash kernel for packed sequences; the backend of its DTensors is ``partial_dtensor``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memcheck.job.types import Layout, TrainingJob
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.verify.build.optimizer import make_optimizers
from memcheck.verify.build.step import StepParts, micro_batches
from memcheck.verify.build.torchtitan_model import model_spec
from memcheck.verify.errors import RefusedStepError
from memcheck.verify.watch import Watch, enter_loss

SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved-1f1b": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
    "dualpipe": "DualPipeV",
}
"""torch's names of the plan's schedules."""
BACKEND = "partial_dtensor"


class Titan(Record):
    """torchtitan's objects for one job."""

    spec: Any
    dims: Any
    training: Any
    parallelism: Any
    recompute: Any
    loss: Any
    context: Callable[[], Any]


def configure(job: TrainingJob, architecture: Architecture) -> Titan:
    """torchtitan's objects for a job, its device meshes included. The process group has to be there.

    Raises:
        RefusedError: this torchtitan is another one, or has no such model.
    """
    try:
        return _configure(job, architecture)
    except (ImportError, AttributeError, TypeError) as error:
        raise RefusedStepError(
            f"this torchtitan is not the one that memcheck knows: {error}",
            "use its commit b5bcd76c6, or verify in plain PyTorch: --set training.framework=pytorch",
        ) from error


def build_torchtitan(job: TrainingJob, architecture: Architecture, titan: Titan, watch: Watch) -> StepParts:
    """Everything that one step needs.

    Raises:
        RefusedError: its model is not the plan's.
    """
    from torchtitan.config import CompileConfig

    model = titan.spec.model.build()
    said, built = count_parameters(architecture), sum(p.numel() for p in model.parameters())
    if built != said:
        raise RefusedStepError(
            f"torchtitan's {titan.spec.flavor} has {built:,} parameters, and memcheck counts {said:,}"
        )
    if job.layout.pipeline > 1:
        from memcheck.verify.build.torchtitan_stage import build_stages

        return build_stages(job, architecture, titan, model, watch)
    model = titan.spec.parallelize_fn(
        model,
        parallel_dims=titan.dims,
        training=titan.training,
        parallelism=titan.parallelism,
        compile_config=CompileConfig(),
        ac_config=titan.recompute,
        dump_folder="",
    ).train()
    loss_of = titan.loss.build(compile_config=CompileConfig())
    if job.loss.kind == "chunked":
        loss_of.set_lm_head(model.lm_head)
        model._skip_lm_head = True  # noqa: SLF001  # torchtitan's own switch for this loss
    optimizers = make_optimizers(model, job)
    model.lm_head.register_forward_pre_hook(lambda *_: enter_loss(watch))
    batches = [batch(job, architecture) for _ in range(micro_batches(job))]
    step = _step(job, titan, model, loss_of, optimizers, batches, watch)
    return StepParts(model=model, inner=model, optimizers=optimizers, inputs=batches, received=list, step=step)


def _configure(job: TrainingJob, architecture: Architecture) -> Titan:
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.config import ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import utils as distributed
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.trainer import Trainer

    layout = job.layout
    spec = model_spec(architecture)
    recompute = {"full": FullAC, "selective": SelectiveAC}.get(job.checkpointing.mode)
    parallelism = ParallelismConfig(
        data_parallel_replicate_degree=layout.data // layout.shard_group,
        data_parallel_shard_degree=layout.shard_group,
        tensor_parallel_degree=layout.tensor,
        pipeline_parallel_degree=layout.pipeline,
        pipeline_parallel_schedule=SCHEDULES.get(layout.pipeline_schedule, "1F1B"),
        pipeline_parallel_layers_per_stage=_layers_per_stage(job, architecture),
        num_pp_microbatches=job.run_micro_batches if layout.pipeline > 1 else 1,
        pipeline_parallel_first_stage_less_layers=layout.fewer_layers[0],
        pipeline_parallel_last_stage_less_layers=layout.fewer_layers[1],
        expert_parallel_degree=layout.expert,
        enable_sequence_parallel=layout.sequence,
        spmd_backend=BACKEND,
        fsdp_reshard_after_forward=_resharding(layout),
    )
    training = TrainingConfig(
        num_tokens_per_microbatch_per_dp_rank=job.micro_batch_size * job.sequence_length,
        max_context_length=job.sequence_length,
        disable_cuda_graphs=True,
    )
    loss = CrossEntropyLoss.Config(global_vocab_size=architecture.vocab_size)
    if job.loss.kind == "chunked":
        loss = ChunkedLossWrapper.Config(num_chunks=job.loss.chunks, loss_fn=loss)
    config = Trainer.Config(
        model_spec=spec,
        parallelism=parallelism,
        training=training,
        activation_checkpoint=(recompute or FullAC).Config(),
        loss=loss,
    )
    config.debug.moe_force_load_balance = layout.tensor == 1  # its indices are no DTensor
    dims = ParallelDims.from_config(parallelism, layout.world_size)
    dims.build_mesh()
    distributed.set_spmd_backend(BACKEND)
    spec.model.update_from_config(config=config)
    context = distributed.get_spmd_context(parallel_dims=dims, spmd_typechecking=False)
    return Titan(
        spec=spec,
        dims=dims,
        training=training,
        parallelism=parallelism,
        recompute=recompute and recompute.Config(),
        loss=loss,
        context=context,
    )


def _resharding(layout: Layout) -> str:
    """By default a pipeline keeps what it has gathered; without one, ``always`` goes for the head, too."""
    if not layout.reshard_after_forward:
        return "never"
    return "always" if layout.pipeline > 1 else "default"


def _layers_per_stage(job: TrainingJob, architecture: Architecture) -> int | None:
    layout = job.layout
    if layout.virtual_stages == (1 if layout.pipeline_schedule in ("1f1b", "gpipe") else 2):
        return None  # torchtitan's own choice
    return -(-(architecture.num_layers + sum(layout.fewer_layers)) // (layout.pipeline * layout.virtual_stages))


def batch(job: TrainingJob, architecture: Architecture) -> tuple[Any, ...]:
    """Packed token ids, labels, positions, the count of valid tokens, and where each sequence ends."""
    from torchtitan.models.common.attention import VarlenMetadata

    tokens, length = job.micro_batch_size * job.sequence_length, job.sequence_length
    ids, labels = (torch.randint(0, architecture.vocab_size, (tokens,)) for _ in range(2))
    ends = torch.zeros(job.micro_batch_size + 1, dtype=torch.int32)
    return (
        ids,
        labels,
        torch.arange(tokens),
        torch.ones((), dtype=torch.int64),
        VarlenMetadata(ends, ends, length, length),
    )


def _step(
    job: TrainingJob,
    titan: Titan,
    model: nn.Module,
    loss_of: Callable[..., Any],
    optimizers: list[torch.optim.Optimizer],
    batches: list[tuple[Any, ...]],
    watch: Watch,
) -> Callable[[], None]:
    def micro_batch(ids: Any, labels: Any, positions: Any, valid: Any, masks: Any) -> None:
        watch.enter("forward")
        with titan.context():
            out = model(ids, attention_masks=masks, positions=positions)
            enter_loss(watch)
            loss, _ = loss_of(out, labels, valid)
            del out
            watch.enter("backward")
            loss.backward()

    def step() -> None:
        for each in batches:
            micro_batch(*each)
        finish_step(job, model, optimizers, watch)

    return step


def finish_step(job: TrainingJob, model: nn.Module, optimizers: list[torch.optim.Optimizer], watch: Watch) -> None:
    """Clip as torchtitan does, step, and let go of the gradients."""
    from torchtitan.distributed import utils as distributed

    watch.enter("optimizer")
    if job.clip_grad_norm:
        split = job.layout.expert > 1
        distributed.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True, ep_enabled=split)
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
