#!/usr/bin/env bash
# Find, verify and unpack a Linux 7.3.y source; print nothing but progress.
#
#   scripts/kernel-source.sh DEST
#
# Sources, in order: KERNEL_TARBALL (named by the user), the cache, Debian's
# linux-source-7.3 package from trixie-backports, forky or sid (checked by
# apt's signature chain), kernel.org's release (checked against the
# SHA-256 that the user pins in KERNEL_SHA256, for kernel.org moves on).
# DEST/.source says what was used.
. "$(dirname "$0")/lib.sh"

dest=${1:?usage: kernel-source.sh DEST}
tried=()

unpack() { # TARBALL ORIGIN
	local tmp=$dest.unpack
	rm -rf "$tmp" && mkdir -p "$tmp"
	tar -C "$tmp" --strip-components=1 -xf "$1" || return 1
	local v
	v=$(sed -nE 's/^(VERSION|PATCHLEVEL|SUBLEVEL) = ([0-9]+)$/\2/p' "$tmp/Makefile" | paste -sd.)
	case $v in
	7.3.*) ;;
	*) rm -rf "$tmp"; die "$1 holds Linux $v; the series applies to 7.3.y" ;;
	esac
	printf 'version=%s\norigin=%s\nsha256=%s\n' "$v" "$2" "$(sha256sum "$1" | cut -d' ' -f1)" >"$tmp/.source"
	rm -rf "$dest" && mv "$tmp" "$dest"
	say "Linux $v from $2"
}

if [ -n "${KERNEL_TARBALL:-}" ]; then
	[ -r "$KERNEL_TARBALL" ] || die "KERNEL_TARBALL=$KERNEL_TARBALL can't be read"
	unpack "$KERNEL_TARBALL" "$KERNEL_TARBALL"
	exit 0
fi

debs=$CACHE/linux-source
mkdir -p "$debs"
from_deb() { # DEB SUITE
	local tmp=$BUILD/linux-deb
	rm -rf "$tmp" && mkdir -p "$tmp"
	dpkg-deb -x "$1" "$tmp" || return 1
	unpack "$(ls "$tmp"/usr/src/linux-source-7.3.tar.*)" "$2 $(basename "$1")"
	rm -rf "$tmp"
}

# A deb in the cache was verified when it came; its hash was written then.
for deb in "$debs"/*.deb; do
	[ -e "$deb" ] || continue
	if (cd "$debs" && sha256sum --quiet -c "$(basename "$deb").sha256") 2>/dev/null; then
		from_deb "$deb" "$(cat "$deb.suite")" && exit 0
	fi
	say "$(basename "$deb") in the cache is damaged; fetching it anew"
	rm -f "$deb" "$deb".*
done

for suite in trixie-backports forky sid; do
	say "looking for linux-source-7.3 in $suite"
	if ! private_apt "$suite" update >"$BUILD/apt-$suite.log" 2>&1; then
		tried+=("$suite: apt update failed: $(grep -m1 -E '^[EW]:' "$BUILD/apt-$suite.log" || echo 'see the log')")
		continue
	fi
	if ! (cd "$debs" && private_apt "$suite" download linux-source-7.3 >>"$BUILD/apt-$suite.log" 2>&1); then
		tried+=("$suite: $(grep -m1 '^E:' "$BUILD/apt-$suite.log" || echo 'no such package')")
		continue
	fi
	deb=$(ls "$debs"/linux-source-7.3_*.deb | tail -n 1)
	(cd "$debs" && sha256sum "$(basename "$deb")" >"$(basename "$deb").sha256")
	echo "$suite" >"$deb.suite"
	from_deb "$deb" "$suite" && exit 0
	tried+=("$suite: the package could not be unpacked")
done

if [ -n "${KERNEL_SHA256:-}" ]; then
	for v in ${KERNEL_VERSION:-7.3.4}; do
		url=https://cdn.kernel.org/pub/linux/kernel/v7.x/linux-$v.tar.xz
		if curl -fsSL --retry 2 -o "$CACHE/linux-$v.tar.xz" "$url" &&
			echo "$KERNEL_SHA256  $CACHE/linux-$v.tar.xz" | sha256sum --quiet -c -; then
			unpack "$CACHE/linux-$v.tar.xz" "$url" && exit 0
		fi
		tried+=("$url: not reached, or its SHA-256 is not KERNEL_SHA256")
	done
else
	tried+=("kernel.org: not tried, for KERNEL_SHA256 (and KERNEL_VERSION) are not set")
fi

printf 'error: no Linux 7.3.y source could be had. Tried:\n' >&2
printf '  %s\n' "${tried[@]}" >&2
echo 'Name a tarball: make kernel KERNEL_TARBALL=/path/linux-7.3.y.tar.xz' >&2
exit 2
