"""Launch scripts of every kind in any size."""

from __future__ import annotations

from collections.abc import Callable

from tests.hostile.grown import CHECK, Kind, each, script, sourced

_LINES: dict[str, tuple[int, Callable[[int], str]]] = {
    "comments": (2000, lambda count: "# a comment\n" * count),
    "variables": (1000, lambda count: each(count, "A{0}=1\n")),
    "variables of variables": (1000, lambda count: "A0=1\n" + "".join(f"A{n}=$A{n - 1}\n" for n in range(1, count))),
    "ifs": (500, lambda count: each(count, 'if [ "$A" = {0} ]; then\n  B=1\nfi\n')),
    "nested ifs": (500, lambda count: 'if [ "$A" = 1 ]; then\n' * count + "B=1\n" + "fi\n" * count),
    "nested ifs that are known": (500, lambda count: "A=1\n" + 'if [ "$A" = 1 ]; then\n' * count + "fi\n" * count),
    "nested ifs with else": (
        400,
        lambda count: 'if [ "$A" = 1 ]; then\nB=1\nelse\n' * count + "B=1\n" + "fi\n" * count,
    ),
    "one if with many branches": (
        500,
        lambda count: "if [ $A = x ]; then B=1\n" + each(count, "elif [ $A = {0} ]; then\nB={0}\n") + "fi\n",
    ),
    "ifs in a line": (500, lambda count: "if [ a = b ]; then X=1; fi; " * count + "\n"),
    "a case": (500, lambda count: "case $A in\n" + each(count, "  x{0}) B=1 ;;\n") + "esac\n"),
    "nested cases": (300, lambda count: "case $A in\nx)\n" * count + "esac\n" * count),
    "loops": (500, lambda count: each(count, "for i in 1 2; do\n  echo $i\ndone\n")),
    "nested loops": (500, lambda count: "for i in 1 2; do\n" * count + "done\n" * count),
    "functions": (500, lambda count: each(count, "f{0}() {\n  echo 1\n}\n")),
    "arrays": (300, lambda count: each(count, "A{0}=(\n  --a{0} 1\n)\n")),
    "an array": (1000, lambda count: "A=(\n" + each(count, "  --a{0} 1\n") + ")\n"),
    "arrays that are used": (300, lambda count: "A=(--x 1)\n" + "python x.py ${A[@]}\n" * count),
    "arguments in a variable": (300, lambda count: each(count, 'A{0}="--a{0} 1"\n')),
    "arguments that are added": (300, lambda count: each(count, 'A+=" --a{0} 1"\n')),
    "arguments that are unset in branches": (
        100,
        lambda count: f'A="{each(count, "--a{0}", " ")}"\nif $B; then\n' + "A=2\n" * (count // 10) + "fi\n",
    ),
    "documents of its own": (200, lambda count: each(count, "cat > f{0}.json <<EOF\n{}\nEOF\n")),
    "documents without an end": (500, lambda count: each(count, "cat > f{0}.json <<EOF{0}\n")),
    "arithmetic": (500, lambda count: "A=8\n" + each(count, "B{0}=$((A * 2 / 4))\n")),
    "arithmetic in a line": (500, lambda count: "A=8\nB=1" + "$((A * 2))" * count + "\n"),
    "tests": (500, lambda count: each(count, "[ -z $A ] && B{0}=1\n")),
    "tests in a line": (500, lambda count: "[ a ] && " * count + "X=1\n"),
    "defaults": (500, lambda count: each(count, ': "${A{0}:=1}"\n')),
    "defaults of defaults": (300, lambda count: "X=" + "${A:-" * count + "1" + "}" * count + "\n"),
    "exports": (500, lambda count: each(count, "export A{0}=1\n")),
    "exports in a line": (500, lambda count: "export " + each(count, "A{0}=1 ") + "\n"),
    "folders": (300, lambda count: each(count, 'D{0}=$(cd "$(dirname "$0")" && pwd)\n')),
    "what Slurm is asked for": (500, lambda count: "#SBATCH --nodes=2\n" * count),
    "lines that go on": (1000, lambda count: "echo \\\n" + "  a \\\n" * count + "  b\n"),
    "arguments on lines that go on": (
        300,
        lambda count: "python x.py \\\n" + each(count, "  --a{0} 1 \\\n") + "  --b 1\n",
    ),
    "arguments in a line": (300, lambda count: "python x.py " + each(count, "--a{0} 1 ") + "\n"),
    "words in a line": (1000, lambda count: "python x.py " + each(count, "a{0} ") + "\n"),
    "overrides": (300, lambda count: "tune run x --config y " + each(count, "a{0}=1 ") + "\n"),
    "overrides on lines": (300, lambda count: "tune run x --config y \\\n" + each(count, "  a{0}=1 \\\n") + "  b=1\n"),
    "jobs": (100, lambda count: each(count, "torchrun x.py --learning_rate {0}\n")),
    "jobs in a line": (100, lambda count: each(count, "torchrun x.py --learning_rate {0}; ") + "\n"),
    "pipes": (500, lambda count: "echo a " + "| cat " * count + "\n"),
    "installers": (300, lambda count: each(count, "pip install a{0} --upgrade\n")),
    "variables that nobody sets": (300, lambda count: each(count, "python x.py $A{0}\n")),
    "variables in a word": (500, lambda count: "A=1\nB=" + "$A" * count + "\n"),
    "scripts that start scripts": (300, lambda count: each(count, "bash run{0}.sh --a 1\n")),
}
"""Lines of a launch script."""
_CHARACTERS = " \"'()$`\\#=;|&<>{}[]-~*?!,:/%@\t.x1"
"""Each of them, repeated on one line."""
_PAIRS = (
    "$(",
    "${",
    "$((",
    "<<",
    ">>",
    "&&",
    "||",
    "[ ",
    "[[ ",
    "{ ",
    "--",
    " -",
    "-a ",
    "--a=",
    "a=",
    "a=(",
    '="',
    "$a",
    "${a}",
    "if ",
    "then ",
    "; fi",
    "case ",
    "do ",
    ") ",
    "\\ ",
    " #",
    "a.py ",
    "bash ",
    "torchrun ",
    "cat <<",
    "A=$(",
    ": ${A:=",
    "$(cd $(dirname ",
)
"""Likewise."""

SCRIPTS: dict[str, Kind] = {
    **{f"script: {name}": (count, script(lines), CHECK) for name, (count, lines) in _LINES.items()},
    **{
        f"script: a line of {text!r}": (4000, script(lambda count, text=text: "x" + text * count + "\n"), CHECK)  # type: ignore[misc]
        for text in (*_CHARACTERS, *_PAIRS)
    },
    "script: jobs of trl": (
        30,
        script(
            lambda count: each(
                count,
                "accelerate launch trl/scripts/sft.py --model_name_or_path meta-llama/Llama-3.1-8B --learning_rate {0}\n",
            ),
            "trl",
            "",
        ),
        CHECK,
    ),
    "script: target modules of trl": (
        500,
        sourced(
            "trl",
            "run.sh",
            lambda count, salt: (
                f"# {salt}\naccelerate launch trl/scripts/sft.py --model_name_or_path gpt2 "
                f"--use_peft --lora_target_modules {each(count, 'm{0} ')}\n"
            ),
        ),
        CHECK,
    ),
    "script: jobs of swift": (
        100,
        script(lambda count: each(count, "swift sft --model Qwen/Qwen2.5-7B --learning_rate {0}\n"), "ms-swift", ""),
        CHECK,
    ),
}
