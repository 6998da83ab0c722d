"""Print the results as Markdown."""

from collections.abc import Iterable, Sequence

from bars import Verdict
from peers import OURS
from rounds import Outcome
from scenarios import Scenario


def results_table(outcomes: Sequence[Outcome], scenarios: Sequence[Scenario]) -> str:
    """Return a table with a row per tool and a column per figure."""
    columns = [(scenario, figure) for scenario in scenarios for figure in scenario.columns]
    head = ["", *(f"{scenario.title}: {figure}" for scenario, figure in columns)]
    by_place = {(each.tool, each.scenario.name): each for each in outcomes}
    tools = {each.tool: each.version for each in outcomes if each.costs or each.problem or not each.version}
    rows = [
        [_name(tool, version), *(_cell(by_place[tool, scenario.name], figure) for scenario, figure in columns)]
        for tool, version in tools.items()
    ]
    return _table(head, rows, "-:")


def _name(tool: str, version: str) -> str:
    name = f"{tool} {version}" if version else f"{tool} (not installed)"
    return f"**{name}**" if tool == OURS else name


def _cell(outcome: Outcome, figure: str) -> str:
    if outcome.problem:
        return "failed"
    value = outcome.figures.get(figure)
    return "" if value is None else _number(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def verdicts_table(verdicts: Sequence[Verdict], scenarios: Sequence[Scenario]) -> str:
    titles = {each.name: each.title for each in scenarios}
    words = {True: "yes", False: "**no**", None: "cannot be said"}
    rows = [
        [
            titles[each.bar.scenario],
            each.bar.text,
            "" if each.measured is None else _ratio(each.measured) if each.bar.peer else _number(each.measured),
            words[each.is_met],
        ]
        for each in verdicts
    ]
    return _table(["", "bar", "measured", "met"], rows, "-")


def _ratio(value: float) -> str:
    return f"1/{1 / value:.1f}" if value < 1 else f"{value:.2f}"


def notes(outcomes: Sequence[Outcome]) -> Iterable[str]:
    """Return the conditions under which the figures were measured."""
    for each in outcomes:
        if each.problem:
            yield f"{each.tool} failed in {each.scenario.name}: {each.problem}"
        if each.report.get("unverified"):
            yield f"{each.tool} checked {each.report['unverified']} objects of {each.scenario.name} by size only"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], rule: str) -> str:
    rules = ["-", *(rule for _ in head[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rules, *rows])
