#!/usr/bin/env bash
# Write the complete mailable series, rust-mm-trace/ included, to build/series/.
# The entry `@overlay` of linux-patches/series stands for the patch that adds
# mm/vmtrace/, which is made here from rust-mm-trace/kernel/.
#
# With --check: only compare the header in the series with the tools' own.
. "$(dirname "$0")/lib.sh"
patches=$TOP/linux-patches
uapi=$(grep -l '^+++ b/include/uapi/linux/vmtrace.h' "$patches"/*.patch) ||
	die "no patch adds include/uapi/linux/vmtrace.h"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd "$tmp" && git apply --include=include/uapi/linux/vmtrace.h "$uapi")
cmp "$tmp/include/uapi/linux/vmtrace.h" "$TOP/rust-mm-trace/uapi/linux/vmtrace.h" ||
	die "$(basename "$uapi") and rust-mm-trace/uapi/linux/vmtrace.h differ: they are one file"
[ "${1:-}" = --check ] && exit 0

out=$BUILD/series
rm -rf "$out" && mkdir -p "$out"
n=$(grep -cvE '^(#|$)' "$patches/series")
i=0
while read -r p; do
	case $p in '' | '#'*) continue ;; esac
	i=$((i + 1))
	if [ "$p" = @overlay ]; then
		dest=$(printf '%s/%04d-mm-vmtrace-trace-references-with-an-EVMS.patch' "$out" "$i")
		mkdir -p "$tmp/o/a" "$tmp/o/b/mm/vmtrace"
		cp "$TOP"/rust-mm-trace/kernel/* "$tmp/o/b/mm/vmtrace/"
		{
			cat "$patches/overlay.message"
			echo ---
			(cd "$tmp/o" && git diff --no-index --no-prefix --stat a b || true)
			echo
			(cd "$tmp/o" && git diff --no-index --no-prefix a b || true)
			printf -- '-- \n2.47\n'
		} >"$dest"
	else
		dest=$(printf '%s/%04d-%s' "$out" "$i" "${p#*-}")
		cp "$patches/$p" "$dest"
	fi
	sed -i -E "s|^Subject: \[PATCH[^]]*\]|Subject: [PATCH $i/$n]|" "$dest"
done <"$patches/series"
say "the series: $out ($n patches); send with git send-email"
