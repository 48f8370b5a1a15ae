# Every door for developers; .ci/run goes through `lint` and `test`.

TARGET := $(or $(CARGO_TARGET_DIR),target)
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: help build demo test lint bench verify soak

help:
	@echo 'make demo    install what is missing, build, run the first experiment, write weir-lab-qdisc.html'
	@echo 'make test    install what is missing, run every test; those that need root are skipped without it'
	@echo 'make lint    formatting, clippy, documentation, tidiness'
	@echo 'make bench   benchmarks'
	@echo 'make verify  model checking, Miri, sanitizers and fuzzing, some minutes each'
	@echo 'make soak    the floods of the tests for an hour (SOAK_SECONDS=3600)'

build:
	cargo build --release -p weir-cli

demo:
	scripts/setup.sh
	cargo build --release -p weir-cli
	$(SUDO) $(TARGET)/release/weir lab qdisc --seconds 6 --html weir-lab-qdisc.html
	@echo 'See weir-lab-qdisc.html for the plots.'

test:
	@scripts/test.sh

lint:
	@scripts/lint.sh

# The machine's figures vary; every bench prints its calibration line and measures its peers in the same run.
bench:
	scripts/setup.sh
	cargo build --release -p weir-cli
	$(SUDO) env "PATH=$$PATH" cargo bench -p weir-lab --bench forward
	$(SUDO) env "PATH=$$PATH" cargo bench -p weir-lab --bench htb
	cargo bench -p weir-lab --bench path
	cargo run --release -p weir-ring --example handoff_bench
	cargo run --release -p weir-core --example shaper_bench
	cargo run --release -p weir-core --example steer_bench
	cargo run --release -p weir-core --example dispatch_bench

verify:
	@scripts/verify.sh

# Each flood gets its share of the time.
SOAK_SECONDS ?= 3600
soak:
	scripts/setup.sh
	cargo build --release -p weir-cli
	WEIR_BIN=$(abspath $(TARGET))/release/weir WEIR_FLOOD_SECONDS=$$(( $(SOAK_SECONDS) / 8 )) \
		cargo test -p weir-tests --test flood
