#!/usr/bin/env bash
# Prove the README's two commands on machines that have nothing of ours: make
# minimal Debian 12 and 13 roots, copy a clean clone in, run them there.
# Needs root (chroot). FRESH="bookworm" or "trixie" for one of them, TARGETS=run
# for one of the commands.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || die "make fresh needs root, for it runs in a chroot"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: run 'make setup'"
# The machine's own devices must not stay below a folder that gets removed.
leave() {
	local at
	for at in "$1"/{proc,sys,dev}; do
		while mountpoint -q "$at"; do umount -R "$at" 2>/dev/null || umount -Rl "$at"; done
	done
}
for suite in ${FRESH:-bookworm trixie}; do
	dir=$BUILD/fresh/$suite
	leave "$dir"
	rm -rf --one-file-system "$dir" && mkdir -p "$dir"
	mirror=$(debian_mirror)
	security=${mirror%/debian}/debian-security
	step "$BUILD/log/fresh-$suite-root.log" "making a clean $suite" \
		mmdebstrap --variant=minbase --include=make,git,ca-certificates "$suite" "$dir" \
		"deb $mirror $suite main" "deb $security $suite-security main"
	git -C "$TOP" clone -q "$TOP" "$dir/root/kvmtrace"
	cp /etc/resolv.conf "$dir/etc/resolv.conf"
	# What a machine needs to reach its package sources is not ours to change.
	for d in usr/local/share/ca-certificates etc/ssl/certs root/.cargo/config.toml; do
		[ -e "/$d" ] && mkdir -p "$dir/$(dirname "$d")" && cp -a "/$d" "$dir/$(dirname "$d")/"
	done
	trap 'leave "$dir"' EXIT
	mount -t proc proc "$dir/proc"
	mount -t sysfs sysfs "$dir/sys"
	mount --rbind --make-rslave /dev "$dir/dev"
	for target in ${TARGETS:-run test}; do
		say "make $target in a clean $suite"
		chroot "$dir" /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin \
			SSL_CERT_FILE="${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" \
			make -C /root/kvmtrace "$target" || die "make $target failed in a clean $suite"
	done
	leave "$dir"
done
