"""``training.images``: what a plan states of its pictures, and what follows where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.images import pictures_of
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import Resolved, resolve
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.plan.read import build_plan
from tests.models.configs import LLAMA
from tests.models.multimodal import MODELS, QWEN2_5_VL


def resolved(images: dict[str, Any] | None, config: dict[str, Any] = QWEN2_5_VL, **training: Any) -> Resolved:
    """The job of a plan with these pictures."""
    section = {"framework": "pytorch", "micro_batch_size": 1, "sequence_length": 2048, **training}
    if images is not None:
        section["images"] = images
    values = {"memcheck": 1, "model": {"architecture": config}, "hardware": {"gpu": "h100-80gb"}, "training": section}
    return resolve(build_plan(values), FRAMEWORKS, base_dir=".")


def pictures(found: Resolved) -> tuple[int, ...]:
    """Pictures, rows and tokens of a micro-batch."""
    job = found.job
    assert isinstance(job, TrainingJob)
    assert isinstance(job.architecture, Architecture)
    assert job.architecture.vision is not None
    return tuple(pictures_of(job, job.architecture.vision))[:3]


def assumed(found: Resolved) -> dict[str, object]:
    """What was assumed."""
    return {a.key: a.value for a in found.assumptions}


def test_patches_and_tokens_are_of_one_sample() -> None:
    """Two samples have twice the pictures, rows and tokens of one."""
    stated = {"per_sample": 2, "patches": 3456, "tokens": 864}
    assert pictures(resolved(stated)) == (2, 3456, 864)
    assert pictures(resolved(stated, micro_batch_size=2)) == (4, 6912, 1728)


def test_pictures_of_unequal_size_have_rows_of_their_own() -> None:
    """A list of patches counts the pictures, and nothing is assumed of them; alike ones are as if only their sum were."""
    found = resolved({"patches": [2592, 864], "tokens": 864}, micro_batch_size=2)
    assert pictures(found) == (4, 6912, 1728)
    assert "training.images.patches" not in assumed(found)
    assert isinstance(found.job, TrainingJob)
    assert found.job.images is not None
    assert found.job.images.patches_by_picture == (2592, 864)
    alike = resolved({"patches": [1728, 1728], "tokens": 864}).job
    assert isinstance(alike, TrainingJob)
    assert alike.images is not None
    assert alike.images.patches_by_picture == ()
    with pytest.raises(ResolutionError, match="patches of 2 pictures, and per_sample is 3"):
        resolved({"per_sample": 3, "patches": [2592, 864], "tokens": 864})


def test_a_size_becomes_patches_and_tokens() -> None:
    """Two pictures of 1280 x 720 pixels are what the processor makes of one, twice."""
    found = resolved({"per_sample": 2, "width": 1280, "height": 720}, sequence_length=4096)
    assert pictures(found) == (2, 9568, 2392)
    assert assumed(found)["training.images.max_pixels"] == 12_845_056


def test_numbers_of_all_samples_are_shared_out() -> None:
    """Tokens that no single sequence can hold are those of all samples of the micro-batch; that is an assumption."""
    found = resolved({"per_sample": 1, "patches": 7992, "tokens": 1998}, micro_batch_size=2, sequence_length=1257)
    assert pictures(found) == (2, 7992, 1998)
    assert assumed(found)["training.images.tokens"] == 999


def test_a_plan_that_does_not_mention_pictures_has_none() -> None:
    """Every family with a tower is estimated on text, as if the plan said so, and one note tells how to state more."""
    found = resolved(None)
    assert pictures(found) == (0, 0, 0)
    (note,) = (each for each in found.assumptions if each.key == "training.images")
    assert "--images" in note.why
    assert found.job == resolved({"per_sample": 0}).job
    for model in MODELS.values():
        assert resolved(None, model.config).job == resolved({"per_sample": 0}, model.config).job


def test_pictures_that_fill_the_sequence() -> None:
    """On request as many pictures are counted as the sequence can hold, and the output says so."""
    found = resolved({"per_sample": "fill"})
    assert pictures(found) == (1, 4 * 2048, 2048)
    assert "training.images" in assumed(found)
    with pytest.raises(ResolutionError, match="pictures of any size"):
        resolved({"per_sample": "fill", "width": 640, "height": 480})


def test_no_pictures() -> None:
    """Batches of text alone skip the tower."""
    assert pictures(resolved({"per_sample": 0})) == (0, 0, 0)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"per_sample": 1, "patches": 40000, "tokens": 10000}, "sequence_length is 2,048"),
        ({"per_sample": 3}, "of unknown size"),
        ({"width": 1280, "height": 2}, "200 times"),
    ],
)
def test_pictures_that_cannot_be(images: dict[str, Any], message: str) -> None:
    """Pictures that do not fit the sequence, have no size, or are refused by the processor are errors at their key."""
    with pytest.raises(ResolutionError, match=message) as caught:
        resolved(images)
    assert caught.value.problems[0].pointer == "/training/images"


def test_a_text_model_has_no_pictures() -> None:
    """Pictures for a model without a tower would be estimated as nothing: an error."""
    with pytest.raises(ResolutionError, match="without a vision tower"):
        resolved({"per_sample": 1}, LLAMA)


@pytest.mark.parametrize(
    ("framework", "said", "key"),
    [
        ("pytorch", {}, "training.options.transformers_version"),
        ("huggingface", {}, "training.framework_version"),
        ("pytorch", {"options": {"transformers_version": "5.23"}}, ""),
        ("huggingface", {"framework_version": "5.23"}, ""),
    ],
)
def test_the_version_that_decides_what_a_tower_leaves_is_listed(framework: str, said: dict[str, Any], key: str) -> None:
    """Since transformers 5.24 a model's output carries what its tower returned: who does not say the version is told."""
    found = resolved({"per_sample": 1, "width": 448, "height": 448}, framework=framework, **said).assumptions
    assert [a.key for a in found if a.value == "5.24 or newer"] == ([key] if key else [])
