#!/usr/bin/env bash
# Build the Debian packages of user space in build/deb: kvmtrace (the tools) and python3-kvmtrace.
#
# The tools are static, and the Python module is for each CPython from 3.11 on. So one package
# installs on Debian 12 and 13. Equal commits are to give equal packages on equal build machines
# (scripts/reproducible.sh compares). lintian must have nothing to report.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target LC_ALL=C.UTF-8 TZ=UTC
umask 022
readarray -t missing < <(missing_packages rustc-web cargo-web gcc libc6-dev python3 python3-venv \
	debhelper dh-python dpkg-dev lintian)
[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
version=$("$TOP/scripts/version.sh" --debian)
# The compilers do not need the time of the commit, and with it each commit would compile C anew.
unset SOURCE_DATE_EPOCH

(
	build_flags -Ctarget-feature=+crt-static
	step "$BUILD/log/deb-tools.log" "building the tools" \
		cargo build --locked --release --target "$STATIC_TARGET" --manifest-path "$TOP/Cargo.toml" "${TOOLS[@]/#/-p}"
)
PROFILE=release "$TOP/scripts/wheel.sh"
SOURCE_DATE_EPOCH=$(commit_time)
export SOURCE_DATE_EPOCH

out=$BUILD/deb work=$BUILD/deb/work
rm -rf "$out" && mkdir -p "$work"
cp -R "$TOP/packaging/debian" "$work/debian"
cat >"$work/debian/changelog" <<EOS
kvmtrace ($version) unstable; urgency=medium

  * CHANGELOG.md in the folder of documents lists what has changed.

 -- $(sed -n 's/^Maintainer: //p' "$work/debian/control")  $(date -R -d "@$SOURCE_DATE_EPOCH")
EOS

# kvmtrace: what each tool writes about itself, and the documents.
tree=$work/tree/kvmtrace/usr doc=$work/tree/kvmtrace/usr/share/doc/kvmtrace
for tool in "${TOOLS[@]}"; do
	binary=$CARGO_TARGET_DIR/$STATIC_TARGET/release/$tool
	install -D -m 755 "$binary" "$tree/bin/$tool"
	"$binary" man -o "$tree/share/man/man1"
	for shell in bash:bash-completion/completions/$tool zsh:zsh/vendor-completions/_$tool \
		fish:fish/vendor_completions.d/$tool.fish; do
		mkdir -p "$(dirname "$tree/share/${shell#*:}")"
		"$binary" completions "${shell%%:*}" >"$tree/share/${shell#*:}"
	done
done
install -D -m 644 "$TOP/packaging/udev/60-kvmtrace.rules" "$tree/lib/udev/rules.d/60-kvmtrace.rules"
mkdir -p "$doc/docs"
cp "$TOP"/*.md "$doc"
cp -R "$TOP"/docs/*.{md,svg} "$TOP"/docs/{gallery,queries,reader.py} "$doc/docs"
# Debian has this licence in a place of its own.
sed -i 's,\[LICENSE\](LICENSE),/usr/share/common-licenses/GPL-2,' "$doc/README.md"

# python3-kvmtrace: the wheel. Without RECORD, pip leaves it to apt.
site=$work/tree/python3-kvmtrace/usr/lib/python3/dist-packages
python3 -m zipfile -e "$BUILD"/wheel/*.whl "$site"
rm -rf "$site"/kvmtrace-*.dist-info/{RECORD,licenses,sboms}
for info in "$site"/kvmtrace-*.dist-info; do echo debian >"$info/INSTALLER"; done
install -d "$work/tree/python3-kvmtrace/usr/share/doc/python3-kvmtrace/examples"
cp "$TOP/docs/python.md" "$work/tree/python3-kvmtrace/usr/share/doc/python3-kvmtrace"
cp "$TOP"/python/notebooks/*.ipynb "$work/tree/python3-kvmtrace/usr/share/doc/python3-kvmtrace/examples"
chmod -R u=rwX,go=rX "$work/tree"
find "$site" -name '*.so' -exec chmod 644 {} +
needs=$(objdump -T "$site"/kvmtrace/*.so | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
[ "$(printf '%s\nGLIBC_2.36\n' "$needs" | sort -V | tail -n 1)" = GLIBC_2.36 ] ||
	die "the Python module needs $needs, and Debian 12 has GLIBC_2.36: build the packages on Debian 12"

# What is in them that others have made.
static=
for file in /usr/bin/rustc /usr/lib/x86_64-linux-gnu/libc.a "$(gcc -print-file-name=libgcc_eh.a)"; do
	package=$(dpkg-query -S "$(realpath "$file")" | cut -d: -f1)
	static+=$(dpkg-query -W -f '${source:Package} (= ${source:Version}), ' "$package")
done
sbom() { # PACKAGE CRATE…
	python3 "$TOP/scripts/sbom.py" "$1" "$version" "${static%, }" "$work/tree/$1/usr/share/doc/$1" "${@:2}"
	cp "$work/tree/$1/usr/share/doc/$1/sbom.cdx.json" "$out/$1.cdx.json"
}
sbom kvmtrace "${TOOLS[@]}"
sbom python3-kvmtrace kvmtrace-python

cd "$work"
step "$BUILD/log/deb.log" "making the packages" dpkg-buildpackage --build=binary --no-sign --no-pre-clean
cd "$out"
rm -rf "$work"
step "$BUILD/log/lintian.log" "lintian" lintian --allow-root --fail-on error,warning,info --tag-display-limit 0 ./*.changes
[ ! -s "$BUILD/log/lintian.log" ] || cat "$BUILD/log/lintian.log" >&2
for deb in *.deb; do say "$out/$deb: $(stat -c %s "$deb") bytes"; done
