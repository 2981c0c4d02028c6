#!/usr/bin/env bash
# Unpack Debian's Xen in build/xen, for a guest whose page tables are not its own.
. "$(dirname "$0")/lib.sh"
xen=$BUILD/xen/xen
[ ! -f "$xen" ] || exit 0
debs=$CACHE/xen
mkdir -p "$debs" "$BUILD/xen" "$BUILD/log"
for of in trixie/xen-hypervisor-4.20-amd64 bookworm/xen-hypervisor-4.17-amd64; do
	suite=${of%%/*} package=${of#*/}
	private_apt "$suite" update >"$BUILD/log/xen.log" 2>&1 &&
		(cd "$debs" && private_apt "$suite" download "$package" >>"$BUILD/log/xen.log" 2>&1) || continue
	rm -rf "$BUILD/xen/root"
	dpkg-deb -x "$(ls "$debs/$package"_*.deb | tail -n 1)" "$BUILD/xen/root"
	# QEMU unpacks Linux kernels only.
	gzip -dc "$BUILD"/xen/root/boot/xen-*-amd64.gz >"$xen.new"
	mv "$xen.new" "$xen"
	rm -r "$BUILD/xen/root"
	say "$package from $suite"
	exit 0
done
die "Debian's Xen could not be had from trixie or bookworm; see $BUILD/log/xen.log"
