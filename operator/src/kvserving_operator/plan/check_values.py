"""Checks of single values in a pod template: those with a few choices, bounds, or the form of a name.

Only the fields that people set in templates of engines and that the apiserver checks by value
alone; the table of fields (``check_fields``) says where each stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..api import base
from ..api.fault_words import suggestion
from ..api.faults import Fault
from ..api.types import quoted
from . import check_fields

CHOICES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Container", "imagePullPolicy"): ("Always", "IfNotPresent", "Never"),
    ("Container", "terminationMessagePolicy"): ("FallbackToLogsOnError", "File"),
    ("ContainerPort", "protocol"): ("SCTP", "TCP", "UDP"),
    ("HTTPGetAction", "scheme"): ("HTTP", "HTTPS"),
    ("HostPathVolumeSource", "type"): (
        *("BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"),
        "",
    ),
    ("LabelSelectorRequirement", "operator"): ("DoesNotExist", "Exists", "In", "NotIn"),
    ("NodeSelectorRequirement", "operator"): ("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"),
    ("PodSecurityContext", "fsGroupChangePolicy"): ("Always", "OnRootMismatch"),
    ("PodSpec", "dnsPolicy"): ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    ("PodSpec", "preemptionPolicy"): ("Never", "PreemptLowerPriority"),
    ("SeccompProfile", "type"): ("Localhost", "RuntimeDefault", "Unconfined"),
    ("Toleration", "effect"): ("NoExecute", "NoSchedule", "PreferNoSchedule", ""),
    ("TopologySpreadConstraint", "whenUnsatisfiable"): ("DoNotSchedule", "ScheduleAnyway"),
    ("VolumeMount", "mountPropagation"): ("Bidirectional", "HostToContainer", "None"),
}
"""Fields with a few choices, by type and name."""

_MODES = (0, 0o777)
_IDS = (0, 2**31 - 1)
BOUNDS: Mapping[tuple[str, str], tuple[int, int]] = {
    ("ConfigMapVolumeSource", "defaultMode"): _MODES,
    ("DownwardAPIVolumeSource", "defaultMode"): _MODES,
    ("KeyToPath", "mode"): _MODES,
    ("PodSecurityContext", "fsGroup"): _IDS,
    ("PodSecurityContext", "runAsGroup"): _IDS,
    ("PodSecurityContext", "runAsUser"): _IDS,
    ("PreferredSchedulingTerm", "weight"): (1, 100),
    ("ProjectedVolumeSource", "defaultMode"): _MODES,
    ("SecretVolumeSource", "defaultMode"): _MODES,
    ("SecurityContext", "runAsGroup"): _IDS,
    ("SecurityContext", "runAsUser"): _IDS,
    ("TopologySpreadConstraint", "maxSkew"): (1, 2**31 - 1),
    ("WeightedPodAffinityTerm", "weight"): (1, 100),
}
"""Fields with bounds."""

NAMES = frozenset(
    {
        ("PodSpec", "nodeName"),
        ("PodSpec", "priorityClassName"),
        ("PodSpec", "runtimeClassName"),
        ("PodSpec", "serviceAccountName"),
    }
)
"""Fields that name an object."""

KEYS = frozenset({("PodAffinityTerm", "topologyKey"), ("Toleration", "key")})
"""Fields that are keys of labels."""

_NAME = re.compile(base.NAME_PATTERN)
_KEY = re.compile(base.LABEL_KEY_PATTERN)


def faults(user: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """Faults in single values of ``user``, a template of any form at ``path``; other types are not looked at."""
    for place, value, where in check_fields.values(user, path):
        problem = _problem(place, value)
        if problem is not None:
            yield Fault(where, problem, str(value)[:60])


def _problem(place: tuple[str, str], value: Any) -> str | None:
    if isinstance(value, int):
        least, most = BOUNDS.get(place, (value, value))
        octal = f" (0o{value:o})" if (least, most) == _MODES and value > 0 else ""
        words = "0 to 511, which is 0777" if (least, most) == _MODES else f"{least} to {most}"
        return None if least <= value <= most else f"{value}{octal} is out of bounds: Kubernetes takes {words}"
    if not isinstance(value, str):
        return None
    choices = CHOICES.get(place)
    if choices is not None and value not in choices:
        listed = [choice for choice in choices if choice]
        return f"{quoted(value)} is not one of {', '.join(listed)}{_near(value, listed)}"
    if place in NAMES and (not _NAME.fullmatch(value) or len(value) > 253):
        return f"{quoted(value)} is not {base.PATTERN_WORDS[base.NAME_PATTERN]}"
    if place in KEYS and value and not _KEY.fullmatch(value):
        return f"{quoted(value)} is not {base.PATTERN_WORDS[base.LABEL_KEY_PATTERN]}"
    return None


def _near(value: str, choices: list[str]) -> str:
    hint = suggestion(value, choices)
    return hint if "did you mean" in hint else ""
