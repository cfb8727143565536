"""Buffers of a pipeline rank in addition to its units.

These are token ids, rotary tables, masks, tensors that stages exchange, and the tables and indices of single layers.

What Python variables of a model's forward and of the training loop hold beyond the last use of a tensor.
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, NamedCurve, Recorder
from memcheck.accounts.ranks import IDLE, OF_TOWER, Always, Part
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.frameworks.registry import model_states_of
from memcheck.frameworks.torch.data_parallel import NamedUnit, StepSizes, runs_chunk_by_chunk
from memcheck.frameworks.torch.pipelining import NO_EXCHANGE, StageExchange
from memcheck.frameworks.torch.rank_tensors import stream_dtype
from memcheck.frameworks.transformers.kernel_choice import model_masks
from memcheck.frameworks.transformers.states import wide_width
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.module_types import HashedMoe, HeldMask, PositionTable
from memcheck.models.types import (
    Architecture,
    Attention,
    BartModel,
    Block,
    GptBigCodeModel,
    LatentAttention,
    Mixer,
    Moe,
)
from memcheck.record import Record


def masks_of(architecture: Architecture, setting: Setting) -> int:
    """Return the bytes of all attention masks that one forward pass of the model makes."""
    if not setting.style.modeling_files:
        return 0

    masks = model_masks((b for b, _ in architecture.blocks), setting, architecture.mask_windows)
    return masks.variables + masks.graph + masks.unused


class ModelBuffers:
    """What a pipeline rank holds in addition to its units."""

    def __init__(self, job: TrainingJob, architecture: Architecture, part: Part, setting: Setting) -> None:
        """Compute the bytes of masks, rotary tables and received inputs on a rank.

        ``part``: the layers and ends of the rank. ``setting``: the one that its units share.
        """
        self.job, self.architecture, self.part = job, architecture, part
        self.setting = setting
        self.item = DTYPE_BYTES[stream_dtype(self.setting)]
        self.tokens = self.setting.batch * self.setting.sequence
        self.exchange = self._exchange()
        tables = model_states_of(setting.style).rotary_tables(architecture, setting)
        held_masks, mask_variables = self._masks()
        if setting.rotary_table_rows and any(wide_width(block) for block, _ in architecture.blocks):
            # each layer holds what FSDP2 has cast of them
            tables, mask_variables = 0, mask_variables + tables
        layer_indices = last_indices = 0
        if any(isinstance(b.mixer, LatentAttention) and b.mixer.extension is not None for b, _ in architecture.blocks):
            layer_indices, last_indices = dsa_indices(job, architecture, part, setting)
        self.per_micro_batch = tables + self._received_input() + held_masks + layer_indices
        """What each micro-batch in flight makes for itself."""
        self.masks = mask_variables + last_indices
        """Attention masks, and an indexer's choice, that nothing but variables of the model's forward hold."""
        if architecture.encoder is not None:
            from memcheck.frameworks.torch.encoder import encoder_tables

            self.per_micro_batch += encoder_tables(job, architecture.encoder, setting)

    def always(self) -> list[Always]:
        """Return the buffers of a rank that live all step: token ids, rotary caches, pixel values, pipeline receive
        buffers.
        """
        layers = self.part.last - self.part.first
        states, length = model_states_of(self.setting.style), self.job.sequence_length
        caches = states.rotary_caches(self.architecture, length, layers, adapted=self.job.lora is not None)
        always_live = [Always("activations", caches)] if caches else []
        if self.job.checkpointing.offload == "cpu" and self.setting.style.offload_buffers:
            buffers = self.setting.style.offload_buffers * self.boundary()
            always_live.append(Always("activations", buffers))
        if self.job.auxiliary_models:
            from memcheck.frameworks.torch.reference_models import companion_caches

            always_live.append(Always("parameters", companion_caches(self.job)))
        if any(_may_have_tables(block) for block, _ in self.architecture.blocks):
            always_live += [
                Always("activations", size) for size in layer_tables(self.job, self.architecture, self.part)
            ]
        element_bytes = DTYPE_BYTES[self.job.recipe.params]  # of the stored weights: FSDP2 casts no buffers
        sinusoids = rounded(self.architecture.sinusoids * self.setting.hidden * element_bytes)
        if sinusoids:  # a table for each of both stacks
            always_live += [Always("activations", sinusoids), Always("activations", sinusoids)]
        if isinstance(self.architecture, GptBigCodeModel):
            always_live.append(Always("activations", rounded(self.architecture.learned_positions**2)))
        if self.architecture.pooling is not None and self.architecture.learned_positions:
            # `position_ids`, and `token_type_ids` where there are types: int64 buffers of BERT's embeddings
            count = 2 if self.architecture.embedding_module.token_types else 1
            id_bytes = rounded(self.architecture.learned_positions * ITEM_BYTES["int64"])
            always_live.append(Always("activations", count * id_bytes))
        ids = rounded(self.tokens * ITEM_BYTES["int64"])
        if self.part.embedding:
            always_live.append(Always("activations", ids))
        if self.part.head:
            always_live.append(Always("activations", ids))
        if self.architecture.encoder is not None:
            from memcheck.frameworks.torch.encoder import encoder_inputs

            always_live.append(
                Always("activations", encoder_inputs(self.job, self.architecture, self.architecture.encoder))
            )
        if isinstance(self.architecture, BartModel):
            always_live.append(Always("activations", rounded(self.architecture.vocab_size * element_bytes)))
        if (self.architecture.vision is not None or self.architecture.others) and self.part.embedding:
            from memcheck.frameworks.torch.tower_tensors import pixel_bytes, side_buffers

            buffers = side_buffers(self.architecture, self.setting.param_dtype)
            always_live.append(Always("activations", buffers + pixel_bytes(self.job, self.architecture)))
        if self.job.layout.pipeline == 1:
            return always_live
        stages = self.job.layout.virtual_stages if runs_chunk_by_chunk(self.job) else 1
        all_inputs = (stages - self.part.embedding) * self.boundary()
        if not self.job.casts_gradients:
            # before 2.15 torch.distributed.pipelining allocates all receive buffers once (stage.py)
            all_gradients = (stages - self.part.head) * self.boundary()
            always_live.append(Always("communication_buffers", 0, all_inputs + all_gradients))
        elif self.part.head:
            # since then every input is a new tensor; the losses that the last stage collects refer to all of theirs
            always_live.append(Always("activations", 0, self.boundary()))
        return always_live

    def _masks(self) -> tuple[int, int]:
        """Return the bytes of attention masks that a micro-batch in flight holds, and of those that only variables
        hold.

        The second ones are freed when the model's forward returns.
        """
        if not self.setting.style.modeling_files:
            return 0, 0

        architecture = self.architecture
        masks = model_masks((b for b, _ in architecture.blocks), self.setting, architecture.mask_windows)
        held_masks, variables = masks.graph, masks.variables
        if self.job.checkpointing.mode != "none":  # layers hold them, as arguments, to their backward
            held_masks, variables = held_masks + variables, 0
            if self.setting.trained:
                held_masks += masks.gathered
        if self.job.layout.pipeline > 1:  # a stage calls its layers, and makes no masks
            return held_masks, 0
        return held_masks, variables + masks.unused

    def _received_input(self) -> int:
        """Return the bytes of a micro-batch's input on a pipeline stage, which is received into a new tensor; 0 if it
        is not.

        torch does so since 2.15; the micro-batch's backward frees the tensor.
        """
        lazy = self.job.layout.pipeline > 1 and self.job.casts_gradients
        return self.boundary() if lazy and not self.part.embedding and not self.part.head else 0

    def _exchange(self) -> StageExchange:
        """Return the bytes that torch.distributed.pipelining keeps of tensors exchanged between stages (stage.py,
        schedules.py).
        """
        if self.job.layout.pipeline == 1:
            return NO_EXCHANGE
        output = 0 if self.part.head else self.boundary()
        exchange = StageExchange(input_gradient=0 if self.part.embedding else self.boundary())
        if not self.job.casts_gradients:
            return exchange._replace(output=output)
        # gpipe waits for its sends after the last forward
        sends = self.job.gradient_accumulation_steps if self.job.layout.pipeline_schedule == "gpipe" else 1
        return exchange._replace(unsent_output=output, sends=sends, output_gradient=output)

    def boundary(self) -> int:
        """Return the bytes of the hidden states between two stages."""
        rows = self.tokens // self.setting.tensor_parallel if self.setting.sequence_parallel else self.tokens
        return rounded(rows * self.setting.streams * self.setting.hidden * self.item)


def _may_have_tables(block: Block) -> bool:
    """Return whether a layer may have buffers of its own, which :func:`layer_tables` measures."""
    m, experts = block.mixer, isinstance(block.mlp, Moe)
    return experts or not isinstance(m, Attention) or isinstance(m.extension, (HeldMask, PositionTable))


def layer_tables(job: TrainingJob, architecture: Architecture, part: Part) -> list[int]:
    """Return the bytes of the buffers in this rank's layers, as a list of one number; an empty list if there are none.

    ``embed_positions``, [positions, rotary_dim] in fp32 (modeling_gptj.py, GPTJAttention); decays in the dtype in which
    the model is created (modeling_minimax.py, MiniMaxLightningAttention).
    """
    total = sum(_table(job, architecture.vocab_size, block) for block in architecture.layers()[part.first : part.last])
    return [total] if total else []


def _table(job: TrainingJob, words: int, block: Block) -> int:
    """Return the bytes of the buffers of one layer. ``words``: rows of the vocabulary."""
    mixer = block.mixer
    if isinstance(block.mlp, HashedMoe):
        return rounded(words * block.mlp.experts_per_token * ITEM_BYTES["int64"])
    if isinstance(mixer, Mixer):
        return rounded(mixer.buffer_numel * DTYPE_BYTES[job.recipe.params])
    if not isinstance(mixer, Attention):
        return 0
    if isinstance(mixer.extension, PositionTable):
        return rounded(mixer.extension.positions * mixer.rotary_dim * ITEM_BYTES["fp32"])
    return rounded(mixer.extension.rows**2) if isinstance(mixer.extension, HeldMask) else 0


def dsa_indices(job: TrainingJob, architecture: Architecture, part: Part, setting: Setting) -> tuple[int, int]:
    """Return the bytes of the int32 indices of chosen keys that DSA layers pass on (modeling_glm_moe_dsa.py,
    ``prev_topk_indices``).

    The first number is that of arguments, which checkpointed layers keep until their backward. The second is that of
    the variable of the model's forward. A layer without an indexer passes on the indices that it received.
    """
    tokens = setting.batch * setting.sequence
    layers = architecture.layers()[part.first : part.last]
    mixers = [b.mixer for b in layers if isinstance(b.mixer, LatentAttention)]
    indexers = [mixer.extension for mixer in mixers if mixer.extension is not None and mixer.extension.passes]
    index_bytes = ITEM_BYTES["int32"]
    choosing = [indexer for indexer in indexers if indexer.heads]
    sizes = [rounded(tokens * min(setting.sequence, indexer.topk) * index_bytes) for indexer in choosing]
    if not sizes:
        return 0, 0
    last_layer_chooses = indexers[-1] is choosing[-1]
    if job.checkpointing.mode == "none":
        # the variable holds the last choice, and while the last layer chooses, also the choice before
        return 0, sum(sizes[-2:]) if last_layer_chooses else sizes[-1]
    if last_layer_chooses:  # no later layer is given its choice
        return sum(sizes[:-1]), sizes[-1]
    return sum(sizes), 0


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
        is_first_layer = layer == 0 and self._embeds and not lifetimes.keeps_states
        if lifetimes.holds_rows and (unit.kind == "embedding" or is_first_layer):  # the forward's `inputs_embeds`
            self.assign(f"inputs_embeds {unit.kind}", "activations", curve.freed_input_bytes)
        if unit.kind == "embedding":
            self.assign("rows", "activations", step_sizes.rows)
        # `causal_mask`: from the look-up of the rows until the stack has returned
        before_rows = layer < -1
        self.assign("causal_mask", "activations", NOTHING if unit.kind == "head" or before_rows else step_sizes.masks)

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
