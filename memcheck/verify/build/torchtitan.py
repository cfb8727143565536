"""torchtitan's own model, parallelism, recompute and pipeline stages, where a torchtitan can be imported.

Its interface is not stable: the code here follows commit b5bcd76c6. Sequences are packed and run through the flash
kernel for packed sequences; the backend of its DTensors is ``partial_dtensor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import nn

from memcheck.job.types import Layout, TrainingJob
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture, Attention, LatentAttention, Mlp, Moe
from memcheck.record import Record
from memcheck.verify.build.stage import agree_on_shapes, received_by, report_chunks
from memcheck.verify.build.step import StepParts, micro_batches
from memcheck.verify.build.tensors import DTYPES
from memcheck.verify.build.trained import make_optimizers
from memcheck.verify.compare import RefusedStepError, Watch, enter_loss

MODELS = {
    "llama": "llama3",
    "mistral": "llama3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "deepseek_v2": "deepseek_v3",
    "deepseek_v3": "deepseek_v3",
}
"""torchtitan's package for a model type."""
TEMPLATES = {"llama3": "8B", "qwen3": "0.6B", "deepseek_v3": "16B"}
"""A flavor of each, whose sizes are replaced."""


def model_spec(architecture: Architecture) -> Any:
    """torchtitan's ``ModelSpec`` with the architecture's sizes.

    Raises:
        RefusedStepError: it has no such model.
    """
    name = MODELS.get(architecture.model_type)
    if name is None:
        raise RefusedStepError(
            f"torchtitan has no {architecture.model_type}", "verify in plain PyTorch: --set training.framework=pytorch"
        )
    package = import_module(f"torchtitan.models.{name}")
    spec = package.model_registry(TEMPLATES[name], attn_backend="varlen")
    model, width, rows = spec.model, architecture.hidden_size, architecture.vocab_size
    model.dim, model.vocab_size = width, rows
    model.tok_embeddings = replace(model.tok_embeddings, num_embeddings=rows, embedding_dim=width)
    model.norm = replace(model.norm, normalized_shape=width)
    model.lm_head = replace(model.lm_head, in_features=width, out_features=rows)
    model.enable_weight_tying = architecture.tie_word_embeddings
    rope = model.layers[0].attention.rope
    model.layers = _layers(package, name, architecture, rope)
    return spec


def _layers(package: Any, name: str, architecture: Architecture, rope: Any) -> list[Any]:
    blocks = architecture.layers()
    first, last = blocks[0], blocks[-1]
    sizes: dict[str, Any] = {
        "n_layers": len(blocks),
        "dim": architecture.hidden_size,
        "n_heads": first.mixer.heads,  # type: ignore[union-attr]  # every block has attention here
        "attn_backend": "varlen",
    }
    if isinstance(first.mixer, LatentAttention):
        return _latent(package, first.mixer, [block.mlp for block in blocks], sizes, rope)
    attention = first.mixer
    assert isinstance(attention, Attention)  # noqa: S101 - torchtitan has no other
    sizes |= {"n_kv_heads": attention.kv_heads, "rope": replace(rope, dim=attention.head_dim)}
    if name == "llama3":
        return _built(package, "llama3", **sizes, hidden_dim=_width(first.mlp))
    sizes["head_dim"] = attention.head_dim
    if isinstance(last.mlp, Moe):
        return _built(package, "qwen3_moe", **sizes, **_experts(last.mlp), moe_comm_backend="standard")
    return _built(package, "qwen3", **sizes, hidden_dim=_width(first.mlp))


def _built(package: Any, name: str, **sizes: Any) -> list[Any]:
    """torchtitan's list of layers: the function is private there."""
    return list(getattr(package, f"_build_{name}_layers")(**sizes))


def _latent(package: Any, a: LatentAttention, networks: list[Any], sizes: dict[str, Any], rope: Any) -> list[Any]:
    dense = [m for m in networks if isinstance(m, Mlp)]
    routed = networks[-1]
    experts = _experts(routed)
    return _built(
        package,
        "dsv3",
        **sizes,
        n_dense_layers=len(dense),
        q_lora_rank=a.q_lora_rank or 0,
        kv_lora_rank=a.kv_lora_rank,
        qk_nope_head_dim=a.qk_nope_head_dim,
        qk_rope_head_dim=a.qk_rope_head_dim,
        v_head_dim=a.v_head_dim,
        mscale=1.0,
        dense_hidden_dim=_width(dense[0]) if dense else experts["moe_hidden_dim"],
        moe_hidden_dim=experts["moe_hidden_dim"],
        num_experts=experts["num_experts"],
        num_shared_experts=routed.shared.width // routed.width,
        router_top_k=experts["top_k"],
        router_score_func="sigmoid" if routed.router == "sigmoid" else "softmax",
        router_route_norm=routed.routing.normalised,
        router_num_expert_groups=routed.groups[0] if routed.groups[0] > 1 else None,
        router_num_limited_groups=routed.groups[1] if routed.groups[0] > 1 else None,
        moe_comm_backend="standard",
        non_blocking_capacity_factor=None,
        rope=replace(rope, dim=a.qk_rope_head_dim),
    )


def _experts(m: Moe) -> dict[str, int]:
    return {"moe_hidden_dim": m.width, "num_experts": m.experts, "top_k": m.experts_per_token}


def _width(m: Any) -> int:
    return int(m.width)


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


def build_stages(job: TrainingJob, architecture: Architecture, titan: Any, model: nn.Module, watch: Watch) -> StepParts:
    """Everything that one step of a pipeline rank needs."""
    from torchtitan.config import CompileConfig

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
