"""Selectors by which pods find those of their own job: kubetrain's pods have other labels than the operator's."""

from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.fields import Fields

NOT_SELECTED = "kubetrain's pods have other labels: to keep them near each other, set together"


def drop_own_selectors(draft: Draft, pod: Fields) -> None:
    """Leave out selectors of the job's pods, which would select none. Topology spread has one of kubetrain's."""
    for constraint in pod.items("topologySpreadConstraints"):
        if _selects_own(draft, constraint.at("labelSelector")):
            constraint.drop("labelSelector")
    affinity = pod.at("affinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        for strength in list(affinity.at(kind).content):
            _drop_terms(draft, affinity.at(kind), strength)
        affinity.drop_if(kind, {})


def _drop_terms(draft: Draft, owner: Fields, strength: str) -> None:
    terms = owner.items(strength)
    own = [each for each in terms if any(_selects_own(draft, selector) for selector in _selectors(each))]
    draft.unmapped += [Unmapped.of(each.path, each.content, NOT_SELECTED) for each in own]
    owner.content[strength] = [each.content for each in terms if each not in own]
    owner.drop_if(strength, [])


def _selectors(term: Fields) -> tuple[Fields, Fields]:
    return term.at("labelSelector"), term.at("podAffinityTerm.labelSelector")


def _selects_own(draft: Draft, selector: Fields) -> bool:
    """Return True for a label whose value is the job's name, unless the template sets it."""
    wanted = list(selector.get("matchLabels", dict, {}).items())
    for each in selector.items("matchExpressions"):
        wanted += [(str(each.content.get("key")), value) for value in each.get("values", list, [])]
    labels = draft.settings.get("labels", {})
    return any(value == draft.job != "" and labels.get(name) != value for name, value in wanted)
