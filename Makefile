# The only entry for people. Everything that is built lies in build/.
SHELL := /bin/bash
export PATH := /usr/bin:$(PATH)
QT := build/target/x86_64-unknown-linux-gnu/release/qemu-test
CARGO := CARGO_TARGET_DIR=build/target cargo

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: ## install missing packages; QEMU 10 is unpacked privately if need be
	@scripts/setup.sh

kernel: setup ## fetch Linux 7.3, apply linux-patches/, lay rust-mm-trace/ over it, build
	@scripts/kernel.sh base

tools: setup ## build kvmtrace, activator, postproc and the test harness
	@scripts/tools.sh

image: setup ## make the guest's Debian root
	@scripts/image.sh

run: kernel tools image ## boot, trace sqlite3 and gcc, validate, draw, export
	@$(QT) demo

# CMDLINE="vmtrace=early" adds to the kernel's command line, SHARED=DIR is another folder.
shell: kernel tools image ## a shell in the patched guest; its /shared is build/shared here
	@$(QT) shell $(if $(CMDLINE),--cmdline '$(CMDLINE)') $(if $(SHARED),--shared '$(SHARED)')

check: setup ## host only: format, lints, unit and property tests, documentation
	@scripts/check.sh

# What the host does alone, and what guests need. Both are long, and neither keeps two CPUs busy by
# itself, so they run at the same time. Some of the host's tests have limits of time: they go first.
test-host:
	@scripts/check.sh
	@scripts/python-test.sh

test-parts:
	@nice -n 19 scripts/kernel.sh base
	@nice -n 19 scripts/image.sh
	@nice -n 19 scripts/tools.sh

test-ready: setup
	@$(MAKE) --no-print-directory -j2 test-host test-parts

test: test-ready ## the tests of every change; the summary comes last
	@$(QT) all --quick

test-all: test-ready ## the same, with the scenarios that take long
	@$(QT) all

fixtures: kernel tools ## small traces of the kernel for host tests, anew, and what they must give
	@$(QT) fixtures
	@KVMTRACE_ACCEPT=1 $(CARGO) test --locked -q -p postproc --test it fixtures::each_gives
	@$(CARGO) test --locked -q -p postproc --test it fixtures::

gallery: kernel tools image ## the traces and pictures of docs/gallery.md, anew
	@$(QT) gallery -o docs/gallery
	@KVMTRACE_ACCEPT=1 $(CARGO) test --locked -q -p postproc --test it gallery::

controls: kernel tools image ## each protection of the kernel taken away: what fails then
	@$(QT) controls

same: kernel tools ## traces of a kernel without debugging are those of debug kernels
	@scripts/kernel.sh release
	@scripts/kernel.sh lockdep
	@$(QT) same

oracle: kernel tools image ## every record of many traces against an independent model
	@$(QT) oracle

fidelity: kernel tools image ## simulations of traces against those of all references; QUICK=1 for a few minutes
	@$(QT) fidelity $(if $(QUICK),--quick)

compare: kernel tools image ## what observers report of the same programs, and what they cost; QUICK=1 for small loads
	@scripts/kernel.sh release
	@$(QT) compare $(if $(QUICK),--quick)

# Of the controls, those that show something that a kernel for debugging could hide.
CONTROLS := control-noflush control-noreflush control-noaccess control-pmdmove control-noclose
test-debug: kernel tools image ## the guest tests on kernels with lockdep and KASAN
	@scripts/kernel.sh lockdep
	@$(QT) run kunit segments 64-smp 512-exact audit file-events windows maps early tracepoints $(CONTROLS) workload corners --kernel lockdep
	@$(QT) corners stress-10m --kernel lockdep
	@scripts/kernel.sh kasan
	@$(QT) run kunit segments 64-smp 512-exact audit file-events windows maps early tracepoints $(CONTROLS) workload corners --kernel kasan
	@$(QT) corners stress-10m --kernel kasan

corners: kernel tools image ## what is hard to trace, with all kinds of sets; seeds that look for races; many CPUs
	@scripts/kernel.sh plain
	@$(QT) corners corners races- cpus- ioctl-fuzz activator-kills slow-disk huge-1g all-rows unpatched

# SEEDS=1000..2000 are others.
races: kernel tools ## look for races: random programs on several CPUs, with a slow tracer
	@$(QT) corners races- $(if $(SEEDS),--seeds $(SEEDS))

test-kcsan: kernel tools ## look for races on a kernel with KCSAN
	@scripts/kernel.sh kcsan
	@$(QT) corners control-kcsan races- --seeds $(or $(SEEDS),100..140) --kernel kcsan

day: kernel tools image ## a trace of a whole system for 24 hours of the guest's time, in pieces: memory does not grow
	@$(QT) corners day-

selftests: kernel tools image ## the kernel's own mm selftests, untraced and traced
	@scripts/selftests.sh
	@$(QT) corners selftests

test-wide: kernel tools image ## a kernel with more options: failing operations, KVM, btrfs, gfs2, XFS, FUSE, NFS, ublk, mm selftests
	@scripts/kernel.sh wide
	@scripts/xen.sh
	@scripts/selftests.sh
	@$(QT) corners faults- wide- selftests- --kernel wide

boot: kernel tools image ## a whole boot of Debian, traced from its first process
	@$(QT) corners early-debian

# All parts run, whatever one of them misses. JUDGE=0 only reports targets that are missed.
bench: kernel tools ## instructions under icount: a traced reference, on several CPUs, and the cost when off; speed and memory of postproc and Python
	@scripts/kernel.sh vanilla
	@scripts/kernel.sh release
	@missed=; for part in '$(QT) bench' '$(QT) count --plot build/scaling.svg' scripts/bench-policies.sh \
		scripts/bench-memory.sh scripts/bench-packed.sh scripts/bench-packing.sh scripts/bench-python.sh; do \
		$$part || missed="$$missed$$part; "; \
	done; [ -z "$$missed" ] || { echo "these missed a target, or failed: $${missed%; }" >&2; exit 1; }

wheel: setup ## build the Python package kvmtrace in build/wheel
	@scripts/wheel.sh

python-test: setup ## test the Python package in an environment of its own, against postproc
	@scripts/python-test.sh

browser-test: setup ## explore pages of reports in a browser: zoom, cursors, values, sizes, time to draw
	@scripts/browser-test.sh

fleet: setup ## run the jobs over 1,000 traces on a local cluster of Spark; TRACES=N for another number
	@scripts/fleet.sh

man: tools ## write the tools' manual pages to build/man/
	@for tool in build/bin/*; do $$tool man -o build/man || exit; done
	@echo "build/man: $$(ls build/man | wc -l) pages; man -l build/man/kvmtrace.1"

deb: deb-tools deb-kernel ## Debian packages of the tools, the Python package and the kernel; MODULES=small or virtual for fewer modules

deb-tools: setup ## build the Debian packages kvmtrace and python3-kvmtrace in build/deb
	@scripts/deb.sh

deb-kernel: setup ## build the Debian packages of the kernel in build/deb-kernel
	@MODULES=$(MODULES) scripts/deb-kernel.sh

deb-test: deb-tools ## install, use and purge the packages in clean Debian 12 and 13 roots
	@scripts/deb-test.sh

metal: deb-tools tools ## install the packages in a Debian 13 on a disk, boot its kernel, trace as a user, remove all
	@MODULES=$(or $(MODULES),virtual) scripts/deb-kernel.sh
	@scripts/disk.sh
	@$(QT) metal

reproducible: deb-tools ## build the packages once more, in another folder, and compare the bytes
	@scripts/reproducible.sh

dist: deb-tools ## the source, the packages and their bills of materials, with checksums, in build/dist
	@scripts/dist.sh

book: tools ## make a book of the documents and the commands' help in build/book, for a browser
	@scripts/book.sh

series: ## write the complete mailable patch series to build/series/
	@scripts/series.sh

series-build: setup ## build the kernel after each patch of the series
	@scripts/series-build.sh

fresh: ## make run and make test in clean Debian 12 and 13 roots
	@scripts/fresh.sh

clean: ## remove build/; downloads stay in the cache
	rm -rf build

.PHONY: help setup kernel tools image run shell check test test-all test-host test-parts test-ready fixtures gallery controls same oracle fidelity corners selftests races day boot test-debug test-kcsan test-wide bench wheel python-test browser-test fleet man deb deb-tools deb-kernel book series series-build fresh clean deb-test metal reproducible dist
.DEFAULT_GOAL := help
