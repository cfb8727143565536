"""Every kind of bad input, one by one: a located or named error, the right exit code, the other files still checked."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.__main__ import main
from memcheck.judge import Gate, check_file
from tests.cli.plans import GOOD, write

Capture = pytest.CaptureFixture[str]

PLAN = GOOD.format(name="bad")
BOMB = "".join(
    f"    {new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
DEEP = "[" * 5000 + "]" * 5000

BAD_FILES = {
    "a binary file": (bytes(range(256)) * 100, "MEM001", "binary"),
    "UTF-16": (PLAN.encode("utf-16"), "MEM001", "UTF-16"),
    "Latin-1": (PLAN.replace("bad", "b\xe4d").encode("latin-1"), "MEM001", "UTF-8"),
    "50 MB": (PLAN.encode() + b"# " + b"x" * 50_000_000, "MEM007", "larger than"),
    "an alias bomb": (f"{PLAN}  options:\n    a: &a [x]\n{BOMB}".encode(), "MEM007", "aliases"),
    "an alias of itself": (f"{PLAN}  options: &o {{a: *o}}\n".encode(), "MEM002", "inside the value"),
    "deep nesting": (f"{PLAN}  options: {{a: {DEEP}}}\n".encode(), "MEM007", "nested"),
    "an open bracket": (b"memcheck: 1\nmodel: [\n", "MEM002", ""),
    "a tab": (b"memcheck: 1\nhardware:\n\tgpu: h100-80gb\n", "MEM002", ""),
    "a Python object": (f"{PLAN}  options: !!python/object:os.system x\n".encode(), "MEM002", ""),
    "an undefined alias": (PLAN.replace(": 2048", ": *nope").encode(), "MEM002", "nope"),
    "a key twice": (f"{PLAN}  micro_batch_size: 2\n".encode(), "MEM003", "micro_batch_size"),
    "a list": (b"- memcheck: 1\n", "MEM010", ""),
    "a number": (b"1\n", "MEM010", ""),
    "nothing": (b"", "MEM010", ""),
    "another version": (PLAN.replace("memcheck: 1", "memcheck: 2").encode(), "MEM01", ""),
    "an unknown GPU": (PLAN.replace("h100-80gb", "h100-80g").encode(), "MEM021", "h100-80gb"),
    "an unknown model": (PLAN.replace("llama-3.1-8b", "lama-3.1-8b").encode(), "MEM020", "llama-3.1-8b"),
    "NaN": (PLAN.replace("gpu: h100-80gb", "gpu: {name: x, memory_gib: .nan}").encode(), "MEM014", "finite"),
    "infinity": (PLAN.replace(": 2048", ": .inf").encode(), "MEM01", ".inf"),
    "a negative size": (PLAN.replace(": 2048", ": -2048").encode(), "MEM014", "-2048"),
    "a huge number": (PLAN.replace(": 2048", ": 1" + "0" * 400).encode(), "MEM014", ""),
    "a huge float": (PLAN.replace(": 2048", ": 1e309").encode(), "MEM0", ""),
    "an option of the wrong kind": (f"{PLAN}  options: {{bucket_cap_mb: large}}\n".encode(), "MEM406", "large"),
    "itself as a base": (f"extends: ./bad.yaml\n{PLAN}".encode(), "MEM006", "itself"),
    "a base elsewhere": (f"extends: ../../outside.yaml\n{PLAN}".encode(), "MEM006", "outside"),
    "an absolute base": (f"extends: /etc/hostname\n{PLAN}".encode(), "MEM006", "relative"),
    "no such base": (f"extends: ./nothing.yaml\n{PLAN}".encode(), "MEM006", "does not exist"),
    "a folder as a base": (f"extends: ./\n{PLAN}".encode(), "MEM006", ""),
    "no such config": (PLAN.replace("model: llama-3.1-8b", "model: {config: ./no.json}").encode(), "MEM024", "no.json"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one good plan, to stand in."""
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    monkeypatch.chdir(root)
    write(root)
    return root


def report(capsys: Capture) -> dict[str, Any]:
    """The JSON report, by plan name, and stderr under an empty name."""
    streams = capsys.readouterr()
    return {"": streams.err, **{plan["path"]: plan for plan in json.loads(streams.out)["plans"]}}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file(kind: str, folder: Path, capsys: Capture) -> None:
    """What is wrong is said at a place in the file; the plan beside it is judged; the run fails with 1."""
    data, code, words = BAD_FILES[kind]
    (folder / "bad.yaml").write_bytes(data)
    assert main(["check", "bad.yaml", "good.yaml", "--format", "json"]) == 1
    found = report(capsys)
    assert found[""] == ""
    assert found["good.yaml"]["status"] == "passed"
    assert found["bad.yaml"]["status"] != "passed"
    first = found["bad.yaml"]["diagnostics"][0]
    assert first["code"].startswith(code)
    assert words in f"{first['message']} {first['help']}"
    assert len(first["message"]) < 1000
    at = first["location"]
    assert 1 <= at["line"] <= max(1, len(data.splitlines()))
    assert (at["line"], at["column"]) <= (at["end_line"], at["end_column"])


def test_bases_that_extend_each_other(folder: Path, capsys: Capture) -> None:
    """A loop through two files is named with both of them."""
    for one, other in ("ab", "ba"):
        (folder / f"{one}.yaml").write_text(f"memcheck: 1\nextends: ./{other}.yaml\n")
    assert main(["check", "a.yaml", "good.yaml", "--format", "json"]) == 1
    found = report(capsys)
    assert found["a.yaml"]["diagnostics"][0]["code"] == "MEM006"
    assert "a.yaml -> b.yaml -> a.yaml" in found["a.yaml"]["diagnostics"][0]["message"]
    assert found["good.yaml"]["status"] == "passed"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.yaml", "good.yaml"], "cannot read missing.yaml: No such file or directory"),
        (["missing/folder", "good.yaml"], "cannot read missing/folder: No such file or directory"),
        (["good.yaml/inside.yaml", "good.yaml"], "cannot read good.yaml/inside.yaml: Not a directory"),
        (["x" * 5000, "good.yaml"], "File name too long"),
        (["empty"], "nothing to check"),
        (["others"], "nothing to check"),
    ],
)
def test_bad_path(arguments: list[str], words: str, folder: Path, capsys: Capture) -> None:
    """What cannot be read, or holds no plan, is named on stderr and exits with 2; what can be read is judged."""
    (folder / "empty").mkdir()
    (folder / "others").mkdir()
    (folder / "others" / "compose.yaml").write_text("services: {}\n")
    assert main(["check", *arguments, "--format", "json"]) == 2
    streams = capsys.readouterr()
    assert words in streams.err
    assert "Traceback" not in streams.err
    if "good.yaml" in arguments:
        assert [plan["status"] for plan in json.loads(streams.out)["plans"]] == ["passed"]


def test_unreadable_file(folder: Path, capsys: Capture) -> None:
    """Missing permissions are named like a missing file."""
    write(folder, "secret").chmod(0)
    if os.access("secret.yaml", os.R_OK):
        pytest.skip("this user may read everything")
    assert main(["check", "secret.yaml", "good.yaml", "--format", "json"]) == 2
    streams = capsys.readouterr()
    assert "cannot read secret.yaml: Permission denied" in streams.err
    assert [plan["status"] for plan in json.loads(streams.out)["plans"]] == ["passed"]


@pytest.mark.slow
def test_reader_that_takes_one_line(root: Path) -> None:
    """``memcheck check examples | head -1``: one line on the pipe, not a word on stderr."""
    program = "import sys; from memcheck.__main__ import main; sys.exit(main())"
    check = subprocess.Popen(
        [sys.executable, "-c", program, "check", "examples"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert check.stdout is not None
    assert check.stderr is not None
    assert check.stdout.readline() != b""
    check.stdout.close()
    errors = check.stderr.read()
    check.stderr.close()
    check.wait(timeout=60)
    assert errors == b""


WHOLE_PLANS = {
    "megatron": """
        model: {name: llama-3.1-8b, overrides: {num_hidden_layers: 4}}
        hardware: {gpu: {name: h100-80gb, memory_gib: 79.1, bf16_tflops: 989}, gpus_per_node: 8, nodes: 2, host_memory_gib: 1024}
        parallelism: {tensor: 2, sequence: true, context: 2, pipeline: 2, pipeline_schedule: interleaved-1f1b,
                      virtual_stages: 2, expert: 1, expert_tensor: 1, data: 2, zero_stage: 1, shard_group: 4, gradient_sync: every}
        training: {framework: megatron, framework_version: "0.14", method: full, micro_batch_size: 1, sequence_length: 4096,
                   gradient_accumulation_steps: 4, optimizer: {name: adamw, implementation: fused}, attention: flash,
                   precision: {recipe: bf16-mixed, params: bf16, gradients: fp32, master: fp32, optimizer_states: fp32, reduce: fp32},
                   activation_checkpointing: {mode: selective, modules: [mlp]}, loss: {kind: vocab-parallel, upcast: true, keep_logits: false},
                   clip_grad_norm: true, expert_imbalance: 1.0, compile: false, expandable_segments: auto,
                   options: {recompute_modules: [mlp], overlap_grad_reduce: true, ddp_bucket_size: 1000000}}
        policy: {fail_above: 90%, warn_above: 0.85, waste_below: 0.1, overhead: modeled}
        """,
    "huggingface": """
        model: qwen3-0.6b
        hardware: {gpu: h100-80gb, gpus_per_node: 8}
        parallelism: {zero_stage: 3, reshard_after_forward: true, gradient_sync: last, shard_group: 4}
        training: {framework: huggingface, method: lora, lora: {rank: 16, target_modules: [q_proj, v_proj], dtype: fp32},
                   freeze: [embed, "layers:0-4"], micro_batch_size: 1, sequence_length: 1024, global_batch_size: 64,
                   precision: bf16-mixed, optimizer: adamw, activation_checkpointing: {mode: full, reentrant: false, every_n_layers: 2},
                   attention: sdpa, loss: {kind: chunked, chunks: 8}, offload: {parameters: cpu}}
        """,
    "deepspeed": """
        model: mixtral-8x7b
        hardware: {gpu: a100-80gb, gpus_per_node: 8, nodes: 4, host_memory_gib: 1000}
        parallelism: {zero_stage: 3}
        training: {framework: deepspeed, micro_batch_size: 1, sequence_length: 1024, optimizer: {name: adamw, offload: nvme},
                   activation_checkpointing: {mode: full, offload: cpu}, offload: {parameters: nvme},
                   options: {reduce_bucket_size: 50000000, overlap_comm: true}}
        """,
    "an architecture": """
        model: {architecture: {model_type: deepseek_v3, hidden_size: 512, num_hidden_layers: 4, num_attention_heads: 8,
                num_key_value_heads: 8, intermediate_size: 1024, moe_intermediate_size: 128, vocab_size: 32000,
                tie_word_embeddings: false, n_routed_experts: 16, n_shared_experts: 1, num_experts_per_tok: 4,
                first_k_dense_replace: 1, kv_lora_rank: 64, q_lora_rank: 128, qk_rope_head_dim: 16, qk_nope_head_dim: 32,
                v_head_dim: 32, n_group: 1, topk_group: 1, max_position_embeddings: 4096}}
        hardware: {gpu: a100-80gb, gpus_per_node: 8}
        parallelism: {zero_stage: 3, expert: 4}
        training: {framework: torchtitan, micro_batch_size: 1, sequence_length: 4096, activation_checkpointing: full}
        """,
    "a rough model": """
        model: {rough: {parameters: 700M, layers: 32, hidden_size: 4096, activation_multiplier: 10, vocab_size: 32000}}
        hardware: {gpu: {name: mi455x, memory_gib: 431.2}, gpus_per_node: 8}
        training: {framework: pytorch, micro_batch_size: 1, sequence_length: 4096}
        policy: {overhead: 10%}
        """,
    "inference": """
        model: deepseek-v2-lite
        hardware: {gpu: h100-80gb, gpus_per_node: 4}
        parallelism: {tensor: 4}
        inference: {batch_size: 8, context_length: 4096, weights: bf16, kv_cache: bf16}
        """,
}
WRONG = (".nan", ".inf", "-1", "1" + "0" * 40, "1048576", "null", "true", "[]", "{a: 1}", '""', "2026-11-20", "128k")
NEVER_RIGHT = (".nan", ".inf", "1" + "0" * 40)
"""No key takes these: a number of that kind is a mistake, and so is a number where text belongs."""


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where something else could stand: every key and every item, at any depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from places(child, (*path, key))


def with_text(plan: dict[str, Any], path: tuple[str | int, ...], text: str) -> bytes:
    """The plan with the text standing, unquoted, at one place."""
    changed: Any = copy.deepcopy(plan)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "@HERE@"
    return yaml.safe_dump(changed, default_flow_style=True, width=10**9).replace("'@HERE@'", text).encode()


@pytest.mark.slow
@pytest.mark.parametrize("kind", WHOLE_PLANS)
def test_wrong_types_everywhere(kind: str) -> None:
    """Whatever stands at whatever key: an answer or located findings, never a defect, and never a size from no number."""
    plan = {"memcheck": 1, **yaml.safe_load(WHOLE_PLANS[kind])}
    assert check_file("plan.yaml", yaml.safe_dump(plan).encode(), Gate())[0][0].status == "passed"
    for path in places(plan):
        for text in WRONG:
            (result,), traces = check_file("plan.yaml", with_text(plan, path, text), Gate())
            at = f"{'.'.join(map(str, path))}: {text}"
            assert traces == [], at
            assert all(f.message and f.location.span.line >= 1 and f.code != "MEM000" for f in result.findings), at
            if text in NEVER_RIGHT:
                assert any(f.severity == "error" for f in result.findings), at
                assert result.estimate is None or path[:2] != ("model", "architecture"), at
