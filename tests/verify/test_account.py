"""Storages followed from birth to death."""

from __future__ import annotations

import pytest

from memcheck.verify.compare import RefusedStepError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def tracer():
    """A tracer under fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memcheck.verify.trace.tracer import Tracer

    with FakeTensorMode(), Tracer(lambda: False, lambda phase, module: None) as tracer:
        yield tracer


def test_birth_and_death(tracer) -> None:
    """Blocks of 512 bytes live as long as their storage, views included."""
    account = tracer.account
    x = torch.empty(100)
    assert account.total == 512
    y = torch.empty(129)
    assert account.total == 512 + 1024
    view = x[10:20].t()
    del x
    assert account.total == 512 + 1024
    del view
    assert account.total == 1024
    del y
    assert account.total == 0
    assert account.live == {}


def test_products_of_two_dtypes_are_refused(tracer) -> None:
    """CUDA multiplies no fp32 rows by bf16 weights, whatever a meta function says."""
    with pytest.raises(RefusedStepError, match="same dtype"):
        torch.empty(4, 8) @ torch.empty(8, 4, dtype=torch.bfloat16)


def test_in_place_operators_make_nothing(tracer) -> None:
    """Only new storages count."""
    x = torch.zeros(1024)
    x.add_(1).mul_(2).view(32, 32).t()
    assert tracer.account.total == 4096
    assert tracer.account.operators > 3


def test_storages_that_change_their_size(tracer) -> None:
    """FSDP2 frees and refills storages in place."""
    x = torch.empty(1024)
    x.untyped_storage().resize_(0)
    assert tracer.account.total == 0
    x.untyped_storage().resize_(8192)
    assert tracer.account.total == 8192


def test_highest_point_of_each_phase(tracer) -> None:
    """The peak of a phase is remembered with its operator; a new step starts afresh."""
    tracer.enter("forward")
    x = torch.empty(1024)
    y = torch.empty(2048)
    del y
    tracer.enter("backward")
    z = torch.empty(512)
    tops = tracer.account.tops
    assert tops["forward"].bytes == 4096 + 8192
    assert tops["forward"].words.startswith("empty [2048] fp32")
    assert tops["backward"].bytes == 4096 + 2048
    tracer.account.begin_step()
    assert tracer.account.tops == {}
    assert tracer.account.total == 4096 + 2048
    del x, z


def test_everything_is_put_back() -> None:
    """After a trace torch is what it was, also when the step failed."""
    from torch import nn
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group
    from torch.nn.parallel import distributed
    from transformers import masking_utils

    from memcheck.verify.trace.tracer import Tracer
    from memcheck.verify.trace.world import fake_tensors

    def state() -> list[object]:
        return [
            torch.UntypedStorage.resize_,
            _fsdp_param_group.foreach_reduce,
            distributed._sync_module_states,
            masking_utils.find_packed_sequence_indices,
            torch.utils.checkpoint.CheckpointFunction.backward,
            len(nn.modules.module._global_forward_hooks),
        ]

    before = state()
    inside: list[object] = []

    def step() -> None:
        with fake_tensors(), Tracer(lambda: False, lambda *_: None):
            inside.extend(state())
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        step()
    assert inside != before
    assert state() == before
    assert torch.ones(3).sum().item() == 3


def test_an_interrupt_stops_between_operators() -> None:
    """Ctrl-C becomes KeyboardInterrupt at the next operator."""
    from memcheck.verify.trace.tracer import Tracer

    with pytest.raises(KeyboardInterrupt), Tracer(lambda: True, lambda *_: None):
        torch.empty(1)
