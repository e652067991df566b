"""Everything that the builders of one plan share, resolved once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..api.v1alpha1 import KVServing, KVServingSpec, Role, RoleName
from ..engines import catalog
from ..engines.catalog import EngineBuild
from ..model_facts import ModelFacts
from ..model_facts import resolve as resolve_facts
from ..profile import KVProfile, build_profile
from .names import Names, base_name
from .types import Observed, Site


@dataclass(frozen=True)
class Context:
    """One object with its engine, facts and profile resolved."""

    serving: KVServing
    site: Site
    observed: Observed
    build: EngineBuild
    facts: ModelFacts
    profile: KVProfile

    @property
    def spec(self) -> KVServingSpec:
        """The object's spec."""
        return self.serving.spec

    @property
    def name(self) -> str:
        """The object's own name, the value of the name label."""
        return self.serving.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the object and of every child."""
        return self.serving.metadata.namespace

    @cached_property
    def names(self) -> Names:
        """Names of the children."""
        return Names(base_name(self.name), self.profile.revision)

    @property
    def revision(self) -> str:
        """Revision of the children."""
        return self.profile.revision

    @property
    def disaggregated(self) -> bool:
        """Whether there is a prefill role."""
        return self.spec.prefill is not None

    @property
    def several_groups(self) -> bool:
        """Whether the engines are known to keep several groups of KV cache."""
        return bool(self.facts.several_groups) and self.profile.hybrid != "disabled"

    @property
    def roles(self) -> tuple[RoleName, ...]:
        """The roles that exist."""
        return ("prefill", "decode") if self.disaggregated else ("decode",)

    def role(self, role: RoleName) -> Role:
        """The section of a role that exists."""
        section = self.spec.prefill if role == "prefill" else self.spec.decode
        if section is None:
            raise ValueError(f"{self.name} has no {role} role")
        return section

    @property
    def cpu(self) -> bool:
        """Whether engines run without a GPU."""
        return self.build.device == "cpu"

    @property
    def version_field(self) -> str:
        """Path of the field that says which version of the engine runs."""
        engine = self.spec.engine
        by_image = engine.version is None and engine.image is not None and not self.build.assumed
        return "spec.engine.image" if by_image else "spec.engine.version"


def make_context(serving: KVServing, site: Site, observed: Observed) -> Context:
    """Resolve what the builders share. Never raises for an object that the models accept."""
    spec = serving.spec
    build = catalog.resolve(
        version=spec.engine.version,
        image=spec.engine.image,
        device=spec.engine.device,
        kvcached=spec.kvcached.enabled,
        observed_version=observed.engine_version,
        observed_image=observed.engine_image,
    )
    facts = resolve_facts(spec.model.uri, spec.model.facts, observed.facts)
    return Context(serving, site, observed, build, facts, build_profile(spec, build, facts))
