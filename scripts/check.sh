#!/usr/bin/env bash
# Checks that need no guest: format, lints, tests, documentation, and that the
# patches carry the header that the tools are built from. Among the tests are those of
# what documents show: postproc/tests/docs.rs, activator/tests/docs.rs, kvmtrace/tests/docs.rs.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target
cd "$TOP"
# What a command leaves behind where it was called is easily committed.
if git rev-parse --git-dir >/dev/null 2>&1; then
	stray=$(git ls-files | grep -v / | grep -vxE '\.gitignore|LICENSE|Makefile|Cargo\.(toml|lock)|[A-Z]+\.md' || true)
	[ -z "$stray" ] || die "files at the root that belong nowhere: ${stray//$'\n'/, }"
fi
scripts/version.sh --check
# Cargo finds no tests by itself where tests/it.rs lists their files: one that is not listed would never run.
for crate in $(grep -l '^autotests = false' -- */Cargo.toml | xargs -n 1 dirname); do
	for file in "$crate"/tests/*.rs; do
		name=$(basename "$file" .rs)
		grep -qx "mod $name;" "$crate/tests/it.rs" || grep -qx "name = \"$name\"" "$crate/Cargo.toml" ||
			die "$file never runs: add \"mod $name;\" to $crate/tests/it.rs"
	done
done
# What others have made is as they have made it, and its version is the same everywhere.
vendored=postproc/src/report/vendor
(cd $vendored/uplot && sha256sum --quiet --strict -c SHA256SUMS) || die "$vendored/uplot was changed"
uplot=$(grep -oE 'v[0-9]+\.[0-9]+\.[0-9]+' $vendored/uplot/uPlot.iife.min.js | head -n 1)
for file in $vendored/README.txt packaging/debian/copyright; do
	grep -qF "uPlot ${uplot#v}" $file || die "$file does not name version ${uplot#v} of uPlot"
done
grep -qF "\"uPlot\", \"${uplot#v}\"" scripts/sbom.py || die "scripts/sbom.py does not name version ${uplot#v} of uPlot"
step "$BUILD/log/fmt.log" "format" cargo fmt --all --check
step "$BUILD/log/fmt-kernel.log" "format of the kernel's Rust" \
	rustfmt --check --edition 2021 --config-path "$TOP/rust-mm-trace/rustfmt.toml" rust-mm-trace/kernel/vmtrace.rs
# Of the guest's programs, the library has tests. As tests, a hundred programs without one would be compiled and
# linked.
untested=qemu-test/guest/src/bin
! grep -rlE '#\[(cfg\(test\)|test\])|proptest!' "$untested" ||
	die "$untested has tests, which scripts/check.sh leaves out: put them in the library, qemu-test/guest/src"
step "$BUILD/log/clippy.log" "lints" \
	cargo clippy --locked --workspace --exclude kvmtrace-guest --all-targets -- -D warnings
step "$BUILD/log/clippy-guest.log" "lints of the guest's programs" \
	cargo clippy --locked --workspace --lib --bins -- -D warnings
# The Python package uses postproc as a library, which needs nothing of what its commands need.
needs=$(cargo tree --locked -p kvmtrace-python -e normal,no-proc-macro --prefix none)
needless=$(grep -oE '^(clap[a-z_]*|indicatif|anyhow|bindgen)\b' <<<"$needs" | sort -u || true)
[ -z "$needless" ] || die "the Python package compiles ${needless//$'\n'/, }: commands alone need that (feature cli of postproc)"
step "$BUILD/log/clippy-library.log" "lints of the library without commands" \
	cargo clippy --locked -p kvmtrace-python -- -D warnings
# A test reads CTF 2 back with it. Without it, that test checks only that an older babeltrace2 reports an error.
if [ -z "${BABELTRACE2:-}" ]; then
	if BABELTRACE2=$(scripts/babeltrace.sh); then
		export BABELTRACE2
	else
		unset BABELTRACE2
		say "no test reads CTF 2 back with babeltrace2: see the error above"
	fi
fi
step "$BUILD/log/tests.log" "unit and property tests" cargo test --locked --workspace --exclude kvmtrace-guest
step "$BUILD/log/tests-guest.log" "unit tests of the guest's library" cargo test --locked -p kvmtrace-guest --lib
grep -h '^test result' "$BUILD/log/tests.log" "$BUILD/log/tests-guest.log" | awk '{p += $4; f += $6} END {printf "host tests: %d passed, %d failed\n", p, f}'
RUSTDOCFLAGS="-D warnings" step "$BUILD/log/doc.log" "documentation" \
	cargo doc --locked --workspace --no-deps --features postproc/testing
scripts/series.sh --check
