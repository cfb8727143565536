"""The units at the ends of a model: embedding, and head with loss, each with its tensors and its memory curve.

Buffers of a pipeline rank in addition to its units.

These are token ids, rotary tables, masks, tensors that stages exchange, and the tables and indices of single layers.

What Python variables of a model's forward and of the training loop hold beyond the last use of a tensor.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.program import NOTHING, NamedCurve, Recorder
from memcheck.accounts.ranks import IDLE, OF_TOWER, Always, Part, Unit
from memcheck.autograd.context import Context, Setting, require_covered, touched, whole
from memcheck.autograd.tensor import ITEM_BYTES, Leaf, Value, ceil_div, rounded
from memcheck.frameworks.registry import layers_of, model_states_of
from memcheck.frameworks.torch.data_parallel import NamedUnit, StepSizes, runs_chunk_by_chunk
from memcheck.frameworks.torch.pipelining import NO_EXCHANGE, StageExchange
from memcheck.frameworks.torch.rank_tensors import (
    HEAD,
    TABLE,
    embedded_dtype,
    embedding_tensors,
    embedding_unit_tensors,
    head_tensors,
    head_unit_tensors,
    is_head_frozen,
    is_hooked,
    is_tied,
    leaves_beside,
    multiplied_by_head,
    placement_of,
    saves_copy,
    setting_placement,
    stream_dtype,
    transform_biases,
    unused_in_embedding,
    unused_in_head,
)
from memcheck.frameworks.transformers.embedding import Embedding, embedding_curve, embedding_forward
from memcheck.frameworks.transformers.head import Head, head_forward
from memcheck.frameworks.transformers.kernel_choice import model_masks
from memcheck.frameworks.transformers.states import wide_width
from memcheck.job.types import DTYPE_BYTES, Objective, TrainingJob
from memcheck.models.module_types import HashedMoe, HeldMask, PositionTable
from memcheck.models.parameters import embedder_tensors, head_width
from memcheck.models.types import (
    Architecture,
    Attention,
    BartModel,
    Block,
    DebertaModel,
    GptBigCodeModel,
    LatentAttention,
    Mixer,
    Moe,
    PegasusModel,
    Qwen2AudioModel,
    T5GemmaModel,
)
from memcheck.record import Record

_cached_embedding = lru_cache(maxsize=512)(embedding_curve)


def embedding_unit(
    job: TrainingJob, architecture: Architecture, base: Setting, trained: bool, tied: bool, adds: bool, inventory: bool
) -> Unit:
    """Return the embedding's unit: its tensors on one rank, and its memory curves.

    ``base``: the setting that all units share. ``trained``: some tensor of the embedding is. ``tied``: the head uses
    its table. ``adds``: some micro-batch adds to existing gradients, so that it has a second curve.
    """
    vocab = ceil_div(architecture.table_rows, base.tensor_parallel)
    adapter = placement_of(job, "projector").adapter if architecture.embedders else None
    embedding = Embedding(
        # RowwiseParallel on nn.Embedding: the local rows' gradient is a view of the whole table's; else embeddings are
        # vocabulary-parallel modules of their own
        vocab=architecture.table_rows if base.style.modeling_files else vocab,
        width=architecture.embedding_size,
        positions=architecture.learned_positions,
        norm=architecture.embedding_norm,
        scaled=architecture.embedding_scale not in ("", "tokens"),
        dropout=architecture.embedding_dropout,
        trained=trained,
        tied=tied,
        projected=architecture.embedding_size != architecture.hidden_size,
        positions_each=architecture.positions_each,
        scaled_outside=architecture.embedding_scale in ("model", "tokens"),
        scaled_behind=architecture.embedding_scale == "named",
        token_types=architecture.embedding_module.token_types,
        per_layer=architecture.per_layer,
        per_layer_rows=next((t.shape[0] for t in architecture.extra_tensors if "embed_tokens_per_layer" in t.name), 0),
        table_frozen=leaves_beside(job, architecture),
        sums_in_place=job.objective.loss_from_hidden_states,
        leaf=(not trained or leaves_beside(job, architecture)) and is_hooked(job, architecture),
        leaf_unsaved=job.hooks_embedding and job.checkpointing.mode == "none",
        fixed_positions=isinstance(architecture, PegasusModel),
        streams=architecture.streams,
        cloned=architecture.embedding_cloned,
        scattered=bool(architecture.embedders) or (architecture.vision is not None and not architecture.vision.crosses),
        embedders=architecture.embedders,
        embedders_trained=bool(architecture.embedders) and job.method == "full" and "projector" not in job.freeze,
        embedders_adapter=adapter,
        pictures=job.rows * job.images.pictures if architecture.embedders and job.images is not None else 0,
        saved=saves_copy(job, TABLE),
        biases=architecture.biases,
        masked=isinstance(architecture, DebertaModel),
        apart=architecture.embedding_module.apart,
        sinusoids=architecture.sinusoids > 0,
        repeated=architecture.collapses,
        relative=architecture.relative_positions,
    )
    dtype = embedded_dtype(architecture, base)
    full = embedding._replace(
        vocab=architecture.table_rows,
        embedders_adapter=None,
        embedders_trained=bool(architecture.embedders),
        pictures=0,
    )
    _demand_embedding(architecture, full, whole(base), job.framework.name)
    first_curve = _cached_embedding(embedding, base, dtype, inventory=inventory)
    later_curve = (
        _cached_embedding(embedding, base.for_later_micro_batches(), dtype, inventory=inventory)
        if adds
        else first_curve
    )
    if architecture.biases[0] and base.trained:
        from memcheck.frameworks.torch.encoder import given_biases

        first_layer, _ = architecture.blocks[0]
        bias_gradients = given_biases(first_layer, base)
        first_curve, later_curve = (
            curve._replace(taken_gradient_bytes=bias_gradients) for curve in (first_curve, later_curve)
        )
    tensors = embedding_unit_tensors(job, architecture, setting_placement(base))
    return Unit(kind="embedding", name="embedding", tensors=tensors, first_curve=first_curve, later_curve=later_curve)


@lru_cache(maxsize=256)
def _demand_embedding(architecture: Architecture, embedding: Embedding, setting: Setting, framework: str) -> None:
    """Check that the replay of the embedding reads every element of its tensors; raise an error otherwise."""
    expected_numel = (
        sum(t.numel for t in embedding_tensors(architecture, 1, trained=True))
        - multiplied_by_head(architecture)
        - unused_in_embedding(architecture)
    )
    if architecture.embedders:
        expected_numel += sum(t.count for t in embedder_tensors(architecture))
    touched_tensors = touched(
        lambda ctx: embedding_forward(ctx, embedding, embedded_dtype(architecture, setting)), setting
    )
    require_covered(touched_tensors, expected_numel, "the embedding", framework)


@lru_cache(maxsize=256)
def _demand_head(architecture: Architecture, head: Head, setting: Setting, framework: str) -> None:
    """Check that the replay of the head reads every element of its tensors; raise an error otherwise."""
    expected_numel = (
        sum(t.numel for t in head_tensors(architecture, 1, tied=False, trained=True, ends_trained=(True, True)))
        + multiplied_by_head(architecture)
        - unused_in_head(architecture)
    )

    def run(ctx: Context) -> None:
        shape, dtype = (ctx.tokens * setting.streams, ctx.hidden), stream_dtype(setting)
        head_forward(ctx, head, Value(ctx.tape.new(shape, dtype, "last hidden state"), shape, dtype, Leaf()))

    require_covered(touched(run, setting), expected_numel, "the head", framework)


def head_unit(
    job: TrainingJob,
    architecture: Architecture,
    base: Setting,
    part: Part,
    adds: bool,
    gradient_dtype: str | None,
    graph_and_inputs: tuple[int, int],
    inventory: bool,
) -> Unit:
    """Return the unit of final norm, head and loss: its tensors on one rank, and its memory curves.

    ``base``: the setting that all units share. ``part``: layers and ends of the rank. ``adds``: some micro-batch adds
    to existing gradients. ``gradient_dtype``: dtype to which autograd casts the gradient of the head's weights if the
    root's forward has not used them. ``graph_and_inputs``: bytes of the layers' graph that outlive a backward, and
    bytes of layers' inputs that nothing saved.
    """
    head = head_of(job, architecture, base, part, gradient_dtype, graph_and_inputs)
    tensors = head_unit_tensors(job, architecture, setting_placement(base), embeds=part.embedding)
    setting = base._replace(frozen_modules=(*base.frozen_modules, "norm")) if "norm" in job.freeze else base
    _demand_head(architecture, head._replace(objective=Objective(), second=None), whole(base), job.framework.name)
    return layers_of(base.style).head_unit(job, head, setting, tensors, adds, inventory)


def head_of(
    job: TrainingJob,
    architecture: Architecture,
    base: Setting,
    part: Part,
    gradient_dtype: str | None,
    graph_and_inputs: tuple[int, int],
) -> Head:
    """Describe final norm, head and loss of a job, for their replay.

    ``base``, ``part``, ``gradient_dtype``, ``graph_and_inputs``: see :func:`head_unit`.
    """
    tied = is_tied(architecture, base.tensor_parallel) and part.embedding and not saves_copy(job, TABLE, HEAD)
    trained = (base.trained and not is_head_frozen(job, architecture)) or saves_copy(job, HEAD)
    loss = job.loss._replace(upcast=False) if not architecture.logit_casts.in_loss else job.loss
    loss = loss._replace(shifts="copied") if isinstance(architecture, Qwen2AudioModel) else loss
    capped = architecture.final_softcap and not job.framework.caps_hidden
    graph_before, hidden_states = graph_and_inputs
    head = Head(
        vocab=architecture.vocab_size,
        bias=architecture.head_bias,
        final_norm=architecture.final_norm,
        softcap=capped,
        tied=tied,
        loss=loss,
        trained=trained,
        logit_scale=architecture.logit_scale,
        hidden_cap=architecture.final_softcap and job.framework.caps_hidden,
        widened=architecture.logit_casts.in_model,
        divided=architecture.head_input_scale,
        transform_activation=architecture.head_layer.activation,
        transform_name=architecture.head_layer.tensors[0].name if architecture.head_layer.activation else "",
        transform_biases=transform_biases(architecture),
        projects_last=architecture.embedding_module.apart,
        dropout=architecture.final_dropout,
        returns_hidden_states=isinstance(architecture, T5GemmaModel),
        shared_gradient_width=architecture.per_layer.total if architecture.per_layer is not None else 0,
        logit_offset_dtype=job.recipe.params if isinstance(architecture, BartModel) else "",  # FSDP2 casts no buffers
        compiled=job.loss.kind in base.style.compiled_losses and job.compiles("loss"),
        graph_before=graph_before,
        grad_dtype=gradient_dtype,
        collapses_streams=architecture.collapses,
        projection=head_width(architecture) if head_width(architecture) != architecture.hidden_size else 0,
    )
    if architecture.task is not None:
        return head._replace(task=architecture.task, trained=trained or base.adapter is not None)
    return _with_objective(job, architecture, base, head, hidden_states) if job.objective.code else head


def run_head(ctx: Context, head: Head, x: Value) -> Value:
    """Run final norm, head and loss on the hidden states ``x`` and return the loss."""
    return head_forward(ctx, head, x)


def _with_objective(job: TrainingJob, architecture: Architecture, base: Setting, head: Head, states: int) -> Head:
    """Return the head with the loss that a trainer computes from its output. ``states``: see :func:`head_unit`."""
    from memcheck.frameworks.torch.forward_only_pass import forward_only_pass, hidden_states

    return head._replace(
        objective=job.objective,
        second=forward_only_pass(job, architecture, base),
        states=states,
        all_states=hidden_states(job, architecture, base.batch * base.sequence, stream_dtype(base)),
    )


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
