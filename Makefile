# The commands of the course. They need python3 (3.11 or newer, with venv) and make, nothing else.
#   make lab     the course in JupyterLab          make test    everything is proved
#   make help    all commands
# TORCH_INDEX=https://... installs torch from that index, such as PyTorch's own for CPU builds.

PYTHON ?= python3
VENV ?= .venv
# an environment with what a reader needs, and one with every group of pyproject.toml
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
COMPLETE := $(VENV)/.complete
# what a reader types reaches a command by its environment, so that no shell reads it as code
export LESSON RECORDS TORCH_INDEX PREDICT_FIRST AGENDA BEGINS NAME FILES GROUPS TIMES

.PHONY: help install lab check test horovod cluster triton drills bugs bench claims accuracy gpu-record proofs course notebooks readme slides \
  kit results class site preflight reset catch-up clean

help:  ## this list
	@awk -F ' *## *' '/^[a-z-]+:.*##/ { sub(/:.*/, "", $$1); printf "make %-10s %s\n", $$1, $$2 }' \
	  $(MAKEFILE_LIST)

ifneq ($(words $(VENV)),1)
  $(error VENV is "$(VENV)", and make can't work with a path that is empty or has a blank: name another)
endif

# who may not write to an environment uses it as it is
FIXED := $(shell [ -e $(READY) ] && [ ! -w $(VENV) ] && echo yes)
# its Python may stand in somebody's home, or be removed
BROKEN := $(shell [ -e $(READY) ] && { $(PY) -c '' >/dev/null 2>&1 || echo yes; })

# tools/install.py compares what is there with the pins: what has not changed is not installed again
$(READY): $(if $(BROKEN),unreadable) $(if $(FIXED),,pyproject.toml constraints.txt)
	@[ ! -e $(VENV) ] || [ -w $(VENV) ] || \
	  { echo "$(VENV) can't be written by this user: say make VENV=/path/to/another."; exit 1; }
	@command -v $(PYTHON) >/dev/null || \
	  { echo "There is no $(PYTHON): install Python 3.11 or newer, or say make PYTHON=/path/to/it."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) --version 2>&1) is too old: the course needs Python 3.11 or newer, say make PYTHON=python3.12."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@[ -w . ] || { echo "$(CURDIR) can't be written: let its owner say make install there, or make" \
	  "a clone of your own."; exit 1; }
	@[ -e $(PY) ] || { echo "Installing into $(VENV), once; PyTorch is large."; $(PYTHON) -m venv $(VENV); }
	@$(PY) tools/install.py
	@touch $@

$(COMPLETE): $(READY) $(if $(FIXED),,pyproject.toml constraints.txt)
	@[ -w $(VENV) ] || { echo "$(VENV) has only what a reader needs, and can't be written by this user:" \
	  "let its owner say make install, or say make VENV=/path/to/another."; exit 1; }
	@$(PY) tools/install.py all
	@touch $@

.PHONY: unreadable
unreadable:
	@echo "$(PY) can't be started by this user: build $(VENV) with a Python that everybody can read" \
	  "(rm -r $(VENV), make PYTHON=/usr/bin/python3), or say make VENV=/path/to/another."; exit 1

install: $(if $(GROUPS),$(READY),$(COMPLETE))  ## .venv with all packages, or with GROUPS=serving these beside a reader's
	@$(if $(GROUPS),$(PY) tools/install.py $$GROUPS)

lab: $(READY)  ## the course in JupyterLab; LESSON=04 opens that one; PREDICT_FIRST=1: no run while a prediction is open
	$(PY) tools/lab.py $(LAB_ARGS)

check: $(COMPLETE)  ## in about a minute: lint, derived files, the tests that start no ranks
	@$(PY) tools/test.py --check

test: $(COMPLETE)  ## prove everything, or with LESSON=04 what a change to one lesson needs
	@$(PY) tools/horovod.py --once || [ $$? -eq 3 ]  # 3: not on this machine, its tests are skipped by name
	@$(PY) tools/test.py $(if $(LESSON),--lesson "$$LESSON")

horovod: $(READY)  ## build Horovod for this Python and torch (minutes, once) and install it
	@$(PY) tools/horovod.py
	@$(VENV)/bin/horovodrun --check-build

SLURM := slurm-wlm munge iproute2
POLICY := /usr/sbin/policy-rc.d

# packages ask POLICY before they start a service: lessons start their own
cluster:  ## install Slurm for the simulated cluster (root on Debian), or say how
	@PATH="$$PATH:/usr/sbin:/sbin"; \
	if { command -v slurmctld && command -v slurmd && command -v munged && command -v tc; } >/dev/null; then \
	  echo "Slurm and munge are here."; exit; fi; \
	command -v apt-get >/dev/null || { echo "No apt-get here: install Slurm and munge ($(SLURM) on Debian)."; exit 3; }; \
	[ "$$(id -u)" = 0 ] || \
	  { echo "Only root may install packages: sudo apt-get install --no-install-recommends $(SLURM)"; exit 3; }; \
	if [ ! -e $(POLICY) ]; then \
	  trap 'rm $(POLICY)' EXIT; printf '#!/bin/sh\nexit 101\n' >$(POLICY); chmod +x $(POLICY); fi; \
	export DEBIAN_FRONTEND=noninteractive; set -ex; \
	apt-get update -qq; \
	apt-get install -y -qq --no-install-recommends $(SLURM) >/dev/null; \
	! command -v systemctl >/dev/null || systemctl disable --quiet slurmctld slurmd munge 2>/dev/null || true

triton:  ## install Triton Inference Server into .venv-triton (Linux, x86_64), or say why not
	@$(PYTHON) tools/triton_server.py

FAULTS := faults hang live several_hosts host_drills slurm_jobs serving browser

drills: $(COMPLETE)  ## the tests of faults, ten times (or TIMES=2) on an idle machine
	@for n in $$(seq "$${TIMES:-10}"); do echo "== $$n"; \
	  BOOTCAMP_DRILLS=1 $(PY) -m pytest --durations=9 $(FAULTS:%=tests/test_%.py) || code=$$?; \
	  [ $${code:-0} -le 1 ] || break; done; exit $${code:-0}

bugs: $(COMPLETE)  ## plants bugs in copies, one after another, and says which test finds each
	$(PY) tools/planted_bugs.py

bench: $(COMPLETE)  ## speed and memory as ratios within one run
	$(PY) tools/bench.py

claims: $(COMPLETE)  ## every claim of the lessons, tested on this machine: a table of verdicts
	$(PY) tools/course.py --claims $(ARGS) $(if $(LESSON),"$$LESSON")

gpu-record: $(COMPLETE)  ## asks this machine's GPU, into logs/gpu_record: minutes for each part
	@for part in equality speed_small mfu_small mfu_xl; do \
	  $(PY) tools/gpu.py $(ARGS) logs/gpu_record $$part || code=$$?; \
	  case $${code:-0} in 2 | 130) break ;; esac; done; exit $${code:-0}

proofs: $(COMPLETE)  ## which test proves each script, fault and exercise, and what is rejected
	@$(PY) tests/proofs.py

accuracy: $(COMPLETE)  ## how wrong the planner is on published rows that its constants were not fitted to
	@$(PY) tools/recorders/accuracy.py $(ARGS)

course: $(COMPLETE)  ## all notebooks in order, or LESSON=04, and a report of this machine under logs/
	$(PY) tools/course.py $(ARGS) $(if $(LESSON),"$$LESSON")

notebooks: $(COMPLETE)  ## notebooks/*.ipynb from notebooks/sources/*.py
	$(PY) tools/notebooks.py

readme: $(COMPLETE)  ## the tables of notebooks/README.md from notebooks/lessons.toml
	$(PY) tools/lessons.py

slides: $(COMPLETE)  ## slides/build/*.html and *.pdf from slides/*.md (RECORDS=logs/laptop: your own runs)
	$(PY) tools/slides.py $(if $(RECORDS),--records "$$RECORDS")

site: $(COMPLETE)  ## logs/site: the newest `make course` as pages that need no kernel and no network
	$(PY) tools/pages.py $(ARGS)

preflight:  ## is this machine ready? before installing too; JSON=1 prints it for a program
	@command -v $(PYTHON) >/dev/null || \
	  { echo "There is no $(PYTHON): install Python 3.11 or newer, or say make PYTHON=/path/to/it."; exit 1; }
	@$(if $(BROKEN),$(PYTHON),$(or $(wildcard $(PY)),$(PYTHON))) tools/preflight.py $(if $(JSON),--json)

reset: $(READY)  ## LESSON=04 puts its notebook and your scripts back, and keeps what was there
	@$(PY) tools/reset.py "$$LESSON"

catch-up: $(READY)  ## LESSON=06 fills in the solutions of earlier lessons, and sums them up
	@$(PY) tools/reset.py --catch-up "$$LESSON"

kit: $(COMPLETE)  ## the instructor's guide; AGENDA=mine.toml: with agendas of your own; BEGINS=13:30
	$(PY) tools/kit.py $(if $(AGENDA),--agenda "$$AGENDA") $(if $(BEGINS),--begins "$$BEGINS")

results: $(READY)  ## what you have solved, predicted and measured, in one file for your teacher (NAME=ada)
	@$(PY) tools/results.py $(if $(NAME),--name "$$NAME")

class: $(COMPLETE)  ## FILES="*.json" sums up such files as a page for a teacher
	@$(PY) tools/results.py --class $$FILES

clean:  ## remove what was made: environment, slides, caches (records in logs/ stay)
	rm -rf $(VENV) .venv-triton slides/build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
