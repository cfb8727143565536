"""No part of a model is estimated as nothing: what a framework has no forward pass for is refused, the rest is read."""

from __future__ import annotations

import gc
import sys
from functools import _lru_cache_wrapper, lru_cache
from itertools import product
from typing import Any

import pytest

from memcheck.autograd.context import require_covered
from memcheck.catalog.names import model_names
from memcheck.errors import UnsupportedError
from memcheck.families.registry import catalog_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import FORMS, stated
from memcheck.job.types import Lora, Recipe
from memcheck.memory.estimate import estimate
from memcheck.memory.unmodelled import refuse_model
from memcheck.models.module_types import (
    BlockIndexer,
    Compressed,
    EagerScores,
    FusedKernels,
    HeldMask,
    Indexer,
    PositionTable,
    Rotation,
    Routing,
    SharedExperts,
)
from memcheck.models.parameters import block_tensors
from memcheck.models.types import (
    TEXT_ALONE,
    Architecture,
    Attention,
    Block,
    CrossAttention,
    Disentangled,
    HyperConnections,
    LatentAttention,
    LayerVariables,
    Mixer,
    Mlp,
    Moe,
    Norm,
    ParameterTensor,
    PerLayer,
    SharedWith,
)
from tests.memory.jobs import BIG_GPU, job

MEGATRON = Recipe("bf16-mixed", "bf16", "bf16", "fp32", "fp32", "fp32", "fp32", autocast=False)
REFUSED = (
    ("mixtral-8x7b", "litgpt"),
    ("deepseek-v2-lite", "litgpt"),
    ("gemma-3-1b", "litgpt"),
    ("gemma-2-2b", "torchtitan"),
    ("olmo-2-7b", "torchtitan"),
    ("glm-4-32b", "torchtitan"),
    ("falcon-7b", "torchtitan"),
    ("gpt2", "torchtitan"),
    ("gpt-oss-20b", "torchtitan"),
    ("mixtral-8x7b", "torchtitan"),
    ("gemma-3-1b", "torchtune"),
    ("gpt2", "torchtune"),
    ("gpt-oss-20b", "megatron"),
    ("nemotron-h-8b", "megatron"),
    ("falcon-7b", "megatron"),
)
SAID_TWICE = {
    "Compressed.query_rank",
    "Compressed.output_rank",
    "Mlp.width",
    "Mixer.width",
    "Mixer.heads",
    "Mixer.head_dim",
    "Mixer.kernel",
    "Moe.gated",
}
"""The tensors beside them say it."""
SERVING = {"Mixer.state_bytes_per_sequence"}
WORDS = {
    "Norm.name",
    "Rotation.interleaved",
    "LatentAttention.rotary_interleaved",
    "Moe.activation",
    "Mlp.activation",
}
"""Names of tensors; ``Rotation.form`` says how pairs are written, and Kimi turns none; the gates of GPT-OSS and MiniMax M3
are a ``clamp`` with a formula of its own."""
ROUTING = {"Moe.routing", "Routing.groups", "Moe.router", "Routing.normalised"}
"""What they add to a router's scores is of [tokens, experts] and gone before the experts run; the scores of the routers
that do not read them have the same tensors either way."""
ELSEWHERE = {
    "Attention.chunked_window",
    "Attention.eager",
    "EagerScores.returned",
    "EagerScores.softmax_fp32",
    "LayerVariables.mixer_output",
    "Disentangled.shared",
    "Indexer.passes",
    "Routing.scores_fp32",
}
"""They matter to other kernels of attention, recomputed layers, longer sequences than their windows, or other dtypes
than bf16."""
SEEN: set[str] = set()
Part = Attention | LatentAttention | Mixer | Mlp | Moe | Block | Norm


def _recording(cls: type[Any], base: str = "") -> type[Any]:
    """The record with fields that remember who has been read."""

    def field(place: int, name: str) -> property:
        def get(self: tuple[object, ...]) -> object:
            SEEN.add(name)
            return tuple.__getitem__(self, place)

        return property(get)

    body = {name: field(place, f"{base or cls.__name__}.{name}") for place, name in enumerate(cls._fields)}
    return type.__new__(type(cls), cls.__name__, (cls,), {"__slots__": (), **body})


RECORDING = {
    cls: _recording(cls)
    for cls in (
        Attention,
        BlockIndexer,
        Compressed,
        CrossAttention,
        HyperConnections,
        LayerVariables,
        Disentangled,
        EagerScores,
        FusedKernels,
        HeldMask,
        HyperConnections,
        Indexer,
        LatentAttention,
        Mixer,
        Mlp,
        Moe,
        Block,
        Norm,
        PerLayer,
        PositionTable,
        Rotation,
        Routing,
        SharedExperts,
        SharedWith,
    )
}


def _watched(value: Any) -> Any:
    kind = type(value)
    if kind not in RECORDING:  # a variant, whose fields are its base's
        base = next((each.__name__ for each in kind.__mro__ if each in RECORDING), None)
        if base is None:
            return value
        RECORDING[kind] = _recording(kind, base)
    return tuple.__new__(RECORDING[kind], [_watched(each) for each in value])


ENGINE = ("memcheck.accounts", "memcheck.autograd", "memcheck.frameworks", "memcheck.memory")


@lru_cache(maxsize=1)
def _caches(_modules: int) -> list[Any]:
    """The engine's caches, found anew when another module has been loaded."""
    found = [
        each for each in gc.get_objects() if type(each) is _lru_cache_wrapper
    ]  # others may warn when they are asked
    return [each for each in found if each.__module__.startswith(ENGINE)]


def _forget() -> None:
    """Empty the engine's caches, to which a watched block is equal to a plain one."""
    for found in _caches(len(sys.modules)):
        found.cache_clear()


def _adapted(architecture: Architecture) -> str | tuple[str, ...]:
    """Every linear layer, but the one whose adapter ends in PEFT's own error (DeepSeek V4's product of groups)."""
    tensors = [t for block, _ in architecture.blocks for t in block_tensors(block) if t.linear]
    names = {t.name.removesuffix(".weight").rpartition(".")[2] for t in tensors}
    return tuple(sorted(names - {"o_a_proj"})) if "o_a_proj" in names else "all-linear"


def _price(
    architecture: Architecture, framework: str, attention: str, method: str = "full", kernels: str = "fused"
) -> None:
    changes: dict[str, object] = {"recipe": MEGATRON} if framework == "megatron" else {}
    if framework == "megatron":
        architecture = architecture._replace(modalities=TEXT_ALONE)  # a tower there is refused, or rests
    changes["ssm_kernels"] = kernels
    lora = Lora(8, _adapted(architecture)) if method == "lora" else None
    estimate(job(architecture, framework=framework, attention=attention, method=method, lora=lora, **changes), BIG_GPU)


@pytest.mark.parametrize(("model", "framework"), REFUSED)
def test_a_model_that_a_framework_has_no_forward_for_is_refused(model: str, framework: str) -> None:
    """The error lies at training.framework, and names frameworks that the model is estimated under."""
    with pytest.raises(UnsupportedError, match="no model of") as caught:
        _price(catalog_architecture(model), framework, "sdpa")
    assert caught.value.pointer == "/training/framework"
    assert "pytorch" in caught.value.help


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_part_of_a_priced_model_is_read(framework: str) -> None:
    """Over the catalog: each field of a layer that is not its default is read, or known to say nothing here."""
    harmless = FRAMEWORKS[framework].families.harmless | SAID_TWICE | SERVING | WORDS | ROUTING | ELSEWHERE
    if FRAMEWORKS[framework].families.parts is not None:
        harmless |= FORMS
    unread: dict[str, str] = {}
    known: set[frozenset[str]] = set()
    for name in model_names():
        architecture = catalog_architecture(name)
        parts = frozenset(
            part for block, _ in architecture.blocks for part in stated(block) if "." in part and " " not in part
        )
        try:
            refuse_model(FRAMEWORKS[framework], architecture)
        except UnsupportedError:
            continue
        if parts in known:
            continue
        known.add(parts)
        SEEN.clear()
        recurrent = any(part.startswith("Mixer.") for part in parts)
        watched = architecture._replace(blocks=tuple((_watched(b), n) for b, n in architecture.blocks))
        both = recurrent and framework != "megatron"  # Megatron-core has no other code
        for attention, method, kernels in product(
            ("eager", "sdpa", "flash"), ("full", "lora"), ("fused", "fallback") if both else ("fused",)
        ):
            if method in FRAMEWORKS[framework].methods and (framework, method) != ("megatron", "lora"):
                _forget()
                _price(watched, framework, attention, method, kernels)
            if parts <= SEEN | harmless:
                break  # more jobs would read nothing more
        unread |= dict.fromkeys(parts - SEEN - harmless, name)
    _forget()
    assert not unread, "; ".join(map(str, sorted(unread.items())))


@pytest.mark.parametrize("framework", ["pytorch", "megatron"])
def test_a_weight_that_no_forward_meets_is_refused(framework: str) -> None:
    """One more tensor in a layer, which nobody multiplies, has no figure."""
    architecture = catalog_architecture("llama-3.2-1b")
    block, layers = architecture.blocks[0]
    extra = ParameterTensor("memory.weight", (16_384, 2048), "attention")
    changed = architecture._replace(blocks=((block._replace(extra_tensors=(extra,)), layers),))
    with pytest.raises(UnsupportedError, match=r"no (complete )?model of") as caught:
        _price(changed, framework, "sdpa")
    assert caught.value.pointer == "/training/framework"


def test_more_than_is_held_is_refused_too() -> None:
    """A forward that meets weights which no rank holds is as wrong as one that passes some by."""
    require_covered(5, 5, "a layer", "pytorch")
    with pytest.raises(UnsupportedError, match="meets 6 of 5"):
        require_covered(6, 5, "a layer", "pytorch")


def test_an_unknown_mixer_is_refused() -> None:
    """Layers of a kind without a forward pass are no delta nets."""
    architecture = catalog_architecture("qwen3-next-80b-a3b")
    block, layers = architecture.blocks[0]
    assert isinstance(block.mixer, Mixer)
    other = architecture._replace(blocks=((block._replace(mixer=block.mixer._replace(kind="rwkv")), layers),))
    with pytest.raises(UnsupportedError, match="rwkv"):
        _price(other, "pytorch", "sdpa")
