"""What serving holds, tensor by tensor, and the arithmetic that is shown for it."""

from __future__ import annotations

from collections import Counter

import pytest

from memcheck.accounts.estimate import LARGEST
from memcheck.catalog.names import find_gpu, model_names
from memcheck.errors import UnsupportedError
from memcheck.families.registry import catalog_architecture
from memcheck.job.types import InferenceJob, Layout
from memcheck.memory.estimate import estimate

GPU = find_gpu("b300")
MODELS = ("llama-3.1-8b", "deepseek-v3", "gemma-3-4b", "nemotron-h-8b", "gpt2")
LAYOUTS = (Layout(), Layout(gpus_per_node=8, tensor=2, pipeline=2, data=2))


def job(model: str, layout: Layout, weights: str = "bf16", kv_cache: str = "bf16") -> InferenceJob:
    """A model that serves three sequences."""
    return InferenceJob(catalog_architecture(model), layout, 3, 1000, weights, kv_cache)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["one", "eight"])
@pytest.mark.parametrize("model", MODELS)
def test_formulas_add_up_to_their_components(model: str, layout: Layout) -> None:
    """On every rank, the bytes of a component's formulas are its bytes at the peak, and each names its source."""
    found = estimate(job(model, layout), GPU, inventory=True)
    for rank in found.ranks:
        sums: Counter[str] = Counter()
        for formula in rank.formulas:
            sums[formula.component] += formula.bytes
            assert formula.formula
            assert formula.numbers
            assert formula.source
        assert dict(sums) == rank.peak.components_bytes
    assert sum(formula.bytes for formula in found.formulas) == found.device_bytes


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4", "fp4"])
def test_largest_tensors_are_ranked_and_counted(weights: str) -> None:
    """The largest first; a group's layers are counted, and caches of windows stand apart."""
    found = estimate(job("gemma-3-4b", LAYOUTS[0], weights, "int8"), GPU, inventory=True)
    sizes = [group.bytes for group in found.largest]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == LARGEST
    gpt2 = estimate(job("gpt2", LAYOUTS[0], weights), GPU, inventory=True).largest
    rests = {group.name: group for group in gpt2 if group.component == "parameters"}
    assert rests["mlp.c_fc.weight"].copies == 12
    assert rests["mlp.c_fc.weight"].shape == f"[768, 3072] {weights}"
    assert rests["transformer.wte.weight"].shape == "[50257, 768] bf16"


def refusal(model: str) -> UnsupportedError | None:
    """Why a model is not served; None where it is."""
    try:
        assert estimate(job(model, LAYOUTS[0]), GPU).allocated_bytes > 0
    except UnsupportedError as error:
        return error
    return None


@pytest.mark.slow
def test_every_model_is_served_or_refused() -> None:
    """Of the catalog every model's layers meet all of their weights, or say on which key they have no model."""
    refused = {name: error for name in model_names() if (error := refusal(name)) is not None}
    assert 0 < len(refused) < len(model_names()) / 5
    assert "deepseek-v4-flash" in refused
    assert {error.pointer for error in refused.values()} == {"/model"}


@pytest.mark.parametrize("model", ["llama-3.2-1b", "qwen2.5-0.5b"])
def test_a_tied_table_is_on_both_ends(model: str) -> None:
    """The last of two pipeline stages multiplies by the table that the first looks up rows in (vLLM, SGLang)."""
    layout = Layout(gpus_per_node=2, pipeline=2)
    first, last = (rank.peak.components_bytes["parameters"] for rank in estimate(job(model, layout), GPU).ranks)
    assert first == last


def test_a_tower_is_on_the_first_stage() -> None:
    """Pictures are read where embeddings are: of two stages that are alike otherwise, the first holds the tower."""
    layout = Layout(gpus_per_node=2, pipeline=2)
    first, last = (rank.peak.components_bytes["parameters"] for rank in estimate(job("qwen2-vl-2b", layout), GPU).ranks)
    assert first - last == pytest.approx(2 * 665_272_320, rel=0.001)  # the tower's parameters, in 16 bits


@pytest.mark.parametrize("model", MODELS)
def test_account_changes_no_figure(model: str) -> None:
    """With and without the account, the estimate is the same."""
    plain, told = (estimate(job(model, LAYOUTS[1]), GPU, inventory=inventory) for inventory in (False, True))
    assert [rank.instants for rank in plain.ranks] == [rank.instants for rank in told.ranks]
    assert plain.device_bytes == told.device_bytes
    assert plain.formulas == plain.largest == ()


def test_cache_formula_has_the_numbers() -> None:
    """The factors that are shown multiply to the bytes that are shown, in whole blocks of 16 tokens: Llama with two of eight heads on a rank."""
    found = estimate(job("llama-3.1-8b", Layout(gpus_per_node=4, tensor=4)), GPU, inventory=True)
    (cache,) = [formula for formula in found.formulas if formula.component == "kv_cache"]
    assert cache.numbers == "32 layers x 3 x 1,008 x 2 x 2 x 128 x 2 B"
    assert cache.bytes == 32 * 3 * 1008 * 2 * 2 * 128 * 2
