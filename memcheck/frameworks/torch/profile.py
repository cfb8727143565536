"""A plain training loop over transformers' model classes with torch's own DDP, FSDP2, DTensor and pipelining.

Sources: torch 2.13 (``torch/optim/optimizer.py:_default_to_fused_or_foreach``: foreach on CUDA unless told otherwise,
``torch/optim/_adafactor.py``, ``torch/optim/_muon.py``; ``torch/distributed/fsdp/_fully_shard``), and the traces of
such loops: ``out = model(...)`` keeps the logits referenced until the next step.
"""

from __future__ import annotations

from memcheck.frameworks.transformers.profile import ADAPTERS, MISSING_ATTENTIONS, STYLE, TRANSFORMERS
from memcheck.job import recipe as r
from memcheck.job.framework import Framework, Fsdp2, LoadAndSave, Losses, Optimizers, Parallelism, Precisions


class PyTorch(Framework):
    """A loop of the user's over PyTorch, whose own decisions are few."""

    @property
    def has_user_loop(self) -> bool:
        """True: the loop is the user's."""
        return True

    @property
    def checkpointable_modules(self) -> tuple[str, ...]:
        """Modules of transformers' layers, by their names, around which
        torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py can be put.
        """
        return ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")


FRAMEWORK = PyTorch(
    name="pytorch",
    title="a plain PyTorch loop over transformers' model classes",
    source="torch 2.13.0",
    style=STYLE,
    families=TRANSFORMERS,
    precisions=Precisions(
        default="bf16-mixed",
        recipes=dict(r.GENERIC),
        sharded={"bf16-mixed": r.FSDP2_BF16, "fp16-mixed": r.FSDP2_FP16, "fp8-mixed": r.FSDP2_FP8},
    ),
    optimizers=Optimizers(
        implementation="foreach",
        # Muon has no foreach path (torch/optim/_muon.py refuses foreach=True); the 8-bit and Lion kernels of
        # bitsandbytes update one tensor in place.
        by_name={
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
        in_backward=True,
    ),
    losses=Losses(
        default="standard",
        kinds=("standard", "chunked", "fused-linear", "in-place", "vocab-parallel"),
        keep_logits=True,
    ),
    parallelism=Parallelism(
        zero_stages=(0, 1, 3),
        degrees=("tensor", "sequence", "context", "pipeline", "expert"),
        schedules=("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "dualpipe"),
    ),
    methods=("full", "lora", "qlora"),
    default_attention="sdpa",
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
    harmless={
        "bucket_cap_mb": "DDP's buckets hold the gradients together, in however many parts (c10d/reducer.cpp)",
        "static_graph": "it spares a walk of the graph, and keeps no tensors (nn/parallel/distributed.py)",
        "find_unused_parameters": "it walks the graph, and keeps no tensors (nn/parallel/distributed.py)",
    },
    adapters=ADAPTERS,
    load_and_save=LoadAndSave(
        # what torch's FSDP2 and DCP tutorials do
        initialization=("host", "meta"),
        other_places=("rank0", "meta"),
        checkpoint=("full", "sharded"),
        either_state_dict=True,
        asynchronous=True,
    ),
    fsdp2=Fsdp2(
        # NVIDIA-NeMo/Automodel components/moe/parallelizer.py, apply_fsdp: `ignored_params`
        leaves_whole_experts=True,
        cuts_expert_matrices="always",
    ),
    missing_attentions=MISSING_ATTENTIONS,
    runs_transformers=True,
)
