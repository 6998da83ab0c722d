from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.pod_logs import COUNT_SECONDS, MAX_SAME, Alarms


def alarm(number: int) -> LogLine:
    return LogLine(f"worker-{number}", f"error: rank {number} lost 0x{number:x}f")


def test_of_the_same_line_of_many_pods_the_first_are_shown_and_the_others_counted() -> None:
    now = [0.0]
    alarms = Alarms(lambda: now[0])
    assert sum(alarms.accept(alarm(number)) for number in range(1000)) == MAX_SAME
    assert alarms.accept(LogLine("worker-5", "error: something else"))
    assert list(alarms.counted()) == []
    now[0] = COUNT_SECONDS
    (counted,) = alarms.counted()
    assert counted.pod == "worker-999"
    assert f"and {999 - MAX_SAME} more" in counted.text
    assert alarms.accept(alarm(1))


def test_what_was_counted_is_shown_before_the_end() -> None:
    alarms = Alarms()
    for number in range(MAX_SAME + 1):
        alarms.accept(alarm(number))
    assert [line.pod for line in alarms.counted(is_end=True)] == [f"worker-{MAX_SAME}"]
