"""What tensor-parallel ranks exchange in a layer, and how much of it the products hide.

Hidden states are gathered before the products that read them and summed after the one that ends a half of the layer.
Nothing runs meanwhile, unless the products are cut into one chunk for each rank:

- torch's asynchronous tensor parallelism pulls the next rank's chunk while it multiplies the last one; copies do not
  overlap each other, so what is longer than the products waits (``torch/distributed/_symmetric_memory``,
  _pipelined_multi_all_gather_and_consume, _pipelined_produce_and_all2all). The rank's own chunk is copied to the buffer
  first; partial sums of all ranks are added in a kernel after them (stacked_partials). A sum is fused only where one
  product alone makes it (``torch/_inductor/fx_passes/micro_pipeline_tp.py``, _find_producer_matmul): gradients of an
  input that several products read are added up before, and their reduce-scatter waits for nothing but itself.
- Transformer Engine's ``tp_comm_overlap`` does so, too; gradients of inputs are scattered while those of the
  weights are computed (``transformer_engine/pytorch/module/linear.py``, ub_bulk_dgrad).

Along another dimension than the first, torch copies what was gathered, or is to be scattered, once more
(``torch/distributed/_functional_collectives.py``, all_gather_tensor and reduce_scatter_tensor: chunk, then cat).
Megatron's latent attention compresses each rank's own tokens with whole matrices and gathers what comes out, which is
all that its column-parallel products read (``megatron/core/transformer/multi_latent_attention.py``: down-projections
are ``duplicated``, gather_from_sequence_parallel_region of k_pos_emb).
Megatron gathers the input of a column-parallel product a second time for its weights' gradient, after the input's
(``megatron/core/tensor_parallel/layers.py``, LinearWithGradAccumulationAndAsyncCommunication).
"""

from __future__ import annotations

from memcheck.frameworks.registry import timing_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import LatentAttention, Rough
from memcheck.record import Record
from memcheck.timing.rates import Rates, all_reduce, exposed, gather, group, matmul
from memcheck.timing.shape import Product

TORCH, ENGINE = "torch", "engine"
KEPT, AGAIN = "kept", "again"
"""What the backward of latent attention does with gathered latents: it has kept them, or gathers them again."""


class Half(Record):
    """Seconds of one half of a layer, attention or feed-forward: the products around which tensor-parallel ranks
    exchange.
    """

    column_seconds: float = 0.0
    """Products that read gathered hidden states, in the forward pass."""
    column_input_gradient_seconds: float = 0.0
    """Gradients of what those products read."""
    column_weight_gradient_seconds: float = 0.0
    """Gradients of the weights of those products."""
    row_seconds: float = 0.0
    """The product whose result is summed over the ranks, in the forward pass."""
    row_input_gradient_seconds: float = 0.0
    """Gradient of what the row product reads."""
    column_products: int = 0
    """How many products read the gathered hidden states."""
    latents: str = ""
    """Whether the products read latents, which are gathered instead of hidden states: ``kept`` (saved for backward) or
    ``again`` (recomputed alone); empty: they do not.
    """


class TensorWires(Record):
    """Seconds of the exchanges of one micro-batch's hidden states."""

    ranks: int = 1
    """Tensor-parallel ranks."""
    gather_seconds: float = 0.0
    """All-gather of the hidden states; 0 without sequence parallelism."""
    scatter_seconds: float = 0.0
    """Reduce-scatter of partial sums of the hidden states; without sequence parallelism an all-reduce."""
    copy_seconds: tuple[float, float] = (0.0, 0.0)
    """Seconds to copy what was gathered, and what is to be scattered, where no chunked product does it."""
    hiding_library: str = ""
    """The library whose chunked products hide the exchanges: ``torch`` | ``engine``."""
    own_chunk_seconds: float = 0.0
    """Copying the rank's own chunk into the buffer."""
    sum_seconds: float = 0.0
    """Adding up the partial sums of all ranks."""
    gathers_input_twice: bool = False
    """Inputs are gathered once more for the gradients of the weights."""
    collective_sm_share: float = 0.0
    latent_seconds: float = 0.0
    """One exchange of latents, in place of hidden states."""

    @property
    def pair(self) -> float:
        """One gather and one reduce-scatter (or one all-reduce) that nothing hides."""
        return self.gather_seconds + self.scatter_seconds + sum(self.copy_seconds)


def tensor_wires(job: TrainingJob, size: float, item_bytes: int, rates: Rates) -> TensorWires:
    """Compute the seconds of each tensor-parallel exchange of hidden states.

    ``size``: bytes of the hidden states of all tensor ranks; ``item_bytes``: bytes per element. Without sequence
    parallelism the exchange is an all-reduce, with it a gather and a reduce-scatter.
    """
    layout, timing = job.layout, timing_of(job.framework)
    ranks = layout.tensor
    if ranks == 1:
        return TensorWires()
    links = group(rates, ranks, 1)
    latents = size * _latent_share(job) if timing.latent_input_tokens == "exchanged" else size
    if not layout.sequence:
        return TensorWires(ranks, scatter_seconds=all_reduce(links, size), latent_seconds=all_reduce(links, latents))
    gathers_fp8 = timing.uses_torchao_float8 and job.recipe.recipe == "fp8-mixed"
    gathered = size / item_bytes if gathers_fp8 else size
    copy_per_byte = 2.0 / rates.hbm_bandwidth if timing.copies_gathered_states(job) else 0.0  # a read and a write
    hides = ""
    placed = summed = 0.0
    if job.option("enable_async_tensor_parallel"):
        hides = TORCH
        placed = 2.0 * gathered / ranks / rates.hbm_bandwidth
        summed = size * (1 + 1 / ranks) / rates.hbm_bandwidth  # all partial sums are read, one shard is written
    elif job.option("tp_comm_overlap"):
        hides = ENGINE
    return TensorWires(
        ranks=ranks,
        gather_seconds=gather(links, gathered),
        scatter_seconds=gather(links, size),
        copy_seconds=(copy_per_byte * gathered, copy_per_byte * size),
        hiding_library=hides,
        own_chunk_seconds=placed,
        sum_seconds=summed,
        gathers_input_twice=timing.gathers_inputs_twice and not hides,
        collective_sm_share=rates.collective_sm_share,
        latent_seconds=gather(links, latents),
    )


def _latent_share(job: TrainingJob) -> float:
    """Return the width of what latent attention's column-parallel products read, over that of the hidden states."""
    architecture = job.architecture
    if isinstance(architecture, Rough):
        return 1.0
    for block, _ in architecture.blocks:
        mixer = block.mixer
        if isinstance(mixer, LatentAttention):
            width = (mixer.q_lora_rank or architecture.hidden_size) + mixer.kv_lora_rank + mixer.qk_rope_head_dim
            return width / architecture.hidden_size
    return 1.0


def halves(linear: list[Product], rates: Rates, item_bytes: int, *, dense: bool, latent: str) -> tuple[Half, ...]:
    """Return the halves of a layer that exchange hidden states over the tensor ranks, with the seconds of their
    products.

    ``linear``: the layer's products; ``item_bytes``: bytes per element of their operands. ``dense``: the MLP is one of
    the halves, as attention is. ``latent``: attention exchanges latents instead; empty: it does not.
    """
    products_of_halves = [[product for product in linear if product.group == "attention"]]
    if dense:
        products_of_halves.append([product for product in linear if product.group != "attention"])
    exchanging = [_half(products, rates, item_bytes) for products in products_of_halves if products]
    if latent and exchanging:
        exchanging[0] = exchanging[0]._replace(latents=latent)
    return tuple(exchanging)


def _half(products: list[Product], rates: Rates, item_bytes: int) -> Half:
    """Add up the seconds of the products of attention or of an MLP: forward, dX and dW, by how weights are sharded.

    ``item_bytes``: bytes per element of the operands.
    """
    column = column_inputs = column_weights = row = row_inputs = 0.0
    readers = 0
    for product in products:
        tokens, outputs, inputs = product.tokens, product.outputs, product.inputs
        forward = matmul(tokens, outputs, inputs, rates, product.equal_products, item_bytes).seconds
        input_gradient = matmul(tokens, inputs, outputs, rates, product.equal_products, item_bytes).seconds
        if product.shard == "column":
            column += forward
            column_inputs += input_gradient
            readers += 1
            if product.trained:
                column_weights += matmul(outputs, inputs, tokens, rates, product.equal_products, item_bytes).seconds
        elif product.shard == "row":
            row += forward
            row_inputs += input_gradient
    return Half(
        column_seconds=column,
        column_input_gradient_seconds=column_inputs,
        column_weight_gradient_seconds=column_weights,
        row_seconds=row,
        row_input_gradient_seconds=row_inputs,
        column_products=readers,
    )


def tensor_seconds(wires: TensorWires, halves: tuple[Half, ...], exchanges: int, recomputed: float) -> float:
    """Compute the seconds of tensor-parallel exchanges in one layer, forward and backward, that no product hides.

    ``wires``: seconds of single exchanges. ``halves``: attention and MLP, with the seconds of their products.
    ``exchanges``: gather and reduce-scatter pairs of a forward pass. ``recomputed``: those that the recompute repeats.
    """
    if wires.hiding_library:
        return _overlapped_seconds(wires, halves, recomputed / exchanges if exchanges else 0.0)
    total = wires.pair * (2 * exchanges + recomputed)  # as many in backward as in forward
    for half in halves:
        if wires.gathers_input_twice:  # once more in backward, for dW, while dX is computed
            gather = wires.latent_seconds if half.latents else wires.gather_seconds
            total += exposed(gather, half.column_input_gradient_seconds, wires.collective_sm_share)
        if half.latents:
            total -= _saved_by_latents(wires, half, recomputed / exchanges)
    return total


def _overlapped_seconds(wires: TensorWires, halves: tuple[Half, ...], recomputed_share: float) -> float:
    """Compute the seconds of one layer's exchanges, forward and backward, that chunked products do not hide.

    ``recomputed_share``: the share of the forward's exchanges that the recompute repeats.
    """
    forward = backward = 0.0
    for half in halves:
        gathered = wires.latent_seconds if half.latents else wires.gather_seconds
        forward += (
            wires.own_chunk_seconds
            + _exposed_by_chunks(wires, gathered, half.column_seconds)
            + _exposed_by_chunks(wires, wires.scatter_seconds, half.row_seconds)
            + wires.sum_seconds
        )
        backward += wires.own_chunk_seconds + _exposed_by_chunks(
            wires, wires.gather_seconds, half.row_input_gradient_seconds
        )
        if wires.hiding_library == ENGINE:  # TE scatters the input's gradient while it computes dW
            backward += max(
                0.0,
                (wires.latent_seconds if half.latents else wires.scatter_seconds) - half.column_weight_gradient_seconds,
            )
        elif half.column_products == 1:
            backward += (
                _exposed_by_chunks(wires, wires.scatter_seconds, half.column_input_gradient_seconds) + wires.sum_seconds
            )
        else:  # torch fuses no scatter with several products whose gradients are added
            _, copied_to_scatter = wires.copy_seconds
            backward += wires.scatter_seconds + copied_to_scatter
    return forward * (1 + recomputed_share) + backward


def _saved_by_latents(wires: TensorWires, half: Half, recomputed: float) -> float:
    """Compute the seconds that attention saves by exchanging latents instead of hidden states.

    Latents are gathered in forward, and their gradients are summed in backward. ``half``: attention. ``recomputed``:
    the share of layers that are recomputed as a whole, 0 to 1, which gather again. Megatron's ``mla_up_proj``, which
    recomputes the up-projections alone (``AGAIN``), gathers the latents a second time.
    """
    saved = wires.scatter_seconds - wires.latent_seconds
    # without sequence parallelism every rank has all tokens: only all-reduces, of the gradients
    if not wires.gather_seconds:
        return saved
    if half.latents == AGAIN:
        return saved + wires.gather_seconds - 2 * wires.latent_seconds
    return saved + (wires.gather_seconds - wires.latent_seconds) * (1 + recomputed)


def _exposed_by_chunks(wires: TensorWires, exchange: float, products: float) -> float:
    """Compute the seconds that an exchange takes longer than the products of all chunks but the rank's own.

    ``exchange``, ``products``: seconds of each. One chunk per rank.
    """
    return max(0.0, exchange - products * (wires.ranks - 1) / wires.ranks)
