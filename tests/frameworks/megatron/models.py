"""Megatron jobs for the tests: the shapes of published runs, with one thing changed at a time."""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, replay
from memcheck.autograd.tensor import Value
from memcheck.families.registry import read_architecture
from memcheck.frameworks.megatron.layers import megatron_layers
from memcheck.frameworks.megatron.profile import FRAMEWORK as MEGATRON
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import Checkpointing, Layout, Optimizer, TrainingJob
from memcheck.models.types import TEXT_ALONE, Architecture, Attention, Block, Mlp, Norm

MIB = 2**20


def llama(layers: int, *, hidden: int = 8192, heads: int = 64, kv_heads: int = 8, ffn: int = 28672) -> Architecture:
    """A Llama; without more said, Llama-3-70B's layers."""
    return read_architecture(
        {
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "intermediate_size": ffn,
            "vocab_size": 128256,
            "tie_word_embeddings": False,
        }
    )


def llama_8b(layers: int = 32) -> Architecture:
    """Llama-3.1-8B."""
    return llama(layers, hidden=4096, heads=32, kv_heads=8, ffn=14336)


def deepseek_v2(layers: int = 4) -> Architecture:
    """DeepSeek-V2 cut to a few layers, the first one dense."""
    return read_architecture(
        {
            "model_type": "deepseek_v2",
            "num_hidden_layers": layers,
            "hidden_size": 5120,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 102400,
            "tie_word_embeddings": False,
        }
    )


def gpt(
    layers: int = 12,
    *,
    hidden: int = 512,
    heads: int = 8,
    groups: int | None = None,
    ffn: int | None = None,
    vocab: int = 50257,
    positions: int = 1024,
    tied: bool = True,
    dropout: float = 0.1,
) -> Architecture:
    """pretrain_gpt.py's defaults: learned positions, LayerNorm, biases everywhere, GELU, dropout 0.1."""
    norm = Norm("layernorm", hidden, weight=True, bias=True)
    attention = Attention(
        heads,
        groups or heads,
        hidden // heads,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        dropout=dropout,
        tensors=(),
        query_norm=None,
        key_norm=None,
        window=None,
    )
    mlp = Mlp(ffn or 4 * hidden, gated=False, activation="gelu", bias=True, tensors=())
    block = Block(attention, mlp, norm, norm, dropout=dropout)
    return Architecture(
        "gpt2",
        hidden,
        vocab,
        ((block, layers),),
        hidden,
        tied,
        norm,
        learned_positions=positions,
        embedding_dropout=dropout,
        max_position_embeddings=0,
        rotary_dim=0,
        task=None,
        modalities=TEXT_ALONE,
    )


def job(architecture: Architecture, layout: Layout, **changes: object) -> TrainingJob:
    """bf16 with fp32 main gradients, fused Adam, one sequence of 4,096 tokens, four micro-batches."""
    options = changes.pop("options", {})
    base = TrainingJob(
        architecture=architecture,
        framework=FRAMEWORKS["megatron"],
        framework_version=None,
        layout=layout,
        recipe=MEGATRON.precisions.recipes["bf16-mixed"],
        optimizer=Optimizer("adam", "fused"),
        micro_batch_size=1,
        sequence_length=4096,
        gradient_accumulation_steps=4,
        checkpointing=Checkpointing(),
        attention="flash",
        options=tuple(sorted(options.items())),  # type: ignore[attr-defined]
    )
    return base._replace(**changes)  # type: ignore[arg-type]


def grid(world: int, **degrees: object) -> Layout:
    """A layout on one node with data parallelism over what is left, and the distributed optimizer over it."""
    numbers = {k: v for k, v in degrees.items() if k in ("tensor", "context", "pipeline") and isinstance(v, int)}
    ways = world
    for n in numbers.values():
        ways //= n
    shards = ways * numbers.get("context", 1)
    base = Layout(gpus_per_node=world, data=ways, zero_stage=1, shard_group=shards)
    return base._replace(**degrees)  # type: ignore[arg-type]


def layer_curve(architecture: Architecture, setting: Setting, *, layer: int = 0, recompute: bool = False) -> Curve:
    """The memory curve of one layer."""
    rows = setting.batch * setting.sequence
    if setting.sequence_parallel:
        rows //= setting.tensor_parallel
    block = architecture.layers()[layer]

    def forward(ctx: Context, x: Value) -> Value:
        return megatron_layers(ctx, (block,), x, recompute=recompute)

    return replay(forward, setting, (rows, setting.hidden), "bf16", inventory=True)


def setting(
    hidden: int, *, batch: int = 1, sequence: int = 4096, attention: str = "fused", **changes: object
) -> Setting:
    """The ledger's setting of a bf16 run with fp32 main gradients."""
    options = changes.pop("options", {})
    base = Setting(
        style=MEGATRON.style,
        batch=batch,
        sequence=sequence,
        hidden=hidden,
        attention=attention,
        has_grad=True,
        main_grad_dtype="fp32",
        options=tuple(sorted(options.items())),  # type: ignore[attr-defined]
    )
    return base._replace(**changes)  # type: ignore[arg-type]
