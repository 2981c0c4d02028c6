#!/usr/bin/env bash
# Print where a babeltrace2 that reads CTF 2 (2.1 or later) is: the system's own, or else build/babeltrace/babeltrace2,
# which is Debian trixie's with its libraries, unpacked privately. The system's babeltrace2 stays as it is.
. "$(dirname "$0")/lib.sh"
out=$BUILD/babeltrace wrapper=$BUILD/babeltrace/babeltrace2 log=$BUILD/log/babeltrace.log
works() { "$1" --version 2>/dev/null | grep -qE '^Babeltrace (2\.[1-9]|[3-9]\.|[1-9][0-9])'; }
if own=$(command -v babeltrace2) && works "$own"; then
	echo "$own"
	exit 0
fi
if works "$wrapper"; then
	echo "$wrapper"
	exit 0
fi
suite=trixie
debs=$CACHE/babeltrace
# The libraries need trixie's C library, which comes with its own loader.
pkgs=(babeltrace2 libbabeltrace2-0 libc6 libgcc-s1 libstdc++6 libatomic1 libglib2.0-0t64 libpcre2-8-0
	libdw1t64 libelf1t64 libzstd1 liblzma5 libbz2-1.0 zlib1g)
mkdir -p "$debs" "$BUILD/log"
if ! (cd "$debs" && [ -f SHA256SUMS ] && sha256sum --quiet -c SHA256SUMS) >/dev/null 2>&1; then
	rm -f "$debs"/*
	say "fetching babeltrace2 2.1 from $suite"
	private_apt "$suite" update >"$log" 2>&1 &&
		(cd "$debs" && private_apt "$suite" download "${pkgs[@]}" >>"$log" 2>&1) ||
		die "babeltrace2 2.1 or later could not be had. Tried: babeltrace2 on PATH (${own:-none}), Debian $suite ($(grep -m1 '^E:' "$log" || echo "see $log"))"
	(cd "$debs" && sha256sum ./*.deb >SHA256SUMS)
fi
rm -rf "$out" && mkdir -p "$out"
for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$out"; done
cat >"$wrapper" <<EOS
#!/bin/sh
export BABELTRACE_PLUGIN_PATH="$out/usr/lib/x86_64-linux-gnu/babeltrace2/plugins"
exec "$out/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$out/usr/lib/x86_64-linux-gnu" "$out/usr/bin/babeltrace2" "\$@"
EOS
chmod +x "$wrapper"
works "$wrapper" || die "trixie's babeltrace2 does not run: $("$wrapper" --version 2>&1 | head -n 3)"
say "$("$wrapper" --version | head -n 1)"
echo "$wrapper"
