"""Import, export, comparisons, sweeps, suggestions, logs and reports: the command line's answers, in the page's shape."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.configs.formats import WRITTEN
from memcheck.live.protocol import Session
from memcheck.live.requests import EXPORTS
from memcheck.report import FORMATS

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAN = (EXAMPLES / "llama-3.1-8b-fsdp-8xh100.yaml").read_text(encoding="utf-8")
FAILING = (EXAMPLES / "llama-3.1-8b-four-a100-40gb.yaml").read_text(encoding="utf-8")
CONFIG = (EXAMPLES / "configs" / "axolotl-llama-3.1-8b-lora.yml").read_text(encoding="utf-8")


def ask(do: str, text: str = PLAN, path: str = "plan.yaml", **fields: object) -> dict[str, Any]:
    """The last step before the end."""
    return list(Session().handle({"id": 1, "do": do, "path": path, "text": text, **fields}))[-2]


def first(text: str) -> dict[str, Any]:
    """The verdict on a text."""
    return next(Session().handle({"id": 1, "do": "answer", "path": "plan.yaml", "text": text}))


def test_every_written_format_can_be_asked_for() -> None:
    """The words of the request are the formats that are written."""
    assert tuple(WRITTEN) == EXPORTS


def test_a_config_becomes_a_plan() -> None:
    """With the hardware that it does not state; without it, the keys that are missing are named."""
    asked = ask("import", CONFIG, "train.yml")
    assert asked["text"] == ""
    assert [key for each in asked["problems"] for key in each["keys"]] == ["hardware.gpu", "hardware.gpus_per_node"]
    found = ask("import", CONFIG, "train.yml", hardware={"gpu": "l40s", "gpus_per_node": 1})
    assert (found["format"], found["problems"]) == ("axolotl", [])
    assert first(found["text"])["figures"] == first_of_config({"gpu": "l40s", "gpus_per_node": 1})
    assert ask("import", "a: 1\n", "a.yml", format="nobody")["kind"] == "refused"


def first_of_config(hardware: dict[str, object]) -> object:
    """The figures of the config as it stands."""
    request = {"id": 1, "do": "answer", "path": "train.yml", "text": CONFIG, "hardware": hardware}
    return next(Session().handle(request))["figures"]


@pytest.mark.parametrize("format", WRITTEN)
def test_a_plan_becomes_a_config(format: str) -> None:
    """Each format that is written; a plan that is wrong gives the reason."""
    found = ask("export", format=format)
    assert found["text"]
    assert found["name"]
    assert ask("export", "memcheck: 1\nmodel: gpt2\n", format=format)["kind"] == "refused"


def test_comparisons_are_tables() -> None:
    """On GPUs by name, and next to another plan on its own GPU."""
    found = ask("compare", gpus=["h200", "B200"])
    assert (found["step"], found["html"].count("<tr>")) == ("drawn", 3)
    both = ask("compare", plans=["other.yaml"], files={"other.yaml": FAILING})
    assert "llama-3.1-8b-fsdp-8xh100 on h100-80gb" in both["html"]
    assert both["html"].count(" on a100-40gb") == FAILING.count("\nmemcheck: 1")
    assert ask("compare", gpus=["nobody"])["kind"] == "refused"
    assert ask("compare", plans=["gone.yaml"])["kind"] == "refused"


def test_a_sweep_is_a_heat_map() -> None:
    """A cell per point; what is no grid is refused."""
    values = {"training.micro_batch_size": [1, 2], "training.sequence_length": [1024, 2048, 4096]}
    found = ask("sweep", values=values)
    assert found["html"].count('class="cell') >= 6 or found["html"].count("%") >= 6
    assert "6 points" in found["title"]
    many = {"training.micro_batch_size": list(range(1, 100)), "training.sequence_length": list(range(1, 100))}
    for wrong in ({}, {"a..b": [1]}, {"training.micro_batch_size": []}, many):
        assert ask("sweep", values=wrong)["kind"] == "refused"


def test_suggestions_can_be_applied() -> None:
    """Each with its edits; a goal without prices is refused with what to write."""
    found = ask("suggest", FAILING)
    assert found["remedies"]
    assert all(each["edits"] for each in found["remedies"])
    assert "[prices]" in ask("suggest", FAILING, goal="cheapest")["help"]


def test_a_log_is_explained() -> None:
    """Without a plan, from its text alone."""
    log = next(path for path in sorted((EXAMPLES / "logs").iterdir()) if path.is_file())
    found = ask("why", log.read_text(encoding="utf-8"), log.name)
    assert (found["step"], found["of"]) == ("drawn", "why")
    assert "Evidence" in found["html"]


@pytest.mark.parametrize("format", [each for each in FORMATS if each != "pdf"])
def test_a_report_can_be_downloaded(format: str) -> None:
    """Every format of check; JSON is read back."""
    found = ask("report", format=format)
    assert found["step"] == "reported", found
    assert (found["format"], found["encoded"]) == (format, False)
    assert found["text"]
    if format == "json":
        assert json.loads(found["text"])["plans"][0]["status"] == "passed"


@pytest.mark.slow
def test_a_pdf_is_bytes() -> None:
    """They come as base64."""
    pytest.importorskip("reportlab")
    assert base64.b64decode(ask("report", format="pdf")["text"]).startswith(b"%PDF")


def test_the_catalog_names_models_and_gpus() -> None:
    """What a list of choices shows."""
    found = next(iter(Session().handle({"id": 1, "do": "catalog"})))
    assert {"llama-3.1-8b", "gpt2"} <= {each["name"] for each in found["models"]}  # type: ignore[attr-defined]
    assert {"h100-80gb", "mi300x"} <= {each["name"] for each in found["gpus"]}  # type: ignore[attr-defined]
