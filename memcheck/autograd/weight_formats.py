"""Formats in which libraries store the frozen weights of a base, and the bytes of a weight in each.

Sources: bitsandbytes 0.50 functional.py (quantize_4bit, int8_vectorwise_quant); torchao dtypes/nf4tensor.py; gptqmodel
7.7 nn_modules/qlinear/__init__.py (the buffers of a packed layer); transformers 5.23 integrations/finegrained_fp8.py.
"""

from __future__ import annotations

from math import prod

from memcheck.autograd.tensor import ceil_div, rounded
from memcheck.record import Record

FOUR_BIT_BLOCK = 64
"""Weights that share a constant in 4-bit formats (bitsandbytes ``blocksize``)."""
NESTED_BLOCK = 256
"""4-bit weights' constants that share a constant of their own, where they are quantised to a byte each."""
FP8_BLOCK = 128
"""Rows and columns that share a scale (transformers ``FineGrainedFP8Config.weight_block_size``)."""
GROUP = 128
"""Weights of one output that share a scale (transformers ``GPTQConfig`` and ``AwqConfig``, ``group_size``)."""
FOUR_BIT_VALUES, BYTE_VALUES = 16, 256
"""Values that four bits, or a byte, can name: each weight has a table (``get_4bit_type``, ``quantize_blockwise``)."""
BYTE_BITS, WORD_BITS = 8, 32
FP16, FP32, INT32 = 2, 4, 4
"""Bytes of one element."""


class WeightFormat(Record):
    """A format in which frozen weights are stored quantised; a subclass for each layout of weights and constants."""

    name: str
    """The format's name, which is also the dtype of a tensor that is stored in it."""
    bits: int
    """Bits of one weight."""
    nested: bool = False
    """The constants of 4-bit weights are quantised once more (``bnb_4bit_use_double_quant``)."""

    def stored_bytes(self, shape: tuple[int, ...], numel: int) -> int:
        """Compute the bytes of a weight of ``shape`` [outputs, inputs], or of its shard of ``numel`` elements.

        All constants are included. Each tensor is rounded up to a block of the caching allocator.
        """
        raise NotImplementedError

    def bytes_beside(self, shape: tuple[int, ...]) -> int:
        """Compute the bytes of what is no parameter: it stays on the GPU where weights of ``shape`` are offloaded."""
        return 0


class FourBits(WeightFormat):
    """4-bit weights of bitsandbytes: two in a byte, with a constant per 64 weights and a table of 16 values.

    ``nested`` constants are a byte each with a table of 256 values; an fp32 constant per 256 of them and their mean are
    added. All are attributes of a parameter (``QuantState``). FSDP and ZeRO-3 divide none: every rank has them whole.
    """

    def stored_bytes(self, shape: tuple[int, ...], numel: int) -> int:
        """Compute the bytes of the packed weights of a shard, and of the whole weight's constants."""
        return rounded(ceil_div(numel, 2)) + self.bytes_beside(shape)

    def bytes_beside(self, shape: tuple[int, ...]) -> int:
        """Compute the bytes of constants and tables.

        FSDP moves them to the GPU with the parameter, and the packed weights alone back (``Params4bit.to``).
        """
        return self._constant_bytes(prod(shape))

    def _constant_bytes(self, numel: int) -> int:
        """Compute the bytes of the constants and tables of ``numel`` weights."""
        constants = ceil_div(numel, FOUR_BIT_BLOCK)
        table = rounded(FP32 * FOUR_BIT_VALUES)
        if not self.nested:
            return rounded(FP32 * constants) + table
        per_block = rounded(FP32 * ceil_div(constants, NESTED_BLOCK)) + rounded(FP32)
        return rounded(constants) + rounded(FP32 * BYTE_VALUES) + per_block + table


class TorchaoFourBits(FourBits):
    """torchao's NF4Tensor, whose constants FSDP2 divides as it divides the weights."""

    def stored_bytes(self, shape: tuple[int, ...], numel: int) -> int:
        """Compute the bytes of a shard's packed weights and of its share of the constants."""
        return rounded(ceil_div(numel, 2)) + self._constant_bytes(numel)

    def bytes_beside(self, shape: tuple[int, ...]) -> int:
        """Return 0: constants are tensors of the subclass, which go where it goes."""
        return 0


class Int8(WeightFormat):
    """8-bit weights of bitsandbytes (LLM.int8): a byte each, with an fp32 scale per row."""

    def stored_bytes(self, shape: tuple[int, ...], numel: int) -> int:
        """Compute the bytes of weights and scales; stacked experts are quantised row by row."""
        matrix_dimensions = 2
        rows = numel // shape[-1] if len(shape) > matrix_dimensions else _outputs(shape)
        return rounded(numel) + rounded(FP32 * rows)


class Fp8(WeightFormat):
    """DeepSeek's fp8 weights in transformers: a byte each, with an fp32 scale per block of 128 x 128."""

    def stored_bytes(self, shape: tuple[int, ...], numel: int) -> int:
        """Compute the bytes of weights and scales."""
        outputs = _outputs(shape)
        return rounded(numel) + rounded(FP32 * ceil_div(outputs, FP8_BLOCK) * ceil_div(numel // outputs, FP8_BLOCK))


class Packed(WeightFormat):
    """Codes packed into int32 words, with a 16-bit scale and a zero point per output and group of inputs."""

    def stored_bytes(self, shape: tuple[int, ...], numel: int) -> int:
        """Compute the bytes of all buffers of a layer."""
        outputs = _outputs(shape)
        groups = ceil_div(numel // outputs, GROUP)
        codes = rounded(numel * self.bits // BYTE_BITS)
        zero_points = rounded(groups * outputs * self.bits // BYTE_BITS)
        return codes + zero_points + rounded(FP16 * groups * outputs)


class Awq(Packed):
    """AWQ's weights."""


class Gptq(Packed):
    """GPTQ's weights, with an int32 group index per input and two int32 tables of the bit shifts of a word's codes."""

    def stored_bytes(self, shape: tuple[int, ...], numel: int) -> int:
        """Compute the bytes of all buffers of a layer."""
        shifts = rounded(INT32 * (WORD_BITS // self.bits))
        return super().stored_bytes(shape, numel) + rounded(INT32 * (numel // _outputs(shape))) + 2 * shifts


def _outputs(shape: tuple[int, ...]) -> int:
    """Return the outputs of a matrix [outputs, inputs], or 1 for a vector."""
    return shape[0] if len(shape) > 1 else 1


NF4 = FourBits("nf4", 4, nested=True)
NF4_SINGLE = FourBits("nf4-single", 4)
FP4 = FourBits("fp4", 4, nested=True)
FP4_SINGLE = FourBits("fp4-single", 4)
NF4_TORCHAO = TorchaoFourBits("nf4-torchao", 4, nested=True)
INT8 = Int8("int8", 8)
GPTQ_4BIT = Gptq("gptq-4bit", 4)
BITSANDBYTES = (NF4, NF4_SINGLE, FP4, FP4_SINGLE, INT8)
"""Formats to which bitsandbytes quantises weights as they are loaded, on the GPU of each process."""
FORMATS: dict[str, WeightFormat] = {
    stored.name: stored
    for stored in (
        *BITSANDBYTES,
        NF4_TORCHAO,
        GPTQ_4BIT,
        Gptq("gptq-8bit", 8),
        Awq("awq-4bit", 4),
        Fp8("fp8", 8),
    )
}
"""Every format, by its name."""


def is_four_bits(dtype: str | None) -> bool:
    """Say whether a tensor of this dtype is stored in a 4-bit format. ``dtype``: a dtype or a format's name."""
    return dtype is not None and isinstance(FORMATS.get(dtype), FourBits)
