#!/usr/bin/env bash
# Make build/qemu/qemu-system-x86_64 run QEMU 10 or newer: the system's own, or
# else Debian's backport, unpacked privately; the system's QEMU stays as it is.
. "$(dirname "$0")/lib.sh"
out=$BUILD/qemu wrapper=$BUILD/qemu/qemu-system-x86_64
works() { "$wrapper" --version 2>/dev/null | grep -qE 'version (1[0-9]|[2-9][0-9])\.'; }
works && exit 0
mkdir -p "$out"
if own=$(command -v qemu-system-x86_64) && "$own" --version | grep -qE 'version (1[0-9]|[2-9][0-9])\.'; then
	ln -sf "$own" "$wrapper"
	exit 0
fi
suite=bookworm-backports
debs=$CACHE/qemu
pkgs=(qemu-system-x86 qemu-system-common qemu-system-data seabios)
mkdir -p "$debs"
if ! (cd "$debs" && [ -f SHA256SUMS ] && sha256sum --quiet -c SHA256SUMS) 2>/dev/null; then
	rm -f "$debs"/*
	say "fetching QEMU 10 from $suite"
	private_apt "$suite" update >"$BUILD/apt-$suite.log" 2>&1 &&
		(cd "$debs" && private_apt "$suite" download "${pkgs[@]}" >>"$BUILD/apt-$suite.log" 2>&1) ||
		die "QEMU 10 could not be had. Tried: qemu-system-x86_64 on PATH ($(command -v qemu-system-x86_64 || echo none)), Debian $suite ($(grep -m1 '^E:' "$BUILD/apt-$suite.log" || echo "see $BUILD/apt-$suite.log")). Install qemu-system-x86 10 or newer."
	(cd "$debs" && sha256sum ./*.deb >SHA256SUMS)
fi
for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$out"; done
cat >"$wrapper" <<EOS
#!/bin/sh
export QEMU_MODULE_DIR="$out/usr/lib/x86_64-linux-gnu/qemu"
exec "$out/usr/bin/qemu-system-x86_64" -L "$out/usr/share/qemu" -L "$out/usr/share/seabios" "\$@"
EOS
chmod +x "$wrapper"
missing=$(ldd "$out/usr/bin/qemu-system-x86_64" | awk '/not found/ {print $1}')
if [ -n "$missing" ]; then
	root "${APT[@]}" libglib2.0-0 libpixman-1-0 libslirp0 libfdt1 libcapstone4 libnuma1 libaio1 \
		liburing2 libbpf1 libfuse3-3 libseccomp2 libibverbs1 librdmacm1 libpmem1 libvdeplug2 \
		libjpeg62-turbo libpng16-16 libsasl2-2 libgnutls30 libnettle8 libzstd1 liblzo2-2 libsnappy1v5 libbz2-1.0 >"$BUILD/qemu-apt.log" 2>&1 ||
		{ tail "$BUILD/qemu-apt.log" >&2; die "QEMU's libraries could not be installed: $missing"; }
fi
works || die "QEMU does not run: $("$wrapper" --version 2>&1 | head -3)"
say "$("$wrapper" --version | head -1)"
