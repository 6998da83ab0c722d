"""What only a GPU can show. `make gpu-check` runs these with the GPU machine's own PyTorch."""

import pytest
import torch
from torch import nn

from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.device_batches import copied, prefetched
from kubetrain_trainer.pytorch_ddp.group import choose_device
from kubetrain_trainer.pytorch_ddp.images.decoded_images import normalize
from kubetrain_trainer.pytorch_ddp.precision import describe_precision, forward
from kubetrain_trainer.pytorch_ddp.staging import Staging
from kubetrain_trainer.pytorch_ddp.timing import GpuClock
from kubetrain_trainer.reporting.own_time import OwnTime, StepTimes
from kubetrain_trainer.settings.config import TrainConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
ALONE = ProcessRole(rank=0, local_rank=0, world_size=1, local_world_size=1)
SIZE = 2**26


def test_a_copy_beside_the_steps_is_of_the_state_before_them() -> None:
    weights = torch.zeros(SIZE, device="cuda")
    staging = Staging()
    for step in range(1, 5):
        copied = staging.copy({"weights": weights})["weights"]
        staging.before_update()
        weights += 1
        staging.wait()
        assert torch.equal(copied, torch.full((SIZE,), step - 1.0))


def test_without_waiting_the_copy_would_be_torn() -> None:
    """Shows that the test above can fail."""
    weights = torch.zeros(SIZE, device="cuda")
    staging = Staging()
    staging.copy({"weights": weights})
    copied = staging.copy({"weights": weights})["weights"]
    weights += 1
    staging.wait()
    assert copied.sum() > 0


def test_statistics_that_the_next_forward_pass_changes_are_copied_before_it() -> None:
    model = nn.BatchNorm1d(2**20, momentum=1.0).cuda()
    inputs = torch.randn(8, 2**20, device="cuda") + 3
    staging = Staging()
    for _ in range(3):
        before = model.running_mean.clone()
        copied = staging.copy(model.state_dict(), changed_by_forward=model.buffers())["running_mean"]
        model(inputs + torch.rand((), device="cuda"))
        staging.wait()
        assert torch.equal(copied, before.cpu())


def test_a_batch_that_is_prefetched_leaves_alone_what_steps_still_read() -> None:
    device = torch.device("cuda:0")
    batches = [(number, torch.full((2**22,), float(number)).pin_memory()) for number in range(8)]
    held = [copied(copying, device) for _, copying in prefetched(batches, device)]
    assert [batch.min() for batch in held] == [batch.max() for batch in held]
    del held  # there is memory for all batches now, and kernels are loaded: for both, the host might wait for the GPU
    torch.cuda.synchronize()
    torch.cuda._sleep(2 * 10**9)
    awake = torch.cuda.Event()
    awake.record()
    read = []
    for _, copying in prefetched(batches, device):
        batch = copied(copying, device)
        read.append((batch.min(), batch.max()))
        del batch, copying  # their memory may be used again, but not before it was read
    assert not awake.query(), "nothing has been read yet"
    assert [(low.item(), high.item()) for low, high in read] == [(number, number) for number in range(8)]


def test_the_time_that_the_gpu_waits_for_its_copies_is_measured_once() -> None:
    weights = torch.zeros(SIZE, device="cuda")
    staging = Staging()
    assert not staging.gpu_stall()
    staging.copy({"weights": weights})
    staging.before_update()
    torch.cuda.synchronize()
    stall = staging.gpu_stall()["checkpoint_gpu_stall_seconds"]
    assert 0 < stall < 5
    assert not staging.gpu_stall()


def test_images_are_normalized_as_on_a_cpu() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(normalize(images.cuda()).cpu(), normalize(images))


def test_models_compute_in_bf16_and_return_fp32() -> None:
    config = TrainConfig(model="digits_cnn", metrics_port=0)
    device = choose_device(config, ALONE)
    assert device.type == "cuda"
    seen = []
    model = nn.Linear(8, 8).cuda()
    model.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    outputs = forward(model, torch.ones(2, 8, device=device), config, device)
    assert (seen, outputs.dtype) == ([torch.bfloat16], torch.float32)
    assert describe_precision(config, device) == "bf16 with TF32"


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_tf32_is_used_if_it_is_set(precision: str) -> None:
    config = TrainConfig(model="digits_cnn", metrics_port=0, precision=precision)
    device = choose_device(config, ALONE)
    one, other = torch.randn(2, 512, 512, dtype=torch.float64)
    product = (one.float().to(device) @ other.float().to(device)).double().cpu()
    error = ((product - one @ other).norm() / (one @ other).norm()).item()
    assert (1e-5 < error < 1e-2) if precision == "tf32" else error < 1e-5


def test_a_clock_of_the_gpu_measures_its_work_without_waiting_for_it() -> None:
    clock = GpuClock()
    own_time = OwnTime(clock)
    for _ in own_time.loading([0]):
        own_time.end_step()  # the first one is left out
    torch.cuda.synchronize()
    for _ in own_time.loading([1]):
        torch.cuda._sleep(10**9)
        began = clock.mark()
        torch.cuda._sleep(10**8)
        own_time.note_wait(began, clock.mark())
        own_time.end_step()
    assert own_time.read() == StepTimes(), "the GPU has yet to do it"
    torch.cuda.synchronize()
    times = own_time.read()
    assert times.steps == 1
    assert 0 < times.data < times.waiting < times.total / 5
