"""Plans as tests look at them: objects by kind, containers by role, arguments and variables by name."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from tests.specs import SPECS

from kvserving_operator.api.rules import violations
from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.engines import arguments
from kvserving_operator.plain_yaml import Dumper
from kvserving_operator.plan import workloads
from kvserving_operator.plan.planning import check, plan
from kvserving_operator.plan.types import CLUSTER, Observed, Plan, Site

LOCAL = Site("local")
DATA = Path(__file__).parent / "data"
GOLDEN = Path(__file__).parent / "golden"


def raw_case(name: str) -> dict[str, Any]:
    """The valid case whose file begins with ``name``, such as ``01``."""
    (path,) = (SPECS / "valid").glob(f"{name}*.yaml")
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def serving(spec: Mapping[str, Any], name: str = "qwen") -> KVServing:
    """An object of ``spec``; the model defaults to one whose facts are in the table."""
    full = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, **spec}
    return KVServing.model_validate({"metadata": {"name": name}, "spec": full})


def pair(**spec: Any) -> dict[str, Any]:
    """A spec with both roles, and what else is given."""
    return {"prefill": {"replicas": 1}, "decode": {"replicas": 1}, **spec}


def faults(spec: Mapping[str, Any], **how: Any) -> str:
    """The faults of an object of ``spec``, of rules and plan together, one a line."""
    made = serving(spec)
    plain = {"metadata": {"name": "qwen"}, "spec": {"model": {"uri": "hf://Qwen/Qwen3-8B"}, **spec}}
    return "\n".join(str(fault) for fault in (*violations(plain), *check(made, **how)))


def edited(value: Mapping[str, Any], path: str, new: Any) -> dict[str, Any]:
    """``value`` with the member at a dotted path set; maps on the way are made."""
    result: dict[str, Any] = copy.deepcopy(dict(value))
    at = result
    *parents, last = path.split(".")
    for key in parents:
        at = at.setdefault(key, {})
    at[last] = new
    return result


class Engine:
    """One role's pod: of the leader, where an engine has several."""

    def __init__(self, workload: Mapping[str, Any], template: Mapping[str, Any] | None = None) -> None:
        self.deployment = workload
        self.name: str = workload["metadata"]["name"]
        self.template = workloads.pod_template(workload) if template is None else template
        self.pod: Mapping[str, Any] = self.template["spec"]
        (self.container,) = (c for c in self.pod["containers"] if c["name"] in ("engine", "router"))
        self.args: list[str] = self.container["args"]

    @cached_property
    def env(self) -> dict[str, Any]:
        """Variables: literal values as text, others as their source."""
        return {v["name"]: v["value"] if "value" in v else v["valueFrom"] for v in self.container["env"]}

    def flag(self, name: str) -> str | None:
        """The value of a flag, None where it is absent."""
        return arguments.last_value(self.args, name)

    def flags(self, name: str) -> tuple[arguments.Flag, ...]:
        """Each occurrence of a flag."""
        return arguments.find(self.args, name)

    @cached_property
    def transfer(self) -> dict[str, Any] | None:
        """The connector's settings."""
        found = self.flag("--kv-transfer-config")
        return None if found is None else json.loads(found)

    @property
    def children(self) -> list[dict[str, Any]]:
        """The connectors inside MultiConnector."""
        assert self.transfer is not None
        listed: list[dict[str, Any]] = self.transfer["kv_connector_extra_config"]["connectors"]
        return listed

    def child(self, name: str) -> dict[str, Any]:
        """One connector inside MultiConnector."""
        (found,) = (child for child in self.children if child["kv_connector"] == name)
        return found

    def volume(self, path: str) -> Mapping[str, Any]:
        """The volume mounted at ``path``."""
        (mount,) = (m for m in self.container["volumeMounts"] if m["mountPath"] == path)
        (volume,) = (v for v in self.pod["volumes"] if v["name"] == mount["name"])
        found: Mapping[str, Any] = volume
        return found


class Rendered:
    """A plan with ways to find its parts."""

    def __init__(self, made: Plan) -> None:
        self.plan = made

    def kinds(self) -> set[str]:
        return {o["kind"] for o in self.plan.objects}

    def all(self, kind: str) -> list[Mapping[str, Any]]:
        return [o for o in self.plan.objects if o["kind"] == kind]

    def one(self, kind: str, name: str) -> Mapping[str, Any]:
        (found,) = (o for o in self.all(kind) if o["metadata"]["name"] == name)
        return found

    def role(self, role: str) -> Engine:
        (found,) = (o for o in self.makers() if o["metadata"]["labels"]["kvserving.dev/role"] == role)
        return Engine(found)

    def makers(self) -> list[Mapping[str, Any]]:
        """What makes engines and routers."""
        return [o for kind in workloads.ENGINES for o in self.all(kind)]

    def worker(self, role: str) -> Engine:
        """A further pod of an engine that spans nodes."""
        leader = self.role(role)
        return Engine(leader.deployment, leader.deployment["spec"]["leaderWorkerTemplate"]["workerTemplate"])

    @property
    def prefill(self) -> Engine:
        return self.role("prefill")

    @property
    def decode(self) -> Engine:
        return self.role("decode")

    @property
    def router(self) -> Engine:
        return self.role("router")

    @property
    def engines(self) -> list[Engine]:
        return [
            Engine(o) for o in self.makers() if o["metadata"]["labels"]["kvserving.dev/role"] in ("prefill", "decode")
        ]

    def pods(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every pod template: name of its workload and pod spec."""
        for o in self.plan.objects:
            if o["kind"] in workloads.KINDS:
                yield o["metadata"]["name"], workloads.pod_template(o)["spec"]
            if o["kind"] == "LeaderWorkerSet":
                yield f"{o['metadata']['name']} worker", o["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]


def render(spec: Mapping[str, Any], *, name: str = "qwen", site: Site = CLUSTER, **observed: Any) -> Rendered:
    """The plan of an object of ``spec``."""
    return Rendered(plan(serving(spec, name), site=site, observed=Observed(**observed)))


def case(name: str, site: Site = CLUSTER) -> Rendered:
    """The plan of a valid case."""
    return Rendered(plan(KVServing.model_validate(raw_case(name)), site=site))


def dump(made: Plan) -> str:
    """A plan as text: a header with what is no object, then the objects."""
    head = {
        "revision": made.revision,
        "generatedSecrets": [{"name": s.name, "keys": dict(s.keys)} for s in made.generated_secrets],
        "notices": [{"reason": n.reason.value, "path": n.path, "message": n.message} for n in made.notices],
    }
    plain = [json.loads(json.dumps(part)) for part in (head, *made.objects)]
    return yaml.dump_all(plain, Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)
