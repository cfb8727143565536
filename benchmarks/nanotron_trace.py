"""Trace steps of nanotron's own models: python -m benchmarks.nanotron_trace [--only REGEX].

Needs the extra ``verify`` and nanotron. Each record of ``data/nanotron.json`` is a plan. nanotron builds its model,
its loss, its gradient accumulator and its optimizer on fake tensors and fake ranks, its engine runs the micro-batches,
and three steps are followed as ``memcheck verify`` follows them.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

from benchmarks.base_trace import followed, subject_of, trace_again


def main() -> int:
    """Trace the recorded cases again, and write what was seen."""
    return trace_again("nanotron.json", ("nanotron", "torch"), traced, __doc__)


def traced(plan: dict[str, Any]) -> dict[str, int]:
    """The highest bytes of each instant of one plan's step."""
    import torch

    from benchmarks import nanotron_kernels, nanotron_parameters
    from memcheck.verify.trace.tracer import Tracer
    from memcheck.verify.trace.world import fake_ranks, fake_tensors

    nanotron_kernels.install()
    nanotron_parameters.take_fake_ones()
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    torch.cuda.current_device = lambda: "cpu"
    job = subject_of(plan).job
    layout = job.layout
    on_the_cpu = nanotron_kernels.OnTheCpu(job.micro_batch_size)
    with fake_ranks(layout.world_size, 0), fake_tensors(), on_the_cpu:
        tracer = Tracer(lambda: False, lambda *_: None, in_place=True)
        return followed(_parts(job, tracer), tracer, _buffers())


def _buffers() -> list[Any]:
    from nanotron.parallel.utils import MemoryBuffer

    MemoryBuffer().buffer.clear()
    return []


def _parts(job: Any, tracer: Any) -> Any:
    import torch
    from nanotron import distributed as dist
    from nanotron.config.parallelism_config import ParallelismArgs
    from nanotron.models.base import build_model
    from torch.nn.parallel import DistributedDataParallel

    from memcheck.verify.build.step import StepParts, micro_batches
    from memcheck.verify.trace.wrappers import FixedBuckets

    layout, config = job.layout, _config(job)
    dist.all_reduce_coalesced = lambda *_, **__: SimpleNamespace(wait=lambda: None)  # which fake ranks lack
    ranks = _ranks(layout)
    parallelism = ParallelismArgs(
        dp=layout.data,
        pp=1,
        tp=layout.tensor,
        pp_engine="afab" if layout.pipeline_schedule == "gpipe" else "1f1b",
        tp_mode="REDUCE_SCATTER" if layout.sequence else "ALL_REDUCE",
        tp_linear_async_communication=bool(job.option("tp_linear_async_communication", False)),
        recompute_layer=job.checkpointing.mode == "full",
        tp_recompute_allgather=bool(job.option("tp_recompute_allgather", True)),
    )
    model = build_model(lambda: _class(config)(config, ranks, parallelism), ranks, torch.bfloat16, device="cpu")
    _tie(model, ranks, parallelism)
    model.module_id_to_prefix = {id(module): f"{name}." for name, module in model.named_modules()}
    model.module_id_to_prefix[id(model)] = ""
    inner = model
    if layout.data > 1 and not layout.zero_stage:
        model = DistributedDataParallel(model, process_group=ranks.dp_cp_pg, broadcast_buffers=False, bucket_cap_mb=25)
    optimizer, accumulator = _optimizer(job, model, ranks)
    if model is not inner:
        model.reducer = FixedBuckets(model.reducer)
    shape = (job.micro_batch_size, job.sequence_length)
    batches = [_batch(shape, inner) for _ in range(micro_batches(job))]
    inner.model.final_layer_norm.register_forward_pre_hook(lambda *_: tracer.enter("loss"))
    inner.model.token_position_embeddings.register_forward_pre_hook(lambda *_: tracer.enter("forward"))
    engine = parallelism.pp_engine
    backward = accumulator.backward
    accumulator.backward = lambda loss: (tracer.enter("backward"), backward(loss))[1]

    def step() -> None:
        outputs = engine.train_batch_iter(model, ranks.pp_pg, iter(batches), len(batches), accumulator)
        from nanotron.optim.clip_grads import clip_grad_norm
        from nanotron.parallel.tied_parameters import sync_tied_weights_gradients

        sync_tied_weights_gradients(module=inner, parallel_context=ranks, grad_accumulator=accumulator)
        tracer.enter("optimizer")
        if job.clip_grad_norm:
            named = [(n, p) for n, p in inner.get_named_params_with_correct_tied() if p.requires_grad]
            clip_grad_norm(mp_pg=ranks.mp_pg, named_parameters=named, grad_accumulator=accumulator, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        del outputs

    beside = [accumulator._contiguous_fp32_grad_buffer, *(e["fp32"] for e in accumulator.parameters.values())]  # noqa: SLF001
    tracer.hold(beside)
    inputs = [list(batch.values()) for batch in batches]
    torch_optimizer = optimizer  # beneath nanotron's own
    while hasattr(torch_optimizer, "optimizer"):
        torch_optimizer = torch_optimizer.optimizer
    for group in torch_optimizer.param_groups:
        group["foreach"] = not group["fused"]  # as on the GPU
    return StepParts(model=model, inner=inner, optimizers=[torch_optimizer], inputs=inputs, received=list, step=step)


def _class(config: Any) -> Any:
    from nanotron.models.llama import LlamaForTraining
    from nanotron.models.qwen import Qwen2ForTraining

    return Qwen2ForTraining if hasattr(config, "is_qwen2_config") else LlamaForTraining


def _config(job: Any) -> Any:
    """nanotron's config of a plan's model."""
    from nanotron.config.models_config import LlamaConfig, Qwen2Config

    architecture = job.architecture
    block, layers = architecture.blocks[0]
    sizes = {
        "hidden_size": architecture.hidden_size,
        "intermediate_size": block.mlp.width,
        "num_hidden_layers": layers,
        "num_attention_heads": block.mixer.heads,
        "num_key_value_heads": block.mixer.kv_heads,
        "max_position_embeddings": job.sequence_length,
        "tie_word_embeddings": architecture.tie_word_embeddings,
        "vocab_size": architecture.vocab_size,
    }
    if job.option("model_class", "llama") == "llama":
        return LlamaConfig(**sizes)
    return Qwen2Config(**sizes, attention_bias=block.mixer.qkv_bias)


def _ranks(layout: Any) -> Any:
    """What ``ParallelContext`` holds of a rank, rank 0."""
    import torch.distributed as dist

    world, tensor = layout.world_size, layout.tensor
    if world == 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if not dist.is_initialized():
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)

    def group(ranks: list[int]) -> Any:
        return dist.new_group(ranks)

    alone, everyone = group([0]), group(list(range(world)))
    tp, dp = group(list(range(tensor))), group(list(range(0, world, tensor)))
    known = {tuple(r): g for r, g in (([0], alone), (range(world), everyone), (range(tensor), tp))}
    known[tuple(range(0, world, tensor))] = dp
    return SimpleNamespace(
        world_pg=everyone, tp_pg=tp, dp_pg=dp, dp_cp_pg=dp, pp_pg=alone, cp_pg=alone, ep_pg=alone, mp_pg=tp,
        tp_and_ep_pg=tp, world_ranks_to_pg=known, get_global_rank=lambda **_: 0, pipeline_parallel_size=1,
        tensor_parallel_size=tensor, data_parallel_size=layout.data, context_parallel_size=1, expert_parallel_size=1,
        create_new_group=lambda every: None, get_local_ranks=lambda world_rank: {"dp": 0},
    )  # fmt: skip


def _tie(model: Any, ranks: Any, parallelism: Any) -> None:
    from nanotron.trainer import mark_tied_parameters

    mark_tied_parameters(model=model, parallel_context=ranks, parallel_config=parallelism)


def _optimizer(job: Any, model: Any, ranks: Any) -> Any:
    from nanotron.helpers import init_optimizer_and_grad_accumulator
    from nanotron.scaling.parametrization import ParametrizationMethod

    factory = SimpleNamespace(
        name="adamW", adam_eps=1e-8, adam_beta1=0.9, adam_beta2=0.95,
        torch_adam_is_fused=job.optimizer.implementation == "fused",
    )  # fmt: skip
    arguments = SimpleNamespace(
        optimizer_factory=factory,
        learning_rate_scheduler=SimpleNamespace(learning_rate=1e-4),
        weight_decay=0.01,
        weight_decay_exclude_named_params=[],
        accumulate_grad_in_fp32=True,
        zero_stage=job.layout.zero_stage,
    )
    return init_optimizer_and_grad_accumulator(ParametrizationMethod.STANDARD, model, arguments, ranks)


def _batch(shape: tuple[int, int], model: Any) -> dict[str, Any]:
    """``clm_collator.py``'s tensors on the GPU."""
    import torch

    ids = torch.zeros(shape, dtype=torch.int64)
    mask = torch.ones(shape, dtype=torch.bool)
    labels = torch.zeros(shape, dtype=torch.int64)
    if hasattr(model.config, "is_qwen2_config"):
        positions = torch.zeros(shape, dtype=torch.int64)
        return {"input_ids": ids, "position_ids": positions, "label_ids": labels, "label_mask": mask}
    return {"input_ids": ids, "input_mask": mask.clone(), "label_ids": labels, "label_mask": mask}


if __name__ == "__main__":
    sys.exit(main())
