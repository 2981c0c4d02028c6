#!/usr/bin/env bash
# Build libCacheSim's mrcProfiler from its source distribution on PyPI, whose wheel does
# not have it; print where it is. The interpreter to download with is given.
. "$(dirname "$0")/lib.sh"
python=${1:?usage: mrc-profiler.sh PYTHON}
sha256=a1512046ab45bc0e5f0a81e5673cd02209477ffeefcb17a05fa714a06371abfb
archive=$CACHE/libcachesim-0.3.5.tar.gz
dir=$BUILD/tools/mrc-profiler
program=$dir/build/bin/mrcProfiler

verified() { echo "$sha256  $archive" | sha256sum --status -c - 2>/dev/null; }

# As pip does, but pip would also build what it downloads.
download() {
	"$python" - "$archive" <<-'EOF'
		import os, re, subprocess, sys, urllib.parse, urllib.request
		config = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
		index = os.environ.get("PIP_INDEX_URL") or subprocess.run(
		    config, capture_output=True, text=True).stdout.strip() or "https://pypi.org/simple"
		page = index.rstrip("/") + "/libcachesim/"
		with urllib.request.urlopen(page, timeout=60) as answer:
		    links = re.findall(r'href="([^"#]*/libcachesim-0\.3\.5\.tar\.gz)', answer.read().decode())
		with urllib.request.urlopen(urllib.parse.urljoin(page, links[0]), timeout=60) as answer:
		    with open(sys.argv[1], "wb") as archive:
		        while part := answer.read(1 << 20):
		            archive.write(part)
	EOF
}

if [ ! -x "$program" ]; then
	readarray -t missing < <(missing_packages cmake g++ pkg-config libglib2.0-dev libzstd-dev)
	[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
	verified || step "$BUILD/log/mrc-profiler-download.log" "downloading libCacheSim 0.3.5" download
	verified || die "$archive is not what it should be: remove it and try again"
	rm -rf "$dir"
	mkdir -p "$dir"
	tar xzf "$archive" -C "$dir" --strip-components 3 libcachesim-0.3.5/src/libCacheSim
	step "$BUILD/log/mrc-profiler.log" "building mrcProfiler" bash -c "
		cmake -S '$dir' -B '$dir/build' -DCMAKE_BUILD_TYPE=Release -DENABLE_TESTS=OFF &&
		cmake --build '$dir/build' --target mrcProfiler -j$JOBS"
fi
printf '%s\n' "$program"
