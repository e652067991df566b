"""Rules about fields of the spec that depend on each other or on a form."""

from __future__ import annotations

from .rule import Rule

ROLES = ("spec.prefill", "spec.decode")
_URI = (
    "^(hf://[A-Za-z0-9][-A-Za-z0-9_.]*(/[-A-Za-z0-9_.]+)?|pvc://[a-z0-9][-a-z0-9.]*(/[^@ ]*)?"
    "|s3://[a-z0-9][-a-z0-9.]*(/[^@ ]*)?|file:///[^ ]+)$"
)
_URI_MESSAGE = "is not a known source: use hf://owner/name, pvc://claim/path, s3://bucket/path or file:///path"
URI_MEANT = (
    ("^/[^ ]+$", "file://"),
    ("^~/[^ ]+$", "file://"),
    ("^[.][.]?/[^ ]+$", "file:"),
    ("^[A-Za-z0-9][-A-Za-z0-9_.]*/[-A-Za-z0-9_.]+$", "hf://"),
)
"""Forms of what people write without a scheme, with the scheme that they mean; ``way_out.source`` has the same."""
_URI_MESSAGE_CEL = (
    f"self.uri.contains('@') ? '{_URI_MESSAGE}' : "
    + "".join(
        f"self.uri.matches('{form}') ? self.uri + ' {_URI_MESSAGE}; did you mean {scheme}' + self.uri + '?' : "
        for form, scheme in URI_MEANT
    )
    + f"self.uri + ' {_URI_MESSAGE}'"
)
_DURATIONS = (
    "spec.prefill.startupTimeout",
    "spec.prefill.drainTimeout",
    "spec.decode.startupTimeout",
    "spec.decode.drainTimeout",
    "spec.transfer.lease",
    "spec.transfer.verify.interval",
    "spec.cache.l2.loadTimeout",
    "spec.router.requestTimeout",
    "spec.rollout.progressDeadline",
)
_SIZES = ("spec.model.cache.size", "spec.cache.l1.size", "spec.cache.l2.size")


def _at(path: str, *rules: tuple[str, str, str, str | None, str | None]) -> tuple[Rule, ...]:
    return tuple(
        Rule(name=name, at=path, cel=cel, message=message, message_cel=message_cel, field=field)
        for name, cel, message, message_cel, field in rules
    )


def _has(path: str) -> str:
    parts = path.split(".")
    return " && ".join(f"has(self.{'.'.join(parts[: i + 1])})" for i in range(len(parts)))


OBJECT = (
    Rule(
        name="short name",
        at="",
        cel="size(self.metadata.name) <= 40",
        message="metadata.name is too long: at most 40 characters, so that names of children stay within 63",
        message_cel="'metadata.name has ' + string(size(self.metadata.name)) + ' characters: at most 40, so that "
        "names of children stay within 63; shorten it'",
        field="metadata.name",
    ),
    Rule(
        name="DNS name",
        at="",
        cel="self.metadata.name.matches('^[a-z]([-a-z0-9.]*[a-z0-9])?$')",
        message="metadata.name must start with a letter, as names of Services do",
        message_cel="'metadata.name ' + self.metadata.name + ' must start with a letter, as names of Services do'",
        field="metadata.name",
    ),
)

_DECODE_REPLICAS = "has(self.decode) && has(self.decode.replicas)"
_PAIR = " && ".join(_has(p) for p in ("prefill.replicas", "decode.replicas"))


def _ratio_rule(bound: str, too: str, relation: str) -> Rule:
    def term(i: int) -> str:
        return f"int(self.ratio.{bound}.split(':')[{i}])"

    return Rule(
        name=f"replicas {too} {bound} ratio",
        at="spec",
        cel=f"!({_has(f'ratio.{bound}')} && {_PAIR}) || self.prefill.replicas * {term(1)} {relation} "
        f"self.decode.replicas * {term(0)}",
        message=f"spec.prefill.replicas to spec.decode.replicas is {too} spec.ratio.{bound}: "
        "change replicas or the bound",
        message_cel=f"'spec.prefill.replicas ' + string(self.prefill.replicas) + ' to spec.decode.replicas ' "
        f"+ string(self.decode.replicas) + ' is {too} ' + self.ratio.{bound} + ': change replicas or the bound'",
        field=f"ratio.{bound}",
    )


SPEC = (
    *_at(
        "spec",
        (
            "prefill not zero",
            f"!({_has('prefill.replicas')} && self.prefill.replicas == 0) "
            f"|| ({_DECODE_REPLICAS} && self.decode.replicas == 0)",
            "0 while spec.decode.replicas is positive: decode would prefill everything itself; leave spec.prefill out "
            "to serve without prefill, or set spec.suspend to stop",
            None,
            "prefill.replicas",
        ),
        (
            "ratio needs prefill",
            "!has(self.ratio) || has(self.prefill)",
            "bounds prefill to decode, but there is no spec.prefill: add it or remove spec.ratio",
            None,
            "ratio",
        ),
        *(
            (
                f"{tier} roles exist",
                f"!({_has(f'cache.{tier}.roles')}) || has(self.prefill) || !('prefill' in self.cache.{tier}.roles)",
                f"names prefill, but there is no spec.prefill: add it or set spec.cache.{tier}.roles to [decode]",
                None,
                f"cache.{tier}.roles",
            )
            for tier in ("l1", "l2")
        ),
        (
            "kvcached needs a GPU",
            f"!({_has('kvcached.enabled')} && self.kvcached.enabled && {_has('engine.device')}) "
            "|| self.engine.device != 'cpu'",
            "true with spec.engine.device cpu: kvcached manages GPU memory; switch it off or use device gpu",
            None,
            "kvcached.enabled",
        ),
    ),
    _ratio_rule("min", "below", ">="),
    _ratio_rule("max", "above", "<="),
    *(
        Rule(
            name="greater than zero",
            at=path,
            cel="self.matches('[1-9]')",
            message="must be greater than zero, such as 30s, 5m or 1h30m",
        )
        for path in _DURATIONS
    ),
    *(
        Rule(
            name="greater than zero",
            at=path,
            cel="type(self) == int ? self > 0 : (self.matches('[1-9]') && !self.startsWith('-'))",
            message="a size must be greater than zero, such as 64Gi",
        )
        for path in _SIZES
    ),
    Rule(
        name="hash seed in range",
        at="spec.engine.kv.hashSeed",
        cel="!self.matches('^[0-9]+$') || int(self) <= 4294967295",
        message="Python takes seeds up to 4294967295: choose a smaller one",
    ),
    *_at(
        "spec.ratio",
        (
            "min not above max",
            "!(has(self.min) && has(self.max)) || int(self.min.split(':')[0]) * int(self.max.split(':')[1]) "
            "<= int(self.max.split(':')[0]) * int(self.min.split(':')[1])",
            "is above spec.ratio.max: no numbers of replicas can satisfy both; exchange or widen the bounds",
            "self.min + ' is above spec.ratio.max ' + self.max + ': no numbers of replicas can satisfy both; "
            "exchange or widen the bounds'",
            "min",
        ),
    ),
)

MODEL = (
    *(
        Rule(
            name="known source",
            at=path,
            cel=f"self.uri.matches('{_URI}')",
            message=_URI_MESSAGE,
            message_cel=_URI_MESSAGE_CEL,
            field="uri",
        )
        for path in ("spec.model", "spec.model.loras[*]")
    ),
    *_at(
        "spec.model",
        (
            "cache only where fetched",
            "!has(self.cache) || !(self.uri.startsWith('pvc:') || self.uri.startsWith('file:'))",
            "keeps what is fetched, but spec.model.uri names weights that are already on a volume: "
            "remove spec.model.cache",
            None,
            "cache",
        ),
        (
            "adapter names differ from the model",
            "!(has(self.name) && has(self.loras)) || self.loras.all(l, l.name != self.name)",
            "has an adapter with the name of the model (spec.model.name): requests could not choose; rename one",
            None,
            "loras",
        ),
    ),
    Rule(
        name="names unique",
        at="spec.model.loras",
        cel="self.all(l, self.exists_one(m, m.name == l.name))",
        message="an adapter name is given twice: names select adapters; rename one",
        message_cel="self.filter(l, !self.exists_one(m, m.name == l.name))[0].name + ' is given twice: names select "
        "adapters; rename one'",
    ),
    *_at(
        "spec.model.cache",
        (
            "claim or size",
            "has(self.pvc) != has(self.size)",
            "needs exactly one of pvc (an existing claim) and size (a claim that the operator creates)",
            None,
            None,
        ),
        (
            "storage class of a created claim",
            "!has(self.storageClass) || has(self.size)",
            "is only used for a claim that the operator creates: set spec.model.cache.size or remove storageClass",
            None,
            "storageClass",
        ),
    ),
)

ROLE = tuple(
    rule
    for role in ROLES
    for rule in (
        *_at(
            role,
            (
                "replicas or autoscaling",
                "!(has(self.replicas) && has(self.autoscaling))",
                f"{role}.replicas and {role}.autoscaling exclude each other: the scaler owns the number; remove one",
                f"string(self.replicas) + ' beside {role}.autoscaling: the scaler owns the number; remove one'",
                "replicas",
            ),
            (
                "devices divide over nodes",
                "!has(self.nodes) || ("
                + " * ".join(
                    f"({_has(f'parallelism.{kind}')} ? self.parallelism.{kind} : 1)"
                    for kind in ("tensor", "pipeline", "data")
                )
                + ") % self.nodes == 0",
                f"must divide tensor * pipeline * data of {role}.parallelism, so that all nodes have equal shares",
                f"string(self.nodes) + ' does not divide tensor * pipeline * data of {role}.parallelism: "
                "nodes need equal shares; change one of them'",
                "nodes",
            ),
        ),
        *_at(
            f"{role}.autoscaling",
            (
                "min not above max",
                "!has(self.min) || self.min <= self.max",
                f"is above {role}.autoscaling.max: lower it or raise max",
                f"string(self.min) + ' is above {role}.autoscaling.max ' + string(self.max) "
                "+ ': lower it or raise max'",
                "min",
            ),
            (
                "custom metric has a name",
                "!(has(self.metric) && self.metric == 'custom') || (has(self.metricName) && has(self.target))",
                "custom needs metricName and target: name the metric and the value to keep",
                None,
                "metric",
            ),
            (
                "metric name only for custom",
                "!has(self.metricName) || (has(self.metric) && self.metric == 'custom')",
                "is only used with metric custom: set metric or remove metricName",
                None,
                "metricName",
            ),
            (
                "metric name is one word",
                "!has(self.metricName) || (!self.metricName.matches('[/%]') && !self.metricName.matches('^[.][.]?$'))",
                "must hold neither / nor %, and be neither . nor ..: scalers ask for the metric by an address "
                "that ends with its name",
                None,
                "metricName",
            ),
        ),
    )
)
