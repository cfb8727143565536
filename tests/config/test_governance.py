"""The table ``[policy]``: what it takes, and what it holds plans to."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.config.find import Settings
from memcheck.config.read import read_settings
from memcheck.errors import ConfigurationError
from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding
from memcheck.rules.types import Governance

PLAN = """memcheck: 1{mark}
model: llama-3.1-8b
hardware: {{gpu: {gpu}, gpus_per_node: 8, nodes: {nodes}}}
parallelism: {{zero_stage: 3}}
training: {{framework: torchtitan, micro_batch_size: {batch}, sequence_length: 8192{steps}}}
{policy}
"""


def found(settings: Settings, **changes: object) -> list[Finding]:
    """The findings of the policy's family about a plan that passes otherwise, and its errors."""
    of = {"mark": "", "gpu": "h100-80gb", "nodes": 1, "batch": 1, "steps": "", "policy": ""} | changes
    (result,), traces = check_file("plan.yaml", PLAN.format(**of).encode(), Gate(settings=settings))
    assert not traces
    return [each for each in result.findings if each.code.startswith("MEM6") or each.severity == "error"]


def held(**policy: object) -> Settings:
    """A configuration with this policy and nothing else."""
    return Settings(policy=Governance(**policy))  # type: ignore[arg-type]


def test_everything_that_can_be_laid_down(tmp_path: Path) -> None:
    """Every key arrives typed; rules may be named."""
    path = tmp_path / "memcheck.toml"
    path.write_text(
        "[policy]\n"
        'locked = true\nlocked-rules = ["MEM1", "world-size"]\nallowed-gpus = ["H100", "a100-*"]\nmax-gpus = 64\n'
        "max-gpu-hours = 500\nforbid-suppressions = true\nrequire-interval = true\n",
        encoding="utf-8",
    )
    assert read_settings(str(path)).policy == Governance(
        locked=True,
        locked_rules=("MEM1", "MEM201"),
        allowed_gpus=("H100", "a100-*"),
        max_gpus=64,
        max_gpu_hours=500.0,
        forbid_suppressions=True,
        require_interval=True,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy = true", "policy: True is not a table"),
        ("[policy]\nlock = true", "policy: unknown key 'lock'; known: locked, "),
        ('[policy]\nlocked = "yes"', "policy: locked: 'yes' is neither true nor false"),
        ("[policy]\nallowed-gpus = []", r"policy: allowed-gpus: \[\] is not a list of names"),
        ("[policy]\nmax-gpus = 0", "policy: max-gpus: 0 is not a whole number of at least 1"),
        ("[policy]\nmax-gpus = true", "policy: max-gpus: True is not"),
        ("[policy]\nmax-gpu-hours = -1", "policy: max-gpu-hours: -1 is not a number above 0"),
        ("[policy]\nmax-gpu-hours = inf", "policy: max-gpu-hours: inf is not a number above 0"),
        ('[policy]\nlocked-rules = ["no-such-rule"]', "policy: locked-rules: "),
    ],
)
def test_a_wrong_policy_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    """A policy that cannot be read stops the run; it is never half of a policy."""
    path = tmp_path / "memcheck.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        read_settings(str(path))


def test_without_a_policy_a_plan_states_its_own() -> None:
    """Nothing of the family is said where nothing is laid down."""
    assert found(Settings(), policy="policy: {fail_above: 99%, overhead: 0%}", gpu="b200", nodes=4) == []


def test_locked_limits_count() -> None:
    """A milder limit is found, and the configured one judges; a flat overhead is found, and the modelled one counts."""
    over = found(held(locked=True), batch=2, policy="policy: {fail_above: 100%, warn_above: 100%, overhead: 0%}")
    assert {each.pointer for each in over if each.code == "MEM602"} == {
        "/policy/fail_above",
        "/policy/warn_above",
        "/policy/overhead",
    }
    assert "MEM101" in {each.code for each in over} or "MEM102" in {each.code for each in over}
    strict = found(held(locked=True)._replace(fail_above=0.95), policy="policy: {fail_above: 95%, warn_above: 50%}")
    assert [each for each in strict if each.code == "MEM602"] == []


@pytest.mark.parametrize(
    ("allowed", "gpu", "codes"),
    [
        (("h100-80gb",), "h100-80gb", []),
        (("H100",), "h100-80gb", []),
        (("NVIDIA H100 80GB HBM3",), "h100", []),
        (("h100-*",), "h100-nvl-94gb", []),
        (("A100",), "a100-80gb", []),
        (("h100-80gb",), "b200", ["MEM603"]),
        (("h100-80gb",), "{name: mine, memory_gib: 100000}", ["MEM603"]),
        (("mine",), "{name: mine, memory_gib: 200}", []),
    ],
)
def test_allowed_gpus(allowed: tuple[str, ...], gpu: str, codes: list[str]) -> None:
    """Names, aliases and patterns; a card that the plan makes up is none of them."""
    assert [each.code for each in found(held(allowed_gpus=allowed), gpu=gpu)] == codes


def test_most_gpus() -> None:
    """As many as allowed pass, one node more fails."""
    assert found(held(max_gpus=8)) == []
    (error,) = found(held(max_gpus=8), nodes=2)
    assert (error.code, error.message) == ("MEM604", "16 GPUs (2 x 8); the policy allows 8")


def test_gpu_hours_need_steps() -> None:
    """Hours grow with the stated steps; a plan that does not say how long it runs cannot be within them."""
    policy = held(max_gpu_hours=500)
    assert found(policy, steps=", steps: 1000") == []
    for steps, message in ((", steps: 100000000", "GPU hours; the policy allows 500 GPU hours"), ("", "no `steps`")):
        (error,) = found(policy, steps=steps)
        assert error.code == "MEM605"
        assert message in error.message


@pytest.mark.parametrize(
    ("policy", "code", "forbidden"),
    [
        (Governance(locked=True), "MEM101", True),
        (Governance(locked=True), "MEM602", True),
        (Governance(locked=True), "MEM208", False),
        (Governance(locked=True, locked_rules=("MEM2",)), "MEM208", True),
        (Governance(forbid_suppressions=True), "MEM208", True),
        (Governance(locked_rules=("MEM2",)), "MEM208", False),
    ],
)
def test_comments_on_locked_rules(policy: Governance, code: str, forbidden: bool) -> None:
    """A comment on a locked rule is found; a comment on another one, or without a lock, is not."""
    mark = f"  # memcheck: ignore[{code}] borrowed"
    assert ("MEM607" in [each.code for each in found(Settings(policy=policy), mark=mark)]) == forbidden


def test_a_forbidden_comment_hides_nothing() -> None:
    """The finding that it names is shown beside it, and fails the plan."""
    mark, card = "  # memcheck: ignore[MEM101] borrowed", "rtx-4090"
    assert found(Settings(), mark=mark, gpu=card) == []
    assert {each.code for each in found(held(locked=True), mark=mark, gpu=card)} == {"MEM101", "MEM607"}


def test_the_settings_show_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--show-settings` prints the table as it counts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "memcheck.toml").write_text("[policy]\nlocked = true\nmax-gpus = 8\n", encoding="utf-8")
    (tmp_path / "plan.yaml").write_text("memcheck: 1\n", encoding="utf-8")
    assert main(["check", "--show-settings", "plan.yaml"]) == 0
    out = capsys.readouterr().out
    assert 'policy = {"locked" = true, "locked-rules" = ["MEM1", "MEM6"], "max-gpus" = 8}  # memcheck.toml' in out
