#!/usr/bin/env bash
# Build the Debian packages of the kernel, linux-image-…-kvmtrace and its headers, in build/deb-kernel: Debian's
# own configuration of the same version of Linux, with what tracing needs (configs/package.config), built by the
# kernel's own bindeb-pkg.
#
#   scripts/deb-kernel.sh            configure and build; this takes long and some 30 GB
#   scripts/deb-kernel.sh --config   only configure, and prove that each wanted option has survived
#
# MODULES=small leaves out the modules that are not in configs/modules-small, and MODULES=virtual those that are not in
# configs/modules-virtual.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH
case ${MODULES:-all} in
all | small | virtual) modules=${MODULES:-all} ;;
*) die "MODULES is $MODULES: it must be all, small or virtual" ;;
esac
case ${1:-} in
'' | --config) ;;
*) die "usage: [MODULES=small|virtual] scripts/deb-kernel.sh [--config]" ;;
esac
[ -f "$BUILD/linux-orig/.source" ] || "$TOP/scripts/kernel-source.sh" "$BUILD/linux-orig"
"$TOP/scripts/tree.sh"
out=$BUILD/deb-kernel/$modules
kernel_make "$BUILD/linux" "$out"

# Debian's configuration, from the release that the source is from. apt's signatures verify it.
series=$(sed -nE 's/^version=([0-9]+\.[0-9]+).*/\1/p' "$BUILD/linux-orig/.source")
debian=$BUILD/deb-kernel/debian-$series.config
from_debian() { # SUITE
	local tmp=$BUILD/deb-kernel/linux-config
	rm -rf "$tmp" && mkdir -p "$tmp"
	private_apt "$1" update && (cd "$tmp" && private_apt "$1" download "linux-config-$series") || return 1
	dpkg-deb -x "$tmp"/linux-config-*.deb "$tmp" || return 1
	xz -dc "$tmp/usr/src/linux-config-$series/config.amd64_none_amd64.xz" >"$debian.new" || return 1
	mv "$debian.new" "$debian"
	rm -rf "$tmp"
}
if [ ! -f "$debian" ]; then
	for suite in "$(sed -n 's/^origin=\([^ /]*\) .*/\1/p' "$BUILD/linux-orig/.source")" trixie-backports forky sid; do
		[ -z "$suite" ] || ! from_debian "$suite" >"$BUILD/log/linux-config.log" 2>&1 || break
	done
	[ -f "$debian" ] || die "Debian's configuration of Linux $series could not be had from trixie-backports, forky or sid; see $BUILD/log/linux-config.log"
fi

wanted=$out/wanted
cat "$TOP/configs/package.config" >"$wanted"
kept=$out/kept
: >"$kept"
if [ "$modules" != all ]; then
	sed 's/#.*//' "$TOP/configs/modules-$modules" | tr -s ' \t' '\n' | sed -n 's/..*/CONFIG_&/p' | sort >"$kept"
	cat "$TOP/configs/package-small.config" >>"$wanted"
	# A module that is left out here comes back if a module that stays selects it.
	sed -nE 's/^(CONFIG_[A-Za-z0-9_]+)=m$/\1/p' "$debian" | grep -vxF -f "$kept" | sed 's/.*/# & is not set/' >"$out/left-out"
else
	: >"$out/left-out"
fi
cat "$debian" "$out/left-out" "$wanted" >"$out/.config"
# Repeated lines are meant: the last one counts.
"${mk[@]}" olddefconfig >"$BUILD/log/deb-kernel-config.log" 2>&1 || { tail "$BUILD/log/deb-kernel-config.log" >&2; die "make olddefconfig failed"; }
missing=$(not_survived "$wanted" "$out/.config")
missing+=$(while read -r option; do
	grep -qE "^$option=[my]$" "$out/.config" || printf '\n%s, of configs/modules-%s' "$option" "$modules"
done <"$kept")
[ -z "$missing" ] || die "these wanted options did not survive olddefconfig:"$'\n'"$missing"
# What Debian's kernel has and this one lacks, or has otherwise. The versions of compilers do not count.
diff <(grep '^CONFIG_' "$debian" | sort) <(grep '^CONFIG_' "$out/.config" | sort) | grep '^[<>]' |
	grep -vE '_VERSION|_VERSION_TEXT|CONFIG_(CC|AS|LD|RUSTC|PAHOLE|TOOLS)_' >"$out/differences" || true
say "$out/.config: $(grep -c '=m$' "$out/.config") modules, $(grep -c '=y$' "$out/.config") options built in; $(wc -l <"$out/differences") lines differ from Debian's (differences)"
[ "${1:-}" != --config ] || exit 0

readarray -t absent < <(missing_packages debhelper dpkg-dev rsync kmod cpio bc flex bison libelf-dev libssl-dev libdw-dev pahole python3 lintian)
[ ${#absent[@]} = 0 ] || install_packages "${absent[@]}"
SOURCE_DATE_EPOCH=$(commit_time)
export SOURCE_DATE_EPOCH
# Those of an earlier commit would go into a release.
rm -f "$BUILD"/deb-kernel/linux-*.deb
# The version that packages get is that of the kernel, then that of the tools.
maintainer=$(sed -n 's/^Maintainer: //p' "$TOP/packaging/debian/control")
export DEBFULLNAME=${maintainer% <*} DEBEMAIL=${maintainer#* <}
export DEBEMAIL=${DEBEMAIL%>} KDEB_CHANGELOG_DIST=unstable
step "$BUILD/log/deb-kernel.log" "building the kernel's packages" "${mk[@]}" "-j$JOBS" \
	KDEB_PKGVERSION="$(sed -n 's/^version=//p' "$BUILD/linux-orig/.source")+$("$TOP/scripts/version.sh" --debian)" bindeb-pkg
# These headers of the C library are not for Debian's.
rm -f "$BUILD"/deb-kernel/linux-libc-dev_*.deb
# What the kernel's own packaging does otherwise: the programs of the headers are as they were linked, and need the
# libraries of a compiler that whoever builds a module has; .gitignore files stay; the version has a commit.
kernels_own=undeclared-elf-prerequisites,unstripped-binary-or-object,package-contains-vcs-control-file,package-has-long-file-name
step "$BUILD/log/lintian-kernel.log" "lintian" lintian --allow-root --fail-on error,warning --tag-display-limit 0 \
	--suppress-tags "$kernels_own" "$BUILD"/deb-kernel/*.deb
[ ! -s "$BUILD/log/lintian-kernel.log" ] || cat "$BUILD/log/lintian-kernel.log" >&2
ls "$BUILD"/deb-kernel/*.deb
