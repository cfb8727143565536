"""Runs a script in its own Python up to its trainer, and writes down what the trainer was given (``memcheck run``).

The program runs as a file, in an environment that may lack memcheck: it needs nothing but this folder and the standard
library. Models are built on the meta device, which holds no numbers, and data sets and tokenizers that are not at hand
are replaced by objects that answer everything. The script ends where it makes its trainer.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

TRAINERS = ("SFTTrainer", "DPOTrainer", "RewardTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer", "GRPOTrainer")
"""TRL's trainers: they prepare the data themselves, so that each of them is a place to stop."""
DATA = ("load_dataset", "load_from_disk", "load_dataset_builder")


class ReachedTrainer(BaseException):  # no fault of anybody: a script may not catch it by accident
    """The script makes its trainer."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__("the trainer is made")
        self.given = given


class NoData:
    """In place of a data set or a tokenizer: every attribute, call and item of it is one, too."""

    def __getattr__(self, name: str) -> Any:
        """Anything but what Python itself looks for."""
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return NoData()

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Another :class:`NoData`, for all arguments."""
        return NoData()

    def __getitem__(self, name: Any) -> Any:
        """Another :class:`NoData`, for all keys."""
        return NoData()

    def __setitem__(self, name: Any, value: Any) -> None:
        """Take it, and forget it."""

    def __iter__(self) -> Iterator[Any]:
        """No rows."""
        return iter(())

    def __len__(self) -> int:
        """Enough for a script that refuses an empty set."""
        return 1

    def __contains__(self, name: Any) -> bool:
        """Every column is there."""
        return True

    def __add__(self, other: Any) -> Any:
        """Two texts or two sets in one."""
        return self

    __radd__ = __add__

    def __str__(self) -> str:
        """No text."""
        return ""

    def __int__(self) -> int:
        """A number of tokens that no script minds."""
        return 1

    __index__ = __int__


def own_package(folder: str) -> None:
    """Let modules of this package be imported where it is not installed, without what its ``__init__`` files import."""
    for name, path in (("memcheck", folder), ("memcheck.guard", os.path.join(folder, "guard"))):
        module = types.ModuleType(name)
        module.__path__ = [path]
        module.__dict__["__version__"] = ""
        sys.modules[name] = module


def catalog_config(name: str) -> dict[str, Any] | None:
    """The configuration of a model of memcheck's catalog; None for any other."""
    try:
        from memcheck.catalog.names import find_model

        return dict(find_model(name).config)
    except Exception:  # noqa: BLE001  # an environment without what the catalog needs: the script's own way is taken
        return None


def config_of(name: str, kwargs: dict[str, Any]) -> Any:
    """A model's configuration: a stated one, that of a folder or the cache, the catalog's, or the hub's."""
    from transformers import AutoConfig

    stated = kwargs.get("config")
    if stated is not None:
        return stated
    trust = {"trust_remote_code": True} if kwargs.get("trust_remote_code") else {}
    with suppress(Exception):
        return AutoConfig.from_pretrained(name, local_files_only=True, **trust)
    known = catalog_config(str(name))
    if known is not None:
        kind = known.pop("model_type")
        return AutoConfig.for_model(kind, **known)
    return AutoConfig.from_pretrained(name, **trust)


def built(cls: Any, name: Any, kwargs: dict[str, Any]) -> Any:
    """A model of this class on the meta device, in the dtype that loading would give it."""
    import torch

    config = config_of(str(name), kwargs)
    dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
    own = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    quantized = kwargs.get("quantization_config")
    if isinstance(dtype, str) and dtype != "auto":
        dtype = getattr(torch, dtype.replace("torch.", ""))
    if dtype in (None, "auto"):
        newest = int(version("transformers").partition(".")[0] or 0) >= NEWEST or dtype == "auto"
        dtype = (own or torch.bfloat16) if newest or quantized is not None else torch.float32
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            make = getattr(cls, "from_config", None) or cls._from_config  # transformers' own way
            model = make(config)
    finally:
        torch.set_default_dtype(before)
    model.config.dtype = dtype
    four = kwargs.get("load_in_4bit") or getattr(quantized, "load_in_4bit", False)
    eight = kwargs.get("load_in_8bit") or getattr(quantized, "load_in_8bit", False)
    if quantized is None and (four or eight):
        quantized = {"load_in_4bit": bool(four), "load_in_8bit": bool(eight), "quant_method": "bitsandbytes"}
    if quantized is not None:
        model.config.quantization_config = quantized
        model.is_loaded_in_4bit, model.is_loaded_in_8bit = bool(four), bool(eight)
        model.is_quantized = True
    attention = kwargs.get("attn_implementation")
    if attention:
        with suppress(Exception):
            model.config._attn_implementation_internal = attention  # noqa: SLF001  # what asks for the kernel needs it
    return model


NEWEST = 5
"""transformers' major release from which a model is loaded in its checkpoint's dtype."""


def version(package: str) -> str:
    """The release of a package that is loaded; empty for any other."""
    return str(getattr(sys.modules.get(package), "__version__", ""))


def stop_at(cls: Any) -> None:
    """Make the class's constructor the end of the script."""
    original = cls.__init__
    signature = inspect.signature(original)

    def __init__(self: Any, *given: Any, **named: Any) -> None:  # noqa: N807  # it takes that one's place
        try:
            bound = dict(signature.bind_partial(self, *given, **named).arguments)
        except TypeError:
            bound = {"model": given[0] if given else None, **named}
        raise ReachedTrainer({**bound, **bound.pop("kwargs", {}), "trainer": type(self).__name__})

    cls.__init__ = __init__


def replace_loading() -> None:
    """Build models on the meta device; replace tokenizers and data that are not at hand."""
    import torch
    import transformers

    auto = [getattr(transformers, each) for each in dir(transformers) if each.startswith("AutoModel")]
    for cls in [*auto, transformers.PreTrainedModel]:

        def load(kind: Any, name: Any = None, *given: Any, **named: Any) -> Any:
            return built(kind, name, named)

        cls.from_pretrained = classmethod(load)
    for cls in (transformers.AutoTokenizer, transformers.AutoProcessor, transformers.PreTrainedTokenizerBase):
        cls.from_pretrained = classmethod(_or_nothing(cls.from_pretrained.__func__))
    with suppress(ImportError):
        datasets = import_module("datasets")
        for name in DATA:
            setattr(datasets, name, lambda *given, **named: NoData())
    moved = torch.nn.Module.to

    def to(self: Any, *given: Any, **named: Any) -> Any:
        if not any(each.is_meta for each in self.parameters()):
            return moved(self, *given, **named)
        dtypes = [each for each in (*given, *named.values()) if isinstance(each, torch.dtype)]
        return moved(self, dtypes[0]) if dtypes else self

    torch.nn.Module.to = to
    torch.nn.Module.cuda = lambda self, *given, **named: self.to("cuda")
    _accept_precisions(transformers)


def _or_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """What loads from the cache or a folder alone, and answers with :class:`NoData` where nothing is there."""

    def load(cls: Any, name: Any = None, *given: Any, **named: Any) -> Any:
        try:
            return original(cls, name, *given, **{**named, "local_files_only": True})
        except Exception:  # noqa: BLE001  # whatever is in the way, the script goes on without it
            return NoData()

    return load


def _accept_precisions(transformers: Any) -> None:
    """Let arguments ask for bf16 and fp16 on a machine without a GPU, which refuses them."""
    arguments = transformers.TrainingArguments
    original = arguments.__post_init__

    def checked(self: Any) -> None:
        asked = {name: getattr(self, name) for name in PRECISIONS if getattr(self, name, None)}
        for name in asked:
            setattr(self, name, False)
        original(self)
        for name, value in asked.items():
            setattr(self, name, value)

    arguments.__post_init__ = checked


PRECISIONS = ("bf16", "fp16", "bf16_full_eval", "fp16_full_eval", "tf32")


def job_of(given: dict[str, Any]) -> dict[str, Any]:
    """What the trainer was given, in the words of ``memcheck.guard.live_job``.

    Raises:
        UnreadJobError: it says what memcheck has no model of.
    """
    import transformers

    from memcheck.guard.live_job import read_job

    args = given.get("args")
    model = given.get("model")
    if model is None and callable(given.get("model_init")):
        model = given["model_init"]()
    if isinstance(model, str):
        more = getattr(args, "model_init_kwargs", None) or {}
        model = built(transformers.AutoModelForCausalLM, model, dict(more))
    adapters = given.get("peft_config")
    if adapters is not None:
        import peft

        model = peft.get_peft_model(model, adapters)
    if args is None:
        args = transformers.TrainingArguments(output_dir="memcheck")
    optimizer = (given.get("optimizers") or (None, None))[0]
    found = read_job(model, args, optimizer, None, {}, None)
    return {name: getattr(found, name) for name in found._fields}


def run(words: list[str]) -> None:
    """The script with its arguments, as Python starts it."""
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    runpy.run_path(words[0], run_name="__main__")


def main(out: str, words: list[str]) -> None:
    """Run the script, and write what was found to the file ``out`` as JSON: ``job``, or ``why`` there is none."""
    sys.path[:] = sys.path[1:]  # this folder is no place for the script's imports
    found: dict[str, Any] = {"why": "the script ended, and made no trainer"}
    try:
        import transformers

        stop_at(transformers.Trainer)
        with suppress(ImportError):
            trl = import_module("trl")
            for name in TRAINERS:
                with suppress(Exception):
                    stop_at(getattr(trl, name))
        replace_loading()
        run(words)
    except ReachedTrainer as reached:
        try:
            found = {"trainer": reached.given.get("trainer", ""), "job": job_of(reached.given)}
        except Exception as error:  # noqa: BLE001  # said as the reason
            found = {"trainer": reached.given.get("trainer", ""), "unread": f"{type(error).__name__}: {error}"}
    except SystemExit as ended:
        found = {"why": f"the script ended with exit code {ended.code}, and made no trainer"}
    except Exception as error:  # noqa: BLE001  # said as the reason
        at = _line(error, words[0])
        found = {"why": f"the script failed{at} before its trainer: {type(error).__name__}: {error}"}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(found, file, default=str)


def _line(error: Exception, script: str) -> str:
    """The last line of the script itself that an error went through."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if os.path.basename(trace.tb_frame.f_code.co_filename) == os.path.basename(script):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" on line {line}" if line else ""


if __name__ == "__main__":
    own_package(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    main(sys.argv[1], sys.argv[2:])
