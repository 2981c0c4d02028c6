#!/usr/bin/env bash
# Install the packages of build/deb in a clean Debian 12 and a clean Debian 13, use them there, and remove
# them again: packaging/test-installed.sh. Needs root (chroot). SUITES="trixie" for one of them.
. "$(dirname "$0")/lib.sh"
ls "$BUILD"/deb/kvmtrace_*.deb "$BUILD"/deb/python3-kvmtrace_*.deb >/dev/null 2>&1 || die "there are no packages: run 'make deb-tools'"
for suite in ${SUITES:-bookworm trixie}; do
	dir=$BUILD/deb-test/$suite
	make_root "$suite" "$dir" ca-certificates
	mkdir "$dir/packages"
	cp "$BUILD"/deb/*kvmtrace_*.deb "$TOP"/packaging/{test-installed,state}.sh "$dir/packages"
	cp "$TOP/postproc/tests/fixtures/v1/fork-exec.vmt.zst" "$dir/packages/trace.vmt.zst"
	dpkg-deb -f "$BUILD"/deb/kvmtrace_*.deb Version >"$dir/packages/version"
	enter_root "$dir"
	step "$BUILD/log/deb-test-$suite.log" "the packages in $suite" in_root "$dir" /packages/test-installed.sh
	tail -n 1 "$BUILD/log/deb-test-$suite.log"
	leave_root "$dir"
	rm -rf --one-file-system "$dir"
done
