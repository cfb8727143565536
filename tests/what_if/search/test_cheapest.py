"""``suggest --goal cheapest``: over the GPUs that have a price and their number, the least money per token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main

Capture = pytest.CaptureFixture[str]
PLAN = """\
memcheck: 1
model: llama-3.2-1b
hardware: {gpu: h100-80gb, gpus_per_node: 2}
parallelism: {zero_stage: 3}
training: {framework: torchtitan, micro_batch_size: 4, sequence_length: 2048, global_batch_size: 32}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with one plan."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text(PLAN)


def prices(**of: float) -> None:
    """Write the table of prices."""
    rows = "".join(f"{name.replace('_', '-')} = {price}\n" for name, price in of.items())
    Path("memcheck.toml").write_text(f"[prices]\n{rows}")


def found(capsys: Capture) -> list[dict[str, Any]]:
    """The suggestions, best first."""
    assert (
        main(["suggest", "plan.yaml", "--goal", "cheapest", "--format", "json", "--top", "9", "--budget", "300"]) == 0
    )
    remedies: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["remedies"]
    return remedies


def gpu_of(remedy: dict[str, Any]) -> object:
    """The GPU of a suggestion."""
    return remedy["set"].get("hardware.gpu", "h100-80gb")


def test_without_prices_the_table_is_shown(capsys: Capture) -> None:
    """Exit code 2, and a message with the table that is missing."""
    assert main(["suggest", "plan.yaml", "--goal", "cheapest"]) == 2
    told = capsys.readouterr().err
    assert "needs prices" in told
    assert "[prices]\n" in told
    assert "h100-80gb = 2.50" in told


@pytest.mark.slow
def test_the_price_decides_which_gpu(capsys: Capture) -> None:
    """A GPU whose hour costs a hundredth wins, whatever its speed; costs are of the price, the GPUs and the time."""
    prices(h100_80gb=2.5, l40s=0.025)
    cheap = found(capsys)
    assert gpu_of(cheap[0]) == "l40s"
    prices(h100_80gb=0.025, l40s=2.5)
    assert gpu_of(found(capsys)[0]) == "h100-80gb"
    for each in cheap:
        cost = each["price_per_gpu_hour"] / 3600 / each["tokens_per_second_per_gpu"] * 1e6
        assert each["price_per_million_tokens"] == pytest.approx(cost, rel=1e-3)
    costs = [float(f"{each['price_per_million_tokens']:.3g}") for each in cheap]
    assert costs == sorted(costs)
    assert len({(gpu_of(each), each["gpus"]) for each in cheap}) == len(cheap)


@pytest.mark.slow
def test_the_plan_as_written_comes_first_on_each_card(capsys: Capture) -> None:
    """Cards that fit before those that do not, the cheapest first; costs are those that `compare` shows."""
    prices(h200=3.5, h100_80gb=2.5, l40s=0.1, rtx_2080_ti=0.01)
    assert main(["suggest", "plan.yaml", "--goal", "cheapest", "--format", "json", "--budget", "0.5"]) in (0, 1)
    cards = json.loads(capsys.readouterr().out)["cards"]
    fits = [card["fits"] for card in cards]
    assert fits == sorted(fits, reverse=True)
    assert cards[0]["gpu"] == "l40s"
    costs = [card["price_per_million_tokens"] for card in cards if card["fits"]]
    assert costs == sorted(costs)
    assert main(["compare", "plan.yaml", "--format", "json"]) == 0
    compared = {row["gpu"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    for card in cards:
        row = compared[card["gpu"]]
        assert row["price_per_million_tokens"] == pytest.approx(card["price_per_million_tokens"], rel=1e-4)
        assert row["price_per_gpu_hour"] * 2 == pytest.approx(card["price_per_hour"])
    assert main(["suggest", "plan.yaml", "--goal", "cheapest", "--budget", "0.5"]) in (0, 1)
    text = capsys.readouterr().out
    assert text.index("the cheapest GPU is l40s") < text.index("goal cheapest")


def test_a_comparison_has_prices_only_where_there_are_any(capsys: Capture) -> None:
    """A column of the table, in every format; a GPU without a price has none."""
    assert main(["compare", "plan.yaml"]) == 0
    assert "per M tokens" not in capsys.readouterr().out
    prices(l40s=0.9)
    for form in ("full", "markdown"):
        assert main(["compare", "plan.yaml", "--gpu", "l40s,h200", "--format", form]) == 0
        assert "per M tokens" in capsys.readouterr().out
    assert main(["compare", "plan.yaml", "--gpu", "l40s,h200", "--format", "csv"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.endswith("price_per_gpu_hour,price_per_million_tokens")
    assert first.split(",")[-2] == "0.9"
    assert second.endswith(",,")


@pytest.mark.slow
def test_what_is_suggested_passes_and_says_what_it_costs(capsys: Capture) -> None:
    """The first is written into the file, and passes."""
    prices(l40s=0.9)
    assert main(["suggest", "plan.yaml", "--goal", "cheapest", "--budget", "300"]) == 0
    text = capsys.readouterr().out
    assert "the least money per token" in text
    assert "per million tokens" in text
    assert main(["suggest", "plan.yaml", "--goal", "cheapest", "--apply", "1", "--budget", "300"]) == 0
    assert "l40s" in Path("plan.yaml").read_text()
    assert main(["check", "plan.yaml"]) == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("h100-80gbx = 2.5", "did you mean h100-80gb"),
        ("h100-80gb = 0", "not a positive number"),
        ("h100-80gb = nan", "not a positive number"),
        ("h100-80gb = true", "not a positive number"),
        ('h100-80gb = "2.50"', "not a positive number"),
        ("h100-80gb = 2\nH100-80GB = 3", "two prices"),
    ],
)
def test_a_wrong_price_is_an_error(table: str, said: str, capsys: Capture) -> None:
    """Exit code 2, with the file, the key and what is wrong with it."""
    Path("memcheck.toml").write_text(f"[prices]\n{table}\n")
    assert main(["suggest", "plan.yaml", "--goal", "cheapest"]) == 2
    told = capsys.readouterr().err
    assert "memcheck.toml: prices: " in told
    assert said in told
