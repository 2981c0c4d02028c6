#!/usr/bin/env bash
# Checks that need no guest: format, lints, tests, documentation, and that the
# patches carry the header that the tools are built from.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target
cd "$TOP"
step "$BUILD/log/fmt.log" "format" cargo fmt --all --check
step "$BUILD/log/fmt-kernel.log" "format of the kernel's Rust" \
	rustfmt --check --edition 2021 --config-path "$TOP/rust-mm-trace/rustfmt.toml" rust-mm-trace/kernel/vmtrace.rs
step "$BUILD/log/clippy.log" "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
step "$BUILD/log/tests.log" "unit and property tests" cargo test --locked --workspace
grep -h '^test result' "$BUILD/log/tests.log" | awk '{p += $4; f += $6} END {printf "host tests: %d passed, %d failed\n", p, f}'
RUSTDOCFLAGS="-D warnings" step "$BUILD/log/doc.log" "documentation" cargo doc --locked --workspace --no-deps
scripts/series.sh --check
