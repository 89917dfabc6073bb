# `make run` and `make test` are all a newcomer needs: both first install what is missing into .venv.

CONFIG ?= deployments/cartpole.yaml
ARGS   ?=
VENV   ?= .venv
# Extras of pyproject.toml to install, comma-separated: dev (tests, linters, types), language (language models),
# box2d (LunarLander).
EXTRAS ?= dev,language
# PyTorch's CPU wheel index, where the default build (CUDA on Linux, several gigabytes) is not wanted:
#   make install TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Processes that `make test` shares the test files among; 0 runs them in one.
WORKERS ?= 2
# The interpreter that .venv is made with; by default the first of these that is 3.11 to 3.13.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3 python; do \
	"$$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && { echo "$$name"; break; }; done)

BIN       := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(EXTRAS)
CODE      := offbeat flows tasks tests benchmarks

.PHONY: help install run run-language test check format bench chaos learn deploy constraints clean

help:  ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED)  ## Install everything, pinned by constraints.txt, into .venv

run: $(INSTALLED)  ## Run a whole lifecycle: make run [CONFIG=deployments/NAME.yaml] [ARGS="--set seed=1"]
	$(BIN)/offbeat run $(CONFIG) $(ARGS)

run-language:  ## Post-train a small language model on arithmetic: deployments/arithmetic.yaml
	$(MAKE) run CONFIG=deployments/arithmetic.yaml

test: $(INSTALLED)  ## Run the tests (ARGS go to pytest), all but the long ones
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(INSTALLED)  ## Check format, lint, types and which room imports which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)  ## Put every file into the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED)  ## Measure the figures of docs/performance.md on this machine
	$(BIN)/offbeat bench $(ARGS)

chaos: $(INSTALLED)  ## Run the tests that kill processes at random moments (many minutes)
	$(BIN)/pytest -m chaos $(ARGS)

learn: $(INSTALLED)  ## Run the tests that learn each environment (many minutes)
	$(BIN)/pytest -m slow $(ARGS)

deploy: $(INSTALLED)  ## Register every deployment of prefect.yaml at the server of PREFECT_API_URL
	$(BIN)/prefect --no-prompt deploy --all

constraints: $(INSTALLED)  ## Write constraints.txt anew from what .venv has (make it with EXTRAS=dev,language,box2d)
	{ sed -n '/^#/p' constraints.txt; \
	  $(BIN)/pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu$$//'; } > constraints.new
	@! grep -n ' @ \|+' constraints.new || { echo 'constraints.new names a file or a local build; left for you to mend'; exit 1; }
	mv constraints.new constraints.txt

clean:  ## Remove what install and the tools made; runs/ is kept
	rm -rf $(VENV) build dist offbeat.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'Offbeat needs Python 3.11, 3.12 or 3.13, and none of python3.11 .. python3, python is one.'; \
	  echo 'Install one, or name it: make install PYTHON=/path/to/python3.11'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo '$(PYTHON) has no venv and ensurepip (on Debian and Ubuntu:'; \
	  echo 'apt-get install python3-venv). Install them, or name another: make install PYTHON=/path/to/python'; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The torch that .venv has is left alone where it satisfies the pin. pip's own configuration (mirrors, wheel folders) holds.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
ifneq ($(strip $(TORCH_INDEX)),)
	$(BIN)/pip install -c constraints.txt --extra-index-url $(TORCH_INDEX) torch
else
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None and sys.platform == "linux")' || \
	  { echo 'PyTorch comes from where pip finds it; the default build for Linux carries CUDA (several gigabytes). For the small one:'; \
	    echo '  make install TORCH_INDEX=https://download.pytorch.org/whl/cpu'; }
endif
	$(BIN)/pip install -c constraints.txt -e '.[$(EXTRAS)]'
	-@$(BIN)/offbeat prepare
	@touch '$@'
