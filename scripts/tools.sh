#!/usr/bin/env bash
# Build the tools of the host and the programs of the guest, all static, so
# that the same files run in both.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target
(
	build_flags -Ctarget-feature=+crt-static
	step "$BUILD/log/tools.log" "building the tools" \
		cargo build --locked --release --target "$STATIC_TARGET" --manifest-path "$TOP/Cargo.toml" \
		"${TOOLS[@]/#/-p}" -p qemu-test -p kvmtrace-guest
)
# QEMU loads these, so they can't be static.
step "$BUILD/log/plugin.log" "building what QEMU loads" \
	cargo build --locked --release --manifest-path "$TOP/Cargo.toml" -p oracle-plugin -p qemu-clock
# Short paths for people.
mkdir -p "$BUILD/bin"
ln -sfn "${TOOLS[@]/#/../target/$STATIC_TARGET/release/}" "$BUILD/bin/"
