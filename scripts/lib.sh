# Shared by the scripts of this folder: paths, messages, a private apt.
# shellcheck shell=bash
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Everything that is built lies in build/; `make clean` removes it.
BUILD=${KVMTRACE_BUILD:-$TOP/build}
# Verified downloads lie apart, so that `make clean` keeps them.
CACHE=${KVMTRACE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvmtrace}
JOBS=${JOBS:-$(nproc)}
# Where make runs two scripts at a time, cargo and the kernel's make would share two jobs.
unset MAKEFLAGS MFLAGS
mkdir -p "$BUILD" "$CACHE"

say() { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 2; }

# step LOG "what" cmd…: run a long command with its output in LOG, print a
# line of progress every ten seconds, and show the log's end if it fails.
step() {
	local log=$1 what=$2 start=$SECONDS pid rc=0
	shift 2
	mkdir -p "$(dirname "$log")"
	say "$what …"
	"$@" >"$log" 2>&1 </dev/null &
	pid=$!
	trap 'kill "$pid" 2>/dev/null || true; exit 130' INT TERM
	local last=$SECONDS
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		if ((SECONDS - last >= 10)); then
			last=$SECONDS
			say "  $what, $((SECONDS - start)) s: $(tail -n 1 "$log" | tr -d '\r' | cut -c1-70)"
		fi
	done
	wait "$pid" || rc=$?
	trap - INT TERM
	if ((rc != 0)); then
		tail -n 40 "$log" >&2
		printf 'error: %s failed (exit code %s); the whole log: %s\n' "$what" "$rc" "$log" >&2
		return "$rc"
	fi
	say "$what: done in $((SECONDS - start)) s"
}

# The tools for users. Each is a crate and a binary of this name, with the subcommands `man` and
# `completions`. Builds, packages and releases take the tools from here.
TOOLS=(kvmtrace activator postproc)

# The tools are static, so that a file runs in the guest and on every Debian.
STATIC_TARGET=x86_64-unknown-linux-gnu

# build_flags [FLAG…]: have cargo build the same bytes in whatever folder: the folders' names do not get
# into what it builds. FLAG… are for rustc, too.
build_flags() {
	local flags=("$@") from
	for from in "$BUILD=/usr/src/kvmtrace/build" "$TOP=/usr/src/kvmtrace" "${CARGO_HOME:-$HOME/.cargo}=/usr/src/cargo"; do
		flags+=("--remap-path-prefix=$from")
		CFLAGS="${CFLAGS:+$CFLAGS }-ffile-prefix-map=$from"
	done
	export CFLAGS
	CARGO_ENCODED_RUSTFLAGS=$(printf '%s\x1f' "${flags[@]}")
	export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%$'\x1f'}
	unset RUSTFLAGS
}

# The time of the commit, which files in packages get. Without git, the tree is of a release's archive,
# in which each file has it.
commit_time() {
	git -C "$TOP" log -1 --format=%ct 2>/dev/null || stat -c %Y "$TOP/Cargo.toml"
}

# missing_packages NAME…: those of the Debian packages that are not installed.
missing_packages() {
	local p
	for p; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || printf '%s\n' "$p"
	done
}

# install_packages NAME…
install_packages() {
	say "missing packages: $*"
	step "$BUILD/log/apt-update.log" "updating the package lists" root apt-get update
	step "$BUILD/log/apt-install.log" "installing $# packages" root "${APT[@]}" "$@"
}

# A private apt: its own sources, lists, state and cache; nothing of the
# system's configuration is read beyond the archive keyring, nothing is written.
# Usage: private_apt SUITE COMMAND…   e.g. private_apt trixie-backports update
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
private_apt() {
	local suite=$1 dir mirror
	shift
	dir=$CACHE/apt/$suite
	mkdir -p "$dir"/{sources.d,preferences.d,state/lists/partial,cache/archives/partial,log}
	: >"$dir/status"
	: >"$dir/empty.conf"
	mirror=$(debian_mirror)
	cat >"$dir/sources.d/it.sources" <<-EOS
	Types: deb
	URIs: $mirror
	Suites: $suite
	Components: main
	Architectures: amd64
	Signed-By: $KEYRING
	EOS
	"${APT_TOOL:-apt-get}" -q \
		-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$dir/sources.d" \
		-o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts="$dir/preferences.d" \
		-o Dir::State="$dir/state" -o Dir::State::lists="$dir/state/lists" \
		-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" \
		-o Dir::Cache::archives="$dir/cache/archives" -o Dir::Log="$dir/log" \
		-o APT::Architecture=amd64 -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 \
		-o Acquire::Languages=none -o Acquire::Retries=3 \
		-o APT::Update::Error-Mode=any -o APT::Update::Post-Invoke= -o APT::Update::Post-Invoke-Success= -o DPkg::Post-Invoke= "$@"
}

# The Debian mirror that the system itself uses, so that a local one serves.
debian_mirror() {
	local uri
	if [ -n "${DEBIAN_MIRROR:-}" ]; then
		printf '%s\n' "$DEBIAN_MIRROR"
		return
	fi
	uri=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
		sed -nE 's/^(URIs:|deb( \[[^]]*\])?)[[:space:]]+(https?:[^ ]*\/debian)\/?([[:space:]].*)?$/\3/p' | head -n 1)
	[ -n "$uri" ] || die "no Debian mirror in /etc/apt/sources.list*; name one: DEBIAN_MIRROR=http://…/debian"
	printf '%s\n' "$uri"
}

# Run a command as root: as we are, or through sudo.
root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "packages must be installed: run this as root, or install sudo, or: apt-get install $*"
	fi
}
APT=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)

# kernel_make SOURCE OUT: the array mk becomes make with all that a kernel of ours is built with.
kernel_make() {
	local bindgen=$BUILD/tools/bin/bindgen
	# It runs for half a minute at most, so that optimizing it takes longer than what it saves.
	[ -x "$bindgen" ] || CARGO_PROFILE_RELEASE_OPT_LEVEL=0 step "$BUILD/log/bindgen.log" "building bindgen" \
		cargo install --locked bindgen-cli --version 0.72.1 --root "$BUILD/tools"
	mkdir -p "$2"
	# shellcheck disable=SC2034
	mk=(make -C "$1" O="$2" LLVM=-22 ARCH=x86_64 RUSTC=/usr/bin/rustc RUSTFMT=/usr/bin/rustfmt
		CLIPPY_DRIVER=/usr/bin/clippy-driver BINDGEN="$bindgen"
		KBUILD_BUILD_TIMESTAMP=1970-01-01 KBUILD_BUILD_USER=kvmtrace KBUILD_BUILD_HOST=kvmtrace)
	export LIBCLANG_PATH=${LIBCLANG_PATH:-/usr/lib/llvm-22/lib}
}

# not_survived WANTED CONFIG: the lines of WANTED, a fragment of a kernel's configuration, that CONFIG does
# not fulfil. What is not to be set may also be unknown there.
not_survived() {
	grep '^CONFIG_' "$1" | grep -vxF -f "$2" || true
	sed -nE 's/^# (CONFIG_[A-Za-z0-9_]+) is not set$/\1/p' "$1" | while read -r option; do
		grep "^$option=" "$2" | sed 's/$/, which is not wanted/' || true
	done
}

# A Debian of its own below a directory, for tests. Needs root.
# make_root SUITE DIRECTORY PACKAGE,…
make_root() {
	local suite=$1 dir=$2 mirror d
	[ "$(id -u)" = 0 ] || die "this needs root, for it runs in a chroot"
	command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: run 'make setup'"
	leave_root "$dir"
	rm -rf --one-file-system "$dir" && mkdir -p "$dir"
	mirror=$(debian_mirror)
	step "$BUILD/log/root-$(basename "$dir").log" "making a clean $suite" \
		mmdebstrap --variant=minbase --include="$3" "$suite" "$dir" \
		"deb $mirror $suite main" "deb ${mirror%/debian}/debian-security $suite-security main"
	cp /etc/resolv.conf "$dir/etc/resolv.conf"
	# What a machine needs to reach its package sources is not ours to change.
	for d in usr/local/share/ca-certificates etc/ssl/certs root/.cargo/config.toml; do
		[ -e "/$d" ] && mkdir -p "$dir/$(dirname "$d")" && cp -a "/$d" "$dir/$(dirname "$d")/"
	done
	return 0
}

# enter_root DIRECTORY: it gets the machine's /proc, /sys and /dev, until leave_root or the script's end.
enter_root() {
	# shellcheck disable=SC2064
	trap "leave_root '$1'" EXIT
	mount -t proc proc "$1/proc"
	mount -t sysfs sysfs "$1/sys"
	mount --rbind --make-rslave /dev "$1/dev"
}

# The machine's own devices must not stay below a folder that gets removed.
leave_root() {
	local at
	for at in "$1"/{proc,sys,dev}; do
		while mountpoint -q "$at"; do umount -R "$at" 2>/dev/null || umount -Rl "$at"; done
	done
}

# in_root DIRECTORY COMMAND…
in_root() {
	chroot "$1" /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		SSL_CERT_FILE="${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "${@:2}"
}
