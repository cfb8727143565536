"""Which Python variables of a model's forward and of the training loop keep tensors beyond their last use."""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, NamedCurve, Recorder
from memcheck.accounts.ranks import IDLE, OF_TOWER
from memcheck.frameworks.torch.data_parallel import NamedUnit, StepSizes, uses_fsdp
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, DebertaModel, Mixer, NormedPooling
from memcheck.record import Record

FIRST_OF_TOWER = "vision layer 0"
"""Name of the unit that is the first layer of a vision tower."""
TOWER_OUTPUTS = ("last_hidden_state", "pooler_output", "idle", "merger")
"""Beginnings of the names of variables that refer to a tower's outputs."""


class Lifetimes(Record):
    """What variables of the model's forward and of the training loop keep alive in a job's step."""

    loss_after_model: bool
    """The model's forward has returned before a trainer computes the loss, or metrics, from its output."""
    keeps_previous_graph: bool
    """The graph's tensors that backward does not free live until the next step's loss replaces the old one."""
    keeps_reference_logits: bool
    """The loop's variables refer to the reference's logits until the policy has scored the next micro-batch."""
    keeps_inputs_embeds: bool
    """The model's forward has a variable for the looked-up rows (``inputs_embeds``)."""
    keeps_layer_outputs: bool
    """The model's forward keeps the output of every layer in a list (DeBERTa)."""
    keeps_recurrent_graphs: bool
    """A layer's attribute keeps a state, and the graph that computed it, until its next forward (RecurrentGemma)."""
    body_returns_first: bool = False
    """The model's body has returned before the modules between its layers and the loss run (encoders)."""
    keeps_tower_outputs: bool = False
    """A tower's outputs live until the loss is computed: the forward returns after it, or its output has them."""
    ddp_sink_has_tower: bool = False
    """DDP's ``_DDPSink`` has the tower's outputs, whether or not the loss reads them."""
    fsdp1_keeps_inputs: bool = False
    """Recomputed blocks that train nothing themselves keep their input and its gradient to the backward's end.

    FSDP1 waits for the gradients of a frozen unit's inputs before it reshards (_runtime_utils.py,
    _register_post_backward_reshard_only_hook). The hook refers to the AccumulateGrad of an input that is a leaf
    (autograd/graph.py, register_multi_grad_hook), and thereby to the input and its ``.grad``, until the final callback
    removes it. A reentrant checkpoint detaches its input, which makes it a leaf. peft's fsdp_auto_wrap_policy wraps
    adapters by themselves, so that the blocks around them are frozen units.
    """


def variable_lifetimes(job: TrainingJob) -> Lifetimes:
    """Return which variables of the model's forward and of the training loop outlive their last use."""
    profile, architecture, checkpointing = job.framework, job.architecture, job.checkpointing
    is_reentrant = checkpointing.mode == "full" and checkpointing.reentrant
    lifetimes = Lifetimes(
        loss_after_model=job.objective.loss_after_model or job.objective.reads_logits or job.head.columns > 1,
        keeps_previous_graph=profile.keeps_graph,
        keeps_reference_logits=job.objective.holds_reference,
        keeps_inputs_embeds=job.layout.pipeline == 1 and profile.style.runs_transformers_modules,
        keeps_layer_outputs=isinstance(architecture, DebertaModel),
        keeps_recurrent_graphs=isinstance(architecture, Architecture) and _keeps_recurrent_graphs(architecture),
        fsdp1_keeps_inputs=uses_fsdp(job) and job.fsdp_version == 1 and is_reentrant,
    )
    if not isinstance(architecture, Architecture):
        return lifetimes
    if architecture.vision is not None:
        from memcheck.frameworks.torch.tower_tensors import has_ddp_sink, keeps_outputs

        lifetimes = lifetimes._replace(
            keeps_tower_outputs=keeps_outputs(job, architecture.vision),
            ddp_sink_has_tower=has_ddp_sink(job, architecture.vision),
        )
    if architecture.head_layer.activation or architecture.task:
        lifetimes = lifetimes._replace(body_returns_first=_body_returns_first(architecture))
    return lifetimes


def _keeps_recurrent_graphs(architecture: Architecture) -> bool:
    """Return whether layers assign their recurrent state to an attribute, as RecurrentGemma's do."""
    return any(isinstance(block.mixer, Mixer) and block.mixer.kind == "rg-lru" for block, _ in architecture.blocks)


def _body_returns_first(architecture: Architecture) -> bool:
    """Return whether an encoder's body has returned before the modules that precede the loss run.

    Before a language-model head with a layer, it has if no final norm ends the body, or if none of its variables has
    the looked-up rows (``embedding_module.apart``). Before a head for a task, it has if no norm ends the body, or if
    the head has a norm of its own (modeling_modernbert.py, which rebinds ``hidden_states``).
    """
    has_final_norm = architecture.final_norm is not None
    if architecture.head_layer.activation and (architecture.embedding_module.is_separate or not has_final_norm):
        return True
    return architecture.task is not None and (not has_final_norm or isinstance(architecture.pooling, NormedPooling))


class Variables:
    """The variables of one forward: each keeps its tensor until it is assigned again, or the forward returns."""

    def __init__(self, recorder: Recorder, *, embeds: bool = False) -> None:
        """``embeds``: the rank has the embedding."""
        self._recorder, self._embeds = recorder, embeds
        self._held: dict[str, tuple[str, int, int]] = {}
        """By the variable's name: component, index of the size, and number of equal tensors."""

    def assign(self, name: str, component: str, size: int, times: int = 1) -> None:
        """Set what the variable refers to from now on, and release what it referred to before.

        ``size``: index of the size. ``times``: number of equal tensors.
        """
        component_before, size_before, times_before = self._held.get(name, (component, NOTHING, 1))
        if size or size_before:
            self._recorder.release(component_before, size_before, times_before)
            self._recorder.hold(component, size, times)
            self._held[name] = component, size, times

    def after_unit(
        self, unit: NamedUnit, curve: NamedCurve, layer: int, times: int, lifetimes: Lifetimes, step_sizes: StepSizes
    ) -> None:
        """Assign the variables of the model's forward after the forward of a unit.

        ``curve``: the unit's, in this micro-batch. ``layer``: the unit's number; 0 is the first layer of the language
        model, and -1 the unit before it. ``times``: the number of equal units.
        """
        is_embedding = unit.kind == "embedding"
        if unit.kind not in OF_TOWER or not self._after_tower(unit, curve, layer, times):
            name = "looked up" if is_embedding else "outputs"  # a tuple, in the model's loop over its layers
            self.assign(name, "activations", curve.extra_output_bytes)
        is_first_layer = layer == 0 and self._embeds and not lifetimes.keeps_layer_outputs
        if lifetimes.keeps_inputs_embeds and (is_embedding or is_first_layer):
            self.assign(f"inputs_embeds {unit.kind}", "activations", curve.freed_input_bytes)
        if is_embedding:
            self.assign("rows", "activations", step_sizes.embedded_rows)
        # `causal_mask` is created before the first layer, and freed when the loop over the layers has returned
        has_mask = layer >= -1 and unit.kind != "head"
        self.assign("causal_mask", "activations", step_sizes.masks if has_mask else NOTHING)

    def _after_tower(self, unit: NamedUnit, curve: NamedCurve, layer: int, times: int) -> bool:
        """Assign the variables that a unit of a vision or audio tower sets; return whether it sets any.

        ``layer``, ``times``: as in :meth:`after_unit`.
        """
        if unit.kind == "projector":
            self._after_projector(curve)
        elif unit.name == FIRST_OF_TOWER:  # its input is a variable of the forward that calls the loop over layers
            self.assign("stem's rows", "activations", curve.extra_output_bytes)
        elif unit.kind == "stem":
            self.assign("stem", "activations", curve.extra_output_bytes)
        elif unit.kind in ("idle", "merger", "gathered"):  # outputs of several layers, in a list
            self.assign(f"{unit.kind} {layer}", "activations", curve.extra_output_bytes, times)
        else:
            return unit.kind in (IDLE, "beside")  # units that never run set no variable
        return True

    def _after_projector(self, curve: NamedCurve) -> None:
        """Assign the variables after the tower's forward has returned: it frees its own, and those of the text's rows.

        The tower's output object (``mm_encoder_outputs``) keeps its last hidden state and its image tokens alive.
        """
        self.assign("rows", "activations", NOTHING)
        for name in [name for name in self._held if name.startswith(("stem", "gathered"))]:
            self.assign(name, "activations", NOTHING)
        self.assign("last_hidden_state", "activations", curve.freed_input_bytes)
        self.assign("pooler_output", "activations", curve.extra_output_bytes)

    def release_all(self, *, towers: bool = True) -> None:
        """Release what the variables refer to, since the model's forward has returned.

        ``towers``: also the outputs of towers. Otherwise the model's output keeps them.
        """
        for name in [name for name in self._held if towers or not name.startswith(TOWER_OUTPUTS)]:
            component, size, times = self._held.pop(name)
            self._recorder.release(component, size, times)
