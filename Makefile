# Every door for developers; .ci/run goes through `lint` and `test`.

TARGET := $(or $(CARGO_TARGET_DIR),target)
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# The pinned Rust, also where it was installed a moment ago.
RUST := . scripts/rust.sh &&

.PHONY: help build demo test lint bench verify soak

help:
	@echo 'make demo    install what is missing, build, run the first experiment, write weir-lab-qdisc.html'
	@echo 'make test    install what is missing, run the tests; those that need root are skipped without it'
	@echo 'make build   install what is missing, build'
	@echo 'make lint    formatting, clippy, documentation, tidiness'
	@echo 'make bench   installs the peers, runs every benchmark beside them; fails when a floor is missed'
	@echo 'make verify  model checking, Miri, sanitizers and fuzzing: two hours; as root'
	@echo 'make soak    the floods of the tests for 75 minutes, and the test of chaos for another (SOAK_SECONDS=3600); as root'

build:
	scripts/setup.sh
	$(RUST) cargo build --release -p weir-cli -p weir-lab -p weir-memcache

demo:
	scripts/setup.sh
	$(RUST) cargo build --release -p weir-cli -p weir-lab
	$(SUDO) "$(TARGET)/release/weir" lab qdisc --seconds 6 --html weir-lab-qdisc.html
	@echo 'See weir-lab-qdisc.html for the plots.'

test:
	@scripts/test.sh

lint:
	@scripts/lint.sh

# The machine's figures vary; every bench prints its calibration line and measures its peers in the same run.
bench:
	@scripts/bench.sh

verify:
	@scripts/verify.sh

# Each flood gets its share of the time, and chaos as much as all of them.
SOAK_SECONDS ?= 3600
soak:
	@[ "$$(id -u)" -eq 0 ] || { echo 'soak: its tests make network namespaces: run it as root' >&2; exit 1; }
	scripts/setup.sh
	$(RUST) cargo build --release -p weir-cli -p weir-lab
	$(RUST) WEIR_BIN="$$(realpath "$(TARGET)")/release/weir" WEIR_FLOOD_SECONDS=$$(( $(SOAK_SECONDS) / 8 )) \
		WEIR_ROUNDS=1 cargo test -p weir-tests --test flood
	$(RUST) WEIR_BIN="$$(realpath "$(TARGET)")/release/weir" WEIR_CHAOS_SECONDS=$(SOAK_SECONDS) cargo test -p weir-tests --test chaos
