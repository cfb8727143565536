"""``source``: plans that take from a framework's config what they do not say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.configs.documents import load_plans
from memcheck.judge import Gate, check_file
from memcheck.memory.estimate import estimate
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.rules.result import PlanResult
from tests.configs.jobs import resolved
from tests.configs.test_readers import ACCELERATE, DEEPSPEED, MEGATRON, TITAN

HARDWARE = "hardware: {gpu: h100-80gb, gpus_per_node: 8}\n"
REST = HARDWARE + "model: llama-3.2-1b\ntraining:\n  sequence_length: 4096\n  activation_checkpointing: full\n"
CLEAN = DEEPSPEED.replace('    "zenflow": {"topk_ratio": 0.1},\n', "").replace(
    '"stage3_prefech_bucket_size": 1', '"sub_group_size": 1000000'
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with one config of each framework that is read."""
    (tmp_path / ".git").mkdir()
    files = {"ds.json": CLEAN, "job.toml": TITAN, "run.sh": MEGATRON, "fsdp.yaml": ACCELERATE, "noted.json": DEEPSPEED}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def load(folder: Path, source: str, rest: str = REST, name: str = "plan.yaml") -> Document:
    """The only plan of a file."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"memcheck: 1\nsource: {source}\n{rest}", encoding="utf-8")
    (document,) = load_plans(str(path), path.read_bytes())
    return document


def checked(folder: Path, source: str, rest: str = REST) -> PlanResult:
    """The verdict on such a plan."""
    document = load(folder, source, rest)
    (result,), traces = check_file(document.path, Path(document.path).read_bytes(), Gate())
    assert traces == []
    return result


def of(result: PlanResult, code: str) -> list[Finding]:
    """The findings of one rule."""
    return [finding for finding in result.findings if finding.code == code]


@pytest.mark.parametrize(
    ("source", "rest"),
    [
        ("{deepspeed: ./ds.json}", REST),
        ("{torchtitan: ./job.toml}", HARDWARE),
        ("{megatron: ./run.sh}", "hardware: {gpu: h100-80gb}\n"),
        (
            "{accelerate: ./fsdp.yaml}",
            REST.replace(", gpus_per_node: 8", "") + "  micro_batch_size: 1\n  precision: bf16-mixed\n",
        ),
    ],
)
def test_every_read_framework_completes_a_plan(folder: Path, source: str, rest: str) -> None:
    """With what the config cannot say beside it, the plan is judged."""
    result = checked(folder, source, rest)
    assert result.estimate is not None, [finding.message for finding in result.findings]


def test_values_are_priced_as_if_they_were_written(folder: Path) -> None:
    """A sourced plan has the peak of the plan that says the same itself."""
    document = load(folder, "{deepspeed: ./ds.json}")
    alone = {key: value for key, value in dict(document.values).items() if key != "source"}
    (folder / "alone.yaml").write_text(json.dumps(alone), encoding="utf-8")
    (same,) = load_plans(str(folder / "alone.yaml"), json.dumps(alone).encode())
    peaks = []
    for each in (document, same):
        _, found = resolved(each)
        peaks.append(estimate(found.job, found.gpu, found.overhead).device_bytes)
    assert peaks[0] == peaks[1] > 0


def test_findings_point_into_the_config(folder: Path) -> None:
    """A value that the config states is underlined there, and the line that took it is named."""
    config = CLEAN.replace('"train_micro_batch_size_per_gpu": 2', '"train_micro_batch_size_per_gpu": 8')
    (folder / "ds.json").write_text(config.replace('"train_batch_size": 64', '"train_batch_size": 512'))
    rest = REST.replace("h100-80gb", "rtx-4090").replace("4096", "16384").replace("full", "none")
    result = checked(folder, "{deepspeed: ./ds.json}", rest)
    (finding,) = of(result, "MEM101")
    places = [(finding.location.path, finding.location.span.line)]
    places += [(where.path, where.span.line) for _, where in finding.related]
    assert (str(folder / "ds.json"), 3) in places
    assert str(folder / "ds.json") in result.sources


def test_disagreement_shows_both_places(folder: Path) -> None:
    """The plan's line, and the config's."""
    result = checked(folder, "{deepspeed: ./ds.json}", REST + "parallelism: {zero_stage: 2}\n")
    (finding,) = of(result, "MEM501")
    assert (finding.location.path, finding.location.span.line) == (str(folder / "plan.yaml"), 8)
    assert [(where.path, where.span.line) for _, where in finding.related] == [(str(folder / "ds.json"), 6)]
    assert result.status == "failed"


@pytest.mark.parametrize(
    ("beside", "disagrees"),
    [
        ("model: llama-3.1-8b", False),
        ("model: meta-llama/Llama-3.1-8B", False),
        ("model: llama-3.1-70b", True),
        ("model: {name: llama-3.1-8b}", False),
    ],
)
def test_models_are_compared_by_what_they_are(folder: Path, beside: str, disagrees: bool) -> None:
    """An alias of the config's model is no disagreement; another model is one."""
    result = checked(folder, "{torchtitan: ./job.toml}", f"{HARDWARE}{beside}\n")
    assert bool(of(result, "MEM501")) is disagrees


def test_a_short_form_agrees_with_its_long_form(folder: Path) -> None:
    """`optimizer: adamw` beside a config with an optimizer and its implementation."""
    result = checked(folder, "{torchtitan: ./job.toml}", f"{HARDWARE}training: {{optimizer: adamw}}\n")
    assert result.estimate is not None
    assert of(result, "MEM501") == []
    result = checked(folder, "{torchtitan: ./job.toml}", f"{HARDWARE}training: {{sequence_length: 4096}}\n")
    assert [finding.pointer for finding in of(result, "MEM501")] == ["/training/sequence_length"]


def test_uncarried_keys_are_warnings(folder: Path) -> None:
    """What the reader notes is a finding at the source, with the config's line."""
    found = of(checked(folder, "{deepspeed: ./noted.json}"), "MEM502")
    assert sorted(where.span.line for finding in found for _, where in finding.related) == [9, 10]


def test_framework_defaults_are_listed(folder: Path) -> None:
    """What no file says, and the framework decides, is one note."""
    (finding,) = of(checked(folder, "{torchtitan: ./job.toml}", HARDWARE), "MEM504")
    assert "training.optimizer.implementation: fused" in finding.message


@pytest.mark.parametrize("name", ["axolotl", "llamafactory", "torchtune", "transformers", "trl"])
def test_unread_frameworks_are_errors(folder: Path, name: str) -> None:
    """A config that nobody reads is never ignored: the plan is not judged."""
    result = checked(folder, f"{{{name}: ./train.yml}}", REST + "  micro_batch_size: 1\n")
    (finding,) = of(result, "MEM503")
    assert (finding.location.span.line, finding.pointer) == (2, f"/source/{name}")
    assert result.status == "error"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{deepspeed: ./gone.json}", "No such file"),
        ("{deepspeed: ../ds.json}", "outside the repository"),
        ("{deepspeed: /etc/hostname}", "no relative path"),
        ("{deepspeed: ./job.toml}", "not JSON"),
        ("{megatron: ./bert.sh}", "BERT"),
    ],
)
def test_unusable_sources_are_errors(folder: Path, source: str, message: str) -> None:
    """Missing, outside, absolute, of another format, of another kind of model."""
    (folder / "bert.sh").write_text(MEGATRON.replace("pretrain_gpt", "pretrain_bert"))
    result = checked(folder, source)
    assert any(message in finding.message for finding in of(result, "MEM503"))
    assert result.estimate is None


def test_a_refusal_is_settled_by_the_plan(folder: Path) -> None:
    """A precision that the config leaves open can be said in the plan, and only then is it judged."""
    rest = REST.replace(", gpus_per_node: 8", "") + "  micro_batch_size: 1\n"
    assert of(checked(folder, "{accelerate: ./fsdp.yaml}", rest), "MEM503")
    assert of(checked(folder, "{accelerate: ./fsdp.yaml}", rest + "  precision: fp32\n"), "MEM503") == []


def test_what_nobody_says_is_missing(folder: Path) -> None:
    """A plan that leaves the GPU to a config lacks it."""
    result = checked(folder, "{torchtitan: ./job.toml}", "")
    assert [finding.code for finding in result.findings if finding.severity == "error"] == ["MEM012"]


def test_two_sources_join_and_must_agree(folder: Path) -> None:
    """The launcher's config beside the engine's: what both say has to be the same."""
    (folder / "launch.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: 3}\n"
    )
    rest = REST.replace(", gpus_per_node: 8", "")
    result = checked(folder, "{accelerate: ./launch.yaml, deepspeed: ./ds.json}", rest)
    assert result.gpus == 8
    assert of(result, "MEM501") == []
    (folder / "launch.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: 2}\n"
    )
    assert of(checked(folder, "{accelerate: ./launch.yaml, deepspeed: ./ds.json}", rest), "MEM501")


def test_a_base_may_have_the_source(folder: Path) -> None:
    """The path counts from the file that states it, through `extends`."""
    (folder / "plans").mkdir()
    (folder / "base.yaml").write_text(f"memcheck: 1\nsource: {{deepspeed: ./ds.json}}\n{REST}")
    path = folder / "plans" / "child.yaml"
    path.write_text("memcheck: 1\nextends: ../base.yaml\ntraining: {sequence_length: 2048}\n")
    (result,), _ = check_file(str(path), path.read_bytes(), Gate())
    assert result.estimate is not None, [finding.message for finding in result.findings]


def test_a_wrong_shape_is_the_schemas_business(folder: Path) -> None:
    """A source that is no mapping, or of a framework that nobody has, is a schema error as before."""
    assert of(checked(folder, "./ds.json"), "MEM013")
    assert of(checked(folder, "{keras: ./ds.json}"), "MEM011")


def test_a_config_named_by_a_config_stays_inside(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The file that an Accelerate config names counts from its folder, never from here, never outside the repository."""
    outside = tmp_path_factory.mktemp("outside") / "ds.json"
    outside.write_text(CLEAN)
    rest = REST.replace(", gpus_per_node: 8", "")
    for name, fits in (("ds.json", True), (str(outside), False), ("../" + outside.parent.name + "/ds.json", False)):
        config = f"distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {{deepspeed_config_file: {name}}}\n"
        (folder / "launch.yaml").write_text(config)
        assert (of(checked(folder, "{accelerate: ./launch.yaml}", rest), "MEM503") == []) is fits
