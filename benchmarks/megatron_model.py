"""A rank of Megatron-core's model, from a plan: its configs, chunks, buffers and optimizer."""

from __future__ import annotations

import dataclasses
import os
import unittest.mock
from typing import Any, NamedTuple

from benchmarks import megatron_cuda

NORMALISED_SCORES = [1]
"""Experts of each token."""
MOE_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")
RENAMED = {
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "fp8_format": "fp8",
    "ddp_bucket_size": "bucket_size",
    "ddp_num_buckets": "num_buckets",
    "ddp_pad_buckets_for_high_nccl_busbw": "pad_buckets_for_high_nccl_busbw",
    "ddp_average_in_collective": "average_in_collective",
}
"""Options whose fields have other names than Megatron-LM's arguments."""
HANDLED = [
    "attention_backend",
    "transformer_engine_version",
    "overlap_p2p_communication",
    "bias_swiglu_fusion",
    "bias_gelu_fusion",
    "make_vocab_size_divisible_by",
    "use_distributed_optimizer",
    "grad_reduce_in_bf16",
    "num_distributed_optimizer_instances",
]
"""Options that :func:`parts_of` reads itself."""


class Parts(NamedTuple):
    """What a schedule runs."""

    chunks: list[Any]
    optimizer: Any
    forward_step: Any


def parts_of(plan: dict[str, Any], job: Any) -> Parts:
    """Build what Megatron-LM's training builds (``training/training.py``: get_model, setup_model_and_optimizer)."""
    import torch
    from megatron.core import parallel_state as ps
    from megatron.core import tensor_parallel
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.module import Float16Module

    layout, virtual = job.layout, job.layout.virtual_stages
    ps.initialize_model_parallel(
        layout.tensor,
        layout.pipeline,
        virtual if virtual > 1 else None,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        num_distributed_optimizer_instances=_option(job, "num_distributed_optimizer_instances", 1),
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(1)
    config = _config(plan, job)
    NORMALISED_SCORES[0] = config.moe_router_topk
    chunks = [_chunk(plan, job, config, index) for index in range(virtual)]
    if job.lora is not None:
        _adapt(chunks, job.lora)
    for chunk in chunks:
        for parameter in chunk.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
            with torch.no_grad():
                parameter.zero_()
    if config.fp16 or config.bf16:
        chunks = [Float16Module(config, chunk) for chunk in chunks]
    ddp = _ddp_config(job)
    for index, chunk in enumerate(chunks):
        chunks[index] = _wrapped(chunk, config, ddp, index, whole=job.optimizer.name == "muon")
    chunk = None  # the last one is the list's
    config.finalize_model_grads_func = finalize_model_grads
    if ddp.overlap_grad_reduce:
        config.no_sync_func = [each.no_sync for each in chunks] if virtual > 1 else chunks[0].no_sync
        if virtual > 1:
            config.grad_sync_func = [each.start_grad_sync for each in chunks]
    if ddp.overlap_param_gather and ddp.align_param_gather and virtual > 1:
        config.param_sync_func = [each.start_param_sync for each in chunks]
    optimizer = get_megatron_optimizer(_optimizer_config(job, config, ddp), chunks, use_gloo_process_groups=False)
    config.grad_scale_func = optimizer.scale_loss
    for each in getattr(optimizer, "chained_optimizers", [optimizer]):
        if hasattr(each, "found_inf"):
            each._unscale_main_grads_and_check_for_nan = _sound(each._unscale_main_grads_and_check_for_nan)  # noqa: SLF001
    for each in chunks:
        each.train()
    rows, tokens = job.micro_batch_size, job.sequence_length // layout.context

    def forward_step(_data: Any, model: Any) -> Any:
        ids = torch.zeros(rows, tokens, dtype=torch.int64)
        labels, positions = torch.zeros_like(ids), torch.zeros_like(ids) + torch.arange(tokens)
        mask = torch.ones(rows, tokens)

        def loss_of(out: Any) -> Any:
            weights = mask.view(-1).float()
            loss = torch.sum(out.view(-1).float() * weights)
            count = weights.sum().clone().detach().to(torch.int)
            return loss, count, {"lm loss": torch.cat([loss.clone().detach().view(1), count.view(1)])}

        return model(ids, positions, None, labels=labels, loss_mask=mask), loss_of

    return Parts(chunks, optimizer, forward_step)


def _option(job: Any, name: str, default: Any) -> Any:
    found = job.option(name)
    return default if found is None else found


def _sound(check: Any) -> Any:
    """Gradients of nothing are sound."""

    def run() -> bool:
        check()
        return False

    return run


def _given(job: Any, kind: Any) -> dict[str, Any]:
    """The plan's options that are fields of one of Megatron-core's configs."""
    fields = {field.name for field in dataclasses.fields(kind)}
    named = {RENAMED.get(name, name): value for name, value in job.options if name not in HANDLED}
    return {
        name: _dtype(value) if name.endswith("_dtype") and name != "moe_router_dtype" else value
        for name, value in named.items()
        if name in fields
    }


def _dtype(word: str) -> Any:
    import torch

    known = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8, "auto": None}
    return known[word]


def _config(plan: dict[str, Any], job: Any) -> Any:
    import torch.nn.functional as functional  # noqa: PLR0402
    from megatron.core.transformer.enums import AttnBackend
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    model, layout = plan["model"]["architecture"], job.layout
    kind = model["model_type"]
    gpt, latent, te = kind == "megatron-gpt", "kv_lora_rank" in model, job.option("transformer_impl") != "local"
    dtype = job.recipe.compute
    virtual = layout.virtual_stages > 1
    overlaps = virtual and _option(job, "overlap_p2p_communication", True)
    config = {
        "num_layers": model["num_hidden_layers"],
        "hidden_size": model["hidden_size"],
        "num_attention_heads": model["num_attention_heads"],
        "ffn_hidden_size": model.get("intermediate_size", 4 * model["hidden_size"]),
        "gated_linear_unit": not gpt,
        "activation_func": functional.gelu if gpt else functional.silu,
        "add_bias_linear": gpt,
        "normalization": "LayerNorm" if gpt else "RMSNorm",
        "attention_dropout": 0.1 if gpt else 0.0,
        "hidden_dropout": 0.1 if gpt else 0.0,
        "add_qkv_bias": kind in ("qwen2", "qwen2_moe"),
        "qk_layernorm": kind in ("qwen3", "qwen3_moe", "deepseek_v3", "deepseek_v2"),
        "params_dtype": _dtype(dtype),
        "pipeline_dtype": _dtype(dtype),
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "virtual_pipeline_model_parallel_size": layout.virtual_stages if virtual else None,
        "context_parallel_size": layout.context,
        "cp_comm_type": "p2p",
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        "sequence_parallel": layout.sequence and layout.tensor > 1,
        "microbatch_group_size_per_vp_stage": layout.pipeline,
        "overlap_p2p_comm": overlaps,
        "batch_p2p_comm": not overlaps,
        "batch_p2p_sync": False,
        "deallocate_pipeline_outputs": True,
        "perform_initialization": False,
        "use_cpu_initialization": False,
        "attention_backend": AttnBackend[_option(job, "attention_backend", "fused") if te else "local"],
        "gradient_accumulation_fusion": te,
        "masked_softmax_fusion": True,
        "bias_dropout_fusion": True,
        "fp8_param": bool(job.option("fp8_param_gather")),
        "bias_activation_fusion": all(_option(job, name, True) for name in ("bias_swiglu_fusion", "bias_gelu_fusion")),
        "apply_rope_fusion": te and not gpt,
    }
    if not latent:
        config.update(num_query_groups=model.get("num_key_value_heads"), kv_channels=model.get("head_dim"))
    else:
        config.update(
            q_lora_rank=model["q_lora_rank"],
            kv_lora_rank=model["kv_lora_rank"],
            qk_head_dim=model["qk_nope_head_dim"],
            qk_pos_emb_head_dim=model["qk_rope_head_dim"],
            v_head_dim=model["v_head_dim"],
            multi_latent_attention=True,
            rope_type="yarn",
        )
    if any(name in model for name in MOE_COUNTS):
        config.update(_experts(model))
    class_of = MLATransformerConfig if latent else TransformerConfig
    given = _given(job, class_of)
    if given.get("recompute_granularity") == "full":
        config.update(recompute_method="uniform", recompute_num_layers=1)
    balanced = given.get("moe_router_load_balancing_type")
    if balanced is not None:
        config["moe_aux_loss_coeff"] = 1e-2 if str(balanced).endswith("aux_loss") else 0.0
    return class_of(**{**config, **given})


def _experts(model: dict[str, Any]) -> dict[str, Any]:
    """What makes some layers mixtures of experts."""
    first, kind, layers = model.get("first_k_dense_replace", 0), model["model_type"], model["num_hidden_layers"]
    shared = model.get("n_shared_experts", 0) * model.get("moe_intermediate_size", 0)
    v3 = kind == "deepseek_v3"
    found = {
        "num_moe_experts": next(model[name] for name in MOE_COUNTS if name in model),
        "moe_router_topk": model["num_experts_per_tok"],
        "moe_ffn_hidden_size": model.get("moe_intermediate_size") or model["intermediate_size"],
        "moe_grouped_gemm": True,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 1e-2,
        "moe_router_score_function": "sigmoid" if v3 else "softmax",
        "moe_router_enable_expert_bias": v3,
        "moe_router_pre_softmax": kind == "deepseek_v2",
        "moe_shared_expert_intermediate_size": shared or model.get("shared_expert_intermediate_size"),
        "moe_shared_expert_gate": kind == "qwen2_moe",
        "moe_layer_freq": [0] * first + [1] * (layers - first),
        "moe_router_force_load_balancing": True,
    }
    if v3:
        found.update(
            moe_router_num_groups=model["n_group"],
            moe_router_group_topk=model["topk_group"],
            moe_router_topk_scaling_factor=2.5,
        )
    return found


def _chunk(plan: dict[str, Any], job: Any, config: Any, index: int) -> Any:
    from megatron.core import parallel_state as ps
    from megatron.core.enums import ModelType
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt import gpt_layer_specs as specs

    model, layout = plan["model"]["architecture"], job.layout
    gpt, te, stage = model["model_type"] == "megatron-gpt", config.transformer_impl != "local", None
    if layout.virtual_stages > 1:
        stage = index
    rank, last = ps.get_pipeline_model_parallel_rank(), layout.pipeline - 1
    whole = specs.get_gpt_decoder_block_spec(
        config, use_transformer_engine=te, normalization=config.normalization, vp_stage=stage
    )
    predictions = None
    if config.mtp_num_layers:
        one = whole if whole.layer_specs else specs.get_gpt_decoder_layer_specs(config, te)[-1]
        predictions = specs.get_gpt_mtp_block_spec(config, one, use_transformer_engine=te, vp_stage=stage)
    multiple = _option(job, "make_vocab_size_divisible_by", 128) * layout.tensor
    found = GPTModel(
        config,
        whole,
        vocab_size=-(-model["vocab_size"] // multiple) * multiple,
        max_sequence_length=model.get("max_position_embeddings", 4096),
        pre_process=rank == 0 and index == 0,
        post_process=rank == last and index == layout.virtual_stages - 1,
        parallel_output=True,
        share_embeddings_and_output_weights=model.get("tie_word_embeddings", gpt),
        position_embedding_type="learned_absolute" if gpt else "rope",
        mtp_block_spec=predictions,
        vp_stage=stage,
    )
    found.model_type = ModelType.encoder_or_decoder
    return found


def _adapt(chunks: list[Any], lora: Any) -> None:
    """With Megatron-Bridge's adapters. Its packages import what few of their modules need."""
    import megatron

    folder = next(path for path in megatron.__path__ if os.path.isdir(os.path.join(path, "bridge")))
    for name in ("bridge", "bridge.peft", "bridge.utils"):
        megatron_cuda.module(f"megatron.{name}").__path__ = [os.path.join(folder, *name.split("."))]
    megatron_cuda.module("megatron.bridge.utils.common_utils", print_rank_0=print)
    from megatron.bridge.peft.lora import LoRA

    LoRA(target_modules=list(lora.target_modules), dim=lora.rank, dropout=lora.dropout)(chunks, training=True)


def _wrapped(chunk: Any, config: Any, ddp: Any, index: int, *, whole: bool) -> Any:
    """A chunk in its buffers; ``whole``: they are divided between parameters."""
    import torch
    from megatron.core import parallel_state as ps
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    known: dict[str, Any] = {"config": config, "ddp_config": ddp, "module": chunk, "disable_bucketing": index > 0}
    if ddp.use_megatron_fsdp:
        with unittest.mock.patch("torch.cuda.current_device", return_value=0):  # it names the GPU by its number
            return FullyShardedDataParallel(device=torch.device("cpu"), **known)
    bucketed = index == 0 and ps.get_pipeline_model_parallel_rank() == 0
    layouts = _parameter_layout(chunk, ddp, ddp.bucket_size if bucketed else None, whole=whole)
    return DistributedDataParallel(**known, **layouts)


def _ddp_config(job: Any) -> Any:
    from megatron.core import parallel_state as ps
    from megatron.core.distributed import DistributedDataParallelConfig

    wide = job.recipe.compute == "bf16" and _option(job, "main_grads_dtype", "fp32") == "fp32"
    sharded: dict[str, Any] = {}
    if job.layout.zero_stage >= 2:
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[job.layout.zero_stage]
        sharded = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": strategy}
        sharded |= {"overlap_grad_reduce": True, "overlap_param_gather": True}
        sharded["megatron_fsdp_use_decoupled_grad"] = bool(job.option("use_precision_aware_optimizer"))
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=wide and not job.option("grad_reduce_in_bf16"),
        use_distributed_optimizer=_option(job, "use_distributed_optimizer", job.layout.zero_stage > 0),
        num_distributed_optimizer_instances=_option(job, "num_distributed_optimizer_instances", 1),
        check_for_nan_in_grad=False,
        **{**sharded, **_given(job, DistributedDataParallelConfig)},
    )
    if not config.overlap_grad_reduce:
        config.bucket_size = None
    elif config.bucket_size is None:
        config.bucket_size = max(40_000_000, 1_000_000 * ps.get_data_parallel_world_size(with_context_parallel=True))
    return config


def _parameter_layout(chunk: Any, ddp: Any, bucket_size: int | None, *, whole: bool) -> dict[str, Any]:
    """Where the distributed optimizer puts each parameter, of those versions that ask for it; ``whole`` for Muon."""
    from megatron.core import parallel_state as ps
    from megatron.core.optimizer import distrib_optimizer, layer_wise_optimizer

    kind = distrib_optimizer.DistributedOptimizer
    if not ddp.use_distributed_optimizer or not hasattr(kind, "compute_full_param_layout"):
        return {}
    if whole:
        layer_wise_optimizer.tag_params_for_buffer_routing([chunk])
        kind = layer_wise_optimizer.LayerWiseDistributedOptimizer
    group = ps.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=True)
    experts = ps.get_expert_data_parallel_group(partial_expert_data_parallel=True)
    trained = [parameter for parameter in chunk.parameters() if parameter.requires_grad]
    made = kind.compute_full_param_layout(
        trained, bucket_size, group.size(), ddp, expert_data_parallel_world_size=experts.size()
    )
    return {"full_param_layout": made}


def _optimizer_config(job: Any, config: Any, ddp: Any) -> Any:
    from megatron.core.optimizer import OptimizerConfig

    given = _given(job, OptimizerConfig)
    name = job.optimizer.name
    return OptimizerConfig(
        optimizer="adam" if name.startswith("adam") else name,
        lr=1e-3,
        bf16=config.bf16,
        fp16=config.fp16,
        params_dtype=config.params_dtype,
        clip_grad=1.0,
        use_distributed_optimizer=ddp.use_distributed_optimizer and name != "muon",
        use_layer_wise_distributed_optimizer=ddp.use_distributed_optimizer and name == "muon",
        loss_scale=1.0 if config.fp16 else None,
        **given,
    )
