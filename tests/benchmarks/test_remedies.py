"""Plans that do not fit: each gets a suggestion that passes, or a proof that there is none."""

from __future__ import annotations

import re

import pytest

from benchmarks.over_budget import plans
from benchmarks.remedies import outcome

SAMPLE = (
    "dense-7b-1xa100",
    "dense-70b-16xh100",
    "dense-405b-512xh100",
    "moe-16b-8xa100",
    "moe-8x22b-128xh100",
    "lora-13b-1xa10",
    "qlora-70b-1xa100",
    "long-7b-8xa100-32k",
    "long-3b-1xa100-128k",
    "serve-70b-2xh100",
    "serve-405b-1x4090",
)
"""Some of each kind, two with a proof among them; ``python -m benchmarks.remedies`` looks at all forty."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
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
