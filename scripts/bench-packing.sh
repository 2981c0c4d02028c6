#!/usr/bin/env bash
# How many instructions the kernel's packer takes for a reference, and how many bytes: built with the
# kernel's level of optimization for this machine, and counted by valgrind. The difference of two
# runs has nothing but packing.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target/packing
if ! command -v valgrind >/dev/null; then
	echo "valgrind is not installed: instructions of packing are not counted" >&2
	exit 0
fi
CARGO_PROFILE_RELEASE_OPT_LEVEL=2 CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true \
	step "$BUILD/log/bench-packing.log" "building the packer" \
	cargo build --locked --release --manifest-path "$TOP/Cargo.toml" -p rust-mm-trace --example packing
packing=$CARGO_TARGET_DIR/release/examples/packing

# instructions PATTERN ROUNDS: those of a run.
instructions() {
	valgrind --tool=callgrind --callgrind-out-file="$BUILD/log/packing.callgrind" "$packing" "$1" "$2" 2>&1 >/dev/null |
		sed -n 's/.*Collected : //p'
}

printf '%-10s %14s %8s\n' references instructions bytes
for pattern in new again mixed; do
	read -r references bytes < <("$packing" "$pattern" 5)
	one=$(instructions "$pattern" 5) two=$(instructions "$pattern" 10)
	awk -v p="$pattern" -v i=$((two - one)) -v r="$references" -v b="$bytes" \
		'BEGIN { printf "%-10s %14.1f %8.2f\n", p, i / r, b / r }'
done
