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
step "$BUILD/log/browser-build.log" "the page of a long trace" \
	cargo test --locked -p postproc --test it report::a_long_trace
cp "$BUILD/target/tmp/long.html" "$pages"
for trace in postproc/tests/fixtures/v1/{fork-exec,windows,two-cpus}.vmt.zst; do
	name=$(basename "$trace" .vmt.zst)
	zstd -dqf "$trace" -o "$pages/$name.vmt"
	"$BUILD/target/debug/postproc" report "$pages/$name.vmt" -o "$pages/$name.html" >"$BUILD/log/browser-$name.log" ||
		die "no report of $trace: $BUILD/log/browser-$name.log"
done
"$BUILD/target/debug/postproc" compare "$pages"/{fork-exec,two-cpus}.vmt -o "$pages/comparison.html" >"$BUILD/log/browser-comparison.log"
seq 1 200000 | awk '{ print ($1 * 7919) % 97 * (int($1 / 50000) + 1) }' >"$pages/foreign.txt"
"$BUILD/target/debug/postproc" report --from txt "$pages/foreign.txt" -o "$pages/foreign.html" >"$BUILD/log/browser-foreign.log"
step "$BUILD/log/browser.log" "pages in a browser" python3 scripts/browser_test.py "$pages/shots" "$pages"/*.html
cat "$BUILD/log/browser.log"
# The control: pictures that are not linked are seen.
mkdir "$pages/control"
sed "s/{ key: LINK, /{ /" "$pages/fork-exec.html" >"$pages/control/unlinked.html"
! cmp -s "$pages/fork-exec.html" "$pages/control/unlinked.html" || die "the control is the same page"
! python3 scripts/browser_test.py "$pages/control" "$pages/control/unlinked.html" >"$BUILD/log/browser-control.log" 2>&1 ||
	die "nobody has noticed pictures that are not linked"
grep -q 'a drag in heatmap-pages: .* shows another time' "$BUILD/log/browser-control.log" ||
	die "the control failed for another reason: $BUILD/log/browser-control.log"
say "screenshots: $pages/shots"
