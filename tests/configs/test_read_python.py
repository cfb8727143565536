"""Python files and notebooks are followed without being run: what reaches the trainer, and what is asked for."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

from memcheck.configs.answers import Beside
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.trainer_parts import release_key
from memcheck.configs.types import ConfigError, ReadSetting
from memcheck.judge import Gate, check_file

BASE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from trl import SFTConfig, SFTTrainer, DPOConfig, DPOTrainer
import os, torch
"""
SHORT = (
    BASE + 'a = SFTConfig(per_device_train_batch_size=2, max_length=512)\nSFTTrainer("Qwen/Qwen2.5-0.5B", a).train()\n'
)


def read(code: str, gpu: str = "a100-80gb", name: str = "train.py", **defines: str) -> Imported:
    """The import of a file that is trained on one GPU."""
    stated = {"hardware.gpu": ReadSetting(gpu, "test")}
    return import_config(name, code.encode(), stated, beside=Beside(defines=defines))


def values(code: str, gpu: str = "a100-80gb", **defines: str) -> dict[str, object]:
    """The plan's values; there has to be a plan."""
    found = read(code, gpu, **defines)
    assert found.problems == (), found.problems
    return {key: each.value for key, each in found.settings.items()}


def asks(code: str, gpu: str = "a100-80gb") -> str:
    """The only problem, with its help."""
    (problem,) = read(code, gpu).problems
    return f"{problem.message}\n{problem.help}"


ARGUMENTS = {
    "a name": "N = 4\nargs = SFTConfig(per_device_train_batch_size=N)",
    "the last assignment": "N = 8\nN = 4\nargs = SFTConfig(per_device_train_batch_size=N)",
    "an attribute that is set later": "args = SFTConfig()\nargs.per_device_train_batch_size = 4",
    "a dictionary": "d = dict(per_device_train_batch_size=2)\nd['per_device_train_batch_size'] = 4\nargs = SFTConfig(**d)",
    "two dictionaries": "d = {'per_device_train_batch_size': 4}\nargs = SFTConfig(**{**d, 'logging_steps': 1})",
    "arithmetic": "args = SFTConfig(per_device_train_batch_size=2 ** 4 // 4)",
    "an f-string": "args = SFTConfig(per_device_train_batch_size=int(f'{2 + 2}'))",
    "the environment's default": "args = SFTConfig(per_device_train_batch_size=int(os.environ.get('B', '4')))",
    "a conditional": "args = SFTConfig(per_device_train_batch_size=4 if True else 1)",
    "a branch": "if 1 > 2:\n    B = 1\nelse:\n    B = 4\nargs = SFTConfig(per_device_train_batch_size=B)",
    "both branches alike": "B = 4 if unknown() else 4\nargs = SFTConfig(per_device_train_batch_size=B)",
    "a function": "def make(b, *, more=1):\n    return SFTConfig(per_device_train_batch_size=b * more)\nargs = make(2, more=2)",
    "a dataclass": (
        "from dataclasses import dataclass, field\n@dataclass\nclass C:\n    b: int = 4\n    t: list = field(default_factory=list)\n"
        "c = C()\nargs = SFTConfig(per_device_train_batch_size=c.b)"
    ),
    "a class with a method": (
        "class C:\n    def __init__(self, b=4):\n        self.b = b\n    def make(self):\n"
        "        return SFTConfig(per_device_train_batch_size=self.b)\nargs = C().make()"
    ),
    "an option with a default": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch', type=int, default=4)\n"
        "o = p.parse_args()\nargs = SFTConfig(per_device_train_batch_size=o.batch)"
    ),
    "options that the file gives itself": (
        "from transformers import HfArgumentParser\n"
        "(args,) = HfArgumentParser(SFTConfig).parse_dict({'per_device_train_batch_size': 4})"
    ),
    "a subclass of the arguments": "class A(SFTConfig):\n    per_device_train_batch_size: int = 4\nargs = A()",
    "main": "if __name__ == '__main__':\n    args = SFTConfig(per_device_train_batch_size=4)",
}


@pytest.mark.parametrize("code", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_a_value_is_followed_to_the_trainer(code: str) -> None:
    """However the file comes to it, the trainer gets four rows at once."""
    found = values(f'{BASE}{code}\nSFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args).train()\n')
    assert found["training.micro_batch_size"] == 4


MODEL = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B"{})\n'
END = "Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=2, bf16=True{})).train()\n"
ROWS = "t = AutoTokenizer.from_pretrained('x')\ndata = data.map(lambda r: t(r['x'], max_length=256, truncation=True))\n"


@pytest.mark.parametrize(
    ("code", "key", "value"),
    [
        (MODEL.format("") + ROWS + END.format(""), "training.sequence_length", 256),
        (MODEL.format("") + ROWS + END.format(""), "training.activation_checkpointing.mode", "none"),
        (
            MODEL.format("")
            + ROWS
            + "model.gradient_checkpointing_enable()\n"
            + END.format(", gradient_checkpointing=False"),
            "training.activation_checkpointing.mode",
            "full",
        ),
        (
            MODEL.format(", torch_dtype=torch.bfloat16")
            + ROWS
            + "model = get_peft_model(model, LoraConfig(r=4))\n"
            + END.format(""),
            "training.lora.target_modules",
            ["q_proj", "v_proj"],
        ),
        (
            MODEL.format(", quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)")
            + ROWS
            + "model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig())\n"
            + END.format(""),
            "training.method",
            "qlora",
        ),
        (MODEL.format("") + ROWS + END.format(", optim='adafactor'"), "training.optimizer.name", "adafactor"),
        (MODEL.format("") + ROWS + END.format(", torch_compile=True"), "training.compile", True),
    ],
)
def test_what_is_done_to_the_model_counts(code: str, key: str, value: object) -> None:
    """Effects go before keywords, and PEFT's defaults before TRL's."""
    assert values(BASE + code)[key] == value


@pytest.mark.parametrize(("gpu", "recipe"), [("a100-80gb", "bf16-mixed"), ("t4", "fp16-mixed")])
def test_what_hangs_on_the_gpu_follows_from_the_stated_one(gpu: str, recipe: str) -> None:
    """``is_bf16_supported`` and the capability have an answer for every GPU of the catalog."""
    for test in ("torch.cuda.is_bf16_supported()", "torch.cuda.get_device_capability()[0] >= 8"):
        code = f"b = {test}\nargs = SFTConfig(bf16=b, fp16=not b)\nSFTTrainer('Qwen/Qwen2.5-0.5B', args).train()\n"
        assert values(BASE + code, gpu)["training.precision.recipe"] == recipe


TUNED = "SFTTrainer({}, SFTConfig(per_device_train_batch_size=1, bf16=True{}), peft_config=LoraConfig(r=4)).train()\n"
NAMED = "'Qwen/Qwen2.5-0.5B'"
WEIGHTS = {
    "torch.bfloat16": (MODEL.format(", torch_dtype=torch.bfloat16") + TUNED.format("model", ""), "bf16"),
    "a word": (MODEL.format(", dtype='bfloat16'") + TUNED.format("model", ""), "bf16"),
    "the checkpoint's": (MODEL.format(", dtype='auto'") + TUNED.format("model", ""), "bf16"),
    "of the trainer": (TUNED.format(NAMED, ", model_init_kwargs={'dtype': 'bfloat16'}"), "bf16"),
    "fp32": (MODEL.format(", dtype=torch.float32") + TUNED.format("model", ""), "fp32"),
    "unsaid": (MODEL.format("") + TUNED.format("model", ""), "fp32"),
    "unsaid, by TRL": (TUNED.format(NAMED, ""), "fp32"),
}


@pytest.mark.parametrize(("code", "dtype"), WEIGHTS.values(), ids=WEIGHTS.keys())
def test_a_frozen_base_has_the_dtype_that_the_file_loads_it_in(code: str, dtype: str) -> None:
    """TRL's own default counts only where the file is silent."""
    (result,), _ = check_file("train.py", (BASE + code).encode(), Gate(hardware={"gpu": "h100-80gb"}))
    assert result.estimate is not None
    assert values(BASE + code)["training.precision.params"] == dtype
    parameters = result.estimate.components_bytes["parameters"]
    assert round(parameters / result.estimate.parameters) == (2 if dtype == "bf16" else 4)


def test_whoever_loads_the_model_decides_what_an_unsaid_dtype_is() -> None:
    """The file, with transformers: the checkpoint's dtype since 5, and fp32 before, which is taken for both."""
    setting = read(BASE + MODEL.format("") + TUNED.format("model", "")).settings["training.precision.params"]
    assert setting.assumed
    assert "transformers 4" in setting.why


def test_a_base_that_the_file_prepares_has_its_norms_and_embeddings_cast() -> None:
    """TRL casts nothing itself, and leaves what was cast before."""
    loaded = MODEL.format(", quantization_config=BitsAndBytesConfig(load_in_4bit=True)")
    key = "training.options.prepare_model_for_kbit_training"
    for more, prepared in (("", False), ("model = prepare_model_for_kbit_training(model)\n", True)):
        assert values(BASE + loaded + more + TUNED.format("model", ""))[key] is prepared


UNKNOWN = {
    "another branch": ("if go():\n    B = 1\nelse:\n    B = 4", "B", "the `if` on line 5"),
    "a file": ("import json\nB = json.load(open('c.json'))['b']", "B", "--micro-batch-size"),
    "an option that is needed": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--b', required=True)\nB = p.parse_args().b",
        "B",
        "give the launch line",
    ),
    "a loop": ("for b in sizes():\n    B = b", "B", "the loop on line"),
}


@pytest.mark.parametrize(("code", "name", "said"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_only_a_run_gives_is_asked_for(code: str, name: str, said: str) -> None:
    """Never a default in its place."""
    text = asks(
        f"{BASE}{code}\nSFTTrainer('Qwen/Qwen2.5-0.5B', SFTConfig(per_device_train_batch_size={name})).train()\n"
    )
    assert said in text
    assert "found: SFTTrainer" in text


def test_rows_that_the_tokenizer_cuts_shorter_are_a_note() -> None:
    """Of rows that come as tokens, TRL's own limit cuts nothing more."""
    code = (
        f"rows = data.map(lambda each: tokenizer(each['text'], truncation=True, max_length=512))\n{MODEL.format('')}"
        "SFTTrainer(model, SFTConfig(per_device_train_batch_size=1), train_dataset=rows).train()\n"
    )
    found = read(BASE + code)
    assert values(BASE + code)["training.sequence_length"] == 1024
    assert any("cuts rows at 512 tokens" in each.message for each in found.notes)


def test_a_model_that_is_a_default_is_a_placeholder() -> None:
    """The launch line says which model it is."""
    code = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--model', default='facebook/opt-125m')\n"
        "o = p.parse_args()\nSFTTrainer(o.model, SFTConfig(per_device_train_batch_size=1)).train()\n"
    )
    assert "give the launch line" in asks(BASE + code)
    alone = code.replace("default='facebook/opt-125m'", "default=None")
    assert "give the launch line" in asks(BASE + alone.replace("SFTTrainer(o.model", "SFTTrainer(o.model or 'gpt2'"))
    chosen = code.replace("default='facebook/opt-125m'", "default='s'").replace("SFTTrainer(o.model", "SFTTrainer(m")
    for pick in ("m = {'s': 'gpt2'}[o.model]\n", "if o.model == 's':\n    m = 'gpt2'\nelse:\n    m = 'gpt2-xl'\n"):
        assert "give the launch line" in asks(BASE + chosen.replace("SFTTrainer(m", f"{pick}SFTTrainer(m"))
    assert values(BASE + code, model="Qwen/Qwen2.5-0.5B")["model.name"] == "Qwen/Qwen2.5-0.5B"


def test_the_launch_line_is_read_with_the_script_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options go before the script's defaults, its launcher says the GPUs, and other options are refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        BASE
        + "import argparse\np = argparse.ArgumentParser()\np.add_argument('--model', default='facebook/opt-125m')\n"
        "p.add_argument('--rows-at-once', type=int, default=1)\no = p.parse_args()\n"
        "SFTTrainer(o.model, SFTConfig(per_device_train_batch_size=o.rows_at_once)).train()\n"
    )
    line = "torchrun --nproc_per_node 2 mine.py --model Qwen/Qwen2.5-0.5B --rows-at-once 4\n"
    found = {key: each.value for key, each in read(line, name="launch.sh").settings.items()}
    assert (found["model.name"], found["training.micro_batch_size"]) == ("Qwen/Qwen2.5-0.5B", 4)
    assert found["hardware.gpus_per_node"] == 2
    (problem,) = read(line.replace("--rows-at-once", "--rows"), name="launch.sh").problems
    assert "has no such option" in problem.message
    (tmp_path / "spread.py").write_text(BASE + MODEL.format(", device_map='auto'") + TUNED.format("model", ""))
    for processes, refused in (1, False), (2, True):
        started = read(f"torchrun --nproc_per_node {processes} spread.py\n", name="launch.sh")
        assert any("accelerate refuses several processes" in each.message for each in started.problems) == refused
    (tmp_path / "jobs").mkdir()
    (tmp_path / "mine.py").rename(tmp_path / "jobs" / "mine.py")
    for start in ("python ", "python ./", f"python {tmp_path}/"):
        below = f"{start}jobs/mine.py --model Qwen/Qwen2.5-0.5B --rows-at-once 4\n"
        assert read(below, name="launch.sh").settings["training.micro_batch_size"].value == 4


def test_a_script_on_the_disk_goes_before_the_names_of_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of TRL's names prove no TRL script, unless the script hands TRL's dataclasses to its parser."""
    monkeypatch.chdir(tmp_path)
    named = "--model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2 --max_length 512"
    line = f"torchrun --nproc_per_node 1 sft.py {named}\n"
    trains = BASE + MODEL.format("") + TUNED.format("model", "")
    (tmp_path / "sft.py").write_text(trains)
    found = read(line, name="launch.sh")
    own = values(trains)
    assert {key: found.settings[key].value for key in ("model.name", "training.micro_batch_size")} == {
        key: own[key] for key in ("model.name", "training.micro_batch_size")
    }
    assert sum("reads no options" in each.message for each in found.notes) == 3
    parsed = (
        "from trl import TrlParser\nscript, args = TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()\n"
    )
    (tmp_path / "sft.py").write_text(trains + parsed)
    assert read(line, name="launch.sh").settings["training.micro_batch_size"].value == 2


def test_names_of_a_library_whose_star_is_imported() -> None:
    """Classes of transformers and PEFT are known without an import of their own; other names are not."""
    starred = "from transformers import *\nfrom peft import *\nfrom trl import SFTConfig, SFTTrainer\n"
    code = starred + (
        "m = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', quantization_config="
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4'))\nm = get_peft_model(m, LoraConfig(r=8))\n"
        "SFTTrainer(m, SFTConfig(per_device_train_batch_size={})).train()\n"
    )
    assert values(code.format(2))["training.method"] == "qlora"
    assert "per_device_train_batch_size" in asks(code.format("BATCH"))


def test_a_release_below_four_is_the_trainer_s() -> None:
    """``--framework-version 0.24`` of a script is no transformers."""
    assert release_key("python", "0.24", "huggingface") == "training.trainer.version"
    assert release_key("python", "4.57", "huggingface") == "training.framework_version"


def test_what_is_asked_for_ends_the_question() -> None:
    """Each option once, a value that is taken, and the option that the file itself has for its model."""
    code = (
        BASE + "import argparse\np = argparse.ArgumentParser()\np.add_argument('--model', required=True)\n"
        "p.add_argument('--rows-at-once', type=int, required=True)\no = p.parse_args()\n"
        "SFTTrainer(o.model, SFTConfig(per_device_train_batch_size=o.rows_at_once)).train()\n"
    )
    printed = "memcheck check --gpu a100-80gb -- python train.py --model llama-3.1-8b --rows-at-once VALUE"
    assert printed in asks(code)
    gpu = import_config(
        "train.py",
        (
            BASE
            + "b = torch.cuda.is_bf16_supported()\n"
            + TUNED.format(NAMED, "").replace("bf16=True", "bf16=b, fp16=not b")
        ).encode(),
        {},
    ).problems
    assert gpu[0].help.count("--gpu") == 1
    unknown = asks(BASE + TUNED.format(NAMED, ", optim='rmsprop'"))
    assert "--set training.optimizer=adamw" in unknown
    assert "VALUE" not in unknown
    placed = read(BASE + MODEL.format(", device_map={'': 0}") + TUNED.format("model", ""))
    assert not any("device_map" in each.message for each in placed.notes)


def test_several_jobs_are_named_and_one_is_asked_for() -> None:
    """The line of its trainer says which."""
    code = "a = SFTConfig(per_device_train_batch_size={})\nSFTTrainer('Qwen/Qwen2.5-0.5B', a).train()\n"
    two = BASE + code.format(1) + code.format(2)
    assert "the file trains 2 jobs (line 6: SFTTrainer of Qwen/Qwen2.5-0.5B; line 8" in asks(two)
    assert values(two, job="8")["training.micro_batch_size"] == 2
    assert values(BASE + code.format(3) * 2)["training.micro_batch_size"] == 3


NO_JOBS = {
    "a loop": "import torch\nloss.backward()\n",
    "a library": "from transformers import Trainer\nclass Mine(Trainer):\n    pass\n",
    "a set-up script": "from setuptools import setup\nsetup()\n",
    "diffusion": "import diffusers\nname = 'stabilityai/stable-diffusion-xl-base-1.0'\n",
    "a rollout": "from trl import GRPOTrainer\nGRPOTrainer(model='Qwen/Qwen2.5-0.5B').train()\n",
    "the cpu": BASE
    + "Trainer(model=AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', device_map='cpu')).train()\n",
    "images": "from transformers import Trainer, ViTForImageClassification as V\nTrainer(model=V.from_pretrained('google/vit'))\n",
}


@pytest.mark.parametrize("code", NO_JOBS.values(), ids=NO_JOBS.keys())
def test_what_is_no_job_is_refused_with_its_reason(code: str) -> None:
    """It is never estimated."""
    (result,), traces = check_file(
        "train.py", code.encode(), Gate(hardware={"gpu": "h100-80gb", "sequence_length": 512})
    )
    assert (result.estimate, traces) == (None, [])
    assert "read and not run" in result.findings[0].message
    assert "diffusers" not in code or "no model's name" not in result.findings[0].help


def notebook(*cells: str, picture: int = 0) -> str:
    """A notebook as Jupyter writes it, with one picture among its outputs."""
    made = [
        {
            "cell_type": "code",
            "source": cell.splitlines(keepends=True),
            "outputs": [{"data": {"image/png": base64.b64encode(b"p" * picture).decode()}}] if picture else [],
        }
        for cell in cells
    ]
    return json.dumps(
        {"cells": [{"cell_type": "markdown", "source": ["trainer.train()"]}, *made], "nbformat": 4}, indent=1
    )


def test_a_notebook_is_read_by_its_code_alone() -> None:
    """Cells in order, without magics, shell commands and other languages; places are lines of the file."""
    text = notebook(
        "%%bash\npip install trl \\\n  peft",
        "!pip install x \\\n  y\n%matplotlib inline\nB = 4\nfiles = !ls",
        SHORT.replace("=2", "=B"),
    )
    found = read(text, name="train.ipynb")
    assert found.problems == ()
    setting = found.settings["training.micro_batch_size"]
    assert setting.value == 4
    assert setting.location is not None
    assert "B = 4" in text.split("\n")[setting.location.span.line - 1]


def test_a_large_notebook_takes_no_second() -> None:
    """Pictures are passed over."""
    text = notebook(*[SHORT] * 3, picture=2_500_000)
    assert len(text) > 10_000_000
    started = time.process_time()
    assert read(text, name="train.ipynb").settings["training.micro_batch_size"].value == 2
    assert time.process_time() - started < 1.0


HOSTILE = {
    "a text that doubles": "x = 'a'\n" + "x = x + x\n" * 300,
    "a list that doubles": "x = [1]\n" + "x = x + x\n" * 300,
    "a list of lists that doubles": "x = [1]\n" + "x = [x, x]\n" * 60 + "y = f'{x}'\n",
    "a mapping that holds itself": "x = {}\nx['a'] = x\nx['b'] = x\ny = f'{x}'\nz = {**x}\n",
    "powers": "x = 9 ** 9 ** 9 ** 9\ny = 1 << 10 ** 9\nz = 'a' * 10 ** 9\n",
    "a function that calls itself": "def f(n):\n    return f(n) + f(n)\nf(1)\n",
    "calls that double": "".join(f"def f{n}():\n    f{n - 1}()\n    f{n - 1}()\n" for n in range(1, 60)) + "f59()\n",
    "deep brackets": "x = " + "(" * 5000 + ")" * 5000 + "\n",
    "many signs": "x = " + "-" * 50_000 + "1\n",
    "a long sum": "x = " + "+".join("1" * 20_000) + "\n",
    "deep conditions": "".join(" " * n + "if go():\n" for n in range(90)) + " " * 90 + "x = 1\n",
    "open text": "x = '''" + "(" * 100_000,
    "classes in a circle": "class A(B):\n    x: int = 1\nclass B(A):\n    y: int = 2\nclass A(B):\n    z: int = 1\nA()\n",
    "dictionaries in themselves": "d = {}\nd['a'] = d\nSFTConfig(**d)\n",
    "names that are no text": (
        "a = SFTConfig()\nvars(a)[True] = 1\nl = LoraConfig()\nvars(l)[2] = 1\n"
        "SFTTrainer('Qwen/Qwen2.5-0.5B', a, peft_config=l).train()\n"
    ),
    "escapes": "x = '\\x1b[31m'\nSFTTrainer(model=x, args=SFTConfig(output_dir=x))\n",
    "effects": "import os\nos.system('touch ran')\nopen('ran', 'w')\n__import__('os').mkdir('ran')\n",
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_code_ends_in_an_answer(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bounded time, with nothing run."""
    monkeypatch.chdir(tmp_path)
    started = time.process_time()
    (result,), traces = check_file("train.py", (code + SHORT).encode(), Gate(hardware={"gpu": "a100-80gb"}))
    assert traces == []
    assert all(len(each.message) < 2000 for each in result.findings)
    assert time.process_time() - started < 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["{", "[" * 5000, '{"cells": [' * 3000, '{"cells": [{"cell_type": "code", "source": ["\\ud800"]}]}']
)
def test_a_broken_notebook_is_named(text: str) -> None:
    """What is no notebook has no code."""
    with pytest.raises(ConfigError, match="read and not run"):
        read(text, name="train.ipynb")


def test_a_notebook_with_an_open_text_takes_no_time() -> None:
    """The last quote of a broken notebook is missing, after escapes and long runs."""
    start = time.process_time()
    broken = '{"cells": [{"cell_type": "code", "source": ["' + "a = 1; b\\\\n" * 20_000
    with pytest.raises(ConfigError):
        import_config("job.ipynb", broken.encode(), {})
    assert time.process_time() - start < 2
