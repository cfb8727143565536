"""torchtune's layers and losses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.accounts.ranks import Part, Unit
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.torch.rank_units import part_units
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.plan.read import load_documents, read_plan

TOKENS = 2 * 4096
HIDDEN, WIDTH, HEADS, QUERY, VOCABULARY = 3072, 8192, 24, 3072, 128256


def _job(**training: Any) -> TrainingJob:
    stated = {"framework": "torchtune", "micro_batch_size": 2, "sequence_length": 4096, **training}
    text = json.dumps({"memcheck": 1, "model": "llama-3.2-3b", "hardware": {"gpu": "a100-80gb"}, "training": stated})
    (document,) = load_documents("plan.yaml", text.encode())
    plan, _ = read_plan(document)
    assert plan is not None
    found = resolve(plan, FRAMEWORKS, base_dir=".").job
    assert isinstance(found, TrainingJob)
    return found


def _units(**training: Any) -> list[Unit]:
    each = _job(**training)
    assert isinstance(each.architecture, Architecture)
    return part_units(each, each.architecture, Part(0, each.architecture.num_layers, True, True))


def test_a_layer_keeps_keys_and_values_at_every_query_head() -> None:
    """Two norms in pieces (8h + 4), four tensors of attention's width, the logsumexp, 8f of the feed-forward."""
    layer = _units()[1].first_curve
    assert layer.saved_bytes == TOKENS * (16 * HIDDEN + 8 * WIDTH + 8 * QUERY + 4 * HEADS + 8)


def test_the_default_loss_makes_logits_in_pieces_and_holds_them_all() -> None:
    """bf16 logits once, and fp32 log-probabilities of every piece unless the loss is compiled."""
    eager, compiled = _units()[-1].first_curve, _units(compile=True)[-1].first_curve
    logits = TOKENS * VOCABULARY
    assert eager.saved_bytes - compiled.saved_bytes == pytest.approx((4 - 2) * logits, rel=1e-2)


def test_only_the_chunked_loss_is_compiled() -> None:
    """compile_loss returns another module for any other, which the recipe drops."""
    plain = {"loss": "standard"}
    assert _units(**plain)[-1] == _units(compile=True, **plain)[-1]


def test_recomputation_wraps_the_compiled_layer() -> None:
    """Each layer keeps its input only; what its backward reaches is the compiled layer's."""
    full = _units(compile=True, activation_checkpointing="full")[1].first_curve
    eager = _units(activation_checkpointing="full")[1].first_curve
    assert full.saved_bytes == eager.saved_bytes == 2 * TOKENS * HIDDEN
    assert full.backward_peak.bytes < eager.backward_peak.bytes


def test_four_bit_training_leaves_embedding_and_norms_in_the_recipe_dtype() -> None:
    """prepare_model_for_kbit_training is peft's."""
    from memcheck.frameworks.torch.resident import resident_dtype

    each = _job(method="qlora")
    (table,) = [t for u in _units(method="qlora") for t in u.tensors if t.name == "embed_tokens.weight"]
    assert resident_dtype(each, table) == "bf16"
    assert each.lora is not None
    assert each.lora.dtype == "bf16"


def test_four_bit_bases_are_stored_in_a_known_format() -> None:
    """NF4 is torchao's tensor; a base without nested constants keeps the format that the plan states."""
    for double, expected in ((True, "nf4-torchao"), (False, "nf4-single")):
        units = _units(method="qlora", base={"held_in": "nf4", "double": double})
        dtypes = {t.dtype for unit in units for t in unit.tensors if t.name.endswith("gate_proj.weight")}
        assert dtypes == {expected}


def test_the_linear_loss_lets_go_of_each_pieces_logits() -> None:
    """LinearCrossEntropyLoss keeps the same log-probabilities, and no bf16 logits but one piece's beside them."""
    linear, chunked = _units(loss="fused-linear")[-1].first_curve, _units(loss="chunked")[-1].first_curve
    logits = TOKENS * VOCABULARY
    assert linear.saved_bytes == pytest.approx(chunked.saved_bytes, abs=4 * TOKENS * HIDDEN)
    assert chunked.forward_peak.bytes - linear.forward_peak.bytes == pytest.approx(2 * 7 / 8 * logits, rel=5e-2)
    more = _units(loss={"kind": "fused-linear", "chunks": 32})[-1].first_curve
    assert more.forward_peak.bytes < linear.forward_peak.bytes


def test_ends_that_are_sharded_apart_are_not_gathered_all_the_time() -> None:
    """Without the list, embedding and head stay gathered in the root's group; a tied head reads the root's table."""
    from memcheck.job.versions import ends_apart

    profile = FRAMEWORKS["torchtune"]
    named = {"options": {"custom_sharded_layers": ["tok_embeddings", "output"]}}
    assert not ends_apart(_job(**named), profile)  # Llama 3.2 3B ties them
    untied = _job(**named)._replace(architecture=_untied())
    assert ends_apart(untied, profile)
    assert not ends_apart(_job()._replace(architecture=_untied()), profile)


def _untied() -> Architecture:
    architecture = _job().architecture
    assert isinstance(architecture, Architecture)
    return architecture._replace(tie_word_embeddings=False)


def test_adapters_choose_among_projections_that_transformers_fuses() -> None:
    """Phi 3 has layers of its own for query, key and value; all of its parameters are as many."""
    text = {"framework": "torchtune", "micro_batch_size": 1, "sequence_length": 512, "method": "lora"}
    text["lora"] = {"rank": 8, "target_modules": ["q_proj", "v_proj", "gate_proj"], "dropout": 0.1}
    plan = {"memcheck": 1, "model": "phi-3-mini", "hardware": {"gpu": "a100-80gb"}, "training": text}
    (document,) = load_documents("plan.yaml", json.dumps(plan).encode())
    read, _ = read_plan(document)
    assert read is not None
    job = resolve(read, FRAMEWORKS, base_dir=".").job
    assert isinstance(job, TrainingJob)
    assert isinstance(job.architecture, Architecture)
    units = part_units(job, job.architecture, Part(0, job.architecture.num_layers, True, True))
    adapters = sorted((t.name, t.numel) for t in units[1].tensors if ".lora_" in t.name)
    pairs = {"self_attn.q_proj": 3072, "self_attn.v_proj": 3072, "mlp.gate_proj": 8192}
    down = [(f"{name}.lora_A", 8 * 3072) for name in pairs]
    up = [(f"{name}.lora_B", 8 * width) for name, width in pairs.items()]
    assert adapters == sorted([*down, *up])
    whole = sum(t.numel for unit in units for t in unit.tensors if ".lora_" not in t.name)
    assert whole == 3_821_079_552
