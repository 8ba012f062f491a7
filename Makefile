# SPDX-License-Identifier: Apache-2.0
# make train: set-up, build, and the main job on real text. make test: set-up, build, all tests. `make help` lists the rest.
PRESET ?= release
BINARY := build/$(PRESET)/bin/hyper-parallel
CONFIG ?= configs/tiny_qwen3.yaml
SOURCES = $(shell git ls-files '*.h' '*.cpp')
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: setup build train test test-asan test-tsan bench check format lint clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

setup: ## install the Debian packages and the .venv that the project needs
	@tools/setup.sh

build/$(PRESET)/build.ninja: CMakeLists.txt CMakePresets.json
	@cmake --preset $(PRESET) --log-level=STATUS

build: setup build/$(PRESET)/build.ninja ## set-up and build (PRESET=release|debug|asan|tsan)
	@cmake --build --preset $(PRESET)

train: build ## set-up, build, train a small model on two ranks and sample from it (CONFIG=file.yaml)
	@$(BINARY) train $(CONFIG)

check: ## check formatting, includes between folders, and generated docs
	@tools/check_layers.py
	@python3 tools/generate_ops_doc.py --check
	@tools/check_format.sh

test: build check ## set-up, build, all checks and tests
	@ctest --preset $(PRESET)

test-asan: ## the unit tests under the address sanitizer
	@tools/setup.sh && cmake --preset asan && cmake --build --preset asan --target unit_tests && ctest --preset asan -LE 'dist|parity|examples'

test-tsan: ## collectives and trainer tests under the thread sanitizer
	@tools/setup.sh && cmake --preset tsan && cmake --build --preset tsan --target collectives_test tensor_parallel_test fully_shard_test train_test && ctest --preset tsan -R '^(collectives|tensor_parallel|fully_shard|train)\.'

bench: build ## run the benchmarks beside PyTorch (BENCH=name for one); a JSON line each
	@benchmarks/run.sh $(BENCH)

format: ## format every source in place
	@clang-format-14 -i $(SOURCES)

lint: build/$(PRESET)/build.ninja ## clang-tidy over the sources changed since origin/main (or all: FILES=...)
	@tools/lint.sh build/$(PRESET) $(FILES)

clean: ## remove the build folders
	@rm -rf build
