#!/usr/bin/env bash
# Collect a release in build/dist: the source of the commit, the packages of build/deb, their bills of
# materials and the changelog, with SHA256SUMS. Packages of the kernel are added if they were built.
. "$(dirname "$0")/lib.sh"
version=$("$TOP/scripts/version.sh" --debian)
case $version in
*.dirty) die "files have changed since the last commit: commit or remove the changes" ;;
esac
out=$BUILD/dist name=kvmtrace-${version//\~/-}
ls "$BUILD/deb/kvmtrace_${version}_amd64.deb" "$BUILD/deb/python3-kvmtrace_${version}_amd64.deb" >/dev/null ||
	die "build/deb has no packages of this commit: run 'make deb-tools'"
rm -rf "$out" && mkdir -p "$out"
# A package built from the archive, without git, must have the same version.
printf '%s\n' "$version" >"$BUILD/.debian-version"
git -C "$TOP" archive --format=tar --prefix="$name/" --add-file="$BUILD/.debian-version" HEAD |
	gzip -9n >"$out/$name.tar.gz"
rm "$BUILD/.debian-version"
cp "$BUILD"/deb/*.deb "$BUILD"/deb/*.cdx.json "$BUILD"/deb/*.buildinfo "$TOP/CHANGELOG.md" "$out"
for deb in "$BUILD"/deb-kernel/linux-*.deb; do
	[ -e "$deb" ] || continue
	[[ $(dpkg-deb -f "$deb" Version) == *"+$version" ]] || die "$deb is of another commit: make deb-kernel, or remove it"
	cp "$deb" "$out"
done
(cd "$out" && find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >SHA256SUMS && sha256sum --quiet -c SHA256SUMS)
say "$out: $(wc -l <"$out/SHA256SUMS") files and SHA256SUMS"
