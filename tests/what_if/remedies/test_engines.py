"""Remedies of serving engines: each is priced by the engine's own arithmetic, and what it writes boots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.what_if.remedies.candidates import serving
from tests.what_if.search.contexts import context_of

HEAD = "memcheck: 1\nmodel: {model}\nhardware: {{gpu: {gpu}, gpus_per_node: {gpus}}}\ninference:\n  engine: vllm\n"
TOO_LONG = (
    HEAD.format(model="qwen3-32b", gpu="h100-80gb", gpus=1) + "  version: '0.11.0'  # ours\n  max_model_len: 32000\n"
)
NO_ROOM = HEAD.format(model="qwen2.5-14b", gpu="rtx-4090", gpus=2) + "  version: '0.33.0'\n  enforce_eager: true\n"
OPEN = HEAD.format(model="llama-3.1-8b", gpu="h100-80gb", gpus=1) + "  version: '0.33.0'\n  max_model_len: 32768\n"
PLANS = {"too long": TOO_LONG, "no room": NO_ROOM, "open": OPEN}


def checked(path: Path, capsys: Any, *stated: str) -> dict[str, Any]:
    """The only plan of a file, by ``check``."""
    main(["check", str(path), "--format", "json", "--no-cache", *stated])
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    return dict(plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_every_remedy_boots_when_it_is_written(name: str, tmp_path: Path, capsys: Any) -> None:
    """The answer is no longer that the engine does not boot; comments stay in the first and the last that is written."""
    path = tmp_path / "plan.yaml"
    path.write_text(PLANS[name])
    before = checked(path, capsys)
    assert before["estimate"]["engine"]["answer"] in ("does_not_boot", "depends")
    main(["suggest", str(path), "--format", "json"])
    found = json.loads(capsys.readouterr().out)["remedies"]
    assert found
    for number, remedy in enumerate(found, 1):
        path.write_text(PLANS[name])
        stated = [f"--set={key}={json.dumps(value)}" for key, value in remedy["set"].items()]
        if number in (1, len(found)):
            assert main(["suggest", str(path), "--apply", str(number)]) == 0, remedy["set"]
            stated = []
        capsys.readouterr()
        after = checked(path, capsys, *stated)
        answer = after["estimate"]["engine"]["answer"]
        assert answer == "boots" if name == "open" else answer in ("boots", "depends"), remedy["set"]
        assert after["status"] == "passed", remedy["set"]
        assert path.read_text().count("#") == PLANS[name].count("#")


def test_the_finding_stays_where_the_engine_points(tmp_path: Path, capsys: Any) -> None:
    """At the length that does not fit, with several remedies of which none changes the results first."""
    path = tmp_path / "plan.yaml"
    path.write_text(TOO_LONG)
    (finding,) = [each for each in checked(path, capsys)["diagnostics"] if each["code"] == "MEM701"]
    assert finding["pointer"] == "/inference/max_model_len"
    assert finding["remedies"][0]["set"] == {"inference.gpu_memory_utilization": 0.95}
    keys = {key for remedy in finding["remedies"] for key in remedy["set"]}
    assert {"inference.max_num_seqs", "inference.kv_cache"} <= keys


@pytest.mark.slow
def test_graphs_that_no_formula_tells_are_left_out(tmp_path: Path, capsys: Any) -> None:
    """The open answer of a version that budgets CUDA graphs is settled without them."""
    path = tmp_path / "plan.yaml"
    path.write_text(OPEN)
    (finding,) = [each for each in checked(path, capsys)["diagnostics"] if each["code"] == "MEM702"]
    assert {"inference.enforce_eager": True} in [remedy["set"] for remedy in finding["remedies"]]


def test_every_kind_of_change_is_tried() -> None:
    """Share, passes, sequences, graphs, ranks, cache, weights and length."""
    context = context_of(TOO_LONG)
    kinds = {each.kind for each in serving(context, context.job)}  # type: ignore[arg-type]
    assert kinds == {"share", "tokens", "sequences", "graphs", "tensor", "cache", "weights", "length"}


@pytest.mark.slow
def test_the_longest_requests_are_found(tmp_path: Path, capsys: Any) -> None:
    """With the largest share, and at the share of the plan, below what its pool holds."""
    path = tmp_path / "plan.yaml"
    path.write_text(TOO_LONG)
    pool = checked(path, capsys)["estimate"]["engine"]["longest"]
    main(["suggest", str(path), "--goal", "max-sequence", "--format", "json"])
    found = [remedy["set"] for remedy in json.loads(capsys.readouterr().out)["remedies"]]
    assert found[0]["inference.max_model_len"] == 40960  # the model's own
    alone = next(each for each in found if set(each) == {"inference.max_model_len"})
    assert pool - 2048 < alone["inference.max_model_len"] <= pool + 1024


@pytest.mark.slow
def test_more_sequences_are_found(tmp_path: Path, capsys: Any) -> None:
    """The most with which the profile run leaves room for one request."""
    path = tmp_path / "plan.yaml"
    path.write_text(TOO_LONG)
    main(["suggest", str(path), "--goal", "max-batch", "--format", "json"])
    found = [remedy["set"] for remedy in json.loads(capsys.readouterr().out)["remedies"]]
    assert any(set(each) == {"inference.max_num_seqs"} for each in found)


def test_tables_of_plans_have_the_engine_s_tokens(tmp_path: Path, capsys: Any) -> None:
    """A sweep and a comparison show what each engine's cache holds, and nothing where it does not boot."""
    path = tmp_path / "plan.yaml"
    path.write_text(TOO_LONG)
    main(["sweep", str(path), "--set", "inference.max_model_len=16384,32768", "--format", "json"])
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["kv_tokens"] for point in points] == [17952, 0]
    main(["compare", str(path), "--gpu", "h100-80gb,h200"])
    told = capsys.readouterr().out
    assert "KV tokens" in told
    assert "241,408" in told
