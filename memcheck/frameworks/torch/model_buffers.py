"""Buffers of a pipeline rank in addition to its units.

These are token ids, rotary tables, masks, tensors that stages exchange, and the tables and indices of single layers.
"""

from __future__ import annotations

from memcheck.accounts.ranks import Always, Part
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.frameworks.layers import model_states_of
from memcheck.frameworks.torch.dtypes import stream_dtype
from memcheck.frameworks.torch.fsdp import runs_chunk_by_chunk
from memcheck.frameworks.torch.pipelining import NO_EXCHANGE, StageExchange
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


def masks_of(architecture: Architecture, setting: Setting) -> int:
    """Return the bytes of all attention masks that one forward pass of the model makes."""
    if not setting.style.modeling_files:
        return 0
    from memcheck.frameworks.transformers.masks import model_masks

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
        tables = [self.architecture.sinusoids] * 2 if self.architecture.sinusoids else []  # of both stacks
        element_bytes = DTYPE_BYTES[self.job.recipe.params]  # of the weights as they rest: FSDP2 casts no buffers
        always_live += [Always("activations", rounded(rows * self.setting.hidden * element_bytes)) for rows in tables]
        if isinstance(self.architecture, GptBigCodeModel):
            always_live.append(Always("activations", rounded(self.architecture.learned_positions**2)))
        if self.architecture.pooling is not None and self.architecture.learned_positions:
            # `position_ids`, and `token_type_ids` where there are types: int64 buffers of BERT's embeddings
            count = 2 if self.architecture.embedding_module.token_types else 1
            always_live.append(Always("activations", count * rounded(8 * self.architecture.learned_positions)))
        ids = rounded(8 * self.tokens)
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
        from memcheck.frameworks.transformers.masks import model_masks

        architecture = self.architecture
        masks = model_masks((b for b, _ in architecture.blocks), self.setting, architecture.mask_windows)
        held_masks, variables = masks.graph, masks.variables
        if self.job.checkpointing.mode != "none":  # layers hold them, as arguments, to their backward
            held_masks, variables = held_masks + variables + (masks.gathered if self.setting.trained else 0), 0
        if self.job.layout.pipeline > 1:  # stages are handed their layers, and make no masks
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
        return rounded(4 * mixer.extension.positions * mixer.rotary_dim)
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
    sizes = [rounded(4 * tokens * min(setting.sequence, indexer.topk)) for indexer in indexers if indexer.heads]
    if not sizes:
        return 0, 0
    if job.checkpointing.mode == "none":  # a layer that chooses is given the choice before it, too
        return 0, sizes[-1] + (sizes[-2] if indexers[-1].heads and len(sizes) > 1 else 0)
    last_choice = sizes.pop() if indexers[-1].heads else 0  # which no layer is given
    return sum(sizes), last_choice
