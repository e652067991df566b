"""A small apiserver in memory: enough of server-side apply to test the writer without a process."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tests.control.bodies import fields_of

from kvserving_operator.control.failures import ApiFailure
from kvserving_operator.control.kube import Page
from kvserving_operator.control.permissions import Resource

Json = dict[str, Any]


class FakeApi:
    """Stands where ``Kube`` stands. ``writes`` lists what was written; ``fail`` makes the next write of a kind fail."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.fail: dict[tuple[str, str], ApiFailure] = {}
        self.graces: list[int | None] = []
        self._numbers = itertools.count(100)

    def put(self, kind: str, body: Json) -> Json:
        """Place an object as someone else would."""
        metadata = body["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._numbers)}")
        metadata["resourceVersion"] = str(next(self._numbers))
        self.objects[kind, metadata["namespace"], metadata["name"]] = body
        return body

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        return self.objects.get((resource.kind, namespace, name))

    async def list(self, resource: Resource, namespace: str | None, *, selector: str = "") -> AsyncIterator[Page]:
        found = [
            body
            for (kind, where, _), body in self.objects.items()
            if kind == resource.kind and namespace in (None, where)
        ]
        yield Page(str(next(self._numbers)), found)

    async def apply_new(self, resource: Resource, body: Mapping[str, Any]) -> Json:
        metadata = body["metadata"]
        if (resource.kind, metadata["namespace"], metadata["name"]) in self.objects:
            raise ApiFailure(409, "Conflict", "", f"patch {resource.plural}", {})
        return await self.apply(resource, body, force=False)

    async def apply(self, resource: Resource, body: Mapping[str, Any], *, force: bool) -> Json:
        metadata = body["metadata"]
        identity = (resource.kind, metadata["namespace"], metadata["name"])
        self._write("apply", resource.kind, metadata["name"])
        known = self.objects.get(identity)
        if known is not None and metadata.get("uid") not in (None, known["metadata"]["uid"]):
            raise ApiFailure(409, "Conflict", "", f"patch {resource.plural}", {})
        made = next(self._numbers)
        base = known or {"metadata": {"uid": f"uid-{made}", "generation": 1, "creationTimestamp": f"{made:08}"}}
        others = [e for e in base["metadata"].get("managedFields", []) if e["manager"] != "kvserving-operator"]
        kept = {k: v for k, v in metadata.items() if k not in ("name", "namespace", "uid", "ownerReferences")}
        rest = {k: v for k, v in body.items() if k not in ("apiVersion", "kind", "metadata")}
        fields = fields_of({**rest, "metadata": kept})
        entry = {"manager": "kvserving-operator", "operation": "Apply", "fieldsV1": fields}
        merged = _merged(base, {**body, "metadata": {**metadata, "uid": base["metadata"]["uid"]}})
        merged["metadata"]["managedFields"] = [*others, entry]
        merged["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.objects[identity] = merged
        return merged

    async def apply_status(self, resource: Resource, body: Mapping[str, Any]) -> Json:
        metadata = body["metadata"]
        self._write("status", resource.kind, metadata["name"])
        known = self.objects[resource.kind, metadata["namespace"], metadata["name"]]
        version = {**known["metadata"], "resourceVersion": str(next(self._numbers))}
        return self.put(resource.kind, {**known, "metadata": version, "status": body["status"]})

    async def adjust(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> Json:
        self._write("adjust", resource.kind, name)
        known = self.objects.get((resource.kind, namespace, name))
        if known is None or known["metadata"]["uid"] != body["metadata"]["uid"]:
            raise ApiFailure(409, "Conflict", "", f"patch {resource.plural}", {})
        merged = _merged(known, body)
        merged["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.objects[resource.kind, namespace, name] = merged
        return merged

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> Json:
        metadata = body["metadata"]
        name = metadata.get("name", metadata.get("generateName", ""))
        self._write("create", resource.kind, name)
        if (resource.kind, metadata["namespace"], name) in self.objects:
            raise ApiFailure(409, "AlreadyExists", "", f"create {resource.plural}", {})
        made = {**body, "metadata": {**metadata, "name": name}}
        if "stringData" in made:
            made["data"] = dict.fromkeys(made.pop("stringData"), "")
        return self.put(resource.kind, made)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str, grace: int | None = None
    ) -> None:
        self._write("delete", resource.kind, name)
        self.graces.append(grace)
        known = self.objects.get((resource.kind, namespace, name))
        if known is None or (known["metadata"]["uid"], known["metadata"]["resourceVersion"]) != (uid, version):
            raise ApiFailure(409, "Conflict", "", f"delete {resource.plural}", {})
        del self.objects[resource.kind, namespace, name]

    def _write(self, verb: str, kind: str, name: str) -> None:
        self.writes.append((verb, kind, name))
        if failure := self.fail.pop((verb, kind), None):
            raise failure


def _merged(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json:
    merged = dict(live)
    for key, value in wanted.items():
        known = merged.get(key)
        merged[key] = _merged(known, value) if isinstance(value, Mapping) and isinstance(known, Mapping) else value
    return merged
