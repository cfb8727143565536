"""What Python variables of a model's forward and of the training loop hold beyond the last use of a tensor."""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, NamedCurve, Recorder
from memcheck.accounts.ranks import IDLE, OF_TOWER
from memcheck.frameworks.torch.data_parallel import NamedUnit, StepSizes
from memcheck.record import Record

FIRST_OF_TOWER = "vision layer 0"
TOWER_OUTPUTS = ("last_hidden_state", "pooler_output", "idle", "merger")
"""Variables that refer to what a tower has made."""


class Lifetimes(Record):
    """What the model's forward and the training loop keep."""

    loss_after_model: bool
    """A trainer takes the loss, or metrics, of what the model's forward has returned."""
    keeps_graph: bool
    """What the graph holds in addition to saved tensors lives until the next step's loss, not to the end of the
    backward.
    """
    keeps_outputs: bool
    """The loop's variables hold the reference's logits, until the next micro-batch's policy has been scored."""
    holds_rows: bool
    """The model's forward has a variable for the rows that were looked up."""
    keeps_states: bool
    """Whether the model's forward keeps the output of every layer in a list."""
    leaves_graphs: bool
    """A module keeps a state with the graph that made it, until its next forward (RecurrentGemma)."""
    returns_first: bool = False
    """Whether the model's forward has returned before the modules that precede the loss run (encoders)."""
    towers_stay: bool = False
    """Whether what the tower has made lives until the loss is over: the forward returns after the loss, or the model's
    output carries it.
    """
    sinks: bool = False
    """DDP's own function has all of the model's output, whatever of it the loss reads."""
    saved_inputs: bool = False
    """Recomputed blocks that train nothing themselves keep their input and its gradient to the backward's end.

    FSDP1 waits for the gradients of a frozen unit's inputs before it reshards (_runtime_utils.py,
    _register_post_backward_reshard_only_hook). The hook refers to the AccumulateGrad of an input that is a leaf
    (autograd/graph.py, register_multi_grad_hook), and thereby to the input and its ``.grad``, until the final callback
    removes it. A reentrant checkpoint detaches its input, which makes it a leaf. peft's fsdp_auto_wrap_policy wraps
    adapters by themselves, so that the blocks around them are frozen units.
    """


class Variables:
    """What Python variables of a forward hold beyond its last use: until each is assigned again, or it returns."""

    def __init__(self, recorder: Recorder, *, embeds: bool = False) -> None:
        """``embeds``: the rank looks the rows up."""
        self._recorder, self._embeds = recorder, embeds
        self._held: dict[str, tuple[str, int, int]] = {}

    def assign(self, name: str, component: str, size: int, times: int = 1) -> None:
        """Set what the variable refers to from now on, and release what it referred to before.

        ``size``: index of the size. ``times``: number of equal tensors.
        """
        component_before, before, many = self._held.get(name, (component, NOTHING, 1))
        if size or before:
            self._recorder.release(component_before, before, many)
            self._recorder.hold(component, size, times)
            self._held[name] = component, size, times

    def after_unit(
        self, unit: NamedUnit, curve: NamedCurve, layer: int, times: int, lifetimes: Lifetimes, step_sizes: StepSizes
    ) -> None:
        """Assign what variables of the model's forward refer to after a unit has run, which keeps tensors alive.

        ``curve``: the unit's, in this micro-batch. ``layer``: counted from the first text layer. ``times``: the number
        of equal units.
        """
        if unit.kind not in OF_TOWER or not self._after_tower(unit, curve, layer, times):
            name = "looked up" if unit.kind == "embedding" else "outputs"  # of the model's loop over its layers
            self.assign(name, "activations", curve.extra_output_bytes)
        first = layer == 0 and not lifetimes.keeps_states and self._embeds
        if lifetimes.holds_rows and (unit.kind == "embedding" or first):  # `inputs_embeds`: a variable of the forward
            self.assign(f"inputs_embeds {unit.kind}", "activations", curve.freed_input_bytes)
        if unit.kind == "embedding":
            self.assign("rows", "activations", step_sizes.rows)
        # `causal_mask`: from the look-up of the rows until the stack has returned
        self.assign("causal_mask", "activations", NOTHING if unit.kind == "head" or layer < -1 else step_sizes.masks)

    def _after_tower(self, unit: NamedUnit, curve: NamedCurve, layer: int, times: int) -> bool:
        """Assign the variables that a unit of a vision or audio tower sets; return whether the unit is of a tower.

        After the projector, the tower's output object (``mm_encoder_outputs``) keeps its last hidden state and its
        image tokens alive. ``layer``, ``times``: as in :meth:`after_unit`.
        """
        if unit.kind == "projector":
            self.assign("rows", "activations", NOTHING)
            for name in [name for name in self._held if name.startswith(("stem", "gathered"))]:
                self.assign(name, "activations", NOTHING)
            self.assign("last_hidden_state", "activations", curve.freed_input_bytes)
            self.assign("pooler_output", "activations", curve.extra_output_bytes)
        elif unit.name == FIRST_OF_TOWER:  # its input, where the loop over layers is another's
            self.assign("stem's rows", "activations", curve.extra_output_bytes)
        elif unit.kind == "stem":  # the tower's own variables
            self.assign("stem", "activations", curve.extra_output_bytes)
        elif unit.kind in (IDLE, "beside"):
            return True
        elif unit.kind in ("idle", "merger", "gathered"):
            self.assign(f"{unit.kind} {layer}", "activations", curve.extra_output_bytes, times)
        else:
            return False
        return True

    def let_go(self, *, towers: bool = True) -> None:
        """Free the variables of the model's forward, which has returned.

        ``towers``: of the vision towers, too; otherwise these keep theirs.
        """
        for name in [name for name in self._held if towers or not name.startswith(TOWER_OUTPUTS)]:
            component, size, times = self._held.pop(name)
            self._recorder.release(component, size, times)
