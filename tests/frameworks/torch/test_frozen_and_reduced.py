"""What FSDP2 holds around the reductions at the end of a backward, and what frozen parts leave, against traced steps.

Traced: torch 2.13.0 and transformers 5.23.0 on fake tensors, full fine-tuning in bf16-mixed with gradients reduced in fp32.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.torch.load_and_save_plans import priced
from tests.models.multimodal import facts

MIB = 2**20
UNTIED = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 64000,
    "tie_word_embeddings": False,
}
TRAINING = {
    "framework": "pytorch",
    "precision": "bf16-mixed",
    "optimizer": {"name": "adamw", "implementation": "fused"},
    "activation_checkpointing": "full",
    "clip_grad_norm": False,
    "sequence_length": 256,
}


def backward(model: dict[str, Any], gpus: int) -> tuple[float, str]:
    """The highest point of the backward in MiB, and its operation."""
    answer = priced(TRAINING, {"zero_stage": 3}, {"gpus_per_node": gpus}, model={"architecture": model})
    found = next(i for i in answer.ranks[0].instants if i.name == "backward")
    return found.allocated_bytes / MIB, found.operation


def test_the_last_gradient_of_a_group_outlives_the_copy_into_its_reduction() -> None:
    """The head's, [64000, 1024] in bf16, is the variable of a loop when two ranks' output is made: traced 1,816.3 MiB."""
    found, operation = backward(UNTIED, 2)
    assert operation == "reduce-scatter of the root group"
    assert found == pytest.approx(1816.3, rel=5e-4)


@pytest.mark.slow
def test_a_frozen_towers_hooks_wait_for_the_end_of_the_backward() -> None:
    """No gradient reaches its groups: what layer 0 reduced and gathered ahead stays to the end: traced on four ranks."""
    (row,) = (row for row in facts("traced") if row["id"] == "qwen2_5_vl.full.b1.t256")
    traced = {"forward": 3453.225, "loss": 3815.156, "backward": 5318.286, "optimizer": 3287.056}
    training = {
        **TRAINING,
        "optimizer": {"name": "adamw", "implementation": "foreach"},
        "activation_checkpointing": "none",
        "attention": "sdpa",
        "sequence_length": 484,
        "initialization": "device",
        "images": {"per_sample": 1, "patches": 1408, "tokens": 352},
        "freeze": ["vision"],
        "options": {"transformers_version": "5.23"},
    }
    answer = priced(training, {"zero_stage": 3}, {"gpus_per_node": 4}, model={"architecture": row["config"]})
    for instant in answer.ranks[0].instants:
        if instant.name in traced:
            assert instant.allocated_bytes / MIB == pytest.approx(traced[instant.name], rel=0.001), instant.name


def test_the_transform_in_front_of_a_frozen_table_is_trained() -> None:
    """`freeze: [embed]` of a BERT whose head is tied: the layer and norm in front of the head keep states; traced."""
    model = {
        "model_type": "bert",
        "hidden_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
        "vocab_size": 3000,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
    }
    training = {
        "framework": "pytorch",
        "micro_batch_size": 2,
        "sequence_length": 128,
        "precision": "bf16-pure",
        "optimizer": {"name": "adamw", "implementation": "foreach"},
        "freeze": ["embed"],
        "clip_grad_norm": False,
    }
    traced = {"init": 30475264, "forward": 38758400, "loss": 41569280, "backward": 44641280, "optimizer": 48372736}
    answer = priced(training, {}, {"gpus_per_node": 1}, model={"architecture": model})
    found = {i.name: i.allocated_bytes for i in answer.ranks[0].instants if i.name in traced}
    assert found == pytest.approx(traced, rel=0.001)


REPLICATED = {
    "two micro-batches": ("bf16-mixed", 2, 1543231488),
    "reduced in fp32": ({"recipe": "bf16-pure", "reduce": "fp32"}, 1, 948025856),
    "both": ({"recipe": "bf16-pure", "reduce": "fp32"}, 2, 973522944),
}
"""Precision, micro-batches, and the traced highest point of the backward."""


@pytest.mark.parametrize("name", REPLICATED)
def test_replicas_keep_what_their_all_reduces_wrote(name: str) -> None:
    """Two groups of two ranks: each layer's buffer stays to the end where it is not itself the gradients that rest."""
    precision, steps, traced = REPLICATED[name]
    training = {**TRAINING, "precision": precision, "gradient_accumulation_steps": steps}
    model = {**UNTIED, "vocab_size": 4000, "intermediate_size": 4096, "num_hidden_layers": 8}
    parallelism = {"zero_stage": 3, "shard_group": 2}
    answer = priced(training, parallelism, {"gpus_per_node": 4}, model={"architecture": model})
    found = next(i.allocated_bytes for i in answer.ranks[0].instants if i.name == "backward")
    assert found == pytest.approx(traced, rel=1e-3)


FROZEN_HEADS = {
    "bert added, sdpa, none, bf16-pure": {
        "init": 50004992,
        "forward": 228110336,
        "loss": 241349632,
        "backward": 257733632,
        "optimizer": 96868352,
    },
    "gemma4_text added, sdpa, none, bf16-pure": {
        "init": 1798539264,
        "forward": 4797182976,
        "loss": 4808808960,
        "backward": 4842046976,
        "optimizer": 3587822592,
    },
    "bart added, eager, none, bf16-pure": {
        "init": 184700928,
        "forward": 1346695168,
        "loss": 1335825408,
        "backward": 1426187264,
        "optimizer": 365268992,
    },
}
"""Traced bytes of each moment with `freeze: [head]`, by a plan of a small model."""


@pytest.mark.parametrize("name", FROZEN_HEADS)
def test_a_frozen_tied_head_freezes_the_table_alone(name: str) -> None:
    """Positions, types, norms and tables of layers' own inputs beside it are trained, in an encoder, too."""
    from benchmarks.drawn import predicted
    from benchmarks.families import plans

    plan = plans()[name]
    (found,) = predicted({**plan, "training": {**plan["training"], "freeze": ["head"]}}).values()
    gaps = {moment: found[moment] / seen - 1 for moment, seen in FROZEN_HEADS[name].items()}
    assert all(-0.001 < gap < 0.006 for gap in gaps.values()), gaps


FROZEN_NORMS = {
    "bert added, sdpa, none, bf16-pure": {
        "init": 50004992,
        "forward": 228110336,
        "loss": 244495360,
        "backward": 260879360,
        "optimizer": 99944448,
    },
    "roberta-prelayernorm added, sdpa, none, bf16-pure": {
        "init": 50008064,
        "forward": 231291904,
        "loss": 247676928,
        "backward": 264060928,
        "optimizer": 99947520,
    },
}
"""Traced bytes of each moment with `freeze: [norm]`, by a plan of a small model."""


@pytest.mark.parametrize("name", FROZEN_NORMS)
def test_a_frozen_final_norm_is_no_layer_in_front_of_the_head(name: str) -> None:
    """BERT has none, RoBERTa-PreLayerNorm has one: the layer and the norm in front of their heads are trained."""
    from benchmarks.drawn import predicted
    from benchmarks.families import plans

    plan = plans()[name]
    (found,) = predicted({**plan, "training": {**plan["training"], "freeze": ["norm"]}}).values()
    gaps = {moment: found[moment] / seen - 1 for moment, seen in FROZEN_NORMS[name].items()}
    assert all(-0.0001 < gap < 0.001 for gap in gaps.values()), gaps


ADAPTED_STREAMS = {
    "gemma3n_text added, sdpa, none, bf16-lora": (
        ["altup_projections.0", "altup_projections.1", "altup_projections.2"],
        {"init": 355157504, "forward": 1929718272, "loss": 1864658944, "backward": 1899138560, "optimizer": 355943936},
    ),
    "electra added, sdpa, none, bf16-lora": (
        ["embeddings_project"],
        {"init": 6003712, "forward": 51374080, "loss": 60427264, "backward": 75762688, "optimizer": 6028288},
    ),
}
"""Targets, and traced bytes of each moment, by a plan of a small model."""


@pytest.mark.parametrize("name", ADAPTED_STREAMS)
def test_adapters_behind_the_table_give_the_first_layer_a_graph(name: str) -> None:
    """They stand between the frozen rows and the layers, which keep what a gradient of their input needs."""
    from benchmarks.drawn import predicted
    from benchmarks.families import plans

    plan, (targets, traced) = plans()[name], ADAPTED_STREAMS[name]
    training = {**plan["training"], "lora": {**plan["training"]["lora"], "target_modules": targets}}
    (found,) = predicted({**plan, "training": training}).values()
    gaps = {moment: found[moment] / seen - 1 for moment, seen in traced.items()}
    assert all(-0.001 < gap < 0.007 for gap in gaps.values()), gaps
