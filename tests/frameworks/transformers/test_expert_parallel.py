"""Experts on several ranks under plain PyTorch, held against AutoModel's own module.

Traced: ``GroupedExperts`` of NVIDIA-NeMo/Automodel 36044ad3 (``experts: torch_mm``) on four processes with gloo, torch
2.13.0 on the CPU: 512 tokens a rank, hidden size 256, 16 experts of width 128, four to a token, evenly routed. Counted
are the storages that are alive on a rank, rounded up to 512 bytes, without the weights of its experts; the activation
is one function that makes its output and, in backward, two gradients, as the compiled one does.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.score import answer
from memcheck.accounts.process_groups import hybrid_bytes
from memcheck.autograd.context import Context
from memcheck.autograd.engine import backward, checkpoint
from memcheck.autograd.tensor import Leaf, Tape, Value, rounded
from memcheck.catalog.names import find_gpu
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.torch.units import base_setting
from memcheck.frameworks.transformers.expert_parallel import dispatched_experts
from memcheck.job.resolve import Resolved, resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.models.types import Architecture, Moe
from memcheck.plan.read import load_documents, read_plan

TOKENS, HIDDEN, CHOICES = 512, 256, 4
MODEL = {
    "vocab_size": 256,
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "num_experts": 16,
    "num_local_experts": 16,
    "num_experts_per_tok": CHOICES,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
PLAIN = {"model_type": "qwen3_moe", **MODEL}
BIASED = {"model_type": "gpt_oss", "sliding_window": 128, "layer_types": ["full_attention"] * 2, **MODEL}
TRACED = {"plain": (PLAIN, 9_082_880, 2_671_104, 8_176_128), "biased": (BIASED, 14_329_344, 4_768_768, 13_427_712)}
"""Highest point of the forward, what is kept, highest point of the backward; with biases, without the sum in fp64 that
stands for a kernel on the CPU."""


def resolved(model: object, *, degree: int = 4, **sections: Any) -> Resolved:
    """A job with experts on several ranks."""
    plan = {
        "memcheck": 1,
        "name": "experts",
        "model": model,
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 4},
        "parallelism": {"zero_stage": 3, "expert": degree, **sections.get("parallelism", {})},
        "training": {
            "framework": "pytorch",
            "micro_batch_size": 1,
            "sequence_length": TOKENS,
            "precision": {"recipe": "bf16-pure", "reduce": "fp32"},
            **sections.get("training", {}),
        },
    }
    (document,) = load_documents("plan.yaml", json.dumps(plan).encode())
    read, _ = read_plan(document)
    assert read is not None
    return resolve(read, FRAMEWORKS, base_dir=".")


def allocated(job: Resolved) -> int:
    """The peak of the worst rank in bytes."""
    assert job.gpu is not None
    return estimate(job.job, find_gpu("h100-80gb"), job.overhead).allocated_bytes


def replayed(model: dict[str, Any], dispatcher: str = "torch", *, recompute: bool = False) -> tuple[int, int, int]:
    """What a model's experts hold behind a dispatcher: see :func:`measured`."""
    job = resolved({"architecture": model}, training={"options": {"dispatcher": dispatcher}}).job
    assert isinstance(job, TrainingJob)
    return measured(job, recompute=recompute)


def measured(job: TrainingJob, *, recompute: bool = False) -> tuple[int, int, int]:
    """Highest point of the forward of the experts, what they keep, and the highest point of their backward."""
    assert isinstance(job.architecture, Architecture)
    experts = job.architecture.blocks[0][0].mlp
    assert isinstance(experts, Moe)
    ctx = Context(Tape(), base_setting(job, job.architecture, None))
    tape = ctx.tape
    x = Value(tape.new((TOKENS, HIDDEN), "bf16", "tokens"), (TOKENS, HIDDEN), "bf16", Leaf())
    scores = Value(tape.new((TOKENS, CHOICES), "bf16", "scores"), (TOKENS, CHOICES), "bf16", Leaf())
    before = tape.live
    tape.reset_peak()

    def run(tokens: Value) -> Value:
        return dispatched_experts(ctx, experts, tokens, scores)

    y = checkpoint(tape, run, x) if recompute else run(x)
    forward, output = tape.peak - before, TOKENS * HIDDEN * 2
    kept = tape.live - before - output
    arrived = tape.new((TOKENS, HIDDEN), "bf16", "output gradient")  # which the traced script holds to the end
    y.storage = None
    tape.reset_peak()
    backward(tape, y, [arrived])
    return forward, kept, tape.peak - before


@pytest.mark.parametrize("name", TRACED)
def test_gathered_tokens_are_those_of_the_traced_module(name: str) -> None:
    """Every highest point and what is kept within a thousandth of four processes that ran the module."""
    model, *traced = TRACED[name]
    for ours, theirs in zip(replayed(model), traced, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)


ROWS, LOCAL, ROUTED, RANKS, WIDE = TOKENS * CHOICES, 4, 16, 4, 128
RECEIVED = -(-TOKENS * (4**4 - 3**4) // 4**3)
"""Tokens that reach a rank: each of four experts is on it with one chance in four."""
COMPUTED = ROWS * (2 * HIDDEN + 2 * 2 * WIDE + 2 * WIDE + 4) + rounded(4 * LOCAL)
"""Inputs of both products, the activation's input, the weights of the rows, where each expert's rows begin."""
HANDLES = {
    "deepep": (TOKENS * RANKS, TOKENS * RANKS * 4, RECEIVED * 4),
    "hybridep": (TOKENS * RANKS * 4, TOKENS * RANKS * LOCAL, TOKENS * RANKS * LOCAL * 4),
}
SAVED = {"deepep": (RECEIVED * LOCAL * 4, RECEIVED * (2 * LOCAL + 1) * 4), "hybridep": (TOKENS * ROUTED * 4,)}
"""Where the weights of a token went, and how rows were permuted."""


@pytest.mark.parametrize("name", HANDLES)
def test_sent_tokens_keep_what_their_functions_save(name: str) -> None:
    """By hand: the experts' tensors, the maps, and the handle, which is no saved tensor and stays through a checkpoint."""
    handle = sum(map(rounded, HANDLES[name]))
    kept = COMPUTED + handle + sum(map(rounded, SAVED[name]))
    assert replayed(PLAIN, name)[1] == kept
    assert replayed(PLAIN, name, recompute=True)[1] == handle


@pytest.mark.parametrize("name", HANDLES)
def test_sent_tokens_need_less_than_gathered_ones(name: str) -> None:
    """A rank gets its experts' tokens instead of everyone's: less at the highest points."""
    sent, gathered = replayed(PLAIN, name), replayed(PLAIN)
    assert sent[0] < gathered[0]
    assert sent[2] < gathered[2]


def test_hybridep_has_buffers_for_every_token_of_the_group() -> None:
    """In a node: a row, the weights of its experts and its scales for every token; other nodes add what they exchange."""
    row, scores, scales = 2 * HIDDEN, 4 * LOCAL * RANKS, 4 * (HIDDEN // 128)
    assert hybrid_bytes(RANKS, RANKS, HIDDEN, TOKENS, LOCAL) == TOKENS * RANKS * (row + scores + scales)
    assert hybrid_bytes(1, RANKS, HIDDEN, TOKENS, ROUTED) == 0
    own = TOKENS * (row + 4 * LOCAL * RANKS + scales)
    near, other = 4 * LOCAL * 2, TOKENS * 1
    apart = TOKENS * RANKS * (row + near + scales) + own + other * (row + near + scales) + 2 * other * (row + near)
    assert hybrid_bytes(RANKS, 2, HIDDEN, TOKENS, LOCAL) == apart


def test_a_librarys_buffers_are_outside_pytorchs_allocator() -> None:
    """They are no tensors: the same peak but for handles, and more that the driver sees."""
    needed = {}
    for name in ("torch", "deepep", "hybridep"):
        job = resolved({"architecture": PLAIN}, training={"options": {"dispatcher": name}})
        found = estimate(job.job, find_gpu("h100-80gb"), job.overhead)
        needed[name] = found.needed_bytes - found.allocated_bytes
    assert needed["deepep"] > needed["torch"]
    assert needed["hybridep"] > needed["torch"]


def test_experts_that_a_rank_holds_alone_are_not_gathered() -> None:
    """Spread over all ranks they are no part of FSDP2's groups: twice the ranks for each expert add gathered copies."""
    alone, shared = (resolved({"architecture": PLAIN}, degree=degree) for degree in (4, 2))
    assert allocated(alone) < allocated(shared)


@pytest.mark.slow
@pytest.mark.parametrize(("sequences", "published_gib"), [(1, 99.5), (2, 107.44)])
def test_a_published_run_of_automodel(sequences: int, published_gib: float) -> None:
    """DeepSeek-V3 on 64 GB200, experts on all of them: NVIDIA-NeMo/Automodel 36044ad3 examples/llm_benchmark/deepseek,
    deepseek_v3_te_deepep_gb200.yaml and deepseek_v3_sdpa_compile_gb200.yaml (torch.cuda.max_memory_allocated).
    """
    plan = {
        "memcheck": 1,
        "model": "deepseek-v3",
        "hardware": {"gpu": "gb200", "gpus_per_node": 4, "nodes": 16},
        "parallelism": {"zero_stage": 3, "expert": 64, "reshard_after_forward": False, "gradient_sync": "last"},
        "training": {
            "framework": "pytorch",
            "micro_batch_size": sequences,
            "sequence_length": 4096,
            "precision": {"recipe": "bf16-pure", "reduce": "fp32"},
            "optimizer": {"name": "adam", "implementation": "foreach" if sequences == 1 else "for-loop"},
            "activation_checkpointing": "full",
            "loss": {"kind": "standard", "upcast": False},
            "options": {"dispatcher": "hybridep", "fused_norms": True},
        },
    }
    assert answer(plan).allocated_bytes / 2**30 == pytest.approx(published_gib, rel=0.01)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"parallelism": {"zero_stage": 0}}, "with FSDP2 alone"),
        ({"parallelism": {"tensor": 2}, "degree": 2}, "with tensor parallelism"),
        ({"training": {"precision": "bf16-mixed"}}, "are cast in every layer"),
    ],
)
def test_what_has_no_model_beside_experts_is_refused(sections: dict[str, Any], said: str) -> None:
    """Replicas, tensor parallelism and fp32 experts are errors that say so."""
    degree = sections.pop("degree", 4)
    with pytest.raises(UnsupportedError, match=said):
        allocated(resolved({"architecture": PLAIN}, degree=degree, **sections))
