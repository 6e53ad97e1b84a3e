# Every target makes the virtual environment it needs. `make` alone prints this file's targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.NOTPARALLEL: # the targets are stages of one path; `make -j engines repo` must not race

DEPLOYMENT ?= demo
PROMPT ?= Write one sentence about the sea.
ARGS ?=
# The prompt reaches the recipes through the environment: quotes, dollars and backticks in it stay what they are.
export SPECDEPLOY_PROMPT := $(value PROMPT)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

# Folders are named build, client, engines, configs and tests: every target must be phony or make finds it up to date.
.PHONY: help install format check test test-fast golden schema lock clean
.PHONY: gpu-check
.PHONY: bench-engine bench-peers soak bench-client bench-aiperf aiperf bench-planner
.PHONY: plan calibrate profile
.PHONY: inspect trim-vocab engines verify-manifest repo serve stop status query smoke bench verify gate report demo

help: ## Print the targets
	@echo "make <target> [DEPLOYMENT=$(DEPLOYMENT)] [PROMPT=\"...\"] [ARGS=\"...\"]"
	grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18

demo: $(STAMP) ## The whole path for the demo, then a row per drafting method in bf16: build, serve, measure, report
	@served= also=()
	stop_served() { if [ -n "$$served" ]; then $(BIN)/specdeploy stop "$$served" || true; served=; fi; }
	trap stop_served EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	run_smoke() { # a verdict is an answer, whatever it says: 0 pass, 1 fail, 2 inconclusive
		local code=0
		$(BIN)/specdeploy-client smoke --deployment "$$1" --budget "$$2" || code=$$?
		[ "$$code" -le 2 ] || return "$$code"
	}
	for row in demo:quick demo-bf16:row demo-draft-model:row demo-eagle3:row; do
		name=$${row%%:*} budget=$${row##*:}
		draft=$$(sed -nE 's/^ +checkpoint: (\.\.\/drafts\/[^ #]+).*/\1/p' "configs/deployments/$$name.yaml")
		if [ -n "$$draft" ] && [ ! -d "configs/deployments/$$draft" ]; then
			echo "== $$name: skipped, its draft configs/$${draft#../} is not there"; continue
		fi
		if $(BIN)/specdeploy status "$$name" >/dev/null; then # not ours to measure on, and not ours to stop
			echo "$$name is being served already: make stop DEPLOYMENT=$$name, then make demo" >&2; exit 1
		fi
		echo "== $$name: engines"; $(BIN)/specdeploy build "$$name"
		echo "== $$name: repo"; $(BIN)/specdeploy repo "$$name"
		echo "== $$name: serve"; $(BIN)/specdeploy serve "$$name"; served=$$name # a start that fails cleans up itself
		if [ "$$name" = demo ]; then
			echo "== $$name: query"; $(BIN)/specdeploy-client query --deployment "$$name" -- "$$SPECDEPLOY_PROMPT"
		else
			also+=(--also "artifacts/$$name")
		fi
		echo "== $$name: smoke ($$budget)"; run_smoke "$$name" "$$budget"
		echo "== $$name: stop"; stop_served
	done
	echo "== report"
	$(BIN)/specdeploy-client report --deployment demo "$${also[@]}"

inspect: $(STAMP) ## Prove from files that the draft of DEPLOYMENT fits its target, or ARGS="--target DIR --draft DIR"
	@$(BIN)/specdeploy inspect $(if $(findstring --target,$(ARGS)),,$(DEPLOYMENT)) $(ARGS)

plan: $(STAMP) ## Decide whether speculation will pay for DEPLOYMENT, up to which load, with which K -> plans/; needs no GPU
	@code=0; $(BIN)/specdeploy plan $(DEPLOYMENT) $(ARGS) || code=$$?
	[ "$$code" -le 2 ] || exit "$$code" # a verdict is an answer: 0 go, 1 no-go, 2 measure first

calibrate: $(STAMP) ## Measure step times of DEPLOYMENT's engine for plan (lane torch), or ARGS="--run artifacts/NAME"
	@$(BIN)/specdeploy calibrate $(DEPLOYMENT) $(ARGS)

profile: $(STAMP) ## Measure the acceptance of DEPLOYMENT on its own prompts for plan (lane torch)
	@$(BIN)/specdeploy profile $(DEPLOYMENT) $(ARGS)

trim-vocab: $(STAMP) ## A draft with a smaller lm_head: ARGS="--draft DIR --corpus FILE --keep N --output DIR"
	@$(BIN)/specdeploy trim-vocab $(ARGS)

engines: $(STAMP) ## Build the engine of DEPLOYMENT
	@$(BIN)/specdeploy build $(DEPLOYMENT) $(ARGS)

verify-manifest: $(STAMP) ## Hash the build of DEPLOYMENT again and name every changed, missing or surplus file
	@$(BIN)/specdeploy verify-manifest $(DEPLOYMENT) $(ARGS)

repo: $(STAMP) ## Write the Triton model repository of DEPLOYMENT
	@$(BIN)/specdeploy repo $(DEPLOYMENT) $(ARGS)

serve: $(STAMP) ## Start the Triton server of DEPLOYMENT in the background and wait until it is ready
	@$(BIN)/specdeploy serve $(DEPLOYMENT) $(ARGS)

stop: $(STAMP) ## Stop the Triton server of DEPLOYMENT
	@$(BIN)/specdeploy stop $(DEPLOYMENT) $(ARGS)

status: $(STAMP) ## Say whether DEPLOYMENT is served, where, and where its log is
	@$(BIN)/specdeploy status $(DEPLOYMENT) $(ARGS)

query: $(STAMP) ## Ask the served DEPLOYMENT: PROMPT="..."
	@$(BIN)/specdeploy-client query --deployment $(DEPLOYMENT) $(ARGS) -- "$$SPECDEPLOY_PROMPT"

smoke: $(STAMP) ## Measure speculation on against off, check outputs, give a verdict
	@$(BIN)/specdeploy-client smoke --deployment $(DEPLOYMENT) $(ARGS)

bench: $(STAMP) ## Measure only: writes records and a summary
	@$(BIN)/specdeploy-client bench --deployment $(DEPLOYMENT) $(ARGS)

verify: $(STAMP) ## Check outputs only: writes an integrity report
	@$(BIN)/specdeploy-client verify --deployment $(DEPLOYMENT) $(ARGS)

gate: $(STAMP) ## Judge the last measurement; needs no server
	@$(BIN)/specdeploy-client gate --deployment $(DEPLOYMENT) $(ARGS)

report: $(STAMP) ## Write the HTML report of the last measurement
	@$(BIN)/specdeploy-client report --deployment $(DEPLOYMENT) $(ARGS)

install: $(STAMP) ## Make or refresh the virtual environment in .venv

format: $(STAMP) ## Format the sources
	@$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

check: $(STAMP) ## Lint, format, types, import rules, JSON schemas
	@echo "== ruff"; $(BIN)/ruff check .
	$(BIN)/ruff format --check .
	echo "== mypy"; $(BIN)/mypy
	echo "== import-linter"; $(BIN)/lint-imports
	echo "== schemas"; $(BIN)/python -m specdeploy.config.json_schema --check

test: $(STAMP) ## Run all tests
	@$(BIN)/pytest -q -ra $(ARGS)

test-fast: $(STAMP) ## Run the tests that start no server
	@$(BIN)/pytest -q -m "not integration" $(ARGS)

gpu-check: $(STAMP) ## Measure step times and check losslessness on this machine's NVIDIA GPU -> configs/hardware
	@PYTHONPATH=tests $(BIN)/python -m gpu.gpu_check $(ARGS)

bench-engine: $(STAMP) ## The embedded engine against transformers and against itself -> artifacts/bench-engine
	@for name in demo demo-draft-model demo-eagle3; do # a draft that cannot be built is an arm that is skipped
		$(BIN)/specdeploy build "$$name" || [ "$$name" != demo ]
	done
	$(BIN)/python benchmarks/engine/bench_engine.py $(ARGS)

bench-peers: $(STAMP) ## The embedded engine beside vLLM's CPU build, in .venv-peers -> artifacts/bench-peers
	@$(BIN)/specdeploy build demo
	$(BIN)/python benchmarks/engine/bench_peers.py $(ARGS)

soak: $(STAMP) ## 1,000 requests with cancellations through one engine: nothing lost, memory flat
	@$(BIN)/specdeploy build demo
	$(BIN)/python benchmarks/engine/soak.py $(ARGS)

bench-client: $(STAMP) ## The client itself: cost per message, lag of 64 streams, known truth, a million records
	@for script in message_cost stream_lag many_records known_truth; do
		echo "== $$script"; $(BIN)/python "benchmarks/client/$$script.py"
	done

bench-planner: $(STAMP) ## Predicted against published, split into fitted and held-out; the simulator's speed
	@$(BIN)/python benchmarks/planner/published.py $(ARGS)
	PYTHONPATH=build $(BIN)/python benchmarks/planner/simulator_speed.py

bench-aiperf: $(STAMP) ## The same load by AIPerf, in .venv-aiperf, and by us
	@$(BIN)/python benchmarks/client/beside_aiperf.py $(ARGS)

aiperf: $(STAMP) ## AIPerf in .venv-aiperf (1.2 GB): with it its integration test runs
	@[ -x .venv-aiperf/bin/aiperf ] || { $(BIN)/python -m venv .venv-aiperf && .venv-aiperf/bin/python -m pip install -q aiperf==0.13.0; }

golden: $(STAMP) ## Rewrite the checked-in model repository of the demo and the golden files of the GPU deployments
	@$(BIN)/specdeploy repo demo
	SPECDEPLOY_REWRITE_GOLDEN=1 $(BIN)/pytest -q tests/golden

schema: $(STAMP) ## Rewrite the JSON schemas of the config files
	@$(BIN)/python -m specdeploy.config.json_schema --write

lock: $(STAMP) ## Rewrite requirements.lock from pyproject.toml
	@tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT
	$(BIN)/python -m pip install -qq --target "$$tools" "uv>=0.9"
	# torch's own dependencies differ between its CUDA and CPU builds, so pip takes those from the build it finds.
	# xgrammar is in requirements-wheels.lock, which is installed without dependencies.
	{
		echo "# Written by \`make lock\`: extras torch, serve and dev on Linux x86_64, Python 3.11 to 3.13."
		echo "# torch's CUDA libraries are left out, so that a CPU build of the same version satisfies this file too."
		"$$tools/bin/uv" pip compile pyproject.toml --extra torch --extra serve --extra dev --universal \
			--python-version 3.11 --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet |
			grep -vE "^(nvidia-|cuda-|triton==|xgrammar==|apache-tvm-ffi==)|sys_platform == '(win32|emscripten)'"
	} > "$$tools/requirements.lock"
	cp "$$tools/requirements.lock" requirements.lock

clean: ## Remove caches and dist/; engines, reports and .venv stay
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find build client tests triton_repo -type d -name __pycache__ -prune -exec rm -rf {} +

# Not compiled at install: most modules of the large packages are never imported, and the others compile on first use.
# A half-made environment has no stamp and is made again. Python 3.11 or 3.12 first: the Triton server in the wheel needs
# numpy 1, which for 3.13 has to be compiled. Where python3 has TensorRT-LLM (the vendor's container), the environment lies
# over that Python's packages and adds only this project: TensorRT-LLM, its torch and the server stay what they are.
$(STAMP): pyproject.toml requirements.lock requirements-wheels.lock
	@find_python() {
		for want in 'in ((3,11),(3,12))' '== (3,13)'; do
			for name in python3 python3.12 python3.11 python3.13 python; do
				if "$$name" -c "import sys, venv, ensurepip; sys.exit(not sys.version_info[:2] $$want)" 2>/dev/null; then
					echo "$$name"
					return
				fi
			done
		done
		echo "make: no usable Python: install Python 3.11 or 3.12 (with its venv module) and try again" >&2
		return 1
	}
	rm -f $@
	if version=$$(python3 -c 'import importlib.metadata as m; print(m.version("tensorrt_llm"))' 2>/dev/null); then
		echo "== environment: $(VENV) over the packages of $$(python3 --version), with its TensorRT-LLM $$version"
		python3 -m venv --clear --system-site-packages $(VENV)
		$(BIN)/python -m pip install -qq -e '.[serve]'
		touch $@
		exit 0
	fi
	if ! $(BIN)/python -c 'import sys, pip; sys.exit(not (3,11) <= sys.version_info[:2] <= (3,13))' 2>/dev/null; then
		python=$$(find_python)
		echo "== environment: $(VENV) with $$("$$python" --version)"
		if "$$python" -c 'import sys; sys.exit(sys.version_info[:2] < (3,13))'; then
			echo "   only Python 3.13 found: numpy 1 will be compiled, which needs a C++ compiler and some minutes"
		fi
		"$$python" -m venv --clear $(VENV)
	fi
	echo "== environment: packages (the first time this downloads PyTorch, which takes a while)"
	$(BIN)/python -m pip install -qq --no-compile -r requirements.lock
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] < (3,13))'; then
		echo "== environment: numpy 1.26.4 from source, for the Triton server in the wheel"
		$(BIN)/python -m pip install -qq --no-deps --no-binary numpy numpy==1.26.4 ||
			echo "   not compiled: serving will refuse to start. Install a C++ compiler, or Python 3.11 or 3.12, and remove $(VENV)" >&2
	fi
	echo "== environment: Triton server, demo weights, guided decoding"
	$(BIN)/python -m pip install -qq --no-compile --no-deps -r requirements-wheels.lock
	echo "== environment: this project"
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e .
	touch $@
