"""The time that a process needs for its own part of a step, on a clock that the test moves."""

from collections.abc import Iterator

from kubetrain_trainer.reporting.own_time import OwnTime, StepTimes


class Device:
    """A device that is behind: what the host has noted since `done` is yet to come."""

    now = 0.0
    done = float("inf")

    def mark(self) -> float:
        return self.now

    def has_passed(self, mark: float) -> bool:
        return mark <= self.done

    def seconds(self, began: float, ended: float) -> float:
        assert ended <= self.done, "only what has passed has a time"
        return ended - began


def train(device: Device, own_time: OwnTime, steps: int) -> None:
    """Take steps with 1 s for data, 2 s of computation, 4 s in the exchange and 8 s for the update; 16 s for others."""

    def batches() -> Iterator[int]:
        for number in range(steps):
            device.now += 1
            yield number
        device.now += 32  # the end of an epoch

    for _ in own_time.loading(batches()):
        device.now += 2
        began = device.now
        device.now += 4
        own_time.note_wait(began, device.now)
        device.now += 8
        own_time.end_step()
        device.now += 16


def test_the_first_step_is_left_out() -> None:
    device = Device()
    own_time = OwnTime(device)
    train(device, own_time, steps=1)
    assert own_time.read() == StepTimes()
    assert own_time.read().data_share == 0
    train(device, own_time, steps=1)
    assert own_time.read().data_share == 1 / 15


def test_a_step_lasts_from_asking_for_its_data_to_its_end() -> None:
    device = Device()
    own_time = OwnTime(device)
    train(device, own_time, steps=4)
    assert own_time.read() == StepTimes(steps=3, data=3, waiting=12, total=45)
    assert own_time.read() == StepTimes()
    train(device, own_time, steps=1)
    assert own_time.read() == StepTimes(steps=1, data=1, waiting=4, total=15)


def test_steps_that_the_gpu_has_yet_to_finish_count_later() -> None:
    device = Device()
    own_time = OwnTime(device)
    device.done = 70  # within the third step
    train(device, own_time, steps=4)
    assert own_time.read().steps == 1
    device.done = device.now
    assert own_time.read() == StepTimes(steps=2, data=2, waiting=8, total=30)
