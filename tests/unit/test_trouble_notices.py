"""What a job waits for is one line of the log, no matter how many pods wait for it."""

from kubetrain_components.jobs.following import REPEAT_SECONDS, TroubleNotices
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_logs import important_lines
from kubetrain_components.jobs.job_state import JobHandle, JobState, LogLine, Phase
from kubetrain_components.jobs.troubles import Trouble, TroubleKind

WAITING = JobState(handle=JobHandle(kind=JobKind.PYTORCH_JOB, name="j", uid="1"), phase=Phase.PENDING)


class Log:
    def __init__(self) -> None:
        self.now = 0.0
        self._notices = TroubleNotices(lambda: self.now)

    def see(self, *troubles: Trouble, seconds: float = 0.0) -> list[LogLine]:
        self.now += seconds
        return list(self._notices.due(JobState(**{**vars(WAITING), "troubles": troubles})))


def trouble(kind: TroubleKind, subject: str = "worker-0", evidence: str = "evidence") -> Trouble:
    return Trouble(kind=kind, subject=subject, evidence=evidence)


def test_pods_that_wait_for_the_same_reason_are_one_line() -> None:
    log = Log()
    waiting = [trouble(TroubleKind.UNSCHEDULABLE, f"worker-{index}") for index in range(150)]
    assert log.see(*waiting) == []
    (line,) = log.see(*waiting, seconds=1)
    assert (line.pod, waiting[0].notice in line.text) == ("worker-0", True)
    assert "149 more pods" in line.text
    assert log.see(*waiting, seconds=3600) == []


def test_pods_that_come_one_after_the_other_are_a_few_lines() -> None:
    log, lines = Log(), []
    for count in range(1, 151):
        waiting = [trouble(TroubleKind.UNSCHEDULABLE, f"worker-{index}") for index in range(count)]
        lines += log.see(*waiting, seconds=0.1)
    lines += log.see(*waiting, seconds=REPEAT_SECONDS)
    assert len(lines) == 3


def test_a_trouble_that_goes_away_at_once_is_not_mentioned() -> None:
    log = Log()
    assert log.see(trouble(TroubleKind.IMAGE_PULL)) == log.see(seconds=0.5) == log.see(seconds=9) == []


def test_a_trouble_that_comes_back_is_mentioned_again() -> None:
    log, quota = Log(), trouble(TroubleKind.QUOTA)
    for _ in range(3):
        assert log.see(quota, seconds=REPEAT_SECONDS) == []
        assert len(log.see(quota, seconds=1)) == 1
        assert log.see(trouble(TroubleKind.QUOTA, evidence="the same in other words"), seconds=REPEAT_SECONDS) == []
        assert log.see() == []


def test_each_kind_is_a_line_of_its_own() -> None:
    log = Log()
    several = [trouble(TroubleKind.QUOTA), trouble(TroubleKind.NODE), trouble(TroubleKind.NODE, "worker-1")]
    log.see(*several)
    assert ["1 more pod," in line.text for line in log.see(*several, seconds=1)] == [False, True]


def test_an_explanation_of_the_queue_is_not_held_back() -> None:
    log, queue = Log(), trouble(TroubleKind.QUEUE, "the job", "Kueue's queue q")
    explained = trouble(TroubleKind.QUEUE, "the job's Workload", "Kueue's queue q: insufficient quota")
    log.see(queue)
    assert len(log.see(queue, seconds=1)) == 1
    log.see(explained, seconds=1)
    assert "insufficient quota" in log.see(explained, seconds=1)[0].text


def test_a_trouble_that_waiting_does_not_remove_is_told_with_its_remedy() -> None:
    log, hopeless = Log(), trouble(TroubleKind.NEVER_ADMITTED, "the job", "Kueue's queue q: it does not exist")
    log.see(hopeless)
    (line,) = log.see(hopeless, seconds=5)
    assert line.text.endswith(f"(Kueue's queue q: it does not exist): {TroubleKind.NEVER_ADMITTED.value.remedy}")


def test_what_pods_wait_for_is_shown_even_if_other_lines_are_only_rank_0s() -> None:
    log, away = Log(), trouble(TroubleKind.UNSCHEDULABLE, "worker-7")
    shown: list[LogLine] = []
    log.see(away)
    for line in log.see(away, seconds=1):
        important_lines("master-0", shown.append)(line)
    assert [line.pod for line in shown] == ["worker-7"]


def test_an_operator_has_a_minute_to_take_up_a_job() -> None:
    log, away = Log(), trouble(TroubleKind.OPERATOR, "the job")
    assert log.see(away) == log.see(away, seconds=59) == []
    assert "its operator" in log.see(away, seconds=1)[0].text
