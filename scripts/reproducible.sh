#!/usr/bin/env bash
# Show that equal commits give equal packages: build those of build/deb once more, from a clone in another
# folder, with other folders for everything that is built, and compare the bytes. What differs is named.
# KEEP=1 takes what was built there before, which shows less and takes less time.
. "$(dirname "$0")/lib.sh"
again=$BUILD/again
# differences DIRECTORY DIRECTORY: the packages and bills of materials that differ, and in packages the files.
differences() {
	local file a b work
	work=$(mktemp -d)
	for file in $(cd "$1" && ls ./*.deb ./*.cdx.json); do
		cmp -s "$1/$file" "$2/$file" && continue
		printf '%s differs\n' "$file"
		case $file in *.deb) ;; *) continue ;; esac
		for a in 1 2; do
			b=${!a}/$file
			# Names, modes and times, then what is in the files.
			rm -rf "$work/x" && mkdir "$work/x"
			dpkg-deb -R "$b" "$work/x" 2>/dev/null && dpkg-deb -c "$b" >"$work/$a" &&
				(cd "$work/x" && find . -type f | sort | xargs -d '\n' sha256sum) >>"$work/$a" || : >"$work/$a"
		done
		diff "$work/1" "$work/2" || true
	done
	rm -rf "$work"
}
ls "$BUILD"/deb/*.deb >/dev/null 2>&1 || die "there are no packages to compare: run 'make deb-tools'"
[ -z "$(git -C "$TOP" status --porcelain)" ] || die "files have changed since the last commit, and the clone would not have the changes: commit them"
if [ -n "${KEEP:-}" ] && [ -d "$again/kvmtrace" ]; then
	git -C "$again/kvmtrace" fetch -q "$TOP" HEAD
	git -C "$again/kvmtrace" checkout -q --force FETCH_HEAD
else
	rm -rf "$again" && mkdir -p "$again"
	git clone -q "$TOP" "$again/kvmtrace"
fi
env -u KVMTRACE_BUILD "$again/kvmtrace/scripts/deb.sh"
second=$again/kvmtrace/build/deb
found=$(differences "$BUILD/deb" "$second")
[ -z "$found" ] || die "two builds of $(git -C "$TOP" rev-parse --short HEAD) differ:"$'\n'"$found"
# The comparison sees a byte.
control=$again/control
rm -rf "$control" && cp -R "$second" "$control"
deb=$(ls "$control"/kvmtrace_*.deb)
dpkg-deb -R "$deb" "$control/x"
echo >>"$control/x/usr/bin/${TOOLS[0]}"
dpkg-deb -b "$control/x" "$deb" >/dev/null
differences "$BUILD/deb" "$control" | grep -q "^> .* ./usr/bin/${TOOLS[0]}$" || die "the comparison does not see a byte that differs"
rm -rf "$control"
say "two builds of $(git -C "$TOP" rev-parse --short HEAD) gave the same bytes:"
(cd "$BUILD/deb" && sha256sum ./*.deb ./*.cdx.json)
