"""HRM-Text: two stacks of layers that run in turn."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added
from memcheck.errors import UnsupportedError
from memcheck.families.architecture import read_architecture
from memcheck.frameworks.torch.cycles import demand_whole_stacks
from memcheck.models.errors import ArchitectureError
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture
from tests.memory.jobs import job, llama_8b

CONFIG: dict[str, Any] = added()["hrm_text"]["config"]


def graphs(a: Architecture) -> str:
    """Each run of a stack: F or S, small without a graph."""
    cycles = [block.cycle for block in a.layers() if block.cycle is not None and block.cycle.joins]
    return "".join(("S" if c.slow else "F" if c.graph else "f") for c in cycles)


def test_the_last_fast_runs_have_a_graph() -> None:
    """``L_bp_cycles`` is filled up with ones in front."""
    assert graphs(read_architecture(CONFIG)) == "ffFSfFFS"
    assert graphs(read_architecture({**CONFIG, "L_bp_cycles": [1, 3]})) == "ffFSFFFS"


def test_each_layer_counts_once() -> None:
    """However often it runs; a file without the layers of a stack states these as its layers."""
    alone = {k: v for k, v in CONFIG.items() if k != "num_layers_per_stack"}
    more = read_architecture({**alone, "num_hidden_layers": CONFIG["num_layers_per_stack"]})
    assert count_parameters(more) == count_parameters(read_architecture(CONFIG))


def test_runs_that_do_not_fit_are_refused() -> None:
    """Layers that are no multiple of the stack's, and cycles whose fast runs have no graph."""
    with pytest.raises(ArchitectureError, match="runs of layers are not") as caught:
        read_architecture({**CONFIG, "num_hidden_layers": 17})
    assert caught.value.key == "num_hidden_layers"
    with pytest.raises(ArchitectureError, match="no graph") as caught:
        read_architecture({**CONFIG, "L_bp_cycles": [0]})
    assert caught.value.key == "L_bp_cycles"


def test_frozen_layers_are_refused() -> None:
    """Nothing says which runs' gradients they would leave out; other models freeze what they like."""
    with pytest.raises(UnsupportedError, match="frozen layers"):
        demand_whole_stacks(job(freeze=("layers:0-1",)), read_architecture(CONFIG))
    demand_whole_stacks(job(freeze=("embed",)), read_architecture(CONFIG))
    demand_whole_stacks(job(freeze=("layers:0-1",)), llama_8b(2))
