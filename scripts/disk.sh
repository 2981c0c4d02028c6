#!/usr/bin/env bash
# Make build/machine/disk.img: a Debian 13 with Debian's own kernel, systemd, a user and GRUB for BIOS and UEFI,
# as an installer leaves it. `qemu-test metal` boots copies of it. Needs root.
#
# packaging/machine/ has what is added: run-stage runs what comes on another disk, in each boot.
. "$(dirname "$0")/lib.sh"
export PATH=$PATH:/usr/sbin:/sbin
suite=trixie
# The last line is for the workloads and for what docs/packages.md asks for.
include=linux-image-amd64,initramfs-tools,zstd,systemd-sysv,udev,dbus,libpam-systemd,grub-pc-bin,grub-efi-amd64,grub-efi-amd64-bin
include+=,e2fsprogs,dosfstools,passwd,adduser,login,procps,kmod
include+=,libcap2-bin,python3,sqlite3,man-db
[ "$(id -u)" = 0 ] || die "this needs root, for the files of a system belong to several users"
readarray -t missing < <(missing_packages mmdebstrap e2fsprogs dosfstools fdisk ovmf)
[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
dir=$BUILD/machine
mkdir -p "$dir"
key=$(cat "$TOP/scripts/disk.sh" "$TOP"/packaging/machine/* | sha256sum | cut -d' ' -f1)
[ -f "$dir/disk.img" ] && [ "$(cat "$dir/disk.key" 2>/dev/null)" = "$key" ] && exit 0
rm -rf --one-file-system "$dir/root" "$dir"/disk.*

# Partitions: GRUB's own for BIOS, the one of UEFI, and the root. In sectors of 512 bytes.
gib=4 esp_first=4096 root_first=266240
root_uuid=6b766d74-7261-4365-8000-000000000001 esp_id=6B764D54

mirror=$(debian_mirror)
step "$BUILD/log/disk-mmdebstrap.log" "making a Debian 13 ($suite)" \
	mmdebstrap --mode=root --variant=minbase --include="$include" "$suite" "$dir/root" \
	"deb $mirror $suite main" "deb ${mirror%/debian}/debian-security $suite-security main"
root=$dir/root
echo machine >"$root/etc/hostname"
cat >"$root/etc/fstab" <<EOF
UUID=$root_uuid / ext4 errors=remount-ro 0 1
UUID=${esp_id:0:4}-${esp_id:4} /boot/efi vfat umask=0077 0 1
EOF
mkdir -p "$root/boot/efi"
# A login needs neither a password nor a network here. The console shows what the kernel prints. The emulated
# clock of two CPUs makes the watchdog of the TSC hang now and then, with all kernels.
chroot "$root" useradd --create-home --shell /bin/bash somebody
cat >"$root/etc/default/grub" <<'EOF'
GRUB_DEFAULT=0
GRUB_TIMEOUT=1
GRUB_DISTRIBUTOR=Debian
GRUB_CMDLINE_LINUX_DEFAULT=
GRUB_CMDLINE_LINUX="console=tty0 console=ttyS0 tsc=nowatchdog"
GRUB_TERMINAL=console
EOF
install -m 755 "$TOP/packaging/machine/run-stage" "$TOP/packaging/machine/install-grub" "$root/usr/local/sbin"
install -m 644 "$TOP/packaging/machine/stage.service" "$root/etc/systemd/system"
ln -s ../stage.service "$root/etc/systemd/system/multi-user.target.wants/stage.service"
rm -f "$root/etc/resolv.conf"
: >"$root/etc/machine-id"
cp "$root"/boot/vmlinuz-* "$dir/vmlinuz"
cp "$root"/boot/initrd.img-* "$dir/initrd.img"

disk=$dir/disk.new
truncate -s ${gib}G "$disk"
sfdisk -q "$disk" <<EOF
label: gpt
start=2048, size=2048, type=21686148-6449-6E6F-744E-656564454649
start=$esp_first, size=$((root_first - esp_first)), type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B
start=$root_first, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4
EOF
mkfs.vfat -i "$esp_id" --offset $esp_first -F 32 -s 1 "$disk" $(((root_first - esp_first) / 2)) >"$BUILD/log/disk-fs.log"
mke2fs -q -t ext4 -U $root_uuid -d "$root" -E offset=$((root_first * 512)) "$disk" $((gib * 1024 * 1024 - root_first / 2 - 1024))k \
	>>"$BUILD/log/disk-fs.log" 2>&1 || { cat "$BUILD/log/disk-fs.log" >&2; die "mke2fs failed"; }
rm -rf --one-file-system "$root"

# GRUB is installed by the system itself.
step "$BUILD/log/disk-grub.log" "installing GRUB" timeout 900 "$BUILD/qemu/qemu-system-x86_64" -nodefaults -no-user-config \
	-nic none -display none -m 1024 -cpu max -accel tcg -no-reboot -serial stdio \
	-kernel "$dir/vmlinuz" -initrd "$dir/initrd.img" \
	-append "console=ttyS0 root=UUID=$root_uuid init=/usr/local/sbin/install-grub panic=-1" \
	-drive "if=none,id=disk,format=raw,cache=unsafe,file=$disk" -device virtio-blk-pci,drive=disk
grep -q '^install-grub: good' "$BUILD/log/disk-grub.log" || { tail -n 30 "$BUILD/log/disk-grub.log" >&2; die "GRUB was not installed"; }
rm -f "$dir/vmlinuz" "$dir/initrd.img"
mv "$disk" "$dir/disk.img"
echo "$key" >"$dir/disk.key"
say "$dir/disk.img: $(du -m "$dir/disk.img" | cut -f1) MB"
