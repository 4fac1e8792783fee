# The two commands of this checkout are `make demo` and `make test`; both install what they need.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-podman demo demo-clean test test-real lint format unit sanity molecule lock-tools locks clean

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

test-real: setup ## Real torch, SGLang and CUDA wheels (gigabytes)
	@pytest tests/unit -m real || { status=$$?; [ $$status = 5 ] && echo "make test-real: no such test yet"; }

lint: setup ## Format, lint, types, playbooks, changelog
	ruff format --check .
	ruff check .
	mypy plugins roles tools tests
	yamllint .
	ansible-lint --offline --profile production
	antsibull-changelog lint

format: setup ## Put Python into the project's form
	ruff format .
	ruff check --fix .

unit: setup ## Unit tests, with the real loader, uv and engine as oracles
	pytest tests/unit -m 'not real'

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
