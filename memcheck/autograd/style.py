"""What sets a framework's model code apart where shared code replays it."""

from __future__ import annotations

from memcheck.record import Record


class Style(Record):
    """Facts of a framework's model code. Hashable: curves are cached by it."""

    folder: str
    """The framework's folder in ``memcheck.frameworks``; ``layers.py`` and ``states.py`` in it describe the framework's
    modules.
    """
    layout: str
    """How activations lie: ``batch-first`` ([batch, sequence, hidden], along whose dim 1 a gather copies),
    ``sequence-first``, ``packed`` ([tokens, hidden]: softmax attention keeps nothing of a sequence by itself)."""
    source: str
    """What its forward passes were read from, as formulas name it."""
    dtensor: bool = False
    """Tensor parallelism makes DTensors, a subclass; else shards are plain tensors."""
    modeling_files: bool = False
    """The code is transformers' modeling files. The model makes attention masks once and hands them to its layers. Its
    forward has a variable for the embedded rows (``inputs_embeds``). With a chunked loss it returns hidden states, and
    the head runs after it. A tensor-parallel rank's embedding gradient has the whole table, as RowwiseParallel's has.
    """
    offload_buffers: int = 0
    """Inputs of checkpointed layers that stay on the GPU as buffers where checkpoints are offloaded to the host."""
    compiles_blocks: bool = False
    """torch.compile runs each block as a graph of its own."""
    compiled_losses: tuple[str, ...] = ()
    """Kinds of loss that torch.compile runs as one graph."""
