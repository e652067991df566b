"""Why each flag and variable of router and store is there; see ``explanations``."""

from __future__ import annotations

from .explanations import ENGINE_CONNECTOR, ENGINE_ENV, ENGINE_FLAGS, Component, Explanation, Key, Kind, Table, _same

ROUTER_FLAGS: Table = {
    "--host": Explanation("binds where clients come from"),
    "--port": Explanation("the port behind the Service"),
    "--backend": Explanation("the engines speak vLLM's API"),
    **_same(
        "two legs per request, prefill then decode; without it all engines are asked alike",
        "spec.prefill",
        "--pd-disaggregation",
        "--vllm-pd-disaggregation",
    ),
    "--kv-connector": Explanation("whose handoff parameters are passed on", "spec.prefill"),
    **_same(
        "engines are found by their labels, so that scaling needs no restart of the router",
        "",
        "--service-discovery",
        "--service-discovery-namespace",
    ),
    **_same("one machine: engines are found in a file", "", "--discovery-provider", "--discovery-file"),
    "--service-discovery-port": Explanation("the engines' HTTP port", "spec.engine.args"),
    **_same(
        "only engines of this router's revision: engines that cannot exchange KV are never paired",
        "",
        "--prefill-selector",
        "--decode-selector",
        "--selector",
    ),
    **_same(
        "prefill goes where the prompt's prefix is, decode where there is least to do",
        "spec.router.policy",
        "--prefill-policy",
        "--decode-policy",
        "--policy",
    ),
    "--power-of-two-load-metric": Explanation("counts its own open requests: vLLM serves no load that it could ask"),
    **_same(
        "an engine that does not answer is left out within 4 s, and taken back with the first good answer",
        "",
        "--health-check-interval-secs",
        "--health-check-timeout-secs",
        "--health-failure-threshold",
        "--health-success-threshold",
    ),
    "--no-remove-unhealthy-workers": Explanation("an engine that was away comes back under its address"),
    "--worker-startup-check-interval": Explanation("a new engine is used within 2 s"),
    "--worker-startup-timeout-secs": Explanation(
        "as long as the slowest role may load", "spec.prefill.startupTimeout, spec.decode.startupTimeout"
    ),
    **_same(
        "three failures in a row take an engine out for 2 s",
        "",
        "--cb-failure-threshold",
        "--cb-timeout-duration-secs",
        "--cb-success-threshold",
    ),
    "--retry-max-retries": Explanation("a request outlives the restart of one engine"),
    **_same(
        "longest request, and the time that open ones get when the router stops",
        "spec.router.requestTimeout",
        "--request-timeout-secs",
        "--shutdown-grace-period-secs",
    ),
    "--max-payload-size": Explanation("64 MiB: prompts with pictures"),
    "--history-backend": Explanation("the router keeps no conversation"),
    "--health-check-port": Explanation("probes have a port that load does not fill"),
    **_same("metrics for the monitor and the operator", "", "--prometheus-host", "--prometheus-port"),
    **_same("lines that matter, without prompts", "", "--log-level", "--log-json"),
    "--disable-tokenizer-autoload": Explanation("no download at start: the engines have the tokenizer"),
}

ROUTER_ENV: Table = {
    "KVSERVING_NAME": Explanation("whose router this is", "metadata.name"),
    "KVSERVING_ROLE": Explanation("router"),
    "KVSERVING_REVISION": Explanation("the revision whose engines it pairs"),
    "KVSERVING_BIND_ADDRESS": Explanation("what --host says"),
    "KVSERVING_ROUTER_ADMIN_KEY_FILE": Explanation("its admin endpoints want this key: a file, never a value"),
    **_same(
        "one machine: this router listens only when all engines are healthy, so they are waited for",
        "spec.router.type",
        "KVSERVING_EXPECTED_WORKERS",
        "KVSERVING_WORKER_WAIT_SECONDS",
    ),
    "KVSERVING_ROUTER_API_KEY_FILE": Explanation(
        "clients without the key are refused: a file, never a value", "spec.router.apiKeySecretRef"
    ),
}

STORE_FLAGS: Table = {
    "--bind": Explanation("reached by the engines; a NetworkPolicy keeps others out"),
    "--port": Explanation("the port in the engines' urls"),
    "--maxmemory": Explanation(
        "maxUsage of a shard's size; the rest is the server's own", "spec.cache.l2.size, spec.cache.l2.maxUsage"
    ),
    "--maxmemory-policy": Explanation("the least recently used go first; without it a full store refuses writes"),
    **_same("a cache: nothing is written to disk", "", "--save", "--appendonly"),
    "--protected-mode": Explanation("it has a password, and engines come from other nodes"),
}

STORE_ENV: Table = {
    "KVSERVING_BIND_ADDRESS": Explanation("what --bind says"),
    "KVSERVING_STORE_PASSWORD_FILE": Explanation("a file, never an argument", "spec.cache.l2.secretRef"),
}

_TABLES: dict[tuple[Component, Kind], Table] = {
    ("engine", "flag"): ENGINE_FLAGS,
    ("engine", "env"): ENGINE_ENV,
    ("engine", "connector"): ENGINE_CONNECTOR,
    ("router", "flag"): ROUTER_FLAGS,
    ("router", "env"): ROUTER_ENV,
    ("store", "flag"): STORE_FLAGS,
    ("store", "env"): STORE_ENV,
}
EXPLANATIONS: dict[Key, Explanation] = {
    (component, kind, name): entry for (component, kind), table in _TABLES.items() for name, entry in table.items()
}
"""Every explanation, by component, kind and name."""
