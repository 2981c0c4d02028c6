#!/usr/bin/env bash
# The speed of the simulators, beside libCacheSim from PyPI on the same references. Then the speed of the
# LRU curve, beside a Fenwick tree and Increment-and-Freeze on the same references. Three lines after each table of
# curves compare the curve alone (LruChunks) with these, by the table's best rounds and by its medians. Fails if a
# curve misses a target (scripts/bench_curves.py, scripts/targets.py). ONLY=policies or ONLY=curves leaves out the
# other part.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target
only=${ONLY:-policies curves}

policies() {
	local python=$BUILD/tools/libcachesim-0.3.5/bin/python profiler
	if ! "$python" -c 'import libcachesim' 2>"$BUILD/log/libcachesim.log"; then
		step "$BUILD/log/libcachesim.log" "installing libCacheSim 0.3.5 from PyPI" bash -c "
			python3 -m venv --clear '${python%/bin/python}' &&
			'$python' -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps libcachesim==0.3.5 numpy"
	fi
	profiler=$("$TOP/scripts/mrc-profiler.sh" "$python")
	say "10,000,000 references to 1,000,000 pages, a memory of 100,000, one thread:"
	"$BUILD/target/release/examples/policies" 10000000 1000000 100000 "$python" "$profiler"
}

curves() {
	local freeze input
	freeze=$("$TOP/scripts/increment-and-freeze.sh")
	say "the LRU curve of all sizes:"
	# The tables of the first one fit in a cache.
	for input in "2000000 90000 uniform 5" "10000000 1000000 local 5" "10000000 900000 uniform 5" \
		"40000000 8000000 uniform 3"; do
		# shellcheck disable=SC2086 # Four arguments.
		"$BUILD/target/release/examples/lru_curves" $input "$freeze" | python3 "$TOP/scripts/bench_curves.py" || missed=1
	done
}

missed=0

step "$BUILD/log/bench-policies.log" "building the benchmark" \
	cargo build --locked --release --manifest-path "$TOP/Cargo.toml" -p postproc --example policies --example lru_curves
for part in $only; do
	case $part in
	policies | curves) $part ;;
	*) die "ONLY is $only: it must be policies, curves or both" ;;
	esac
done
exit "$missed"
