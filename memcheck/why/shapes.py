"""Which tensor an allocation that failed was: shapes of the model whose bytes fit the figure of the message.

A message prints the segment that the allocator asked the driver for, in two decimals. So the tensor is known up to an
interval, and several shapes may lie in it. A shape whose every dimension is stated fits or does not. A shape with the
number of tokens or sequences left open fits any size: it says which number the figure needs. The traceback's innermost
lines tell such readings apart. Where nothing tells them apart, none is called likely.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isqrt, prod

from memcheck.accounts.estimate import TensorGroup
from memcheck.accounts.state import LARGE_BUFFER, ROUND_LARGE, SMALL_BUFFER
from memcheck.autograd.tensor import BLOCK_BYTES, ITEM_BYTES
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.why.dimensions import DEGREES, HIDDEN, MLP, QKV, Dimensions, dimensions_of
from memcheck.why.evidence import LIKELY, POSSIBLE, TYPES, Figure, TensorReading

OLD_ROUND = 2**17
"""Segments of torch 1.0 and older are multiples of 128 KiB (``kRoundLarge`` in ``THCCachingAllocator.cpp``)."""

LOGITS, SCORES, MASK = "logits", "scores", "mask"
WEIGHT, UNIT, STATES, CACHE, SORT, BUCKET = "weight", "unit", "states", "cache", "sort", "bucket"
CODE = "code"
PART = "part"

SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (".sort( topk top_k_top_p sampler", (SORT, LOGITS)),
    (
        "all_gather allgather fetch_sub_module param_buffer unshard _rebuild_full_param _alloc_storage partition_param",
        (UNIT, WEIGHT),
    ),
    ("bucket flatten_dense reduce_scatter foreach_reduce", (BUCKET, UNIT, STATES)),
    (
        (
            "exp_avg zeros_like _init_group optimizer.step torch/optim fp32_groups master_param adam _foreach"
            " _multi_tensor _single_tensor"
        ),
        (STATES, WEIGHT, UNIT),
    ),
    (
        (
            "set_module_tensor load_state_dict from_pretrained create_weights kaiming _load_from load_model nn/init"
            " dequantize new_value param.data"
        ),
        (WEIGHT, UNIT, CACHE),
    ),
    ("past_key kv_cache cache_utils key_cache cache_engine", (CACHE,)),
    (
        (
            "attn_weights attention_scores attention_probs attn_scores baddbmm bmm( matmul(q eager_attention"
            " attn_output_weights scaled_dot_product"
        ),
        (SCORES, QKV, HIDDEN),
    ),
    ("mask", (MASK, SCORES)),
    (
        (
            "log_soft logsoft cross_entropy crossentropy lm_head logits loss_fct nll_loss logprob log_prob entropy"
            " shift_ embed_out vocab_parallel convert_to_fp32"
        ),
        (LOGITS,),
    ),
    (
        (
            "up_proj gate_proj down_proj act_fn gelu silu swiglu c_fc c_proj dense_h_to_4h dense_4h_to_h mlp"
            " feed_forward experts fc1 fc2 f.relu"
        ),
        (MLP, HIDDEN),
    ),
    (
        "q_proj k_proj v_proj qkv c_attn query_key_value rotary repeat_kv transpose(1, rotate_half",
        (QKV, HIDDEN),
    ),
    ("norm variance residual hidden_states dropout embed", (HIDDEN, MLP, QKV)),
    (".to( .cuda( .half() torch.empty( convert(", (WEIGHT, UNIT, CACHE)),
    ("softmax", (SCORES, LOGITS)),
)
"""Words in lines of a traceback and of its source, and the groups of tensors that such lines allocate.

The first row with a word of a line decides. So words that many lines have stand last.
"""
SHARED = (SCORES, LOGITS)
"""What a bare softmax is of: the lines that called it decide, if one of them speaks of either."""
_SIGNS = tuple((tuple(words.split()), groups) for words, groups in SIGNS)
PREFERRED = (CODE, LOGITS, SCORES, WEIGHT, UNIT, MLP, HIDDEN, QKV, CACHE, STATES, MASK, BUCKET, SORT)
"""Groups in the order of how often public messages turn out to be of them."""
QUANTISED = ((re.compile(r"fp8|float8"), "fp8"), (re.compile(r"int8|8bit|bnb|bitsandbytes"), "int8"))
"""What lines of a traceback say of that."""
PARALLEL = re.compile(r"vocab_parallel|tp_group|tensor_parallel|tensor_model|megatron|parallel_state")
"""What says that ranks have parts of the vocabulary."""
FRAMES_READ = 12
MOST_READINGS = 64
MOST_TOKENS = 2**24
MOST_SEQUENCES = 4096
RARE = 50
"""One of so many random sizes."""


class _Open(Record):
    """The smallest, largest and likeliest value of an open number."""

    least: int
    most: int
    number: int
    rare: bool
    """Whether a random size fits the tensor, with some number, in one of fifty cases at most."""
    round: bool
    """Whether the number is one that so narrow a range holds by chance in a quarter of cases at most."""


class TensorFit(Record):
    """The readings of one figure."""

    readings: tuple[TensorReading, ...]
    """The likeliest first."""
    fitting: int
    """Shapes without an open number that fit."""
    tried: int
    """Shapes without an open number."""
    word: str = ""
    """The word of the traceback that tells the first readings from the others; empty where none does."""
    spoken: int = 0
    """Readings that the traceback speaks of: they come first."""


class _Row(Record):
    """A reading with its place among the others."""

    key: tuple[int, int, int, int, int]
    reading: TensorReading
    same: tuple[str, str]
    """What two readings of one tensor have in common: logits and shifted logits are one."""
    rivals: bool
    """Whether a shape that is wholly known is no likelier than this one."""


class _Candidate(Record):
    group: str
    tensor: str
    shape: tuple[int, ...]
    """-1 where a number is open."""
    dtype: str
    open: str = ""
    """``part`` (of an unknown number of ranks) | ``tokens`` | ``sequences`` | ``square`` (a length counts twice)."""
    note: str = ""
    row_bytes: int = 0
    """Bytes of one element, where the dtype does not say."""


def tensor_bytes(figure: Figure, *, exact: bool = False) -> tuple[int, int] | None:
    """The smallest and largest bytes of a tensor for which a message prints this figure; None where it names none.

    ``exact``: the framework prints what was asked for (MPS, XLA, TensorFlow, ggml), or a snapshot says it, rounded up
    to 512 bytes; not the allocator's segment.
    """
    low, high = figure.low_bytes, figure.high_bytes
    if high <= 0:
        return None
    if exact:
        return max(1, low - BLOCK_BYTES + 1), high
    if low <= LARGE_BUFFER <= high or low <= SMALL_BUFFER <= high:
        return None
    step = ROUND_LARGE
    first, last = -(-low // step) * step, high // step * step
    if last < first or last < LARGE_BUFFER // 2:  # no segment of today's allocator
        step = OLD_ROUND
        first, last = -(-low // step) * step, high // step * step
        if last < first:
            return max(1, low - BLOCK_BYTES), high
    return max(1, first - step + 1), last


def fit(
    bounds: tuple[int, int],
    dimensions: Dimensions,
    frames: Sequence[str] = (),
    ledger: Sequence[TensorGroup] = (),
    figure_bytes: int = 0,
) -> TensorFit:
    """The tensors of a model whose bytes lie within ``bounds``.

    ``frames``: lines of the traceback and of its source, the innermost last. ``ledger``: of an estimate's
    rank, what a step of the plan holds at its peak. ``figure_bytes``: the printed size, from which an open number is
    computed.
    """
    low, high = bounds
    lines = frames[-FRAMES_READ:]
    said = [word for expression, word in QUANTISED if any(expression.search(line) for line in lines)]
    d = dimensions._replace(stored=tuple(dict.fromkeys((*dimensions.stored, *said))))
    if len(d.vocabulary) == 1 and any(PARALLEL.search(line) for line in lines):
        whole = d.vocabulary[0]
        d = d._replace(vocabulary=(whole, *(whole // degree for degree in DEGREES if whole % degree == 0)))
    target = min(max(figure_bytes, low), high) if figure_bytes else high
    closed: dict[tuple[str, int, str], list[_Candidate]] = {}
    opened: list[tuple[_Candidate, _Open]] = []
    for candidate in dict.fromkeys((*_written(lines, d), *_candidates(d), *_of_ledger(ledger))):
        if candidate.open in ("", PART):
            n_bytes = _bytes(candidate)
            key = (f"{candidate.open}{candidate.group}", n_bytes, candidate.dtype)
            closed.setdefault(key, []).append(candidate)
            continue
        open_ = _likeliest(candidate, bounds, target, d)
        if open_ is not None:
            opened.append((candidate, open_))
    fixed = [(same, key[1]) for key, same in closed.items() if low <= key[1] <= high]
    speech = spoken_of(frames)
    signs = (CODE, *speech.groups)
    stated = bool(d.sequences and d.length)
    rows = [
        _Row(_rank(same[0], signs, None, d), _closed(same, n_bytes), _identity(same[0]), rivals=not same[0].open)
        for same, n_bytes in fixed
    ]
    rows += [
        _Row(_rank(c, signs, open_, d), _opened(c, open_, d), _identity(c), rivals=open_.round and not stated)
        for c, open_ in opened
    ]
    rows.sort(key=lambda row: row.key)
    spoken = sum(row.key[0] < len(signs) for row in rows)
    return TensorFit(
        readings=tuple(_judged(rows, spoken > 0)[:MOST_READINGS]),
        fitting=len(fixed),
        tried=len(closed),
        word=speech.word if spoken else "",
        spoken=spoken,
    )


def _item(candidate: _Candidate) -> int:
    return candidate.row_bytes or ITEM_BYTES[candidate.dtype]


def _bytes(candidate: _Candidate) -> int:
    elements = prod(candidate.shape)
    return -(-elements // 2) if candidate.dtype == "nf4" else elements * _item(candidate)


WRITTEN = re.compile(r"\(\(?\s*([0-9]{1,12}(?:, ?[0-9]{1,12}){1,7})\)")
"""A shape in a line of code: ``empty_strided_cuda((54080, 4096), ...``."""


def _written(lines: Sequence[str], d: Dimensions) -> Iterator[_Candidate]:
    """Tensors whose shape stands in a line of the traceback, as in code that a compiler wrote."""
    names = {columns: name for _, name, columns in reversed(d.widths)} | dict.fromkeys(d.vocabulary, "logits")
    for line in lines:
        found = WRITTEN.search(line[:4096])
        if found is not None:
            shape = tuple([int(size) for size in found[1].split(",")])
            stated = next((dtype for word, dtype in TYPES if word in line), "")
            for dtype in (stated,) if stated else ("fp32", "bf16"):
                yield _Candidate(
                    group=CODE,
                    tensor=names.get(shape[-1], "tensor"),
                    shape=shape,
                    dtype=dtype,
                    note="the traceback has its shape",
                )


RESIDENT = ("parameters", "adapters", "gradients", "master_weights", "optimizer_states")
OF_LABELS = (
    (LOGITS, re.compile(r"logit|log.?softmax|cross.?entropy|log.?prob|loss|lm_head")),
    (SCORES, re.compile(r"score|softmax|attention prob|attn")),
    (MLP, re.compile(r"mlp|gate|up|act|silu|gelu|expert")),
    (QKV, re.compile(r"quer|key|value|qkv|q_proj|k_proj|v_proj|rota")),
)


def _of_ledger(ledger: Sequence[TensorGroup]) -> Iterator[_Candidate]:
    """The engine's tensors, each in the group that its label speaks of."""
    for row in ledger:
        sizes, _, dtype = row.shape.rpartition(" ")
        whole = [int(size) for size in re.findall(r"[0-9]+", sizes.rpartition("[")[2])]
        if row.component in RESIDENT or dtype not in ITEM_BYTES or "/" in sizes:
            continue
        named = LOGITS if row.component == "logits_and_loss" else HIDDEN
        group = next((group for group, expression in OF_LABELS if expression.search(row.name)), named)
        yield _Candidate(group=group, tensor=row.name, shape=tuple(whole), dtype=dtype)


def _candidates(d: Dimensions) -> Iterator[_Candidate]:
    """Every tensor that is tried, those with stated rows before those with open ones."""
    tokens = d.sequences * d.length
    for dtype in d.dtypes:
        for columns in d.vocabulary:
            if tokens:
                yield _Candidate(group=LOGITS, tensor="logits", shape=(d.sequences, d.length, columns), dtype=dtype)
                yield _Candidate(
                    group=LOGITS, tensor="logits, shifted", shape=(d.sequences, d.length - 1, columns), dtype=dtype
                )
            yield _Candidate(group=LOGITS, tensor="logits", shape=(-1, columns), dtype=dtype, open="tokens")
        yield from _scores(d, dtype)
        for group, name, columns in d.widths:
            if tokens:
                yield _Candidate(group=group, tensor=name, shape=(d.sequences, d.length, columns), dtype=dtype)
            yield _Candidate(group=group, tensor=name, shape=(-1, columns), dtype=dtype, open="tokens")
        for name, columns in d.caches:
            if tokens:
                yield _Candidate(group=CACHE, tensor=name, shape=(tokens, columns), dtype=dtype)
            yield _Candidate(group=CACHE, tensor=name, shape=(-1, columns), dtype=dtype, open="tokens")
        for name, elements in d.units:
            group = BUCKET if "bucket" in name else STATES if name.startswith("1/") else UNIT
            yield _Candidate(group=group, tensor=name, shape=(elements,), dtype=dtype)
    for name, size in d.weights:
        for dtype in (*d.dtypes, *d.stored):
            yield _Candidate(
                group=WEIGHT,
                tensor=name,
                shape=size,
                dtype=dtype,
                note="the weight, a copy, its gradient or an optimizer state",
            )
    for name, size in d.shards:
        for dtype in (*d.dtypes, *d.stored):
            note = "of one of several tensor-parallel ranks"
            yield _Candidate(group=WEIGHT, tensor=name, shape=size, dtype=dtype, open=PART, note=note)
    for columns in d.vocabulary:
        note = "values in fp32 and places in int64"
        yield _Candidate(
            group=SORT,
            tensor="sorted logits",
            shape=(-1, columns),
            dtype="fp32+int64",
            open="tokens",
            note=note,
            row_bytes=12,
        )


def _scores(d: Dimensions, dtype: str) -> Iterator[_Candidate]:
    """Attention scores and the mask: a row and a column for every token of a sequence."""
    for heads in d.heads:
        if d.sequences and d.length:
            yield _Candidate(
                group=SCORES, tensor="attention scores", shape=(d.sequences, heads, d.length, d.length), dtype=dtype
            )
        if d.length:
            yield _Candidate(
                group=SCORES,
                tensor="attention scores",
                shape=(-1, heads, d.length, d.length),
                dtype=dtype,
                open="sequences",
            )
        else:
            yield _Candidate(
                group=SCORES,
                tensor="attention scores",
                shape=(max(1, d.sequences), heads, -1, -1),
                dtype=dtype,
                open="square",
            )
    if d.sequences and d.length:
        yield _Candidate(group=MASK, tensor="attention mask", shape=(d.sequences, 1, d.length, d.length), dtype=dtype)


def _open_range(candidate: _Candidate, low: int, high: int) -> tuple[int, int]:
    """The smallest and largest open number with which the tensor's bytes lie in the interval."""
    known = prod([size for size in candidate.shape if size > 0]) * _item(candidate)
    least, most = -(-low // known), high // known
    if candidate.open == "square":
        return isqrt(max(0, least - 1)) + 1, isqrt(most)
    return least, most


def _likeliest(candidate: _Candidate, bounds: tuple[int, int], target: int, d: Dimensions) -> _Open | None:
    """A number with which the tensor's bytes lie within the bounds: the round one that so narrow a range rarely holds,
    else the one nearest the figure; None where there is none that a step may have.
    """
    low, high = bounds
    least, most = _open_range(candidate, low, high)
    limit = MOST_TOKENS if candidate.open == "tokens" else MOST_SEQUENCES
    if not 0 < least <= most or (most > limit and candidate.open != "square"):
        return None
    known = prod([size for size in candidate.shape if size > 0]) * _item(candidate)
    rare = candidate.open != "square" and RARE * (high - low + 1) < known
    stated = (d.length * max(1, d.sequences), d.length) if candidate.open == "tokens" else ()
    for unit in (*stated, 4096, 2048, 1024):
        if unit and 4 * (most - least) < unit and most // unit * unit >= least:
            return _Open(least=least, most=most, number=most // unit * unit, rare=rare, round=True)
    number = isqrt(target // known) if candidate.open == "square" else target // known
    return _Open(least=least, most=most, number=min(max(number, least), most), rare=rare, round=False)


FRAME = re.compile(r'File "([^"]*)", line [0-9]+(?:, in (.*))?')


def _line(frame: str) -> str:
    """What a line of a traceback says of its code: of a file the path below the packages, or else its name alone."""
    match = FRAME.search(frame)
    if match is None:
        return frame.lower()
    path = match[1].replace("\\", "/")
    _, packaged, below = path.rpartition("-packages/")
    return f"{below if packaged else path.rpartition('/')[2]} {match[2] or ''}".lower()


class Spoken(Record):
    """What a traceback speaks of."""

    groups: tuple[str, ...] = ()
    word: str = ""
    """The word that says so."""


def spoken_of(frames: Sequence[str]) -> Spoken:
    """The groups that the innermost lines of a traceback speak of, the likeliest first; none where no line does."""
    shared = Spoken()
    for frame in [*reversed(frames)][:FRAMES_READ]:
        low = _line(frame)
        said = next((Spoken(groups, w) for words, groups in _SIGNS for w in words if w in low), None)
        if said is None:
            continue
        if said.groups == SHARED:
            shared = said
        elif not shared.word or said.groups[0] in SHARED:
            return said
    return shared


STATED, ROUND, OPEN = range(3)
"""How much of a shape is known: all of it, its open number comes out as a whole batch or a multiple of the stated
length, or nothing confirms that number.
"""
LARGEST_BATCH = 64
NAMED = 3
"""Names of one reading that are shown; more than one name is left out, or none."""


def _rank(c: _Candidate, signs: tuple[str, ...], open_: _Open | None, d: Dimensions) -> tuple[int, int, int, int, int]:
    """Smaller is likelier: what the traceback speaks of, how much is known, what is frequent."""
    spoken = signs.index(c.group) if c.group in signs else len(signs) + (c.group == SORT)
    preferred = PREFERRED.index(c.group)
    if open_ is None:
        return spoken, OPEN if c.open == PART else STATED, 1 if c.open == PART else 0, preferred, 0
    whole = c.open == "tokens" and bool(d.length) and open_.number % d.length == 0
    batch = open_.number // d.length if whole else open_.number
    alone = whole or (c.open == "sequences" and open_.least == open_.most)
    known = ROUND if alone and batch <= LARGEST_BATCH else OPEN
    return spoken, known, not open_.rare, preferred, c.dtype != "fp32"


def _closed(same: list[_Candidate], n_bytes: int) -> TensorReading:
    """One reading of candidates of one group with equal bytes: their names are not told apart."""
    first = same[0]
    names = list(dict.fromkeys(c.tensor for c in same))
    shown = " or ".join(names if len(names) <= NAMED + 1 else [*names[:NAMED], f"{len(names) - NAMED} others"])
    return TensorReading(
        tensor=shown, shape=first.shape, dtype=first.dtype, bytes=n_bytes, certainty=POSSIBLE, note=first.note
    )


def _opened(c: _Candidate, open_: _Open, d: Dimensions) -> TensorReading:
    shape = tuple([open_.number if size < 0 else size for size in c.shape])
    name = "length" if c.open == "square" else c.open
    whole = d.length and c.open == "tokens" and open_.number % d.length == 0
    note = f"{open_.number // d.length} x {d.length:,} tokens" if whole else c.note
    n_bytes = prod(shape) * _item(c)
    return TensorReading(
        tensor=c.tensor,
        shape=shape,
        dtype=c.dtype,
        bytes=n_bytes,
        certainty=POSSIBLE,
        free_name=name,
        free_range=(open_.least, open_.most),
        note=note,
    )


def _identity(c: _Candidate) -> tuple[str, str]:
    return (c.group if c.group in (LOGITS, SCORES) else c.tensor), c.dtype


def _judged(rows: list[_Row], spoken: bool) -> list[TensorReading]:
    """Call the first reading likely, unless an equal one stands next to it: another tensor that fits as well."""
    found = [row.reading for row in rows]
    if not rows or (rows[0].key[1] == OPEN and not spoken):
        return found
    (key, first, same, _), rest = rows[0], rows[1:]
    near = [row for row in rest if row.key[:2] == key[:2] or (row.rivals and row.key[0] == key[0])]
    if all(row.same == same for row in near):
        found[0] = first._replace(certainty=LIKELY)
    return found


def readings(
    figure: Figure,
    architecture: Architecture | Dimensions,
    job: TrainingJob | InferenceJob | None = None,
    frames: Sequence[str] = (),
    *,
    exact: bool = False,
    ledger: Sequence[TensorGroup] = (),
) -> TensorFit:
    """The tensors of a model that an allocation of a printed size may be: none for 2.00 MiB and 20.00 MiB.

    ``exact``: as of :func:`tensor_bytes`. ``frames``, ``ledger``: as of :func:`fit`.
    """
    bounds = tensor_bytes(figure, exact=exact)
    if bounds is None:
        return TensorFit((), 0, 0)
    d = architecture if isinstance(architecture, Dimensions) else dimensions_of(architecture, job)
    return fit(bounds, d, frames, ledger, figure.bytes)
