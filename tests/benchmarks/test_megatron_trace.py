"""Megatron-core's own steps, traced where it and TransformerEngine's Python are installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from random import Random

import pytest

from benchmarks.cases import load
from memcheck.frameworks.megatron import workspaces

INSTALLED = find_spec("megatron") is not None and find_spec("transformer_engine") is not None


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(not INSTALLED, reason="needs Megatron-core and TransformerEngine's Python")
def test_a_recorded_step_is_traced_again_to_the_same_bytes() -> None:
    """In a process of its own, whose torch believes that it is on CUDA."""
    record = next(each for each in load("megatron_core.json")["steps"] if each["id"] == "llama.states-in-fp8")
    code = f"from benchmarks.megatron_trace import ranks_of; print(ranks_of({record['plan']!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == repr(record["ranks"])


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("seed", range(12))
def test_drawn_plans_are_priced(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage of a made-up plan takes more in its step than at rest."""
    pytest.importorskip("torch")
    from benchmarks.megatron_draw import MODELS, plan_of, predicted_ranks

    monkeypatch.setattr(workspaces, "TE_WORKSPACE", workspaces.TE_WORKSPACE)  # which the traces' takes the place of
    random = Random(seed)  # noqa: S311  # which plan is no secret
    plan = plan_of(random, random.choice(sorted(MODELS)))
    ranks = predicted_ranks(plan)
    assert len(ranks) == plan["parallelism"].get("pipeline", 1)
    assert all(instants["backward"] > instants["init"] for instants in ranks.values())
