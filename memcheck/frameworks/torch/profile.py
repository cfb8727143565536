"""A plain training loop over transformers' model classes with torch's own DDP, FSDP2, DTensor and pipelining.

Sources: torch 2.13 (``torch/optim/optimizer.py:_default_to_fused_or_foreach``: foreach on CUDA unless told otherwise,
``torch/optim/_adafactor.py``, ``torch/optim/_muon.py``; ``torch/distributed/fsdp/_fully_shard``), and the traces of
such loops: ``out = model(...)`` keeps the logits referenced until the next step.
"""

from __future__ import annotations

from memcheck.frameworks.transformers.classes import STYLE, TRANSFORMERS
from memcheck.job import recipes as r
from memcheck.job.framework import Framework
from memcheck.job.profile import PEFT_VARIANTS, TRANSFORMERS_BASES

FRAMEWORK = Framework(
    name="pytorch",
    title="a plain PyTorch loop over transformers' model classes",
    recipes=dict(r.GENERIC),
    sharded_recipes={"bf16-mixed": r.FSDP2_BF16, "fp16-mixed": r.FSDP2_FP16, "fp8-mixed": r.FSDP2_FP8},
    default_precision="bf16-mixed",
    default_optimizer="adamw",
    default_implementation="foreach",
    default_attention="sdpa",
    default_loss="standard",
    keep_logits=True,
    upcast=True,
    clip_grad_norm=False,
    sequence_parallel=False,
    expandable_segments=False,
    zero_stages=(0, 1, 3),
    parallelisms=("tensor", "sequence", "context", "pipeline", "expert"),
    # NVIDIA-NeMo/Automodel components/moe/parallelizer.py, apply_fsdp: `ignored_params`
    leaves_whole_experts=True,
    cuts_expert_matrices="always",
    schedules=("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "dualpipe"),
    methods=("full", "lora", "qlora"),
    runs_transformers=True,
    lora_variants=PEFT_VARIANTS,
    adapts_head=True,
    bases=TRANSFORMERS_BASES,
    losses=("standard", "chunked", "fused-linear", "in-place", "vocab-parallel"),
    evaluates=True,
    pads=True,
    steps_in_backward=True,
    heads=("lm", "classification", "token-classification", "reward", "embedding"),
    attentions=("sdpa", "flash", "flex", "eager"),
    recompute=("none", "selective", "full"),
    options={
        "bucket_cap_mb": (int, float),
        "static_graph": (bool,),
        "find_unused_parameters": (bool,),
        "fsdp_version": (int,),
        "wraps_adapters": (bool,),
        "prepare_model_for_kbit_training": (bool,),
        "dispatcher": (str,),
        "fused_norms": (bool,),
        "micro_batches_per_run": (int,),
        "transformers_version": (str,),
    },
    choices={"fsdp_version": (1, 2), "dispatcher": ("torch", "deepep", "uccl_ep", "hybridep")},
    # Muon has no foreach path (torch/optim/_muon.py refuses foreach=True); the 8-bit and Lion kernels of
    # bitsandbytes update one tensor in place.
    stacks_experts_since=(5, 0),
    families=TRANSFORMERS,
    style=STYLE,
    caches_outputs=True,
    implementations={
        "muon": "for-loop",
        "adamw-8bit": "fused",
        "paged-adamw": "fused",
        "paged-adamw-8bit": "fused",
        "lion": "fused",
        "lion-8bit": "fused",
        "flash-adamw": "fused",
        "flash-adamw-32": "fused",
        "te-fused-adam": "fused",
    },
    # what torch's FSDP2 and DCP tutorials do
    initialization=("host", "meta"),
    checkpoint=("full", "sharded"),
    harmless={
        "bucket_cap_mb": "DDP's buckets hold the gradients together, in however many parts (c10d/reducer.cpp)",
        "static_graph": "it spares a walk of the graph, and keeps no tensors (nn/parallel/distributed.py)",
        "find_unused_parameters": "it walks the graph, and keeps no tensors (nn/parallel/distributed.py)",
    },
    # torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py around transformers' modules, by their names
    checkpointed_parts=("self_attn", "mlp", "input_layernorm", "post_attention_layernorm"),
    own_loop=True,
    from_pretrained=True,
    other_initializations=("rank0", "meta"),
    either_state_dict=True,
    asynchronous_checkpoints=True,
    source="torch 2.13.0",
)
