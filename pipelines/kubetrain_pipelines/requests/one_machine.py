"""The settings of a request that apply on this machine, and those that only a cluster uses."""

from kubetrain_components.run.names import find_setting
from kubetrain_components.run.request import Request, by_name, without
from kubetrain_pipelines.requests.say import Say


def for_one_machine(request: Request, say: Say) -> Request:
    """Return the settings that apply here, and say which ones only a cluster uses."""
    elsewhere = [name for name in by_name(request) if find_setting(name).is_on_cluster]
    if elsewhere:
        say(f"only a cluster uses {', '.join(elsewhere)}: no effect on this machine")
    return without(request, elsewhere)
