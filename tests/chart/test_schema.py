"""Wrong values are refused by the schema, with the field's name; what differs from the defaults for a reason passes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chart.charts import Helm, Refused

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a key that is misspelt": ({"replica": 3}, "", "'replica' not allowed"),
    "a key that is misspelt in a section": ({"crds": {"instal": True}}, "/crds", "'instal' not allowed"),
    "a section that is a flag": ({"crds": True}, "/crds", "want object"),
    "a number as text": ({"replicas": "2"}, "/replicas", "want integer"),
    "too many replicas": ({"replicas": 6}, "/replicas", "maximum"),
    "half a replica": ({"replicas": 1.5}, "/replicas", "want integer"),
    "a flag as text": ({"rbac": {"create": "yes"}}, "/rbac/create", "want boolean"),
    "a namespace as text": ({"namespaces": "a"}, "/namespaces", "want array"),
    "a namespace in capitals": ({"namespaces": ["Team-A"]}, "/namespaces/0", "does not match pattern"),
    "a namespace twice": ({"namespaces": ["a", "a"]}, "/namespaces", "are equal"),
    "a tag with the repository": ({"image": {"tag": "kvserving/operator:1"}}, "/image/tag", "does not match pattern"),
    "half a digest": ({"image": {"digest": "sha256:12"}}, "/image/digest", "does not match pattern"),
    "a pull policy that does not exist": (
        {"image": {"pullPolicy": "Sometimes"}},
        "/image/pullPolicy",
        "must be one of",
    ),
    "a repository with its tag": ({"image": {"repository": "kvserving/operator:1"}}, "/image/repository", "pattern"),
    "a section that is taken away": ({"image": None}, "", "missing property 'image'"),
    "a number that is taken away": ({"operator": {"workers": None}}, "/operator", "missing property 'workers'"),
    "a flag that is taken away": ({"crds": {"install": None}}, "/crds", "missing property 'install'"),
    "a name that is taken away": ({"monitoring": {"namespace": None}}, "/monitoring", "missing property 'namespace'"),
    "ports that are taken away, and with them the bound": (
        {"networkPolicy": {"apiserver": {"ports": None}}},
        "/networkPolicy/apiserver",
        "missing property 'ports'",
    ),
    "the name of the pod, by which replicas are told apart": (
        {"extraEnv": [{"name": "POD_NAME", "value": "x"}]},
        "/extraEnv/0",
        "'not' failed",
    ),
    "a pull secret as text": ({"imagePullSecrets": ["registry"]}, "/imagePullSecrets/0", "want object"),
    "a log level that does not exist": ({"operator": {"logLevel": "trace"}}, "/operator/logLevel", "must be one of"),
    "no worker": ({"operator": {"workers": 0}}, "/operator/workers", "minimum"),
    "a flag of the operator as a key": ({"operator": {"resync": 5}}, "/operator", "'resync' not allowed"),
    "a resource that is misspelt": ({"resources": {"limit": {}}}, "/resources", "'limit' not allowed"),
    "an amount that is none": ({"resources": {"limits": {"memory": "1 GB"}}}, "/resources/limits/memory", "pattern"),
    "a label that is a number": ({"podLabels": {"tier": 1}}, "/podLabels/tier", "want string"),
    "a label with a space": ({"commonLabels": {"team": "a b"}}, "/commonLabels/team", "does not match pattern"),
    "a toleration that is misspelt": ({"tolerations": [{"keys": "x"}]}, "/tolerations/0", "'keys' not allowed"),
    "affinity to nothing": ({"affinity": {"podAfinity": {}}}, "/affinity", "'podAfinity' not allowed"),
    "a spread without a key": (
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
        "/topologySpreadConstraints/0",
        "missing property 'topologyKey'",
    ),
    "a variable as a map": ({"extraEnv": {"HTTPS_PROXY": "x"}}, "/extraEnv", "want array"),
    "a security field that is misspelt": (
        {"securityContext": {"readOnlyRootFileSystem": True}},
        "/securityContext",
        "'readOnlyRootFileSystem' not allowed",
    ),
    "a port that is none": (
        {"networkPolicy": {"apiserver": {"ports": [70000]}}},
        "/networkPolicy/apiserver/ports/0",
        "maximum",
    ),
    "an address without a mask": (
        {"networkPolicy": {"apiserver": {"cidrs": ["10.0.0.1"]}}},
        "/networkPolicy/apiserver/cidrs/0",
        "does not match pattern",
    ),
    "a monitor that does not exist": ({"monitoring": {"monitor": "both"}}, "/monitoring/monitor", "must be one of"),
    "rules by a flag": ({"monitoring": {"rules": {"create": True}}}, "/monitoring/rules/create", "want string"),
    "an interval without a unit": (
        {"monitoring": {"interval": "30"}},
        "/monitoring/interval",
        "does not match pattern",
    ),
}

RIGHT: dict[str, dict[str, Any]] = {
    "one namespace": {"namespaces": ["team-a"]},
    "an image of one's own registry": {
        "image": {"repository": "registry.example:5000/a/b", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "a node of its own": {
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"key": "a.b/c", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        "priorityClassName": "system-cluster-critical",
    },
    "a proxy": {
        "extraEnv": [
            {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b", "optional": True}}},
        ],
        "networkPolicy": {"extraEgress": [{"ports": [{"port": 3128, "protocol": "TCP"}], "to": []}]},
    },
    "resources by number": {"resources": {"limits": {"cpu": 1, "memory": "1.5Gi"}, "requests": {"cpu": 0.5}}},
    "what may be empty, taken away": {
        "image": {"tag": None, "digest": None},
        "nodeSelector": None,
        "resources": None,
        "podSecurityContext": {"runAsUser": None},
        "topologySpreadConstraints": None,
        "networkPolicy": {"apiserver": {"cidrs": None}},
    },
    "a dependency of another chart": {"global": {"imageRegistry": "x"}, "enabled": True},
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_a_wrong_value_is_refused_with_its_field(helm: Helm, case: str) -> None:
    values, field, words = WRONG[case]
    with pytest.raises(Refused) as refused:
        helm.template(values)
    told = str(refused.value)
    assert f"at '{field}'" in told
    assert words in told


@pytest.mark.parametrize("case", sorted(RIGHT))
def test_a_right_value_is_taken(helm: Helm, case: str) -> None:
    assert helm.template(RIGHT[case])


@pytest.mark.parametrize(
    ("lease", "words"),
    [
        ({"durationSeconds": 10, "renewDeadlineSeconds": 10}, "renewDeadlineSeconds must be less"),
        (
            {"renewDeadlineSeconds": 12, "retryPeriodSeconds": 10},
            "must be more than 1.2 times lease.retryPeriodSeconds",
        ),
    ],
)
def test_times_that_the_operator_would_refuse_are_refused_before(helm: Helm, lease: dict[str, int], words: str) -> None:
    with pytest.raises(Refused, match=words):
        helm.template({"lease": lease})
