"""A plan whose interval crosses the limit: the third word, and what a team can make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main

Capture = pytest.CaptureFixture[str]
PLAN = """memcheck: 1
model: llama-3.1-8b
hardware: {{gpu: {{name: lab, memory_gib: {card}}}, gpus_per_node: 8}}
parallelism: {{zero_stage: 3}}
training: {{framework: huggingface, precision: bf16-mixed, micro_batch_size: 1, sequence_length: 8192}}
{policy}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder."""
    monkeypatch.chdir(tmp_path)


def wrote(name: str, card: float = 200, policy: str = "") -> None:
    Path(name).write_text(PLAN.format(card=card, policy=policy), encoding="utf-8")


def checked(capsys: Capture, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the JSON report."""
    code = main(["check", "--no-cache", "--format", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def cards(capsys: Capture) -> dict[str, float]:
    """GPUs, in GiB, on which the plan fits, is uncertain with its need within the limit, beyond it, and does not."""
    wrote("probe.yaml")
    _, report = checked(capsys, "probe.yaml")
    Path("probe.yaml").unlink()
    found = report["plans"][0]["estimate"]
    low, high = (each / 2**30 for each in found["needed_interval_bytes"])
    need = found["needed_bytes"] / 2**30
    assert low < need < high
    return {
        "fits": high / 0.85,
        "uncertain": (need + high) / 2 / 0.95,
        "doubtful": (low + need) / 2 / 0.95,
        "large": low * 0.9,
    }


def test_three_words(capsys: Capture, cards: dict[str, float]) -> None:
    """The interval gives the word, the predicted need the status; the summary counts both."""
    for name, card in cards.items():
        wrote(f"{name}.yaml", card)
    code, report = checked(capsys, ".")
    assert code == 1
    told = {plan["name"]: (plan["estimate"]["verdict"], plan["status"]) for plan in report["plans"]}
    assert told == {
        "fits": ("fits", "passed"),
        "uncertain": ("uncertain", "passed"),
        "doubtful": ("uncertain", "failed"),
        "large": ("does_not_fit", "failed"),
    }
    assert report["summary"]["uncertain"] == 2
    assert (report["summary"]["passed"], report["summary"]["failed"]) == (2, 2)
    codes = {plan["name"]: [each["code"] for each in plan["diagnostics"]] for plan in report["plans"]}
    assert codes == {"fits": [], "uncertain": ["MEM104"], "doubtful": ["MEM102"], "large": ["MEM101"]}
    for form in ("full", "concise", "brief", "github", "markdown"):
        main(["check", "--no-cache", "--format", form, "."])
        line = "checked 4 plans: 1 fits, 2 uncertain, 1 does not fit; 2 passed, 2 failed"
        assert line in capsys.readouterr().out, form


def test_nothing_is_counted_where_the_statuses_say_it(capsys: Capture, cards: dict[str, float]) -> None:
    """Without an uncertain plan the summary stays as short as it was."""
    wrote("fits.yaml", cards["fits"])
    main(["check", "--no-cache", "fits.yaml"])
    assert "checked 1 plan: 1 passed, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plan", "configured", "arguments", "code"),
    [
        ("", "", (), 0),
        ("policy: {uncertain: warn}", "", (), 0),
        ("policy: {uncertain: fail}", "", (), 1),
        ("", "uncertain = 'fail'\n", (), 1),
        ("policy: {uncertain: warn}", "uncertain = 'fail'\n", (), 0),
        ("policy: {uncertain: fail}", "uncertain = 'warn'\n", (), 1),
        ("", "", ("--uncertain", "fail"), 1),
        ("policy: {uncertain: warn}", "", ("--uncertain", "fail"), 1),
        ("policy: {uncertain: fail}", "uncertain = 'fail'\n", ("--uncertain", "warn"), 0),
        ("policy: {uncertain: fail}", "", ("--ignore", "MEM104"), 0),
    ],
)
def test_policy(
    capsys: Capture, cards: dict[str, float], plan: str, configured: str, arguments: tuple[str, ...], code: int
) -> None:
    """The command line goes before the plan, the plan before the configuration; the verdict stays the same."""
    Path("memcheck.toml").write_text(configured, encoding="utf-8")
    wrote("uncertain.yaml", cards["uncertain"], plan)
    found, report = checked(capsys, "uncertain.yaml", *arguments)
    assert found == code
    (result,) = report["plans"]
    assert result["estimate"]["verdict"] == "uncertain"
    assert result["status"] == ("failed" if code else "passed")


def test_a_plan_that_fits_is_left_alone(capsys: Capture, cards: dict[str, float]) -> None:
    """``fail`` is about uncertain plans."""
    wrote("fits.yaml", cards["fits"], "policy: {uncertain: fail}")
    assert checked(capsys, "fits.yaml")[0] == 0


def test_a_locked_policy_is_not_loosened(capsys: Capture, cards: dict[str, float]) -> None:
    """A plan that says ``warn`` under a locked ``fail`` fails, and is told so; one that says ``fail`` is stricter."""
    wrote("uncertain.yaml", cards["uncertain"], "policy: {uncertain: warn}")
    Path("memcheck.toml").write_text("uncertain = 'fail'\n[policy]\nlocked = true\n", encoding="utf-8")
    code, report = checked(capsys, "uncertain.yaml")
    assert code == 1
    assert [each["code"] for each in report["plans"][0]["diagnostics"]] == ["MEM104", "MEM602"]
    Path("memcheck.toml").write_text("uncertain = 'warn'\n[policy]\nlocked = true\n", encoding="utf-8")
    wrote("uncertain.yaml", cards["uncertain"], "policy: {uncertain: fail}")
    code, report = checked(capsys, "uncertain.yaml")
    assert code == 1
    assert [each["code"] for each in report["plans"][0]["diagnostics"]] == ["MEM104"]


def test_one_finding_says_that_a_plan_is_close_and_uncertain(capsys: Capture, cards: dict[str, float]) -> None:
    """Both hold where the need is above the threshold for warnings, too; without MEM104 the other one is shown."""
    wrote("uncertain.yaml", cards["uncertain"], "policy: {warn_above: 50%}")
    (finding,) = checked(capsys, "uncertain.yaml")[1]["plans"][0]["diagnostics"]
    assert finding["code"] == "MEM104"
    assert ", above 50.0%; uncertain: it may be between " in finding["message"]
    (other,) = checked(capsys, "uncertain.yaml", "--ignore", "MEM104")[1]["plans"][0]["diagnostics"]
    assert other["code"] == "MEM103"


def test_settings_show_the_policy(capsys: Capture) -> None:
    """With where it comes from."""
    wrote("plan.yaml")
    main(["check", "--show-settings", "plan.yaml"])
    assert 'uncertain = "warn"  # default' in capsys.readouterr().out
    main(["check", "--uncertain", "fail", "--show-settings", "plan.yaml"])
    assert 'uncertain = "fail"  # command line' in capsys.readouterr().out
