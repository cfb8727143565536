"""What Python variables hold of a tower while a model's forward runs."""

from __future__ import annotations

from memcheck.accounts.program import NOTHING
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.step_options import RESTING
from memcheck.frameworks.torch.step_parts import NamedUnit, Variables

FIRST_OF_TOWER = "vision layer 0"


def behind_tower(variables: Variables, unit: NamedUnit, curve: NamedCurve, layer: int, times: int) -> bool:
    """Whether the unit is one that assigns variables; if so, they get what they refer to after it.

    Image tokens are put into their places in a new tensor. The tower's last rows, with the graph of layers that
    nothing reads, and its image tokens are in what the forward got from it (``mm_encoder_outputs``).
    """
    if unit.kind == "projector":
        variables.assign("rows", "activations", NOTHING)
        for name in variables.starting("stem", "gathered"):
            variables.assign(name, "activations", NOTHING)
        variables.assign("last_hidden_state", "activations", curve.freed_input)
        variables.assign("pooler_output", "activations", curve.returned)
    elif unit.name == FIRST_OF_TOWER:  # its input, where the loop over layers is another's
        variables.assign("stem's rows", "activations", curve.returned)
    elif unit.kind == "stem":  # the tower's own variables
        variables.assign("stem", "activations", curve.returned)
    elif unit.kind in (RESTING, "beside"):
        return True
    elif unit.kind in ("idle", "merger", "gathered"):
        variables.assign(f"{unit.kind} {layer}", "activations", curve.returned, times)
    else:
        return False
    return True
