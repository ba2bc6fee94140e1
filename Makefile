# Two commands matter: make demo, make test. Each makes its own environment in .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo lab test test-all steady coverage check format reports pages docs readme calibrate bench kills fleet-test fleet-scale restore clean

ifneq ($(findstring $$,$(CURDIR))$(findstring :,$(CURDIR)),)
$(error the path of this checkout has a "$$" or ":" in it, with which no virtual environment can be made: move it)
endif

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## the virtual environment, with everything from PyPI

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("benchlib needs Python 3.11 or newer; this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else 0'
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV) || (echo "python3 cannot make virtual environments: install python3-venv" >&2; exit 1)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## a real study on the embedded PostgreSQL: two and a half minutes, a verdict and a page
	@$(BIN)/benchlib run configuration --profile quick $(DEMO_OPTIONS)

lab: $(READY)  ## JupyterLab at notebooks/
	@$(BIN)/jupyter lab --notebook-dir=. --LabApp.default_url=/lab/tree/notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

test: check  ## lint, types, layers, tests without a server, and one example of each real thing: three minutes
	@$(BIN)/python -m pytest -n auto

PIECES := root fleet browser pg statistics long
test-all: $(PIECES:%=test-%)  ## all the rest, in pieces that run alone, too (make test-pg): half an hour

# a test that belongs to two pieces runs in the first; tests that change the host run one after the other
test-root:       NOT := example
test-fleet:      NOT := example or root
test-browser:    NOT := example or root or fleet
test-pg:         NOT := example or root or fleet or browser
test-statistics: NOT := example or root or fleet or browser or pg
test-long:       NOT := example or root or fleet or browser or pg or statistics
test-root test-fleet: PROCESSES := 0
test-%: $(READY)
	@$(BIN)/python -m pytest -n $(or $(PROCESSES),auto) -m "$* and not ($(NOT))"

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

PURE := errors plan stats load.parse host.telemetry server.counters server.checkpoints
OF_PURE := plan stats load/parse load/test_latency.py load/test_workloads.py levers/test_words.py study/test_results.py \
	host/test_host_lock.py host/test_telemetry.py server/test_counters.py server/test_checkpoints.py

# apart from the tests: what is traced takes twice its time
coverage: $(READY)  ## how much of the pure rooms their tests reach: 95 % at least
	@$(BIN)/python -m pytest -n 3 $(OF_PURE:%=tests/%) $(PURE:%=--cov=benchlib.%) --cov-report=json:.coverage.json --cov-report=
	@$(BIN)/python tests/coverage_of_pure_layers.py .coverage.json

steady: $(READY)  ## make test ten times: both users, busy processors and disk, strange paths, a coarse clock, little memory
	@$(BIN)/python benchmarks/steady.py $(BENCH_OPTIONS)

format: $(READY)  ## put the code into the common form
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

reports: $(READY)  ## the site that is in git: a recorded study of each notebook, from data/ alone, in two minutes
	@$(BIN)/python benchmarks/recorded_site.py

pages: $(READY)  ## the page of every study in data/, and of the calibration
	@$(BIN)/benchlib report
	@$(BIN)/python benchmarks/calibrate.py --show

docs: $(READY)  ## the reference of the command line, from click's own help
	@$(BIN)/python benchmarks/command_line.py

readme: $(READY)  ## the README's table of results, from the recorded studies
	@$(BIN)/python tests/readme_of_results.py

calibrate: $(READY)  ## the statistics on trial by simulation, in minutes: reports/calibration.html
	@$(BIN)/python benchmarks/calibrate.py --simulate

bench: $(READY)  ## what the suite itself costs, in an hour on a quiet machine: data/benchmarks/
	@$(BIN)/python benchmarks/table.py $(BENCH_OPTIONS)

kills: $(READY)  ## as root: studies with every lever killed a hundred times, and what remains, in half an hour
	@$(BIN)/python benchmarks/kills.py --out data/benchmarks/kills.csv $(BENCH_OPTIONS)

fleet-test: $(READY)  ## as root: a fleet of network namespaces, load and replicas elsewhere, its workers killed twenty times
	@$(BIN)/python benchmarks/fleet.py $(BENCH_OPTIONS)

fleet-scale: $(READY)  ## what a study on 200 hosts costs whoever drives it, with a fake bench, in minutes
	@$(BIN)/python benchmarks/fleet_scale.py $(BENCH_OPTIONS)

restore: $(READY)  ## how much faster a data set is restored than loaded
	@$(BIN)/python benchmarks/restore.py $(BENCH_OPTIONS)

clean:  ## remove the environment and caches; studies and reports stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
