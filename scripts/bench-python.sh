#!/usr/bin/env bash
# How much longer the Python package takes for a curve than the command postproc, and what a page of a report takes,
# of one long trace (scripts/bench_python.py). Then the page is opened in a browser. Fails if a target is missed
# (scripts/targets.py).
#   --refs N            references in the trace, instead of 100,000,000; each takes 34 bytes of disk
#   --rounds N          measure so often, instead of 5 times
#   --points N          sizes of the curve, instead of 64, which is the command's default; 0 is each size
#   --policies LIST     of the page, instead of lru,opt
# The command and the wheel are those for users. The trace stays in build/bench-python for the next time.
. "$(dirname "$0")/lib.sh"
. "$TOP/scripts/python.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target
references=100000000 rounds=5 points=64 policies=lru,opt
while (($#)); do
	case $1 in
	--refs) references=${2:-} ;;
	--rounds) rounds=${2:-} ;;
	--points) points=${2:-} ;;
	--policies) policies=${2:-} ;;
	*) die "what is $1? There are --refs N, --rounds N, --points N and --policies LIST" ;;
	esac
	shift $(($# > 1 ? 2 : 1))
done
[[ $references =~ ^[1-9][0-9]*$ ]] || die "--refs needs a number"
[[ $rounds =~ ^[1-9][0-9]*$ ]] || die "--rounds needs a number"
[[ $points =~ ^[0-9]+$ ]] || die "--points needs a number"
[ -n "$policies" ] || die "--policies needs names of policies"
readarray -t missing < <(missing_packages chromium-headless-shell python3 python3-venv)
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
dir=$BUILD/bench-python trace=$BUILD/bench-python/trace-$references.vmt
mkdir -p "$dir"

"$TOP/scripts/tools.sh"
built_wheel release
install_wheel venv
step "$BUILD/log/bench-python-build.log" "building the generator of traces" \
	cargo build --locked --release --manifest-path "$TOP/Cargo.toml" -p postproc --example synthesize
synthesize=$BUILD/target/release/examples/synthesize

# A few of the references are to pages of the set, so they are not in the trace.
arguments=($((references + references / 30)) 200000 512 1000 4 1000 5)
want=$(printf '%s ' "${arguments[@]}" && sha256sum <"$synthesize")
if [ "$(cat "$trace.made-for" 2>/dev/null)" != "$want" ] || [ ! -f "$trace" ]; then
	# A trace of another generator or another length would stay for nothing.
	rm -f "$dir"/trace-*
	free=$(df --output=avail -B1 "$dir" | tail -n 1)
	((references * 34 < free)) ||
		die "a trace of $references references takes $((references * 34 / 1000000)) MB, and $((free / 1000000)) MB are" \
			"free: give fewer --refs"
	step "$BUILD/log/bench-python-trace.log" "writing a trace of $references references" \
		"$synthesize" "$trace" "${arguments[@]}"
	printf '%s\n' "$want" >"$trace.made-for"
fi

missed=0
say "$rounds rounds of a curve by the command and in Python, and a page:"
"$BUILD/venv/bin/python" -P "$TOP/scripts/bench_python.py" \
	"$BUILD/bin/postproc" "$trace" "$dir" "$rounds" "$points" "$policies" || missed=$?
step "$BUILD/log/bench-python-browser.log" "the page in a browser" \
	python3 "$TOP/scripts/browser_test.py" "$dir/shots" "$dir/report.html"
cat "$BUILD/log/bench-python-browser.log"
exit "$missed"
