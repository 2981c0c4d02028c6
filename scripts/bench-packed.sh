#!/usr/bin/env bash
# How fast postproc reads a trace that is unpacked, packed, packed and compressed, and compressed
# as a whole file: the shortest of RUNS wall times on one CPU, with the trace in the page cache.
# TRACES are the traces; without any, a trace of REFERENCES references to PAGES pages is made. Fails if a command
# takes more than twice as long for packed packets as for unpacked ones (scripts/targets.py).
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target
references=${REFERENCES:-8000000} pages=${PAGES:-10000} runs=${RUNS:-5}
dir=$BUILD/bench-packed
mkdir -p "$dir"
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir
step "$BUILD/log/bench-packed.log" "building postproc" \
	cargo build --locked --release --manifest-path "$TOP/Cargo.toml" -p postproc --bin postproc --example synthesize
tools=$BUILD/target/release
if [ -z "${TRACES:-}" ]; then
	TRACES=$dir/made
	step "$BUILD/log/bench-packed-trace.log" "writing a trace of $references references to $pages pages" \
		"$tools/examples/synthesize" "$TRACES" "$references" "$pages"
fi

# best ARGS…: the shortest time of a command in seconds.
best() {
	python3 - "$runs" "$tools/postproc" "$@" <<-EOF
		import subprocess, sys, time
		times = []
		for _ in range(int(sys.argv[1])):
		    begin = time.monotonic()
		    run = subprocess.run(["taskset", "-c", "0", *sys.argv[2:]],
		                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
		    times.append(time.monotonic() - begin)
		    # 1: the trace failed its checks, but it was read.
		    if run.returncode > 1:
		        sys.exit(f"{sys.argv[2:]} failed ({run.returncode})")
		print(f"{min(times):.3f}")
	EOF
}

targets=()
for trace in $TRACES; do
	"$tools/postproc" pack "$trace" -o "$dir/packed" 2>/dev/null
	"$tools/postproc" pack "$trace" --zstd -o "$dir/packed-zstd" 2>/dev/null
	# It may be packed, as traces are by default.
	"$tools/postproc" unpack "$trace" -o "$dir/unpacked" 2>/dev/null
	zstd -q -f "$dir/unpacked" -o "$dir/whole-zstd"
	printf '%s\n%-14s %12s %8s %8s %9s %8s\n' "$trace" form bytes check info simulate export
	for form in unpacked packed packed-zstd whole-zstd; do
		times=("$(best check "$dir/$form")" "$(best info "$dir/$form")"
			"$(best simulate "$dir/$form" --policy lru --curve)"
			"$(best export "$dir/$form" --format oracleGeneral -o /dev/null)")
		printf '%-14s %12d %8s %8s %9s %8s\n' "$form" "$(stat -Lc %s "$dir/$form")" "${times[@]}"
		case $form in
		unpacked) unpacked=("${times[@]}") ;;
		packed*)
			# Of `info`, which reads no references, the times are too short.
			for command in 0:check 2:simulate 3:export; do
				i=${command%:*}
				targets+=("$form, ${command#*:}, times unpacked" most 2
					"$(awk "BEGIN { print ${times[i]} / ${unpacked[i]} }")")
			done
			;;
		esac
	done
done
python3 "$TOP/scripts/targets.py" "${targets[@]}"
