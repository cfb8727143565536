"""Launch scripts that would grow, nest or repeat without end: read, or refused with a reason, in a few megabytes."""

from __future__ import annotations

import tracemalloc

import pytest

from memcheck.configs.arguments import load_arguments
from memcheck.configs.shell_documents import filled, split_documents
from memcheck.configs.shell_values import LONGEST, MOST, MOST_WORDS, resolved, single
from memcheck.configs.types import ConfigError

JOB = "torchrun --nproc_per_node 8 mine.py --model_name_or_path Qwen/Qwen3-4B --deepspeed ds.json --run_name $X39\n"
DOCUMENT = 'cat > ds.json <<EOF\n{"zero_optimization": {"stage": 3}, "x": "%s"}\nEOF\n'
DOUBLED = "X0=AA\n" + "".join(f"X{i}=$X{i - 1}$X{i - 1}\n" for i in range(1, 40))
SCRIPTS = {
    "variables that double": DOUBLED + DOCUMENT % "$X39" + JOB,
    "a file of one variable": f"X={'A' * 60_000}\n" + DOCUMENT % ("$X" * 60_000) + JOB,
    "a thousand ifs in a line": "if [ a == b ]; then X=1; fi; " * 1000 + "\n" + JOB,
    "a thousand tests in a line": "[ a ] && " * 1000 + "X=1\n" + JOB,
    "defaults of defaults": "X=" + "${A:-" * 600 + "1" + "}" * 600 + "\n" + JOB,
    "files without an end": "cat > a.json <<EOF\n" * 4000 + JOB,
    "thousands of files": "".join(f"cat > a{i}.json <<EOF\n{{}}\nEOF\n" for i in range(3000)) + JOB,
}


@pytest.mark.slow
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=list(SCRIPTS))
def test_a_script_takes_little(text: str) -> None:
    """Many times its own size in memory at most, and no error but one that names it."""
    tracemalloc.start()
    found = load_arguments("run.sh", text)
    found.written("ds.json")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 * 2**20


def test_words_stay_short() -> None:
    """What variables would make long stays as it is written, and so do long lines and files."""
    many = {"A": "a" * MOST}
    assert resolved("$A$A", many) == "$A$A"
    assert resolved("${A}", many) == "a" * MOST
    line = "if [ a ]; then X=1; fi; " + "#" * LONGEST
    assert list(single(line)) == [line]
    _, documents = split_documents("cat > a <<EOF\n" + "$A" * 1000 + "\nEOF\n")
    assert filled(documents["a"], many) == "\n" + "$A" * 1000


GROWING = {
    "a variable twice": ("A0=--num-layers\n", 'A{0}="$A{1} $A{1}"\n', "torchrun x.py $A39\n"),
    "twice in braces": ("A0='--num-layers'\n", 'A{0}="${{A{1}}} ${{A{1}}}"\n', "torchrun x.py ${A39}\n"),
    "added to": ("A0=--num-layers\n", 'A{0}="$A{1}"\nA{0}+=" $A{1}"\n', "torchrun x.py $A39\n"),
    "three times": ("A0=--bf16\n", 'A{0}="$A{1} $A{1} $A{1}"\n', "torchrun x.py $A39\n"),
    "itself": ("A=--bf16\n", 'A="$A $A"\n', "torchrun x.py $A\n"),
}


@pytest.mark.parametrize("kind", GROWING)
def test_variables_that_hold_each_other(kind: str) -> None:
    """All uses of variables together have a budget; the error names the variable that grew, and its line."""
    first, each, job = GROWING[kind]
    text = first + "".join(each.format(number, number - 1) for number in range(1, 40)) + job
    tracemalloc.start()
    with pytest.raises(ConfigError, match=f"{MOST_WORDS:,} words: `A") as found:
        load_arguments("run.sh", text)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 * 2**20
    assert found.value.location is not None
    assert 10 < found.value.location.span.line < 40


def test_long_values_on_many_lines() -> None:
    """Text that variables add is counted as well: each line short, each value long."""
    text = f"A={'x' * 3000}\n" + "".join(f"B{number}=$A.\n" for number in range(50_000)) + JOB
    with pytest.raises(ConfigError, match="characters: `B"):
        load_arguments("run.sh", text)


def test_arguments_that_are_added_one_by_one() -> None:
    """What people write is far below the budget: three hundred arguments, each on a line of its own."""
    text = "".join(f'ARGS="$ARGS --a{number} {number}"\n' for number in range(150))
    text += "".join(f'ARGS+=" --b{number} {number}"\n' for number in range(150)) + "torchrun x.py $ARGS\n"
    assert len(load_arguments("run.sh", text).values) == 300
