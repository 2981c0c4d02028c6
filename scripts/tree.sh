#!/usr/bin/env bash
# Make build/linux: the vanilla source, linux-patches/series applied in order,
# rust-mm-trace/ laid over it. A tree that is a git checkout is somebody's work:
# only the overlay is brought up to date in it.
. "$(dirname "$0")/lib.sh"
tree=$BUILD/linux patches=$TOP/linux-patches
stamp=$({ cat "$BUILD/linux-orig/.source"; cat "$patches/series" "$patches"/*.patch 2>/dev/null || true; } | sha256sum | cut -d" " -f1)
if [ -d "$tree/.git" ]; then
	say "build/linux is a git tree: patches are left to it"
elif [ "$(cat "$tree/.stamp" 2>/dev/null)" != "$stamp" ]; then
	say "making the patched tree"
	rm -rf "$tree.new"
	mkdir "$tree.new"
	# The contents: what stands here may be a link to a source shared by several trees.
	cp -a "$BUILD/linux-orig/." "$tree.new"
	while read -r p; do
		case $p in '' | '#'* | @*) continue ;; esac
		if ! patch -d "$tree.new" -p1 --no-backup-if-mismatch <"$patches/$p" >"$BUILD/patch.log" 2>&1; then
			cat "$BUILD/patch.log" >&2
			die "linux-patches/$p does not apply to $(sed -n 's/^version=//p' "$BUILD/linux-orig/.source")"
		fi
		grep -i fuzz "$BUILD/patch.log" >&2 && say "  fuzz in $p" || true
	done <"$patches/series"
	# What has not changed keeps its time, so that make builds only what has.
	if [ -d "$tree" ]; then
		rsync -rlpc --delete --exclude=/mm/vmtrace "$tree.new/" "$tree/"
		rm -rf "$tree.new"
	else
		mv "$tree.new" "$tree"
	fi
	echo "$stamp" >"$tree/.stamp"
fi
mkdir -p "$tree/mm/vmtrace"
rsync -rc --delete "$TOP/rust-mm-trace/kernel/" "$tree/mm/vmtrace/"
rsync -c "$TOP/rust-mm-trace/uapi/linux/vmtrace.h" "$tree/include/uapi/linux/vmtrace.h"
