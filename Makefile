# Every target sets up what it needs on a fresh clone with nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS := --disable-pip-version-check --quiet
ARGS ?=

.PHONY: run test check test-vllm lock clean

run: $(VENV)/.run-ready  ## the gateway on the embedded emulated fleet; ARGS="--engine URL" for a real one
	exec $(BIN)/headway serve $(ARGS)

test: $(VENV)/.dev-ready
	$(BIN)/python -m pytest -m "not vllm" $(ARGS)

check: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-vllm: $(VENV)/.dev-ready .venv-vllm/.ready
	$(BIN)/python -m pytest -m vllm $(ARGS)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Headway needs Python 3.11 or newer, found " + sys.version if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-ready: $(BIN)/python requirements/run.lock pyproject.toml
	@echo "installing what serving needs into $(VENV) ..."
	$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements/run.lock
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev-ready: $(VENV)/.run-ready requirements/dev.lock
	@echo "installing the development tools into $(VENV) ..."
	$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements/dev.lock
	touch $@

.venv-vllm/.ready: tests/vllm/install.sh tests/vllm/requirements.lock
	bash tests/vllm/install.sh .venv-vllm
	touch $@

lock:  ## resolve the lock files anew (needs uv: pip install uv)
	uv pip compile pyproject.toml requirements/build.in --extra examples --extra bayes $(LOCK_FLAGS) -o requirements/run.lock
	uv pip compile pyproject.toml requirements/build.in --extra examples --extra bayes --group dev -c requirements/run.lock $(LOCK_FLAGS) -o requirements/dev.lock
LOCK_FLAGS := --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

clean:
	rm -rf $(VENV) .venv-vllm .cache dist build
