"""Plans that do not fit: each gets a suggestion that passes, or a proof that there is none."""

from __future__ import annotations

import re

import pytest

from benchmarks.over_budget import plans
from benchmarks.remedies import outcome

LONG = {"moe-671b-16xh200", "dense-32b-8xh100"}
"""Two that take as long as all others together, behind `python -m benchmarks.remedies`: a proof over 63,849 plans, where
`serve-405b-1x4090` and `long-3b-1xa100-128k` have shorter ones, and a dense model, of which there are thirteen more."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in plans() if name not in LONG])
def test_every_plan_gets_a_remedy_or_a_proof(name: str) -> None:
    """The first suggestion, written into the file, passes ``check`` and breaks no rule; else all was judged."""
    found = outcome(name, plans()[name])
    assert found.problem == ""
    if found.after is not None:
        before, after = plans()[name].splitlines(), found.text.splitlines()
        assert [line for line in after if "#" in line and line in before]


def test_every_kind_is_there() -> None:
    """Dense and mixture models, adapters, long context and serving, on one to 2,048 GPUs."""
    kinds = {name.partition("-")[0] for name in plans()}
    assert {"dense", "moe", "lora", "qlora", "long", "serve"} <= kinds
    assert {"1x", "8x", "64x", "512x", "2048x"} <= {re.findall(r"-(\d+x)", name)[0] for name in plans()}
