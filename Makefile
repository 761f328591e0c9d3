# ICL circuits suite. `make` alone lists what there is to do; everything runs in .venv, made on first use.
#
# Variables, as in `make test PYTHON=python3.12 TESTS=tests/engine NOTEBOOKS=`:
#   PYTHON          the interpreter that .venv is made from (3.11 or later; `make clean` first to change it)
#   GRID, PROFILE   what `make sweep` runs, and where, for example PROFILE=workflow/profiles/slurm
#   MODEL           the model of `make figures`, `make claims`, `make report`: embedded, smollm2, a hub id, a folder, a GGUF file;
#                   of `make test-real`: smollm2 (default), gemma3
#   SEED            the draw of `make replicate`
#   JOBS            notebooks that `make figures` executes at the same time, each on one thread (default: a notebook per core
#                   for the embedded model; one, on all cores, for any other, which may fill the memory)
#   NOTEBOOKS       the notebooks to run (default: all; empty: none)
#   TESTS           the tests to run (default: tests; empty: none)
#   WORKERS         processes that test at the same time, each on one thread (default: a process per core, 8 at most)
#   PYTEST_ARGS     more for pytest over TESTS, for example -x
#   NBVAL_ARGS      more for pytest over NOTEBOOKS
#   PAPERMILL_ARGS  more for papermill, for example -p prompts 64
#   NAME            the benchmark of `make bench`
#   BENCH_ARGS      more for the benchmark, for example --rounds 1 or --save
#   CLAIMS_ARGS     more for the claims, for example --prompts 100
#   CLASSES_ARGS    more for the table of classes, for example --only llama gpt2
#   SWEEP_ARGS      more for Snakemake, for example --dry-run
#   TORTURE_ARGS    more for the torture, for example --kills 5 --studies toy
#   TORCH           the PyTorch release that `make lock` pins
#   DISK_GB         free space that an installation asks for
#
# CPU or CUDA is pip's choice of PyTorch build, steered by pip's own variables. On Linux the default is CUDA; for the
# smaller CPU build, which the pin accepts too (2.13.0+cpu is a 2.13.0):
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make figures

PYTHON ?= python3
MODEL = embedded
override MODEL := $(value MODEL)
SEED = 1
JOBS = $(if $(filter embedded,$(MODEL)),$(shell getconf _NPROCESSORS_ONLN),1)
GRID = workflow/grid.yaml
PROFILE = workflow/profiles/local
NOTEBOOKS = $(sort $(wildcard notebooks/*.ipynb))
TESTS = tests
TIER = not slow
WORKERS = auto
PYTEST_ARGS =
NBVAL_ARGS =
PAPERMILL_ARGS =
NAME =
BENCH_ARGS =
CLAIMS_ARGS =
CLASSES_ARGS =
SWEEP_ARGS =
TORTURE_ARGS =
TORCH = $(shell sed -n 's/^torch==//p' requirements.lock)
DISK_GB = 6
CELL_TIMEOUT = 600

SHELL := bash
PY := .venv/bin/python
STAMP := .venv/.installed
ORACLES := .venv-oracles
HARNESS := .venv-harness
WORKFLOW := .venv-workflow
PAGES := .venv-pages
EXECUTED := experiment_material/executed
# MODEL is text from outside: it reaches the shell as an environment variable, never as a part of a command
export MODEL
# notebooks run in a folder of their own, so that a path is made absolute; files of a model lie in `folder` below figures/ and
# data/values/, "" for the embedded model
define find_model
model="$$MODEL"; case "$$model" in /*) ;; *) [ ! -e "$$model" ] || model="$(CURDIR)/$$model";; esac; \
	folder="$$($(PY) -m util.paths "$$model")" || exit 1; folder="$${folder:+$$folder/}"
endef
# notebooks that run side by side have one thread each; one alone has all cores
SIDE_BY_SIDE_THREADS = $(if $(filter 1,$(JOBS)),,OMP_NUM_THREADS=1)
# what the reference outputs of notebooks and the tests have in common
QUIET := TQDM_DISABLE=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# tests side by side: a file, or a notebook, is one process's, so that what its tests share is made once
SIDE_BY_SIDE = -n $(WORKERS) --maxprocesses 8 --dist loadfile
# models that packages bring are kept where every target finds them
export ICL_MODELS ?= $(or $(ICL_MATERIAL),$(CURDIR)/experiment_material)/models
export PYDEVD_DISABLE_FILE_VALIDATION := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help figures report gallery replicate sweep test test-all test-real test-gpu test-oracles test-harness test-workflow test-pages torture claims classes check format notebooks lock bench clean clean-cache environment

help: ## list the targets
	@sed -n -E 's/^([a-z-]+):[^#]*## (.*)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; do printf '%-26s %s\n' "  $$name" "$$text"; done

# side by side they start from the last, here and in `test`: the first ones are short, so that no core is idle at the end
figures: $(STAMP) ## execute the notebooks: figures/, data/values/, executed copies in experiment_material/executed/; MODEL=smollm2: on a real model
	@[ -n "$(strip $(NOTEBOOKS))" ] || { echo "No notebook to execute: NOTEBOOKS is empty." >&2; exit 1; }; \
	$(find_model); mkdir -p "$(EXECUTED)/$$folder"; \
	notebooks=$$(printf 'executed/%s\n' $(NOTEBOOKS) | sort $(if $(filter 1,$(JOBS)),,-r)); \
	$(MAKE) --no-print-directory --keep-going --jobs=$(JOBS) $$notebooks || \
		{ echo "Not all notebooks could be executed; the lines above name those that failed." >&2; exit 1; }; \
	echo "Figures: figures/$$folder   values: data/values/$$folder   ($$SECONDS s)"

# one notebook of `make figures`; FORCE is never there, so that it is executed every time
FORCE:
executed/%.ipynb: FORCE
	@$(find_model); notebook="$*.ipynb"; copy="$(EXECUTED)/$$folder$${notebook##*/}"; \
	echo "$$notebook"; \
	ICL_OUTPUT="$(CURDIR)" $(SIDE_BY_SIDE_THREADS) $(PY) -m papermill --kernel python3 --cwd notebooks --log-level ERROR \
		$(if $(filter 1,$(JOBS)),--progress-bar,--no-progress-bar) \
		-r model_name "$$model" "$$notebook" "$$copy" $(PAPERMILL_ARGS) || { echo "$$notebook failed; see $$copy" >&2; exit 1; }; \
	[ ! -e "$$model" ] || $(PY) -c 'import pathlib, sys; copy = pathlib.Path(sys.argv[1]); \
		copy.write_text(copy.read_text().replace(sys.argv[2], ""))' "$$copy" "$$(dirname "$$model")/"; \
	echo "$$notebook: done after $$SECONDS s"

report: $(STAMP) ## what `make figures` left as HTML, in experiment_material/report/: the executed notebooks, and an index of what they found
	@$(find_model); $(PY) -m workflow.report "$$model" $(EXECUTED) experiment_material/report

gallery: $(STAMP) ## from the stored values: figures/README.md (claims, pictures, findings), and notebooks/<model>/ of the published models
	@$(PY) -m workflow.gallery

replicate: $(STAMP) ## the notebooks on fresh prompts, donors and control sets, SEED=1, 2, ...: what held and what moved beside data/values; MODEL as in `make figures`
	@set -o pipefail; set -- $(NOTEBOOKS); $(find_model); name="$${folder%/}"; \
	ls data/values/$$folder*.json >/dev/null 2>&1 || { echo "There are no values of $$model to compare with: run 'make figures MODEL=$$model' first." >&2; exit 1; }; \
	place="$(or $(ICL_MATERIAL),$(CURDIR)/experiment_material)/replications/$${name:-embedded}-$(SEED)"; mkdir -p "$$place/executed"; trap 'exit 130' INT; \
	for notebook in "$$@"; do \
		echo "$$notebook"; \
		ICL_OUTPUT="$$place" $(PY) -m papermill --kernel python3 --cwd notebooks --log-level ERROR --progress-bar \
			-r model_name "$$model" -p seed "$$((1000 * $(SEED)))" "$$notebook" "$$place/executed/$${notebook##*/}" $(PAPERMILL_ARGS) \
			|| { echo "$$notebook failed; see $$place/executed/$${notebook##*/}" >&2; exit 1; }; \
	done; \
	$(PY) -m util replication data/values/$$folder "$$place/data/values/$$folder" | tee "$$place/replication.txt"

sweep: $(STAMP) $(WORKFLOW)/.installed ## notebooks x models x data sets x k x seeds of GRID=workflow/grid.yaml, what is missing of it; on a cluster: PROFILE=workflow/profiles/slurm
	@$(WORKFLOW)/bin/python -m snakemake --snakefile workflow/Snakefile --profile "$(PROFILE)" --config grid="$(GRID)" \
		--directory "$(or $(ICL_MATERIAL),$(CURDIR)/experiment_material)/sweeps/$(basename $(notdir $(GRID)))" $(SWEEP_ARGS)

test: $(STAMP) ## pytest over tests/, but for what is slow, and nbval over notebooks/, on an empty cache
	@[ -n "$(strip $(TESTS) $(NOTEBOOKS))" ] || { echo "Nothing to test: TESTS and NOTEBOOKS are empty." >&2; exit 1; }
	@scratch=$$(mktemp -d) || exit 1; trap 'rm -rf "$$scratch"' EXIT; trap 'exit 130' INT TERM; failed=; \
	if [ -n "$(strip $(TESTS))" ]; then \
		ICL_MATERIAL="$$scratch/tests" ICL_OUTPUT="$$scratch/tests/output" $(QUIET) OMP_NUM_THREADS=1 \
			$(PY) -m pytest $(SIDE_BY_SIDE) -m "$(TIER)" $(TESTS) $(PYTEST_ARGS) || failed="$$failed tests"; \
	fi; \
	if [ -n "$(strip $(NOTEBOOKS))" ]; then \
		ICL_MATERIAL="$$scratch/notebooks" ICL_OUTPUT="$$scratch/notebooks/output" $(QUIET) OMP_NUM_THREADS=1 \
			$(PY) -m pytest $(SIDE_BY_SIDE) -p tests.conftest --nbval-lax --nbval-current-env \
			--nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout $(CELL_TIMEOUT) \
			$$(printf '%s\n' $(NOTEBOOKS) | sort -r) $(NBVAL_ARGS) || failed="$$failed notebooks"; \
	fi; \
	if [ -n "$$failed" ]; then echo "FAILED:$$failed   ($$SECONDS s in all)" >&2; exit 1; fi; \
	echo "All passed   ($$SECONDS s in all)"

test-all: ## what `make test` leaves out: every class of models, whole studies, fake GPUs, damaged records
	@$(MAKE) --no-print-directory test TIER=slow NOTEBOOKS=

test-real: $(STAMP) ## measure a real model (SmolLM2, or MODEL=gemma3, fetched once) and compare with code that does not use the suite
	@scratch=$$(mktemp -d) || exit 1; trap 'rm -rf "$$scratch"' EXIT; trap 'exit 130' INT TERM; \
	ICL_MATERIAL="$$scratch/material" ICL_OUTPUT="$$scratch/output" $(QUIET) OMP_NUM_THREADS=1 \
		$(PY) -m pytest $(SIDE_BY_SIDE) tests/real_model $(PYTEST_ARGS)

test-gpu: $(STAMP) ## everything that a GPU can get wrong, on the GPU of this machine; its output can be pasted into an issue
	@$(PY) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("No CUDA device here, so nothing was run. On fake ones: make test-all TESTS=tests/fake_gpu")'
	@scratch=$$(mktemp -d) || exit 1; trap 'rm -rf "$$scratch"' EXIT; trap 'exit 130' INT TERM; \
	$(PY) -m torch.utils.collect_env; \
	ICL_MATERIAL="$$scratch/material" ICL_OUTPUT="$$scratch/output" $(QUIET) $(PY) -m pytest -m gpu -rP tests $(PYTEST_ARGS)

torture: $(STAMP) ## kill studies at random moments (half an hour at most)
	@$(QUIET) OMP_NUM_THREADS=1 $(PY) -m tests.torture.torture $(TORTURE_ARGS)

claims: $(STAMP) ## the papers' claims with more prompts, for notebooks 02 and 04 (hours; resumes): data/values/
	@$(find_model); export ICL_OUTPUT="$(CURDIR)"; \
	$(PY) -m util claims "$$model" $(CLAIMS_ARGS)

classes: $(STAMP) ## compare every causal class of transformers, tiny, with its own eager attention: data/classes/ (10 minutes)
	@$(QUIET) OMP_NUM_THREADS=1 $(PY) -m tests.benchmarks.classes $(CLASSES_ARGS)

check: $(STAMP) ## ruff and mypy
	@failed=; \
	$(PY) -m ruff check util tests workflow notebooks data || failed="$$failed ruff-check"; \
	$(PY) -m ruff format --check util tests workflow notebooks data || failed="$$failed ruff-format"; \
	$(PY) -m mypy util tests workflow data/embedded_models/recipe || failed="$$failed mypy"; \
	if [ -n "$$failed" ]; then echo "FAILED:$$failed (make format repairs most of what ruff finds)" >&2; exit 1; fi

format: $(STAMP) ## let ruff repair and format util, tests, workflow, notebooks and data
	@$(PY) -m ruff check --fix util tests workflow notebooks data; $(PY) -m ruff format util tests workflow notebooks data

notebooks: $(STAMP) ## re-execute the notebooks in place: their stored outputs are what `make test` compares with
	@scratch=$$(mktemp -d) || exit 1; trap 'rm -rf "$$scratch"' EXIT; trap 'exit 130' INT TERM; \
	for notebook in $(NOTEBOOKS); do \
		echo "$$notebook"; \
		ICL_MATERIAL="$$scratch/material" ICL_OUTPUT="$$scratch/output" $(QUIET) OMP_NUM_THREADS=1 \
			$(PY) -m nbconvert --to notebook --execute --log-level ERROR --output-dir "$$scratch" \
			--ExecutePreprocessor.record_timing=False --ExecutePreprocessor.kernel_name=python3 \
			--ExecutePreprocessor.timeout=$(CELL_TIMEOUT) "$$notebook" && \
		$(PY) tests/notebooks/strip.py "$$scratch/$${notebook##*/}" "$$notebook" || \
			{ echo "$$notebook failed and is unchanged." >&2; exit 1; }; \
	done

lock: ## renew requirements.lock and the pins of environment.yml from the ranges in pyproject.toml
	$(preflight)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "The lock is made with the oldest Python of the suite, for which every later one has the versions too: make lock PYTHON=python3.11" >&2; exit 1; }
	@scratch=$$(mktemp -d) || exit 1; trap 'rm -rf "$$scratch"' EXIT; trap 'exit 130' INT TERM; \
	set -e; $(PYTHON) -m venv "$$scratch/env"; \
	"$$scratch/env/bin/python" tests/house/pins.py direct > "$$scratch/direct.txt"; \
	"$$scratch/env/bin/python" -m pip install --no-input -r "$$scratch/direct.txt" "torch==$(TORCH)" \
		--dry-run --ignore-installed --report "$$scratch/report.json" \
		--python-version 3.11.0 --only-binary :all: --target "$$scratch/none"; \
	"$$scratch/env/bin/python" tests/house/pins.py write "$$scratch/report.json"

# contestants from other libraries live in environments of their own
bench: $(STAMP) $(if $(filter patch_map prefix_scores edge_scores,$(NAME)),$(ORACLES)/.installed) $(if $(filter harness,$(NAME)),$(HARNESS)/.installed) ## time and memory beside opponents; NAME=capture, patch_map, edges, prefix_scores, label_scores, edge_scores, harness, or coverage, verdicts, sensitivity: no contests
	@$(PY) -m tests.benchmarks $(NAME) $(BENCH_ARGS)

test-oracles: $(STAMP) $(ORACLES)/.installed ## compare head patching with TransformerLens, nnsight and pyvene (2 GB of their own)
	@$(QUIET) $(PY) -m pytest tests/oracles/test_oracles.py $(PYTEST_ARGS)

test-harness: $(STAMP) $(HARNESS)/.installed ## evaluate models under interventions in lm-evaluation-harness (400 MB of its own)
	@scratch=$$(mktemp -d) || exit 1; trap 'rm -rf "$$scratch"' EXIT; trap 'exit 130' INT TERM; \
	ICL_MATERIAL="$$scratch/material" ICL_OUTPUT="$$scratch/output" $(QUIET) OMP_NUM_THREADS=1 \
		$(HARNESS)/bin/python -m pytest $(SIDE_BY_SIDE) tests/extras $(PYTEST_ARGS)

test-workflow: $(STAMP) $(WORKFLOW)/.installed ## run small sweeps, kill one and run it again (110 MB of its own)
	@scratch=$$(mktemp -d) || exit 1; trap 'rm -rf "$$scratch"' EXIT; trap 'exit 130' INT TERM; \
	ICL_MATERIAL="$$scratch/material" ICL_OUTPUT="$$scratch/output" $(QUIET) OMP_NUM_THREADS=1 \
		$(WORKFLOW)/bin/python -m pytest $(SIDE_BY_SIDE) tests/workflow $(PYTEST_ARGS)

test-pages: $(STAMP) $(PAGES)/.installed ## open, click and read the pages that `look` writes in Chromium (`apt install chromium`; 150 MB of its own)
	@$(QUIET) OMP_NUM_THREADS=1 $(PAGES)/bin/python -m pytest tests/pages $(PYTEST_ARGS)

clean: ## delete .venv and the caches of tools; cached results stay
	@rm -rf .venv $(ORACLES) $(HARNESS) $(WORKFLOW) $(PAGES) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find util tests workflow notebooks data \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
	@echo "Deleted .venv and the caches of tools. Kept: experiment_material/ ($$(du -sh experiment_material | cut -f1)); make clean-cache deletes that."

clean-cache: ## delete the cached results in experiment_material/
	@echo "Deleting $$(find experiment_material -type f ! -path experiment_material/README.md | wc -l | tr -d ' ') files, $$(du -sh experiment_material | cut -f1), from experiment_material/"
	@find experiment_material -mindepth 1 ! -path experiment_material/README.md -delete
	@[ -z "$$ICL_MATERIAL" ] || echo "ICL_MATERIAL names another folder, which is left alone: $$ICL_MATERIAL"

environment: $(STAMP) ## only make .venv

# ---- the environment: made once; again after a change of the lock, an interruption or a move of the clone ----

ifneq ($(wildcard $(STAMP)),)
ifneq ($(shell $(PY) -I -c 'import importlib.util as u, os; print(os.path.samefile(u.find_spec("util").origin, "util/__init__.py"))' 2>/dev/null),True)
STALE := stale
.PHONY: stale
stale:
	@echo "The environment belongs to another place or its Python is gone: making it anew."
	@rm -rf .venv
endif
endif

$(STAMP): requirements.lock pyproject.toml $(STALE)
	@! kill -0 "$$(cat .venv/.unfinished 2>/dev/null)" 2>/dev/null || \
		{ echo "Another make (process $$(cat .venv/.unfinished)) is making .venv: wait for it, or end it." >&2; exit 1; }
	@[ ! -e .venv/.unfinished ] || { echo "The last installation was interrupted: starting again."; rm -rf .venv; }
	$(preflight)
	@$(PY) -m pip --version >/dev/null 2>&1 || \
		{ echo "Making .venv with $$($(PYTHON) --version)"; mkdir -p .venv && echo $$PPID > .venv/.unfinished && $(PYTHON) -m venv .venv; } || \
		{ echo "$(PYTHON) could not make .venv. Debian and Ubuntu: apt install python3-venv. Otherwise: make PYTHON=<another>" >&2; exit 1; }
	@echo "Installing the $$(grep -c == requirements.lock) packages of requirements.lock (minutes; all of pip's words: .venv/install.log)"
	@set -o pipefail; trap 'exit 130' INT; \
	$(PY) -m pip install --no-input --progress-bar off -r requirements.lock 2>&1 | tee .venv/install.log | $(follow_pip) && \
	$(PY) -m pip install --no-input --no-deps --editable . >> .venv/install.log 2>&1 || \
		{ tail -n 8 .venv/install.log | cut -c 1-300 >&2; \
		echo "The installation failed. Is the network up, and does pip reach a package index? After a proxy or mirror is set (https_proxy, PIP_INDEX_URL) or the trouble above is mended, run the same command again." >&2; \
		exit 1; }
	@mkdir -p .venv/etc/ipython && echo 'c.IPKernelApp.log_level = "ERROR"' > .venv/etc/ipython/ipython_kernel_config.py # notebooks: no chatter
	@rm -f .venv/.unfinished; touch $@; echo "Installed."

$(ORACLES)/.installed: tests/oracles/oracles.txt requirements.lock | $(STAMP)
	@rm -rf $(ORACLES); echo "Making $(ORACLES) (minutes; all of pip's words: $(ORACLES)/install.log)"
	@$(PY) -m venv $(ORACLES)
	@$(ORACLES)/bin/python -m pip install --no-input --progress-bar off -r tests/oracles/oracles.txt \
		$$(grep -E '^(torch|transformers)==' requirements.lock) > $(ORACLES)/install.log 2>&1 || \
		{ tail -n 8 $(ORACLES)/install.log | cut -c 1-300 >&2; exit 1; }
	@touch $@

# what these share with the suite is that of .venv, so that the same versions are tested; jobs of a sweep run there, too
$(HARNESS)/.installed: tests/extras/harness.txt
$(WORKFLOW)/.installed: tests/workflow/workflow.txt
$(PAGES)/.installed: tests/pages/pages.txt
$(HARNESS)/.installed $(WORKFLOW)/.installed $(PAGES)/.installed: requirements.lock | $(STAMP)
	@rm -rf $(@D); echo "Making $(@D) (a minute; all of pip's words: $(@D)/install.log)"
	@$(PY) -m venv $(@D)
	@$(PY) -c 'import site; print(site.getsitepackages()[0])' > "$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/suite.pth"
	@$(@D)/bin/python -m pip install --no-input --progress-bar off -r $(filter %.txt,$^) > $(@D)/install.log 2>&1 || \
		{ tail -n 8 $(@D)/install.log | cut -c 1-300 >&2; exit 1; }
	@touch $@

define preflight
@command -v $(PYTHON) >/dev/null || \
	{ echo "There is no $(PYTHON). Install Python 3.11 or later, or name one: make PYTHON=python3.12" >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); 3.11 or later is needed. Name one: make PYTHON=python3.12" >&2; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	{ echo "$(PYTHON) lacks the module venv. Debian and Ubuntu: apt install python3-venv. Otherwise: make PYTHON=<another>" >&2; exit 1; }
@free=$$(df -Pk . | awk 'NR == 2 {print int($$4 / 1048576)}'); [ "$$free" -ge $(DISK_GB) ] || \
	{ echo "$$free GB are free here and $(DISK_GB) are asked for. Make room, or for the CPU build of PyTorch (see the top of the Makefile) ask for less: make DISK_GB=3" >&2; exit 1; }
endef

# a running count on a terminal, a line now and then elsewhere; large downloads by name
define follow_pip
{ count=0; while IFS= read -r line; do case "$$line" in \
	Collecting*|Processing*|"Requirement already satisfied"*) count=$$((count + 1)); \
		if [ -t 1 ]; then printf '\r  %3d packages looked up' $$count; \
		elif [ $$((count % 50)) = 0 ]; then echo "  $$count packages looked up"; fi;; \
	*Downloading*\([0-9][0-9].*" MB)"*|*Downloading*\([0-9][0-9][0-9].*" MB)"*) [ ! -t 1 ] || echo; echo "  $${line#"$${line%%[! ]*}"}";; \
	"Installing collected"*) [ ! -t 1 ] || echo; echo "  unpacking";; \
	esac; done; }
endef

