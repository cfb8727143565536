"""Jobs for the engine's tests: Llama-shaped models with one thing changed at a time."""

from __future__ import annotations

from memcheck.catalog.names import Gpu
from memcheck.families.registry import read_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import Checkpointing, Layout, Loss, Optimizer, Recipe, TrainingJob
from memcheck.models.types import Architecture

MIB = 2**20
BIG_GPU = Gpu("big", 10**15)
BF16_PURE = Recipe("bf16-pure", "bf16", "bf16", "bf16", "none", "bf16", "bf16", autocast=False)
BF16_AUTOCAST = Recipe("bf16-mixed", "fp32", "bf16", "fp32", "none", "fp32", "fp32", autocast=True)
BF16_FSDP = Recipe("bf16-mixed", "fp32", "bf16", "fp32", "none", "fp32", "fp32", autocast=False)


def llama_8b(layers: int = 32) -> Architecture:
    """Llama-3.1-8B, with fewer layers on request."""
    return read_architecture(
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": layers,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
            "tie_word_embeddings": False,
        }
    )


def llama_1b() -> Architecture:
    """Llama-3.2-1B, whose head is tied."""
    return read_architecture(
        {
            "model_type": "llama",
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 8192,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
        }
    )


def job(architecture: Architecture | None = None, **changes: object) -> TrainingJob:
    """A plain PyTorch loop over Llama-3.1-8B in pure bf16, one sequence of 4,096 tokens, foreach AdamW."""
    base = TrainingJob(
        architecture=architecture or llama_8b(),
        framework=FRAMEWORKS[str(changes.pop("framework", "pytorch"))],
        framework_version=None,
        layout=Layout(),
        recipe=BF16_PURE,
        optimizer=Optimizer("adamw", "foreach"),
        micro_batch_size=1,
        sequence_length=4096,
        gradient_accumulation_steps=1,
        loss=Loss(keep_logits=True),
    )
    return base._replace(**changes)  # type: ignore[arg-type]


FULL = Checkpointing("full")


def sharded(ways: int, **changes: object) -> Layout:
    """FSDP2 over ``ways`` ranks."""
    layout = Layout(gpus_per_node=min(8, ways), nodes=max(1, ways // 8), data=ways, zero_stage=3, shard_group=ways)
    return layout._replace(**changes)  # type: ignore[arg-type]
