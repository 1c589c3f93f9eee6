# Every target first sets up what it needs in .venv. Only make and Python have to be there.
# ARGS is handed on: make test ARGS="-k dynamodb"

# The first Python that is new enough. To choose: make PYTHON=/path/to/python …
PYTHON = $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

VENV := .venv
RUN := $(VENV)/bin/python
# The first variable pins what is installed, and in older releases of pip also what builds it;
# newer ones take the second for that.
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(RUN) -m pip install --quiet --disable-pip-version-check

# Pyright would ask the network whether there is a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.NOTPARALLEL: # two installations into one .venv would break it
.PHONY: help demo test check evidence bench soak format constraints clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Serve the warranty application until Ctrl-C: the next start goes on
	@PYTHONPATH=examples $(RUN) -m warranty.demo --data .cache/demo $(ARGS)

test: $(VENV)/.dev ## Run the tests
	$(RUN) -m pytest -n 2 --dist loadgroup $(ARGS)

check: $(VENV)/.dev ## Check style, types, imports, sizes and the generated API
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright
	$(VENV)/bin/lint-imports --no-cache
	$(RUN) -m checks.structure
	$(RUN) -m checks.blocking
	$(RUN) -m checks.modules
	$(RUN) -m checks.reference
	$(RUN) -m checks.evidence

evidence: $(VENV)/.dev ## Run 1,000 seeds and every planted bug; write the figures into docs/reliability.md
	$(RUN) -m checks.evidence --run

bench: $(VENV)/.dev .cache/peers/.made ## Run the benchmarks
	PYTHONPATH=examples $(RUN) -m bench $(ARGS)

# How long a soak looks for what breaks.
SECONDS = 600

soak: $(VENV)/.dev ## Look for what breaks, with fresh seeds and real processes: SECONDS=600
	$(RUN) -m soak --seconds $(SECONDS) $(ARGS)

format: $(VENV)/.dev ## Format the code and mend what can be mended
	$(RUN) -m ruff check --fix-only .
	$(RUN) -m ruff format .

constraints: $(VENV)/.made ## Pin today's releases anew in constraints.txt
	rm -rf .cache/constraints
	$(RUN) -m venv .cache/constraints
	.cache/constraints/bin/python -m pip install --quiet '.[dev]' hatchling editables
	.cache/constraints/bin/python -m pip freeze --exclude holdfast > .cache/constraints.txt
	rm -rf .cache/constraints
	mv .cache/constraints.txt constraints.txt

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) .cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing holdfast and what the demo needs into $(VENV)"
	@$(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing holdfast and its tools into $(VENV) (about a minute)"
	@$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.demo $@

# What the kernel is measured against, away from .venv. Where it cannot be installed, the benchmarks
# still run: they say that the comparison is missing, and fail.
.cache/peers/.made: $(VENV)/.made bench/peers.txt
	@echo "Installing the benchmarks' peers into .cache/peers (about a minute)"
	@rm -rf .cache/peers
	@$(RUN) -m venv .cache/peers
	@if .cache/peers/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement bench/peers.txt; then touch $@; \
	else echo "The benchmarks' peers could not be installed." >&2; fi

# Debian keeps the part of Python that makes a venv in a package of its own.
$(VENV)/.made:
	@test -n "$(PYTHON)" || { \
	    echo "Holdfast needs Python 3.11 or newer, and none is on the PATH." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        echo "Installing $$package, without which Python cannot make $(VENV)"; \
	        apt-get update -qq && apt-get install -qq --yes --no-install-recommends $$package; \
	    else \
	        echo "Python cannot make $(VENV): please install $$package first." >&2; exit 1; \
	    fi; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@
