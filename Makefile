# The two commands of this checkout are `make demo` and `make test`; both install what they need.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-podman demo demo-clean test test-real bench lint format unit sanity molecule lock-tools locks clean

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/.collections
export PYTHONDONTWRITEBYTECODE := 1

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## Install what lint and unit tests need
	@tools/setup

setup-podman: ## Install also what booting test hosts needs
	@tools/setup podman

demo: setup-podman ## Boot two hosts, deploy, break, roll back, and say what happened
	@tools/demo

demo-clean: ## Remove what make demo left
	@tools/demo --clean

test: setup-podman lint unit sanity molecule ## Everything that needs no multi-gigabyte download
	@echo "make test: all parts passed"

test-real: ## Real torch, CUDA wheels and SGLang on a booted host: gigabytes
	@tools/setup real
	PYTHONPATH=tests:.collections python -m support.real_venv
	pytest tests/unit -m real -vv --durations=5

bench: setup ## Speed and memory against their limits (8 GB of wheels; BENCH=--quick does without)
	@python -m benchmarks $(BENCH)

lint: setup ## Format, lint, types, playbooks, changelog
	ruff format --check .
	ruff check .
	mypy plugins roles tools tests benchmarks
	yamllint .
	ansible-lint --offline --profile production
	antsibull-changelog lint

format: setup ## Put Python into the project's form
	ruff format .
	ruff check --fix .

unit: setup ## Unit tests, with the real loader, uv and engine as oracles
	pytest tests/unit -m 'not real' -rfEs

sanity: setup ## ansible-test sanity and the documentation of the collection
	tools/sanity

molecule: setup-podman ## Deploy and roll back on booted hosts
	tools/molecule

lock-tools: ## Compile requirements/dev.in and uv.in anew
	tools/lock-tools

locks: setup ## Compile the locks that the collection ships anew
	@tools/make_locks

clean: demo-clean ## Remove caches and the venv as well
	rm -rf .venv .cache .collections .mypy_cache .ruff_cache .pytest_cache .hypothesis
