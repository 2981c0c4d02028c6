#!/usr/bin/env bash
# Explores pages of reports in a browser: of the kernel's small traces, and of a long one.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target
cd "$TOP"
readarray -t missing < <(missing_packages chromium-headless-shell python3 zstd)
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
pages=$BUILD/browser
rm -rf "$pages"
mkdir -p "$pages"
# This test writes the page of a long trace.
rm -f "$BUILD/target/tmp/long.html"
step "$BUILD/log/browser-build.log" "the page of a long trace" \
	cargo test --locked -p postproc --test it -- --exact report::a_long_trace_has_a_small_page
cp "$BUILD/target/tmp/long.html" "$pages"
report() { # NAME ARGUMENT... The page, and beside it a folder with the same data.
	"$BUILD/target/debug/postproc" report "${@:2}" -o "$pages/$1" >"$BUILD/log/browser-$1.log" ||
		die "no report $1: $BUILD/log/browser-$1.log"
	mv "$pages/$1/report.html" "$pages/$1.html"
}
for trace in postproc/tests/fixtures/v1/{fork-exec,windows,two-cpus}.vmt.zst; do
	name=$(basename "$trace" .vmt.zst)
	zstd -dqf "$trace" -o "$pages/$name.vmt"
	report "$name" "$pages/$name.vmt"
done
"$BUILD/target/debug/postproc" compare "$pages"/{fork-exec,two-cpus}.vmt -o "$pages/comparison.html" >"$BUILD/log/browser-comparison.log"
seq 1 200000 | awk '{ print ($1 * 7919) % 97 * (int($1 / 50000) + 1) }' >"$pages/foreign.txt"
report foreign --from txt "$pages/foreign.txt"
# In this page, one picture cannot be drawn.
spoil="s/u = new uPlot(/if (figure.id === 'heatmap-pages') throw new Error('spoilt'); &/"
sed "$spoil" "$pages/fork-exec.html" >"$pages/spoilt.html"
step "$BUILD/log/browser.log" "pages in a browser" python3 scripts/browser_test.py "$pages/shots" "$pages"/*.html
cat "$BUILD/log/browser.log"
# The controls: pages with a defect each, which is seen.
mkdir "$pages/control"
control() { # NAME SED-SCRIPT WHAT IS SAID OF IT
	local page=$pages/control/$1.html log=$BUILD/log/browser-control-$1.log
	cp -r "$pages/fork-exec" "$pages/control/$1"
	sed "$2" "$pages/fork-exec.html" >"$page"
	! cmp -s "$pages/fork-exec.html" "$page" || die "the control $1 is the same page"
	! python3 scripts/browser_test.py "$pages/control" "$page" >"$log" 2>&1 || die "nobody has noticed the control $1"
	grep -qE "$3" "$log" || die "the control $1 failed for another reason: $log"
}
control unlinked 's/{ key: LINK, /{ /' 'a drag in heatmap-pages: .* shows another time'
# The height is that of the points that are shown.
control points 's/range: u => {/range: (u, ...points) => {/; s/= extent(u, view);/= points;/' \
	'the picture ends at .*, and its line is at'
control elsewhere 's/one.steps || index === /true || /' 'fault-curve, .*: (fifo|clock|arc) is'
control column "s|u.posToVal(left, 'x') / width, columns)|& + 1|" 'the cell is .*, not'
control colors 's/Math.log1p(count) \* levels)/& + 1/' 'a cell of .* is #.*, not #'
control saved 's/counts\[at++\] = number/& + 1/' 'heatmap-.*.csv: what is saved differs from the file'
say "screenshots: $pages/shots"
