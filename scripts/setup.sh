#!/usr/bin/env bash
# Install the named Debian packages that are missing, and nothing else.
. "$(dirname "$0")/lib.sh"
# Better than a compiler that fails after minutes for want of room. README.md has the figure, too.
gigabytes=12
if [ ! -d "$BUILD/kernel" ]; then
	free=$(df -k --output=avail "$BUILD" | tail -n 1)
	held=$(du -sk "$BUILD" | cut -f 1)
	((free + held >= gigabytes * 1000 * 1000 * 1000 / 1024)) ||
		die "$BUILD needs $gigabytes GB of disk, of which $((free * 1024 / 1000 / 1000)) MB are free: remove something, or make build/ a symbolic link to a folder on another disk"
fi
. /etc/os-release
case ${ID:-}:${VERSION_ID:-} in
debian:12 | debian:13) ;;
*) say "this is ${PRETTY_NAME:-an unknown system}; made for Debian 12 and 13, trying all the same" ;;
esac
pkgs=(rustc-web cargo-web rust-web-src rust-web-clippy rustfmt-web
	clang-22 lld-22 llvm-22 libclang-22-dev
	make flex bison bc libelf-dev libssl-dev python3 python3-venv xz-utils cpio kmod
	pahole zstd lz4 mmdebstrap e2fsprogs gcc libc6-dev rsync ca-certificates curl git patch file babeltrace2 less valgrind
	chromium-headless-shell)
[ "${VERSION_ID:-}" = 12 ] || pkgs+=(qemu-system-x86)
readarray -t missing < <(missing_packages "${pkgs[@]}")
if [ ${#missing[@]} -gt 0 ]; then
	for p in rustc cargo rustup; do
		[ -n "$(missing_packages "$p")" ] ||
			die "the package $p is installed and conflicts with ${p}-web, which the kernel needs; remove it first: apt-get remove $p"
	done
	install_packages "${missing[@]}"
fi
"$TOP/scripts/qemu.sh"
