"""Tensors of a pipeline rank outside its units: its buffers, and tensors that variables keep beyond their last use.

Buffers are token ids, rotary tables, attention masks, hidden states between stages, and the tables of single layers.
Variables are those of the model's forward and of the training loop.
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, NamedCurve, Recorder
from memcheck.accounts.ranks import NEVER_RUN, NEVER_RUN_PART, OF_TOWER, Always, Part
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.frameworks.registry import layers_of
from memcheck.frameworks.torch.data_parallel import NamedUnit, StepSizes, runs_chunk_by_chunk, uses_fsdp
from memcheck.frameworks.torch.pipelining import NO_EXCHANGE, StageExchange
from memcheck.frameworks.torch.rank_tensors import stream_dtype
from memcheck.frameworks.torch.units import casts_rotary_tables, masks_of
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.module_types import HashedMoe, HeldMask, PositionTable
from memcheck.models.types import (
    Architecture,
    Attention,
    BartModel,
    Block,
    DebertaModel,
    GptBigCodeModel,
    LatentAttention,
    Mixer,
    NormedPooling,
)
from memcheck.record import Record


class ByHolder(Record):
    """Bytes of tensors that one forward of the model creates once for many layers, by what keeps them alive."""

    held_by_layers: int = 0
    """Bytes that layers keep until their backward, as saved tensors or as arguments of a checkpoint."""
    held_by_variables: int = 0
    """Bytes that only variables of the model's forward keep. They are freed when it returns."""


class ModelBuffers:
    """Bytes of a pipeline rank's buffers: those of each micro-batch in flight, and those that live all step."""

    def __init__(self, job: TrainingJob, architecture: Architecture, part: Part, setting: Setting) -> None:
        """Compute the bytes of masks, rotary tables and received inputs on a rank.

        ``part``: the layers and ends of the rank. ``setting``: the setting that its units share.
        """
        self.job, self.architecture, self.part, self.setting = job, architecture, part, setting
        self.tokens = setting.batch * setting.sequence
        self.exchange = self._exchange()
        rotary, masks = self._rotary_tables(), self._masks()
        indices = dsa_indices(job, architecture, part, setting)
        self.per_micro_batch = (
            rotary.held_by_layers + self._received_input() + masks.held_by_layers + indices.held_by_layers
        )
        """What each micro-batch in flight allocates for itself, until its backward."""
        self.masks = rotary.held_by_variables + masks.held_by_variables + indices.held_by_variables
        """Attention masks and other tensors that only variables of the model's forward keep alive."""
        if architecture.encoder is not None:
            from memcheck.frameworks.torch.encoder import encoder_tables

            self.per_micro_batch += encoder_tables(job, architecture.encoder, setting)

    def always(self) -> list[Always]:
        """Return the buffers of a rank that live all step, by component, without its resident parameters."""
        activations = self._inputs() + self._model_tables() + self._rotary_caches()
        activations += layer_tables(self.job, self.architecture, self.part)
        if self.job.checkpointing.offload == "cpu":
            activations += self.setting.style.offload_buffers * self.boundary()
        always_live = [Always("activations", activations)]
        if self.job.auxiliary_models:
            from memcheck.frameworks.torch.reference_models import companion_caches

            always_live.append(Always("parameters", companion_caches(self.job)))
        return [*always_live, *self._receive_buffers()]

    def _inputs(self) -> int:
        """Return the bytes of a micro-batch's inputs: token ids, labels, the encoder's input, and pixel values."""
        id_bytes = rounded(self.tokens * ITEM_BYTES["int64"])
        input_ids = id_bytes if self.part.has_embedding else 0
        labels = id_bytes if self.part.has_head else 0
        total = input_ids + labels
        if self.architecture.encoder is not None:
            from memcheck.frameworks.torch.encoder import encoder_inputs

            total += encoder_inputs(self.job, self.architecture, self.architecture.encoder)
        has_tower = self.architecture.vision is not None or self.architecture.others
        if has_tower and self.part.has_embedding:
            from memcheck.frameworks.torch.tower_tensors import pixel_bytes, side_buffers

            total += side_buffers(self.architecture, self.setting.param_dtype)
            total += pixel_bytes(self.job, self.architecture)
        return total

    def _model_tables(self) -> int:
        """Return the bytes of tables that some models register as buffers outside their layers.

        Floating-point tables have the dtype of the stored weights: FSDP2 does not cast buffers.
        """
        architecture, element_bytes = self.architecture, DTYPE_BYTES[self.job.recipe.params]
        # M2M-100: positions, [positions, hidden], in the encoder and in the decoder
        total = 2 * rounded(architecture.sinusoids * self.setting.hidden * element_bytes)
        if isinstance(architecture, GptBigCodeModel):  # a causal mask, bool [positions, positions]
            total += rounded(architecture.learned_positions**2)
        if isinstance(architecture, BartModel):  # `final_logits_bias`, [vocabulary]
            total += rounded(architecture.vocab_size * element_bytes)
        if architecture.pooling is not None and architecture.learned_positions:
            # BERT's `position_ids`, and `token_type_ids` if there are types: int64 [positions]
            tables = 2 if architecture.embedding_module.token_types else 1
            total += tables * rounded(architecture.learned_positions * ITEM_BYTES["int64"])
        return total

    def _rotary_caches(self) -> int:
        """Return the bytes of rotary tables that the rank's layers register as buffers."""
        states, layers = layers_of(self.setting.style), self.part.end_layer - self.part.first_layer
        adapted = self.job.lora is not None
        return states.rotary_caches(self.architecture, self.job.sequence_length, layers, adapted=adapted)

    def _receive_buffers(self) -> list[Always]:
        """Return the buffers into which a pipeline stage receives hidden states and their gradients."""
        if self.job.layout.pipeline == 1:
            return []
        if not self.job.casts_gradients:
            # before 2.15 torch.distributed.pipelining allocates all of them once, for each micro-batch (stage.py)
            stages = self.job.layout.virtual_stages if runs_chunk_by_chunk(self.job) else 1
            inputs = stages - self.part.has_embedding
            gradients = stages - self.part.has_head
            return [Always("communication_buffers", 0, (inputs + gradients) * self.boundary())]
        if self.part.has_head:
            # since then every input is a new tensor, and the losses that the last stage collects refer to all of them
            return [Always("activations", 0, self.boundary())]
        return []

    def _rotary_tables(self) -> ByHolder:
        """Return cos and sin that one forward computes. Layers keep them, unless FSDP2 hands each layer a cast copy."""
        tables = layers_of(self.setting.style).rotary_tables(self.architecture, self.setting)
        if casts_rotary_tables(self.architecture, self.setting):
            return ByHolder(held_by_variables=tables)
        return ByHolder(held_by_layers=tables)

    def _masks(self) -> ByHolder:
        """Return the attention masks and position biases that one forward creates."""
        masks = masks_of(self.architecture, self.setting)
        in_layers, in_variables = masks.held_by_graph, masks.held_by_variables
        if self.job.checkpointing.mode != "none":  # a checkpoint keeps the layer's arguments
            in_layers, in_variables = in_layers + in_variables, 0
            if self.setting.trained:
                in_layers += masks.bias_gradient
        if self.job.layout.pipeline > 1:  # a stage calls its layers directly: no model's forward creates masks
            return ByHolder(held_by_layers=in_layers)
        return ByHolder(held_by_layers=in_layers, held_by_variables=in_variables + masks.unused_variables)

    def _received_input(self) -> int:
        """Return the bytes of a micro-batch's input on a pipeline stage, if it is received into a new tensor; else 0.

        torch does so since 2.15; the micro-batch's backward frees the tensor.
        """
        receives_new_tensor = self.job.layout.pipeline > 1 and self.job.casts_gradients
        is_middle_stage = not self.part.has_embedding and not self.part.has_head
        return self.boundary() if receives_new_tensor and is_middle_stage else 0

    def _exchange(self) -> StageExchange:
        """Return the bytes that torch.distributed.pipelining keeps of tensors exchanged between stages (stage.py,
        schedules.py).
        """
        if self.job.layout.pipeline == 1:
            return NO_EXCHANGE
        output = 0 if self.part.has_head else self.boundary()
        exchange = StageExchange(input_gradient=0 if self.part.has_embedding else self.boundary())
        if not self.job.casts_gradients:
            return exchange._replace(output=output)
        # gpipe waits for its sends after the last forward
        sends = self.job.gradient_accumulation_steps if self.job.layout.pipeline_schedule == "gpipe" else 1
        return exchange._replace(unsent_output=output, sends=sends, output_gradient=output)

    def boundary(self) -> int:
        """Return the bytes of one micro-batch's hidden states between two stages, [tokens * streams, hidden]."""
        setting = self.setting
        tokens = self.tokens // setting.tensor_parallel if setting.sequence_parallel else self.tokens
        return rounded(tokens * setting.streams * setting.hidden * DTYPE_BYTES[stream_dtype(setting)])


def layer_tables(job: TrainingJob, architecture: Architecture, part: Part) -> int:
    """Return the bytes of all buffers in the layers of a rank, other than rotary caches."""
    total = first = 0
    for block, count in architecture.blocks:
        end = first + count
        layers_here = max(0, min(end, part.end_layer) - max(first, part.first_layer))
        total += layers_here * _layer_table(job, architecture.vocab_size, block)
        first = end
    return total


def _layer_table(job: TrainingJob, vocab: int, block: Block) -> int:
    """Return the bytes of the buffers of one layer; 0 for most families. ``vocab``: rows of the vocabulary."""
    mixer = block.mixer
    if isinstance(block.mlp, HashedMoe):  # experts of each token id, int64 [vocabulary, experts per token]
        return rounded(vocab * block.mlp.experts_per_token * ITEM_BYTES["int64"])
    if isinstance(mixer, Mixer):  # decays, in the dtype in which the model is created (modeling_minimax.py)
        return rounded(mixer.buffer_numel * DTYPE_BYTES[job.recipe.params])
    if not isinstance(mixer, Attention):
        return 0
    if isinstance(mixer.extension, PositionTable):  # `embed_positions`, fp32 [positions, rotary_dim] (modeling_gptj.py)
        return rounded(mixer.extension.positions * mixer.rotary_dim * ITEM_BYTES["fp32"])
    if isinstance(mixer.extension, HeldMask):  # a causal mask, bool [positions, positions]
        return rounded(mixer.extension.rows**2)
    return 0


def dsa_indices(job: TrainingJob, architecture: Architecture, part: Part, setting: Setting) -> ByHolder:
    """Return the bytes of the int32 indices of selected keys that DSA layers pass on, [tokens, topk] each.

    The layer's argument and the variable of the model's forward are ``prev_topk_indices`` (modeling_glm_moe_dsa.py).
    A layer without an indexer passes on the indices that it received.
    """
    if not any(isinstance(b.mixer, LatentAttention) and b.mixer.extension is not None for b, _ in architecture.blocks):
        return ByHolder()
    layers = architecture.layers()[part.first_layer : part.end_layer]
    mixers = [b.mixer for b in layers if isinstance(b.mixer, LatentAttention)]
    extensions = [mixer.extension for mixer in mixers if mixer.extension is not None and mixer.extension.passes]
    indexers = [extension for extension in extensions if extension.heads]  # of layers that select keys themselves
    tokens = setting.batch * setting.sequence
    sizes = [rounded(tokens * min(setting.sequence, each.topk) * ITEM_BYTES["int32"]) for each in indexers]
    if not sizes:
        return ByHolder()
    last_layer_selects = extensions[-1] is indexers[-1]
    if job.checkpointing.mode == "none":
        # the variable refers to the last indices; while the last layer selects, also to those before
        return ByHolder(held_by_variables=sum(sizes[-2:]) if last_layer_selects else sizes[-1])
    if last_layer_selects:  # no later layer has its indices as an argument
        return ByHolder(held_by_layers=sum(sizes[:-1]), held_by_variables=sizes[-1])
    return ByHolder(held_by_layers=sum(sizes))


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
        loss_after_model=job.objective.loss_after_model or job.objective.reads_logits or job.head.text_columns > 1,
        keeps_previous_graph=profile.keeps_graph_until_next_loss,
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
            return unit.kind in (NEVER_RUN, NEVER_RUN_PART)  # units that never run set no variable
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
