"""Buffers of a pipeline rank in addition to its units.

These are token ids, rotary tables, attention masks, hidden states between stages, and the tables of single layers.
"""

from __future__ import annotations

from memcheck.accounts.ranks import Always, Part
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.frameworks.registry import layers_of
from memcheck.frameworks.torch.data_parallel import runs_chunk_by_chunk
from memcheck.frameworks.torch.pipelining import NO_EXCHANGE, StageExchange
from memcheck.frameworks.torch.rank_tensors import stream_dtype
from memcheck.frameworks.torch.units import casts_rotary_tables, masks_of
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.module_types import HashedMoe, HeldMask, PositionTable
from memcheck.models.types import Architecture, Attention, BartModel, Block, GptBigCodeModel, LatentAttention, Mixer
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
