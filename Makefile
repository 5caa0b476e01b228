# make run                 a shell in a guest; `exit` or `poweroff` ends it, Ctrl-A x kills it
# make run CMD='ls | wc'   one command: its output, and its status as make's own
# make run ROOT=debian     the same with Debian's own programs, and bash (makes target/debian once)
# make run ROOT=DIR        the same with this folder, or this disk, as the guest's root
# make check               format, lints and host tests after a change: 3 minutes at most
# make test                every test; the last line counts them
# make bench               the papers' experiments here and on Linux: a table, out/bench/report.html
# make image               causeway.iso: boots by GRUB
# make debug               a guest that waits for gdb
# make setup               installs what is missing (all of the above do)
# make install             the host command with its kernel, manual and completion, in /usr/local
# make install PREFIX=DIR  the same in DIR/bin and DIR/share; make uninstall removes it again
#
# BENCH='fork pipe --full' gives names and options to `causeway bench` (--switches); see
# target/debug/causeway bench --help. RUN='--smp 4 --mem 1G' gives options to `causeway run`; see
# target/debug/causeway run --help.

causeway := target/debug/causeway
# Which build of it is installed: the tests take the one that is there.
BUILD ?= release
PREFIX ?= /usr/local
DESTDIR ?=
sources := $(shell find tools Cargo.toml Cargo.lock -type f)
rust = . target/toolchain.sh &&

# As written: what looks like a variable of make's in CMD is the guest's business.
override CMD := $(value CMD)
export CMD
RUN ?=
BENCH ?= --switches
ROOT ?=
debian := target/debian
folder := $(if $(filter debian,$(ROOT)),$(debian),$(ROOT))
root := $(if $(folder),--root '$(folder)')
shell := $(if $(filter debian,$(ROOT)),/bin/bash,/bin/sh)

.PHONY: run guest check test bench image debug install uninstall \
	setup setup-test setup-bench setup-debian clean help

run: guest
	$(if $(CMD),$(eval load target/status.so)$(leave $(file < target/status)))

guest: $(causeway) $(if $(CMD),target/status.so) $(if $(filter debian,$(ROOT)),$(debian)/.causeway-root)
	@$(rust) if [ -z "$$CMD" ]; then exec $(causeway) run $(root) $(RUN); fi; \
	$(causeway) run $(root) $(RUN) -- $(shell) -c "$$CMD"; echo $$? >target/status

$(debian)/.causeway-root: | $(causeway) setup-debian
	@echo 'make: making a root of Debian packages in $(debian) (a few minutes)' >&2
	@$(causeway) root debian $(debian) >&2

check: $(causeway)
	@$(rust) $(causeway) check

test: setup-test $(causeway)
	@$(rust) $(causeway) test

bench: setup-bench $(causeway)
	@$(rust) $(causeway) bench $(BENCH)

image: setup-test $(causeway)
	@$(rust) $(causeway) image $(root) $(RUN)

debug: $(causeway)
	@$(rust) $(causeway) debug $(root) $(RUN)

# Root may have another Rust than the user who calls sudo, or none: what that user has built is
# installed as it is.
kernel := target/x86_64-unknown-none/release/causeway-kernel.relocatable
built := $(if $(SUDO_USER),$(and $(wildcard target/$(BUILD)/causeway),$(wildcard $(kernel))))

install: $(if $(built),,target/$(BUILD)/causeway)
	@$(rust) target/$(BUILD)/causeway install --prefix '$(PREFIX)' \
		$(if $(DESTDIR),--destdir '$(DESTDIR)') $(if $(built),--kernel $(built))

uninstall:
	@[ -e '$(DESTDIR)$(PREFIX)/share/causeway/installed' ] || \
		{ echo 'make: nothing is installed in $(DESTDIR)$(PREFIX)' >&2; exit 1; }
	@cd '$(DESTDIR)$(PREFIX)' && while read -r file; do rm -f -- "$$file" || exit; done \
		<share/causeway/installed
	@rmdir '$(DESTDIR)$(PREFIX)/share/causeway'

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

setup:
	@scripts/setup.sh

setup-test: setup
	@scripts/setup.sh test

setup-bench: setup
	@scripts/setup.sh bench

setup-debian: setup
	@scripts/setup.sh debian

clean:
	rm -rf target user/target causeway.iso

# Cargo is asked only when a source is newer: a run prints nothing but the guest's output.
target/debug/causeway target/release/causeway: target/%/causeway: $(sources) | setup
	@echo 'make: building the host command $@ (a minute or two, after a change less)' >&2
	@$(rust) cargo build --package causeway $(if $(filter release,$*),--release) >&2 && touch $@

target/status.so: scripts/status.c | setup
	@cc -shared -fPIC -O -o $@ $<
