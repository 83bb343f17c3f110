# The front door. `make` alone lists the targets. Every target makes the virtual environment it needs.
#
#   PYTHON=...   the interpreter to build .venv with (else the first Python >= 3.11 on the PATH)
#   VENV=...     where the environment goes (.venv)
#   ARGS=...     further arguments for the program or for pytest
#   INSTALLER=pip in the environment: install with pip alone, not with uv
#   PURGATORY_PURE=1 in the environment: do not build or use the native implementation (docs/native.md)

# Modules are compiled once for all processes, also where the environment would have each process compile them again.
export PYTHONDONTWRITEBYTECODE :=

VENV  ?= .venv
ARGS  ?=
# All of them, so that every test can run.
EXTRAS = $(shell sed -n '/^\[project.optional-dep/,/^\[[^p]/ s/^\([a-z]*\) = \[.*/\1/p' pyproject.toml | paste -s -d , -)

# Those that the reference needs. It is built without Spark, DuckDB and Arrow.
LIGHT  := console,kafka,otel,postgres,redis,web

PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready
BROKER := examples/broker

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test test-broker test-core rehearse native wheel check format cov bench bench-plots bench-spark bench-spark-plots docs soak races explore mutants sanitize kafka-jar lowest programs others clean feed-faults ready-java

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: ## Watch it work: a broker with three replicas, real clients, a leader that is killed, a report (KEEP=1 stays up)
	@$(MAKE) --no-print-directory -C $(BROKER) tour

test-broker: programs ## Run the types and every test of the broker example
	@$(MAKE) --no-print-directory -C $(BROKER) test

# The tests of the code that has two implementations. They run twice: on the native one, if there is a compiler, and on the pure one.
CORE_TESTS := tests/unit/timer tests/unit/purgatory tests/unit/aio tests/unit/faults tests/unit/journal/test_ledger.py tests/property tests/concurrency

# Whether $(PY) is a free-threaded one, for which packages that the other tests need have no wheels: there it is these alone.
FREE = $(shell $(PY) -c 'import sysconfig; print("1" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")' 2>/dev/null)

# Files of tests run three at a time, because many wait for servers. Those of Spark are first (tests/support/fixtures.py).
# JOBS=0 runs all in one process, for a debugger.
JOBS ?= $(if $(findstring .py,$(NAMED)),0,3)
TESTED := -m pytest -ra --durations=20 --durations-min=1
SHARED = -n $(JOBS) --dist loadfile --no-loadscope-reorder

# The paths in ARGS, and those of the core's tests that they name. A path that names none of them runs on one implementation.
# pytest exits with 5 if no test is left: those that are named may all be of the native implementation.
NAMED := $(filter tests/%,$(ARGS))
OPTIONS := $(filter-out tests/%,$(ARGS))
INSIDE = $(foreach core,$(CORE_TESTS),$(filter $(core) $(core)/% $(core)::%,$(NAMED)) $(if $(filter $(addsuffix /%,$(NAMED:%/=%)),$(core)),$(core)))
PURE_TESTS = $(strip $(if $(NAMED),$(INSIDE),$(CORE_TESTS)))

test: $(READY)-test $(if $(NAMED),,programs) native ## Run every test, and the core's once more on the pure implementation (ARGS="-k wheel" or ARGS=tests/unit/timer for some)
	$(if $(FREE),PYTHON_GIL=0) $(PY) $(TESTED) $(SHARED) $(if $(CHECKED),-m "not quick") $(or $(NAMED),$(if $(FREE),$(CORE_TESTS))) $(OPTIONS)
	$(if $(PURE_TESTS),$(if $(FREE),PYTHON_GIL=0) PURGATORY_PURE=1 $(PY) $(TESTED) $(SHARED) $(PURE_TESTS) $(OPTIONS)$(if $(ARGS), || test $$? -eq 5))

test-core: $(READY)-core ## Run the tests of timer, core and asyncio on PYTHON=..., both implementations, with the fewest packages
	$(PY) hatch_build.py || test -z "$(PURGATORY_NATIVE)"
	$(if $(FREE),PYTHON_GIL=0) $(PY) $(TESTED) $(SHARED) $(CORE_TESTS) $(ARGS)
	$(if $(FREE),PYTHON_GIL=0) PURGATORY_PURE=1 $(PY) $(TESTED) $(SHARED) $(CORE_TESTS) $(ARGS)

native: | $(PY) ## Compile the native implementation in place, if its sources are newer and there is a C compiler
	@$(PY) hatch_build.py || test -z "$(PURGATORY_NATIVE)"

rehearse: $(READY)-rehearse ## Do what a release does, except the upload: build, check the metadata, install and run on each Python at hand
	@.ci/rehearse.sh "$(PY)" var/rehearse

wheel: $(READY)-rehearse ## Build a wheel with the native implementation into dist/ (needs a C compiler)
	PURGATORY_NATIVE=1 $(PY) -m build --wheel --outdir dist . >/dev/null
	@ls dist/*.whl

# The tests wait now and then, and leave the processors to the types.
check: $(READY)-check native ## What to run before a commit: format, lint, types, fast tests
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy & types=$$!; \
	$(PY) $(TESTED) $(SHARED) -m quick $(or $(NAMED),tests/unit) $(OPTIONS); tests=$$?; wait $$types && exit $$tests

format: $(READY)-check ## Format the code and fix what the linter can fix
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

# Coverage does not survive the first two: a failed allocation or an interrupt also strikes its tracer, which then records nothing more,
# or hangs. The third counts blocks of memory, of which coverage takes some.
UNTRACED := tests/unit/faults/test_memory.py tests/unit/purgatory/test_rare.py::test_interrupts_leave_no_lock_held \
            tests/unit/purgatory/test_native.py::test_rounds_leave_no_references

cov: $(READY)-test ## Run the quicker tests under coverage and report the lines and branches missed
	$(VENV)/bin/coverage erase
	$(VENV)/bin/coverage run -m pytest -m "not slow and not spark" $(addprefix --deselect=,$(UNTRACED)) tests $(ARGS)
	$(VENV)/bin/coverage html --quiet --directory htmlcov
	$(VENV)/bin/coverage report

bench: $(READY)-test native ## Measure timer and purgatory beside their peers, on an idle machine, with JSON in var/ (ONLY="timer load" ARGS=--quick)
	$(PY) -m tests.benchmarks $(ONLY) $(ARGS)

bench-plots: $(READY)-bench ## Draw the figures of the last `make bench` into docs/pictures
	$(PY) -m tests.benchmarks.plots $(ARGS)

bench-spark: $(READY)-test programs ## Measure the pipeline at size on local[2], with JSON in var/ (ARGS="--only report --rows 1000000")
	$(PY) -m tests.benchmarks.pipeline $(ARGS)

bench-spark-plots: $(READY)-bench ## Draw the figures of the last `make bench-spark` into docs/pictures
	$(PY) -m tests.benchmarks.pipeline_plots $(ARGS)

docs: $(READY)-docs ## Build the documentation into docs/_build, with warnings as errors
	$(PY) -m sphinx -b html -j auto -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

SECONDS ?= 120
soak: $(READY)-test ## Load, simulation and race tests, new seeds every round, a third of SECONDS=120 each
	$(PY) -m tests.simulation.soak --seconds $$(( $(SECONDS) / 3 ))
	$(PY) -m tests.simulation --seconds $$(( $(SECONDS) / 3 )) --seed $$(od -An -N3 -tu4 /dev/urandom)
	@end=$$(( $$(date +%s) + $(SECONDS) / 3 )); round=0; \
	while [ $$(date +%s) -lt $$end ]; do \
	  round=$$((round + 1)); seed=$$(od -An -N3 -tu4 /dev/urandom | tr -d ' '); \
	  echo "soak: round $$round, seed $$seed"; \
	  $(PY) -m pytest -q --hypothesis-seed=$$seed tests/property tests/concurrency $(ARGS) || exit 1; \
	done; echo "soak: $$round rounds passed"

RUNS ?= 20
races: $(READY)-test ## Run the race tests RUNS=20 times and count failures, with the output of a failing run in var/races
	$(PY) -m tests.concurrency --runs $(RUNS) $(ARGS)

feed-faults: $(READY)-test ## Break the server, the network and the workers of feeds for SECONDS=120 per engine, and check what was promised (ARGS="--engine redis")
	$(PY) -m tests.chaos.feeds --seconds $(SECONDS) $(ARGS)

BOUND  ?= 2
BUDGET ?=
explore: $(READY)-test ## Every interleaving of the tricky places with up to BOUND=2 preemptions (BUDGET=60: seconds for each place)
	$(PY) -m tests.explore --bound $(BOUND) $(if $(BUDGET),--seconds $(BUDGET)) $(ARGS)

mutants: $(READY)-test ## Remove each line that upholds a guarantee, and see a test fail: some minutes (ARGS="shutdown" for some)
	$(PY) -m tests.mutants $(ARGS)

sanitize: $(READY)-test ## Look for errors of C: static analysers, and the core's tests under the address and undefined-behaviour sanitizers
	@.ci/sanitize.sh "$(PY)" var/sanitize $(ARGS)

lowest: $(READY)-test native ## Run the unit tests with the lowest versions of all dependencies that pyproject.toml allows
	PYTHON="$(PY)" .ci/lowest.sh var/lowest "$(EXTRAS)"

kafka-jar: $(READY)-test ## Spark's own Kafka source and sink against the broker example: jars from Maven Central, or JARS=a.jar,b.jar
	@.ci/setup.sh java
	JARS="$(JARS)" $(PY) -m pytest -ra tests/pipeline/kafka_jar.py $(ARGS)

others: ## Run the core's tests on every further Python at hand (3.12 to 3.15, free-threaded, PyPy), both implementations (PURE=0: the native one)
	@.ci/others.sh var/others $(PURE)

programs: ## Install the programs that some tests drive (JRE, prometheus, chromium, kcat, zookeeper, redis-server, postgresql, valgrind, Node, pyright) where apt-get may
	@.ci/setup.sh java prometheus chromium chromedriver kcat zookeeper redis-server postgresql valgrind node npm pyright

clean: ## Remove the environment and everything generated
	rm -rf $(VENV) build dist var docs/_build htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What each kind of work needs. It is installed into the one environment when it is first needed, and when the lists change.
NEEDS_core     = --group anywhere --editable .
NEEDS_check    = --group check --group recipes --editable ".[$(EXTRAS)]"
NEEDS_test     = --group test --group recipes --group $(BROKER)/pyproject.toml:run --editable ".[$(EXTRAS)]"
NEEDS_docs     = --group docs --editable ".[$(LIGHT)]"
NEEDS_run      = --group $(BROKER)/pyproject.toml:run --editable .
NEEDS_spark    = --editable ".[spark]"
NEEDS_broker   = --group lint --group $(BROKER)/pyproject.toml:test --editable ".[report,spark]"
NEEDS_bench    = $(NEEDS_test) --group bench
NEEDS_rehearse = --group rehearse

$(PY):
	@.ci/install.sh "$(VENV)" "$(PYTHON)"

# A free-threaded interpreter gets what the core's tests need. Many other packages have no wheels for it (docs/free-threaded.md).
# Spark's Python processes import PySpark from its zip, which has no bytecode, and take twice as long. Without the zip they import what is installed.
$(READY)-%: pyproject.toml $(BROKER)/pyproject.toml | $(PY)
	@echo "installing for: $* ..."
	@.ci/install.sh "$(VENV)" "$(PYTHON)" $(if $(FREE),$(NEEDS_core),$(NEEDS_$*))
	@rm -f $(VENV)/lib/python*/site-packages/pyspark/python/lib/pyspark.zip
	@touch $@

ready-%: $(READY)-% ;

ready-java:
	@.ci/setup.sh java

.SECONDARY:
