"""A tower beside a language model under Megatron: it rests as mcore-bridge holds it, or is refused."""

from __future__ import annotations

import pytest

from memcheck.errors import UnsupportedError
from memcheck.families.registry import catalog_architecture
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.units import idle_tower_tensors
from memcheck.frameworks.megatron.workspaces import Device
from memcheck.job.types import Images, Lora, TrainingJob
from memcheck.memory.unmodelled_parts import refuse_parts
from tests.frameworks.megatron.models import grid, job

MODEL = "qwen3.5-35b-a3b"
REST = Images(0, 0, 0)
LANGUAGE = Lora(8, "all-linear", parts=("language",))
FROZEN = ("vision", "projector")


def _job(**changes: object) -> TrainingJob:
    options = changes.pop("options", {"bridge_backend": "mcore-bridge"})
    return job(catalog_architecture(MODEL), grid(8, expert=8), options=options, **{"images": REST, **changes})


def test_the_first_stage_holds_it_frozen() -> None:
    """Its weights rest in bfloat16, whole, on the rank that has the embedding, and get no gradients."""
    a = catalog_architecture(MODEL)
    tensors = idle_tower_tensors(a)
    assert not any(t.trained for t in tensors)
    with_tower, without = (
        megatron_ranks(_job(freeze=FROZEN)._replace(architecture=each), each, Device("sm_90"), inventory=False)[0]
        for each in (a, a._replace(modalities=a.modalities._replace(vision=None)))
    )
    more = dict(with_tower.instants[0].components_bytes), dict(without.instants[0].components_bytes)
    assert more[0]["parameters"] - more[1]["parameters"] == pytest.approx(2 * sum(t.numel for t in tensors), rel=1e-3)
    assert more[0]["gradients"] == more[1]["gradients"]
    assert sum(t.numel for t in tensors) == 446_571_248


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"options": {}}, "/training/framework"),
        ({"images": None}, "/training/images"),
        ({"images": Images(1, 64, 16)}, "/training/images"),
        ({}, "/training/freeze"),
        ({"freeze": ("vision",)}, "/training/freeze"),
        ({"method": "lora", "lora": Lora(8, "all-linear")}, "/training/lora"),
    ],
)
def test_a_tower_that_does_not_rest_is_refused(changes: dict[str, object], pointer: str) -> None:
    """One that Megatron-Bridge holds, one at work, a trained one, one with adapters."""
    with pytest.raises(UnsupportedError) as caught:
        refuse_parts(_job(**changes), catalog_architecture(MODEL))
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("changes", [{"freeze": FROZEN}, {"method": "lora", "lora": LANGUAGE}])
def test_one_that_rests_is_priced(changes: dict[str, object]) -> None:
    """Frozen whole, or beside adapters of the language model alone; over tensor ranks, too."""
    refuse_parts(_job(**changes)._replace(layout=grid(8, tensor=2)), catalog_architecture(MODEL))
