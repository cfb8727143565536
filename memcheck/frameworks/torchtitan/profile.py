"""torchtitan.

Sources: ``torchtitan/config/job_config.py`` (optimizer ``implementation`` fused, ``max_norm`` 1.0, ``dtype`` float32,
``mixed_precision_param`` bfloat16, ``mixed_precision_reduce`` float32 only, ``disable_loss_parallel`` false, sequence
parallelism with tensor parallelism), ``torchtitan/distributed/utils.py`` (autocast only without FSDP, TP and PP),
``run_train.sh`` (``PYTORCH_ALLOC_CONF=expandable_segments:True``), read up to commit b5bcd76c6 of August 2026.
"""

from __future__ import annotations

from memcheck.autograd.style import Style
from memcheck.job import recipes as r
from memcheck.job.families import EXPERTS, LATENT, NORM, Families, parts, words
from memcheck.job.framework import Framework

# `llama3` builds every model of Llama's shape, `deepseek_v3` has a router with softmax for DeepSeek V2's; GPT-OSS's
# experts with biases and attention with sinks, and Qwen 3.5's delta nets, have no forward pass here.
FAMILIES = Families(
    words("deepseek_v2 deepseek_v3 kimi_k2 llama mistral qwen3 qwen3_moe"),
    parts(
        Attention="heads kv_heads head_dim query_norm key_norm rotary_dim tensors",
        LatentAttention=LATENT,
        Mlp="width gated activation bias tensors",
        Moe=EXPERTS,
        Block="mixer mlp input_norm mlp_norm",
        Norm=NORM,
    ),
    source="torchtitan/models/__init__.py",
)

FRAMEWORK = Framework(
    name="torchtitan",
    title="torchtitan",
    recipes={
        "fp32": r.FP32,
        "bf16-mixed": r.AUTOCAST_BF16,
        "fp8-mixed": r.AUTOCAST_FP8,
        # training.dtype=bfloat16; gradients are still reduced in fp32, the only value of mixed_precision_reduce.
        "bf16-pure": r.BF16_PURE._replace(reduce="fp32"),
    },
    sharded_recipes={"bf16-mixed": r.FSDP2_BF16, "fp8-mixed": r.FSDP2_FP8},
    default_precision="bf16-mixed",
    default_optimizer="adamw",
    default_implementation="fused",
    default_attention="sdpa",
    default_loss="standard",
    keep_logits=False,
    upcast=True,
    caches_outputs=True,
    clip_grad_norm=True,
    sequence_parallel=True,
    expandable_segments=True,
    zero_stages=(0, 1, 3),
    parallelisms=("tensor", "sequence", "context", "pipeline", "expert", "expert_tensor"),
    cuts_expert_matrices="more-shards",
    cuts_all_experts_since=(0, 2, 3),  # main since March 2026, after 0.2.2: "non-dim-0 FSDP sharding", #2668
    schedules=("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "dualpipe"),
    methods=("full", "lora"),
    losses=("standard", "chunked", "vocab-parallel"),
    attentions=("sdpa", "flash", "flex"),
    recompute=("none", "selective", "full"),
    options={
        "selective_ac_option": (str, int),
        "per_op_sac_force_recompute_mm_shapes_by_fqns": (list,),
        "memory_budget": (int, float),
        "disable_loss_parallel": (bool,),
        "enable_async_tensor_parallel": (bool,),
        "enable_fsdp_symm_mem": (bool,),
        "enable_cpu_offload": (bool,),
        "early_step_in_backward": (bool,),
        "fsdp_reshard_after_forward": (str,),
        "context_parallel_rotate_method": (str,),
        "pipeline_parallel_first_stage_less_layers": (int,),
        "pipeline_parallel_last_stage_less_layers": (int,),
        "pipeline_parallel_layers_per_stage": (int,),
        "enable_fsdp_float8_all_gather": (bool,),
        "disable_cuda_graphs": (bool,),
        "components": (list,),
        "micro_batches_per_run": (int,),
        "module": (str,),
    },
    choices={
        "fsdp_reshard_after_forward": ("default", "always", "never"),
        "context_parallel_rotate_method": ("allgather", "alltoall"),
    },
    families=FAMILIES,
    style=Style(
        folder="torchtitan",
        layout="packed",
        source="torchtitan models/ and torch 2.13 derivatives.yaml, replayed by memcheck.frameworks",
        dtensor=True,
        compiles_blocks=True,
        compiled_losses=("standard", "chunked", "vocab-parallel"),
    ),
    modelled_release="main of 2026, b5bcd76c6",
    modelled_since=(0, 2, 3),
    # one configuration of Llama 3.1 8B, compiled: 49.6 GiB in March 2025 (PR #996), 30.9 in June
    compiled_releases=(1 - 30.9 / 49.6, 49.6 / 30.9 - 1),
    wraps_ends=True,
    gathers_stages_again=False,  # get_fsdp_reshard_after_forward_policy: "default"
    fewer_layers=(1, 1),  # config/configs.py, pipeline_parallel_first_stage_less_layers and its like for the last
    gathers_ahead=True,  # distributed/fsdp.py: "set up explicit prefetching when EP is enabled"
    wraps_one_rank=True,
    divides_gradients=True,  # distributed/fsdp.py, disable_fsdp_gradient_division: by 1.0
    implementations={},
    loss_parallel="tensor",
    loss_reduces_head=True,
    replicated_amp_alone=True,
    lacks={
        "parallelism.gradient_sync": "every micro-batch is reduced: nothing in the trainer puts it off "
        "(torchtitan/trainer.py)",
        "parallelism.gradient_as_bucket_view": "no key of its configuration reaches the replicas' buckets "
        "(torchtitan/config/configs.py)",
        "training.precision.reduce": "`mixed_precision_reduce` has one value, float32 (torchtitan/config/configs.py)",
    },
    # trainer.py builds on the meta device, then to_empty; checkpoints are DCP's (components/checkpointer/dcp.py)
    initialization=("meta", "meta"),
    checkpoint=("sharded", "sharded"),
    harmless={
        "enable_fsdp_float8_all_gather": "gathered weights are priced in 16 bits, an upper bound; the time follows it",
        "enable_async_tensor_parallel": "products overlap with the exchange of their inputs; the time follows it",
    },
    unmodelled={
        "per_op_sac_force_recompute_mm_shapes_by_fqns": (
            ("moe.router.gate",),
            "makes selective recompute drop the products of other layers",
        ),
        "memory_budget": (None, "lets the compiler choose what is recomputed"),
        "disable_loss_parallel": (False, "takes the loss on replicated logits"),
        "enable_fsdp_symm_mem": (False, "moves FSDP's buffers to symmetric memory"),
        "early_step_in_backward": (False, "steps each parameter within backward and lets go of its gradient"),
        "context_parallel_rotate_method": ("allgather", "keeps one part of keys and values instead of all"),
        "pipeline_parallel_layers_per_stage": (None, "decides how many stages there are, as `virtual_stages` does"),
        "disable_cuda_graphs": (True, "captures the step in CUDA graphs, whose memory pools stay"),
    },
    bitsandbytes=False,
    asynchronous_checkpoints=True,
    selective_recompute="operators",
    keeps_exchanges_since=(0, 2),
    not_run="no torchtitan can be imported that runs it",
    runs_itself=True,
    errors_by_model=True,
    source="pytorch/torchtitan b5bcd76c6",
)
