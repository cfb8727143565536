"""Layers that share tensors, and what wraps layers."""

from __future__ import annotations

import pytest

from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.fsdp_limits import require_modelled
from memcheck.job.types import Layout
from memcheck.models.types import Architecture
from tests.memory.jobs import job, llama_8b, sharded


def borrowing() -> Architecture:
    """A model of which one layer has another one's tensors."""
    a = llama_8b(2)
    (block, times), *others = a.blocks
    return a._replace(blocks=((block._replace(shared_with=block.shared_with._replace(later=True)), times), *others))


def test_fsdp_does_not_cut_what_layers_share() -> None:
    """Refused where layers are wrapped, and nowhere else; layers with tensors of their own are never refused."""
    with pytest.raises(UnsupportedError, match="share tensors under FSDP"):
        require_modelled(job(layout=sharded(8)), borrowing())
    require_modelled(job(layout=Layout(gpus_per_node=8, data=8)), borrowing())
    require_modelled(job(layout=sharded(8)), llama_8b(2))
