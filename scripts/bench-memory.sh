#!/usr/bin/env bash
# Peak memory and speed of postproc, for a trace and for one four times as long.
# REFERENCES and PAGES are those of the longer one, which takes 36 bytes of disk for
# each reference, and 14 more for a time if a format of FORMATS tells of the next use.
# ONLY='check export' leaves out other commands. Fails if a peak is above 1 GiB (scripts/targets.py).
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target
references=${REFERENCES:-100000000} pages=${PAGES:-1000000}
only=${ONLY:-check simulate export report}
formats=${FORMATS:-txt oracleGeneral}
each=36
if [[ " $only " == *" export "* && " $formats " =~ \ (oracleGeneral|lcs)[\ .] ]]; then
	each=50
fi
dir=$BUILD/bench-memory
mkdir -p "$dir"
trap 'rm -rf "$dir"' EXIT
free=$(df --output=avail -B1 "$dir" | tail -n 1)
((references * each < free)) ||
	die "a trace of $references references takes $((references * each / 1000000)) MB and $((free / 1000000)) MB are free: give fewer REFERENCES"
step "$BUILD/log/bench-memory.log" "building postproc" \
	cargo build --locked --release --manifest-path "$TOP/Cargo.toml" -p postproc --bin postproc --example synthesize
tools=$BUILD/target/release

# measure REFERENCES ARGS…: run postproc on the trace, if it is wanted; a line of figures.
measure() {
	[[ " $only " == *" $2 "* ]] || return 0
	python3 - "$@" <<-EOF
		import os, subprocess, sys
		references, args = int(sys.argv[1]), sys.argv[2:]
		program = ["$tools/postproc", args[0], "$dir/trace", *args[1:]]
		with open("$BUILD/log/bench-memory-run.log", "w") as log:
		    child = subprocess.Popen(program, stdout=log, stderr=log)
		    _, status, used = os.wait4(child.pid, 0)
		if status:
		    sys.exit(f"{program} failed ({status}): see {log.name}")
		cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
		print(f"{' '.join(args).replace('$dir/', '')[:50]:50} {references:13,} {cpu:8.1f} {references / cpu:13,.0f} {peak:9.0f}", flush=True)
		with open("$dir/peaks", "a") as peaks:
		    print(peak, file=peaks)
	EOF
}

printf '%-50s %13s %8s %13s %9s\n' command references 'CPU s' 'references/s' 'peak MiB'
for n in $((references / 4)) "$references"; do
	step "$BUILD/log/bench-memory-trace.log" "writing a trace of $n references to $pages pages" \
		"$tools/examples/synthesize" "$dir/trace" "$n" "$pages"
	measure "$n" check
	measure "$n" simulate --policy lru --curve --points 100
	measure "$n" simulate --policy lru,arc,s3-fifo --size $((pages / 10))
	for format in $formats; do
		measure "$n" export --format "$format" -o /dev/null
	done
	measure "$n" report -o "$dir/report"
done
[ ! -f "$dir/peaks" ] ||
	python3 "$TOP/scripts/targets.py" "the largest peak in MiB" most 1024 "$(sort -n "$dir/peaks" | tail -n 1)"
