"""Lines that start vLLM: public ones by their facts, every form of file, and what is refused or named."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.__main__ import main
from memcheck.configs.direct import config_document
from memcheck.configs.key_table import key_table
from memcheck.configs.serve_lines import serving_alone
from memcheck.plan.places import Document

FACTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "vllm_lines.yaml").read_text())
GPU = {"gpu": "h100-80gb"}


def flags(says: dict[str, Any]) -> list[str]:
    """Arguments of a command line."""
    return [
        word for name, value in says.items() for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
    ]


def quoted(words: list[str]) -> str:
    """Words of a shell's line, in which variables stay variables."""
    return " ".join(word if "$" in word or word.startswith("~") else shlex.quote(word) for word in words)


def file_of(fact: dict[str, Any]) -> tuple[str, str]:
    """The name and the text of a file of the fact's form, with other commands around the server's."""
    words, model, image = flags(fact["says"]), fact["model"], f"vllm/vllm-openai:{fact.get('tag', 'latest')}"
    if fact["form"] == "script":
        head = "#!/bin/bash\nsource env/bin/activate\npip install --upgrade vllm\n"
        body = " \\\n    ".join([f"CUDA_VISIBLE_DEVICES=0 nohup vllm serve {model}", quoted(words), "--port 8000"])
        return "serve.sh", f"{head}{body} > log.txt 2>&1 &\ncurl --fail http://localhost\n"
    if fact["form"] == "module":
        line = f"python3 -u -m vllm.entrypoints.openai.api_server --model {model} {quoted(words)}"
        return "serve.sh", f"# vllm serve other/model --max-model-len 1\n{line}\n"
    if fact["form"] == "docker":
        head = "docker run --gpus all --ipc=host \\\n    -v ~/.cache:/data/cache -p 8000:8000 \\\n"
        return "docker.sh", f"{head}    {image} \\\n    --model {model} {quoted(words)}\n"
    if fact["form"] == "file":
        line = f"ENTRYPOINT python3 -m vllm.entrypoints.openai.api_server --port 80 --model {model} {quoted(words)}"
        return "Dockerfile", f'FROM {image}\nRUN pip install --no-cache-dir x\n{line} ${{R:+--revision "$R"}}\n'
    if fact["form"] == "python":
        says = ", ".join(f"{name}={value!r}" for name, value in fact["says"].items())
        return "run.py", f"from vllm import LLM\nNAME = {model!r}\nllm = LLM(model=NAME, {says})\nprint(llm)\n"
    container = {
        "image": image,
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": ["--model=$(MODEL_ID)", *words],
        "env": [{"name": "MODEL_ID", "value": model}],
        "resources": {"limits": {"nvidia.com/gpu": fact["gpus"]}},
    }
    pod = {"template": {"spec": {"containers": [container]}}}
    return "serve.yaml", yaml.safe_dump({"apiVersion": "apps/v1", "kind": "Deployment", "spec": pod}, sort_keys=False)


def read(name: str, text: str, **stated: object) -> Document:
    """The document that a file stands for."""
    found = config_document(name, text.encode(), {**GPU, **stated})
    assert found is not None
    return found


def served(name: str, text: str, **stated: object) -> dict[str, Any]:
    """The plan of a file that has one."""
    found = read(name, text, **stated)
    assert [f.message for f in found.findings if f.severity == "error"] == []
    assert isinstance(found.values, dict)
    return found.values


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact['repository']}:{fact['path']}")
def test_a_public_line_is_read(fact: dict[str, Any]) -> None:
    """Every argument is the plan's key, no other key is stated, and a line without a model here says why."""
    name, text = file_of(fact)
    if "problem" in fact:
        told = [f.message for f in read(name, text).findings if f.severity == "error"]
        assert any(fact["problem"] in each for each in told), told
        return
    values = served(name, text)
    assert values["inference"] == {"engine": "vllm", **fact["plan"]}
    assert values["model"] == {"name": fact.get("named", fact["model"])}
    ranks = fact["plan"].get("tensor", 1) * fact["plan"].get("pipeline", 1)
    assert values["hardware"]["gpus_per_node"] == fact.get("gpus", ranks)


def test_there_are_thirty_public_lines() -> None:
    """From more than 20 repositories, in all six forms."""
    assert len(FACTS) == 30
    assert len({fact["repository"] for fact in FACTS}) > 20
    assert {fact["form"] for fact in FACTS} == {"script", "module", "docker", "file", "manifest", "python"}


def test_short_names_arrays_and_variables_count() -> None:
    """An array that the server's line names is read, one of another command is not."""
    text = (
        'MODEL="Qwen/Qwen3-8B"\nLEN=${LEN:-8k}\nARGS=(--enforce-eager -pp 2)\nBENCH=(--max-num-seqs 7)\n'
        'python bench.py "${BENCH[@]}"\nvllm serve $MODEL -tp 4 --max_model_len=$LEN "${ARGS[@]}"\n'
    )
    found = served("serve.sh", text)
    assert found["inference"] == {
        "engine": "vllm",
        "tensor": 4,
        "pipeline": 2,
        "max_model_len": 8000,
        "enforce_eager": True,
    }
    assert found["hardware"]["gpus_per_node"] == 8


def test_a_model_after_a_switch_is_the_model() -> None:
    """A switch takes no value; an argument with several words ends at the next one."""
    text = "vllm serve --served-model-name a b --enforce-eager Qwen/Qwen3-8B --port 1\n"
    found = served("serve.sh", text)
    assert found["model"] == {"name": "Qwen/Qwen3-8B"}
    assert found["inference"]["enforce_eager"] is True


def test_a_dockerfile_joins_entry_point_and_command() -> None:
    """In JSON form, over several lines; of several stages the last one counts, and its tag is the version."""
    text = (
        'FROM vllm/vllm-openai:v0.9.0 AS base\nCMD ["--model", "a/b"]\nFROM vllm/vllm-openai:v0.11.0\n'
        'ENV LEN 4096\nENTRYPOINT ["vllm", "serve"]\nCMD ["Qwen/Qwen3-8B-FP8", \\\n  "--max-model-len", "$LEN"]\n'
    )
    found = served("Dockerfile", text)
    assert found["model"] == {"name": "Qwen/Qwen3-8B-FP8"}
    assert found["inference"] == {"engine": "vllm", "version": "0.11.0", "max_model_len": 4096, "weights": "fp8"}


def test_a_dockerfile_that_only_builds_with_the_server_is_refused() -> None:
    """A command that goes on into the last instruction leaves none that the image starts with."""
    document = config_document("Dockerfile", b"FROM a/b\nRUN vllm serve a/b --x \\\nCMD vllm serve a/b\n", GPU)
    assert document is not None
    assert "no command that the image starts with" in document.findings[0].message


def test_compose_gives_arguments_to_the_image() -> None:
    """Without a program of its own, a command is arguments of the image's entry point."""
    service = {"image": "vllm/vllm-openai:v0.11.0", "command": "--model Qwen/Qwen3-8B --max-model-len 4096"}
    found = served("compose.yaml", yaml.safe_dump({"services": {"llm": service}}))
    assert found["inference"] == {"engine": "vllm", "version": "0.11.0", "max_model_len": 4096}


TWO_SERVICES = """\
services:
  a:
    image: vllm/vllm-openai:v0.11.0
    command: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "8192"]
  b:
    image: vllm/vllm-openai:v0.11.0
    command: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "4096"]
"""
POD = """\
apiVersion: v1
kind: Pod
spec:
  containers:
    - image: vllm/vllm-openai:v0.11.0
      args: ["--model=Qwen/Qwen3-8B", "--max-model-len={length}"]
      resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [(TWO_SERVICES, "4 and 7"), (POD.format(length=8192) + "---\n" + POD.format(length=4096), "6 and 14")],
)
def test_a_second_server_of_a_platforms_file_is_not_dropped(text: str, lines: str) -> None:
    """Two services, or two documents: refused as two servers of a script are, at their own lines."""
    found = read("serve.yaml", text)
    (error,) = [each for each in found.findings if each.severity == "error"]
    assert f"the file starts 2 servers, which differ; the first two are at lines {lines}" in error.message
    assert error.location.span.line == int(lines.split(maxsplit=1)[0])
    alike = read("serve.yaml", text.replace("4096", "8192"))
    assert [each for each in alike.findings if each.severity == "error"] == []


def test_a_server_of_another_kind_beside_it_is_not_dropped() -> None:
    """No answer about one of two servers is given for the file."""
    other = TWO_SERVICES.replace('v0.11.0\n    command: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "4096"]', "x")
    sglang = other.replace("vllm/vllm-openai:x", "lmsysorg/sglang:v1\n    command: sglang serve --model-path a/b")
    (error,) = [each for each in read("serve.yaml", sglang).findings if each.severity == "error"]
    assert "this is a vLLM server and an SGLang server" in error.message


@pytest.mark.slow
def test_suggest_names_commands_that_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A platform's file becomes a plan with the command that `suggest` ends with, and that plan is judged alike."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    Path("k8s.yaml").write_text(POD.format(length=40960))
    main(["suggest", "k8s.yaml", "--gpu", "rtx-4090"])
    command, again = re.findall(r"`memcheck ([^`]*)`", capsys.readouterr().out.partition("next: ")[2])
    assert main(shlex.split(command)) == 0
    assert yaml.safe_load(Path("plan.yaml").read_text())["inference"]["version"] == "0.11.0"
    main(shlex.split(again))
    assert "Traceback" not in capsys.readouterr().err
    before = served("k8s.yaml", POD.format(length=40960), gpu="rtx-4090")["inference"]
    assert yaml.safe_load(Path("plan.yaml").read_text())["inference"] == before


@pytest.mark.parametrize("name", [name for name in key_table("vllm").refused if name != "config"])
def test_what_has_no_memory_model_is_refused_by_its_name(name: str) -> None:
    """No answer is given for a part that nobody modelled."""
    found = read("serve.sh", f"vllm serve Qwen/Qwen3-8B --{name} 7\n")
    assert any(f"`{name}`" in f.message for f in found.findings if f.severity == "error")


def test_an_unknown_argument_is_named() -> None:
    """With its line, and the plan is made without it."""
    found = read("serve.sh", "vllm serve Qwen/Qwen3-8B \\\n  --no-such-thing 7\n")
    (note,) = [f for f in found.findings if f.code == "MEM502"]
    assert note.message == "`no-such-thing`: not a key that memcheck knows of vLLM"
    assert note.related[0][1].span.line == 2


def test_a_misspelled_argument_gets_the_known_one() -> None:
    """And arguments of adapters are known, where no adapters are asked for."""
    line = "vllm serve Qwen/Qwen3-8B --max-model-length 8192 --gpu-memory-utilisation 0.5 --max-loras 4"
    notes = [f.message for f in read("serve.sh", f"{line} --max-lora-rank 64\n").findings if f.code == "MEM502"]
    assert [each.partition("mean ")[2] for each in notes] == ["`max-model-len`?", "`gpu-memory-utilization`?"]


def test_a_config_file_of_the_server_is_named_with_its_line(capsys: Any) -> None:
    """And the command that is shown works, where that of a training would say nothing of the server."""
    text = "model: Qwen/Qwen3-8B\nmax-model-len: 8192\nenforce-eager: true\nenable-lora: false\n"
    (finding,) = read("vllm.yaml", text).findings
    assert "this is a config file of `vllm serve --config`" in finding.message
    line = finding.help.rpartition("memcheck ")[2]
    assert line == "check --gpu h100-80gb -- vllm serve Qwen/Qwen3-8B --max-model-len 8192 --enforce-eager"
    assert main(shlex.split(line)) == 0
    assert "boots" in capsys.readouterr().out


def test_two_servers_that_differ_are_refused() -> None:
    """Equal ones on other ports are one."""
    line = "vllm serve Qwen/Qwen3-8B --max-model-len 4096 --port"
    assert served("serve.sh", f"{line} 1 &\n{line} 2 &\n")["inference"]["max_model_len"] == 4096
    found = read("serve.sh", f"{line} 1 &\n{line} 2 --enforce-eager\n")
    assert any("starts 2 servers" in f.message for f in found.findings)


def test_experts_are_not_replicated_by_data_parallelism() -> None:
    """A dense model is: each replica is a server of its own."""
    assert served("serve.sh", "vllm serve Qwen/Qwen3-8B -dp 2 -tp 2\n")["hardware"]["gpus_per_node"] == 4
    found = read("serve.sh", "vllm serve Qwen/Qwen3-30B-A3B -dp 2\n")
    assert any("data-parallel-size" in f.message for f in found.findings if f.severity == "error")


def test_a_stated_pool_leaves_the_share_out() -> None:
    """The engine takes no share where the size of its pool is stated."""
    found = served("serve.sh", "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.8 --kv-cache-memory-bytes 20G\n")
    assert found["inference"] == {"engine": "vllm", "kv_cache_bytes": 20 << 30}


def test_check_answers_for_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """`memcheck check serve.sh --gpu h100-80gb` says whether the server boots, at the script's line."""
    monkeypatch.chdir(tmp_path)
    script = Path("serve.sh")
    script.write_text("#!/bin/bash\nvllm serve Qwen/Qwen3-32B --max-model-len 32000\n")
    command = ["check", "serve.sh", "--gpu", "h100-80gb", "--framework-version", "0.11.0", "--format", "json"]
    assert main(command) == 1
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["estimate"]["engine"]["answer"] == "does_not_boot"
    (error,) = [each for each in plan["diagnostics"] if each["severity"] == "error"]
    assert (error["code"], error["location"]["line"]) == ("MEM701", 2)
    script.write_text("#!/bin/bash\nvllm serve Qwen/Qwen3-32B --max-model-len 16000\n")
    assert main(command) == 0


def test_the_normal_form_keeps_every_place() -> None:
    """Each word of the command stands at its line and column."""
    text = "export A=1\nsudo docker run --gpus all \\\n  vllm/vllm-openai:v0.11.0 --model m/n && echo --done\n"
    found = serving_alone(text)
    assert found.split("\n")[2].index("--model") == text.split("\n")[2].index("--model")
    assert "--gpus" not in found
    assert "--done" not in found


@pytest.mark.slow
def test_hostile_text_ends_in_an_answer() -> None:
    """Long scripts and Dockerfiles are read or refused in a few seconds of computing."""
    started = time.process_time()
    for text in ("A=(\n" * 20000, "ENV A=$A$A\n" * 3000, "FROM x\n" + 'CMD ["' + "a\\" * 50000, "vllm serve " * 20000):
        config_document("serve.sh", text.encode(), GPU)
        config_document("Dockerfile", text.encode(), GPU)
    assert time.process_time() - started < 20
