"""Which tensor an allocation that failed was: public messages with their truth, and figures that name none."""

from __future__ import annotations

import random
import time
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.families.registry import catalog_architecture, read_architecture
from memcheck.why import shapes
from memcheck.why.dimensions import Dimensions, dimensions_of
from memcheck.why.evidence import LIKELY, POSSIBLE, Figure, TensorReading, printed_shape
from memcheck.why.shapes import (
    TensorFit,
    fit,
    readings,
    spoken_of,
    tensor_bytes,
)
from tests.verify.plans import plan, subject

UNITS = {"B": 1, "MiB": 2**20, "GiB": 2**30}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp32+int64": 12}
MIB = 2**20
CASES = yaml.safe_load((Path(__file__).parents[1] / "data" / "why" / "tensors.yaml").read_text(encoding="utf-8"))


def figure(printed: str) -> Figure:
    """A printed size with half a unit of its last digit."""
    number, unit = printed.split()
    decimals = len(number.partition(".")[2])
    resolution = 0 if unit == "B" else round(UNITS[unit] * 0.5 / 10**decimals)
    return Figure(bytes=round(float(number) * UNITS[unit]), resolution_bytes=resolution, line=1)


def dimensions(case: dict[str, Any]) -> Dimensions:
    """What the source states."""
    found = Dimensions()
    if "sizes" in case:
        found = dimensions_of(read_architecture(case["sizes"]))
    elif "model" in case:
        found = dimensions_of(catalog_architecture(case["model"]))
    return found._replace(
        vocabulary=tuple(case.get("vocabulary", found.vocabulary)),
        sequences=case.get("batch", 0),
        length=case.get("length", 0),
        dtypes=tuple(case.get("dtypes", found.dtypes)),
    )


def fitted(case: dict[str, Any]) -> TensorFit:
    """The readings of a case."""
    exact = case.get("exact", False)
    return readings(figure(case["tried"]), dimensions(case), None, case.get("frames", ()), exact=exact)


def place(case: dict[str, Any]) -> int | None:
    """Where the truth stands among the readings, from 1."""
    for number, reading in enumerate(fitted(case).readings, 1):
        named = case["tensor"] in reading.tensor and reading.dtype == case["dtype"]
        low, high = case.get("open", (1, 0))
        near = reading.free_range[0] <= high and low <= reading.free_range[1]
        if named and (near or abs(reading.bytes - prod(case["shape"]) * BYTES[case["dtype"]]) <= 2 * MIB):
            return number
    return None


def test_the_tensor_is_among_the_readings() -> None:
    """The truth is listed, and first unless the source itself leaves two readings equal."""
    for case in CASES:
        found = place(case)
        assert found is not None, case["source"]
        assert found <= case.get("rank", 1), case["source"]


def test_the_first_reading_is_mostly_the_truth() -> None:
    """Of at least 35 messages 80 % come first, of those with a traceback 90 % (where a source names one tensor)."""
    single = [case for case in CASES if "other" not in case["source"]]
    traced = [case for case in single if "frames" in case]
    assert len(CASES) + 1 >= 35  # nshepperd/gpt-2#8 prints its shape
    assert sum(place(case) == 1 for case in single) >= 0.8 * len(single)
    assert sum(place(case) == 1 for case in traced) >= 0.9 * len(traced)


@pytest.mark.parametrize("case", [c for c in CASES if "open" in c], ids=lambda case: case["source"])
def test_an_open_number_is_an_interval(case: dict[str, Any]) -> None:
    """The interval holds what the source says, and is as narrow as the printed digits allow."""
    low, high = case["open"]
    found = [r.free_range for r in fitted(case).readings if case["tensor"] in r.tensor and r.dtype == case["dtype"]]
    assert any(abs(least - low) <= 12 and abs(most - high) <= 12 for least, most in found)


def test_an_equal_tensor_makes_none_likely() -> None:
    """A gathered embedding of 32,000 x 4,096 in 16 bits has the bytes of fp32 logits of 2,048 tokens."""
    model = dimensions_of(catalog_architecture("llama-7b"))
    silent = readings(figure("250.00 MiB"), model)
    assert {r.certainty for r in silent.readings} == {POSSIBLE}
    assert {"model.embed_tokens.weight or lm_head.weight", "logits"} <= {r.tensor for r in silent.readings}
    gathered = readings(figure("250.00 MiB"), model, None, ["dist.all_gather_into_tensor(output, shard)"])
    assert gathered.readings[0].tensor.startswith("model.embed_tokens.weight")
    lossy = readings(figure("250.00 MiB"), model, None, ["loss = F.cross_entropy(logits, labels)"])
    assert lossy.readings[0].tensor == "logits"


@pytest.mark.parametrize("printed", ["2.00 MiB", "20.00 MiB", "0 B"])
def test_small_segments_name_no_tensor(printed: str) -> None:
    """The allocator asks for 2 MiB and for 20 MiB whatever the small tensor is."""
    assert tensor_bytes(figure(printed)) is None
    assert readings(figure(printed), dimensions_of(catalog_architecture("llama-7b"))) == TensorFit((), 0, 0)


@pytest.mark.parametrize(
    ("printed", "exact", "bounds"),
    [
        ("86.00 MiB", False, (84 * MIB + 1, 86 * MIB)),
        ("12.50 MiB", False, (12 * MIB + 3 * MIB // 8 + 1, 12 * MIB + MIB // 2)),
        ("16.00 MiB", False, (14 * MIB + 1, 16 * MIB)),
        ("1.95 GiB", False, (1990 * MIB + 1, 2000 * MIB)),
        ("8.00 MiB", True, (8 * MIB - 5243 - 511, 8 * MIB + 5243)),
    ],
)
def test_the_interval_of_a_figure(printed: str, exact: bool, bounds: tuple[int, int]) -> None:
    """Segments of 2 MiB, of 128 KiB in torch 1.0, and what frameworks without segments print."""
    assert tensor_bytes(figure(printed), exact=exact) == bounds


PRINTED = [
    ("OOM when allocating tensor with shape[1,12,1024,1024] and type float", (1, 12, 1024, 1024), "fp32"),
    ("OOM when allocating tensor with shape[8, 512] and type half on GPU:0", (8, 512), "fp16"),
    ("allocating tensor, shape=[4,4] bfloat16", (4, 4), "bf16"),
]
"""Lines, the first of nshepperd/gpt-2#8, and the tensor of each."""


@pytest.mark.parametrize(("line", "shape", "dtype"), PRINTED)
def test_a_printed_shape_is_the_tensor(line: str, shape: tuple[int, ...], dtype: str) -> None:
    """TensorFlow prints the shape and no size."""
    found = printed_shape(line)
    assert found is not None
    assert (found.shape, found.dtype, found.certainty) == (shape, dtype, LIKELY)
    assert printed_shape("no shape here [1") is None


def test_random_sizes_are_rarely_called_likely() -> None:
    """Shapes whose every dimension is stated fit few random sizes, and the answer says how many were tried."""
    model = dimensions_of(catalog_architecture("llama-3.1-8b"))._replace(sequences=2, length=4096)
    draw = random.Random(7)  # noqa: S311 - sizes, no secrets
    likely = 0
    for _ in range(300):
        top = draw.randrange(11, 4096) * 2 * MIB
        found = fit((top - 2 * MIB + 1, top), model)
        likely += any(r.certainty == LIKELY for r in found.readings)
        assert 10 <= found.tried <= 200
    assert likely <= 15


def test_readings_of_a_large_mixture_are_quick() -> None:
    """A model with many kinds of layers is factored in a few milliseconds."""
    start = time.perf_counter()
    found: tuple[TensorReading, ...] = readings(figure("1.75 GiB"), catalog_architecture("deepseek-v3")).readings
    assert found
    assert time.perf_counter() - start < 2.0


def test_a_plan_states_what_a_rank_makes() -> None:
    """Tensor-parallel ranks have their part of a padded vocabulary, and DeepSpeed reduces in buckets."""
    sharded = subject(plan(model="qwen3-4b", gpus=2, parallelism={"tensor": 2}, framework="megatron"))
    frames = ["log_prob = compute_log_probs(logits.clone(), tokens, tp_group)"]
    first = readings(figure("58.15 GiB"), sharded.job.architecture, sharded.job, frames).readings[0]
    assert (first.tensor, first.shape[-1], first.free_range) == ("logits", 76032, (205283, 205317))
    engine = plan(model="llama-3.2-1b", gpus=4, parallelism={"zero_stage": 2}, framework="deepspeed")
    found = subject({**engine, "training": {**engine["training"], "precision": "bf16-mixed"}})
    reduced = readings(figure("1.86 GiB"), found.job.architecture, found.job, ["self.allreduce_bucket(bucket)"])
    assert "reduce_bucket_size of 500,000,000" in reduced.readings[0].tensor


def test_the_ledger_of_a_plan_names_tensors() -> None:
    """What the engine holds at the peak is among the candidates, under the engine's own names."""
    found = subject(plan(model="llama-3.2-1b", sequence_length=2048))
    ledger = found.estimate.ranks[0].ledger
    row = next(row for row in ledger if row.component == "activations" and row.bytes // row.copies > 32 * MIB)
    each = row.bytes // row.copies
    listed = fit((each, each), Dimensions(), (), ledger).readings
    assert any(row.name in reading.tensor for reading in listed)


def test_an_exact_size_is_mostly_one_tensor() -> None:
    """A snapshot's size is exact: wide rows rarely fit by chance, so that those that do come first."""
    model = dimensions_of(catalog_architecture("llama-3.1-8b"))
    for columns, tensor in ((14336, "mlp"), (128256, "logits")):
        exact = Figure(bytes=5021 * columns * 2, resolution_bytes=0, line=1)
        first = readings(exact, model, exact=True).readings[0]
        assert tensor in first.tensor.lower()
        assert first.shape[-1] == columns


def test_parts_of_ranks_whose_number_is_not_stated() -> None:
    """A weight of one of four tensor-parallel ranks is listed, and first where the traceback makes weights."""
    frames = ["self.quant_method.create_weights(", "weight = Parameter(torch.empty(output_size, input_size))"]
    made = readings(figure("116.00 MiB"), catalog_architecture("qwen2.5-72b"), None, frames).readings[0]
    assert made.tensor.startswith("1/4 of mlp.")
    assert prod(made.shape) * 2 == 29568 * 8192 * 2 // 4
    expert = readings(figure("112.00 MiB"), catalog_architecture("mixtral-8x7b"), None, frames).readings[0]
    assert "one expert's" in expert.tensor


PACKAGES = '  File "/opt/venv/lib/python3.12/site-packages/'
FRAMES = {
    "cross_entropy": (
        "logits",
        f'{PACKAGES}transformers/models/llama/modeling_llama.py", line 500, in forward',
        f'{PACKAGES}torch/nn/functional.py", line 3104, in cross_entropy',
    ),
    "log_softmax": (
        "logits",
        f'{PACKAGES}torch/nn/functional.py", line 2260, in log_softmax',
        "ret = x.log_softmax(dim)",
    ),
    "softmax of attention": (
        "scores",
        f'{PACKAGES}transformers/models/bert/modeling_bert.py", line 340, in forward',
        "attention_probs = nn.functional.softmax(attention_scores, dim=-1)",
        f'{PACKAGES}torch/nn/functional.py", line 2140, in softmax',
        "ret = input.softmax(dim)",
    ),
    "softmax of logits": (
        "logits",
        f'{PACKAGES}trl/trainer/utils.py", line 12, in probabilities',
        "probs = F.softmax(logits, dim=-1)",
        f'{PACKAGES}torch/nn/functional.py", line 2140, in softmax',
    ),
    "softmax of nobody": ("scores", "model(x)", f'{PACKAGES}torch/nn/functional.py", line 2140, in softmax'),
    "upcast attention": (
        "scores",
        "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)",
    ),
    "masked attention": ("scores", "attn_weights = attn_weights + causal_mask"),
    "scaled_dot_product_attention": ("scores", "attn_output = torch.nn.functional.scaled_dot_product_attention("),
    "embedding": (
        "hidden",
        f'{PACKAGES}torch/nn/functional.py", line 2551, in embedding',
        "return torch.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)",
    ),
    "linear of mlp": (
        "mlp",
        "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))",
        f'{PACKAGES}torch/nn/modules/linear.py", line 125, in forward',
        "return F.linear(input, self.weight, self.bias)",
    ),
    "linear of lm_head": (
        "logits",
        "scores = self.lm_head(hidden_states[:, slice_indices, :])",
        f'{PACKAGES}torch/nn/modules/linear.py", line 125, in forward',
        "return F.linear(input, self.weight, self.bias)",
    ),
    "optimizer, foreach": (
        "states",
        f'{PACKAGES}torch/optim/adamw.py", line 600, in _multi_tensor_adamw',
        "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)",
    ),
    "optimizer, first step": (
        "states",
        f'{PACKAGES}torch/optim/adamw.py", line 130, in _init_group',
        'state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)',
    ),
    "all_gather": ("unit", f'{PACKAGES}torch/distributed/distributed_c10d.py", line 3900, in all_gather_into_tensor'),
    "unshard": ("unit", f'{PACKAGES}torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", line 300, in unshard'),
    "reduce_scatter": (
        "bucket",
        f'{PACKAGES}torch/distributed/fsdp/_fsdp_collectives.py", line 400, in foreach_reduce',
    ),
    "float in loss": ("logits", "logits = logits.float()"),
    "a trainer whose loss runs the model": ("", "loss = self.compute_loss(model, inputs, num_items_in_batch=n)"),
    "norm": ("hidden", "hidden_states = hidden_states.to(torch.float32)"),
    "model to the GPU": ("weight", "model = model.to(device)"),
    "recomputation": (
        "mlp",
        f'{PACKAGES}torch/utils/checkpoint.py", line 1124, in unpack_hook',
        "frame.recompute_fn(*args)",
        "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))",
    ),
    "recomputation alone": (
        "",
        f'{PACKAGES}torch/utils/checkpoint.py", line 1124, in unpack_hook',
        "frame.recompute_fn(*args)",
    ),
    "a folder is no code": ("", '  File "/srv/adam/softmax/masks/train.py", line 5, in main', "run(config)"),
}
"""Lines of tracebacks, the innermost last, and the group of tensors that such a line allocates first."""


@pytest.mark.parametrize("name", FRAMES)
def test_the_innermost_frame_decides(name: str) -> None:
    """One table: which tensors a line of PyTorch, transformers, FSDP or an optimizer allocates."""
    group, *frames = FRAMES[name]
    assert (*spoken_of(frames).groups, "")[0] == group


def test_a_frame_of_the_loss_puts_logits_first() -> None:
    """In 7.83 GiB logits and attention scores fit: `cross_entropy` decides, and says nothing of their type."""
    model = dimensions_of(catalog_architecture("llama-3.1-8b"))
    _, *frames = FRAMES["cross_entropy"]
    found = readings(figure("7.83 GiB"), model, None, frames)
    assert {r.tensor for r in readings(figure("7.83 GiB"), model).readings} > {"logits", "attention scores"}
    assert [(r.tensor, r.dtype) for r in found.readings[: found.spoken]] == [("logits", "fp32"), ("logits", "bf16")]
    assert found.word == "cross_entropy"


@pytest.mark.parametrize(("count", "last"), [(2, "t1"), (4, "t3"), (5, "2 others")])
def test_one_name_is_never_left_out_as_one_more(count: int, last: str) -> None:
    """One name is never left out as one more."""
    same = [shapes._Candidate(tensor=f"t{n}", group="", shape=(2, 2), dtype="bf16") for n in range(count)]
    assert shapes._closed(same, 8).tensor.split(" or ")[-1] == last
