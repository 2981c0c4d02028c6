#!/usr/bin/env bash
# Make build/guest.ext4: a Debian root of the host's suite with the programs
# that the main job traces. Opened read-only by every run.
. "$(dirname "$0")/lib.sh"
. /etc/os-release
suite=${VERSION_CODENAME:-bookworm}
include=sqlite3,gcc,libc6-dev,procps,e2fsprogs,xfsprogs,mount,python3,trace-cmd,redis-server,redis-tools,sysvinit-core,initscripts,cron,inetutils-syslogd,nbd-server,nbd-client,btrfs-progs,gfs2-utils,nfs-kernel-server,psmisc
key=$(printf '%s %s' "$suite" "$include" | sha256sum | cut -d' ' -f1)
img=$BUILD/guest.ext4
[ -f "$img" ] && [ "$(cat "$img.key" 2>/dev/null)" = "$key" ] && exit 0
rootfs=$BUILD/guest-root
rm -rf "$rootfs" "$img"
mode=root
[ "$(id -u)" = 0 ] || mode=unshare
step "$BUILD/log/mmdebstrap.log" "making the guest's Debian ($suite)" \
	mmdebstrap --mode=$mode --variant=minbase --include="$include" --dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	"$suite" "$rootfs.tar" "$(debian_mirror)"
mkdir -p "$rootfs"
tar -C "$rootfs" -xf "$rootfs.tar" --exclude='./dev/*'
rm -f "$rootfs.tar"
mkdir -p "$rootfs/opt/kvmtrace/bin" "$rootfs/work"
mke2fs -q -t ext4 -d "$rootfs" -r 1 -N 0 -m 0 -L guest "$img.new" 1500M >"$BUILD/log/mke2fs.log" 2>&1 ||
	{ cat "$BUILD/log/mke2fs.log" >&2; die "mke2fs failed"; }
mv "$img.new" "$img"
rm -rf "$rootfs"
echo "$key" >"$img.key"
