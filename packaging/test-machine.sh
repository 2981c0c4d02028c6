#!/bin/bash
# One stage of `make metal`, in a Debian 13 that boots from a disk. The working directory has the packages, the
# folder newer/ with later versions of them, state.sh, and `before`, the machine's state before the first stage.
# What it leaves in results/ is for the host.
#
#   install  on Debian's kernel: the packages, and what docs/packages.md says about who may trace
#   record   on our kernel: a user traces a program, and reads the trace
#   lost     on our kernel: a trace from boot for which the kernel had too little memory
#   boot     on our kernel: the trace from boot; newer packages; the packages of user space go
#   remove   on Debian's kernel: our kernel goes, and nothing is left
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
say() { printf 'test-machine: %s\n' "$*"; }
die() { say "failed: $*" >&2; exit 1; }
trap 'say "failed in line $LINENO: $BASH_COMMAND" >&2' ERR
. ./state.sh
here=$PWD
user=somebody
tools=(kvmtrace python3-kvmtrace)
kernel=$(ls linux-image-*_*.deb | sed -n 's/_.*//p')
as_user() { runuser -l "$user" -c "$1"; }
# Nothing of the system has failed.
well() {
	local failed
	failed=$(systemctl --failed --no-legend --plain)
	[ -z "$failed" ] || { systemctl --no-pager status --failed || true; die "these services failed: $failed"; }
	say "$(uname -r), $([ -d /sys/firmware/efi ] && echo UEFI || echo BIOS), $(nproc) CPUs"
}
on_ours() { [[ $(uname -r) == *-kvmtrace ]] || die "the kernel is $(uname -r)"; }
on_debians() { [[ $(uname -r) != *-kvmtrace ]] || die "the kernel is $(uname -r)"; }
command_line() { # OPTIONS: of the kernels from the next boot on, beside those that are there
	sed -i "s/^GRUB_CMDLINE_LINUX_DEFAULT=.*/GRUB_CMDLINE_LINUX_DEFAULT=\"$1\"/" /etc/default/grub
	update-grub
}
may_trace() {
	setcap cap_perfmon=ep /usr/bin/activator
	setcap cap_perfmon=ep /usr/bin/kvmtrace
}
# Traces sqlite3 as the user, into the user's home and results/.
record() { # NAME ROWS
	as_user "kvmtrace record -o $1.vmt -- sqlite3 /tmp/$1.db \
		'create table t(a, b); with recursive c(i) as (select 1 union all select i+1 from c where i<$2)
		insert into t select i, hex(randomblob(20)) from c; select count(*), sum(length(b)) from t order by b;'"
	as_user "kvmtrace check $1.vmt"
	cp "/home/$user/$1.vmt" results
	rm "/tmp/$1.db"
}

case ${1:?} in
install)
	on_debians
	well
	state "${tools[@]}" "$kernel" >results/before
	! activator status 2>/dev/null || die "the tools are there already"
	apt-get install -y --no-install-recommends ./*.deb
	# Without our kernel, an error says what is missing.
	rc=0
	activator status 2>&1 | tee /tmp/status || rc=$?
	[ "$rc" != 0 ] || die "activator status succeeds on Debian's kernel"
	grep -q vmtrace /tmp/status
	grep -q "vmlinuz-.*-kvmtrace" /boot/grub/grub.cfg || die "GRUB does not offer our kernel"
	adduser "$user" kvmtrace
	echo '-vm.vmtrace_paranoid = 0' >/etc/sysctl.d/kvmtrace.conf
	may_trace
	;;
record)
	on_ours
	well
	[ "$(stat -c '%U:%G %a' /dev/vmtrace)" = "root:kvmtrace 660" ] || die "/dev/vmtrace: $(stat -c '%U:%G %a' /dev/vmtrace)"
	[ "$(sysctl -n vm.vmtrace_paranoid)" = 0 ]
	as_user 'kvmtrace status' | tee /tmp/status
	record sqlite 3000
	as_user 'kvmtrace report sqlite.vmt -o report && ls report'
	as_user 'python3 -c "
import kvmtrace
trace = kvmtrace.open(\"sqlite.vmt\")
assert trace.check().good
curve = trace.curve(\"lru\")
print(\"Python:\", trace, curve)"'
	# Who is not in the group may not.
	! runuser -u nobody -- kvmtrace record -o /tmp/nobody.vmt -- true 2>/tmp/refused || die "nobody may trace"
	grep -q /dev/vmtrace /tmp/refused
	# The next boot is traced from its begin.
	systemctl enable kvmtrace-boot
	command_line vmtrace=early,refs,size=4M
	;;
lost)
	on_ours
	well
	grep -q vmtrace=early,refs,size=4M /proc/cmdline
	# The trace goes on. The service's log has the number of lost records, and the status reports them.
	systemctl --no-pager status kvmtrace-boot
	journalctl -b --no-pager -u kvmtrace-boot | grep "records lost because the buffers were full"
	rc=0
	kvmtrace status >/tmp/status || rc=$?
	[ "$rc" = 1 ] || die "the status of a trace with losses ends with $rc"
	grep "^tracing *on" /tmp/status
	systemctl stop kvmtrace-boot
	rc=0
	kvmtrace check /var/lib/kvmtrace/boot-*.vmt || rc=$?
	[ "$rc" = 1 ] || die "the check of a trace with losses ends with $rc"
	rm /var/lib/kvmtrace/boot-*.vmt
	command_line vmtrace=early,refs,size=384M
	;;
boot)
	on_ours
	well
	grep -q vmtrace=early,refs,size=384M /proc/cmdline
	systemctl --no-pager status kvmtrace-boot
	! journalctl -b --no-pager -u kvmtrace-boot | grep lost || die "records were lost"
	kvmtrace status
	systemctl stop kvmtrace-boot
	! systemctl is-failed --quiet kvmtrace-boot || die "the service has failed"
	cp /var/lib/kvmtrace/boot-*.vmt results/boot.vmt
	systemctl disable kvmtrace-boot
	command_line ""
	record second 300

	# A newer version. The service of the old one is not running, and the capabilities must be given again.
	apt-get install -y --no-install-recommends ./newer/*.deb
	for package in "${tools[@]}"; do
		[ "$(dpkg-query -W -f '${Version}' "$package")" = "$(dpkg-deb -f newer/"${package}"_*.deb Version)" ]
	done
	[ "$(stat -c '%U:%G %a' /dev/vmtrace)" = "root:kvmtrace 660" ]
	may_trace
	record third 300

	apt-get purge -y "${tools[@]}"
	! getent group kvmtrace || die "the group remains"
	[ "$(stat -c '%U:%G %a' /dev/vmtrace)" = "root:root 600" ] || die "/dev/vmtrace: $(stat -c '%U:%G %a' /dev/vmtrace)"
	# Debian's kernel for the next boot: ours is to be removed.
	cp /etc/default/grub /var/lib/grub.before
	menu=$(grep -o "gnulinux-advanced-[0-9a-f-]*" /boot/grub/grub.cfg | head -n 1)
	entry=$(grep -o "gnulinux-[^']*-advanced-[0-9a-f-]*" /boot/grub/grub.cfg | grep -v kvmtrace | head -n 1)
	[ -n "$menu" ] && [ -n "$entry" ] || die "GRUB's menu is not as expected"
	sed -i "s/^GRUB_DEFAULT=.*/GRUB_DEFAULT='$menu>$entry'/" /etc/default/grub
	update-grub
	;;
remove)
	on_debians
	well
	apt-get purge -y "$kernel"
	mv /var/lib/grub.before /etc/default/grub
	update-grub
	! grep kvmtrace /boot/grub/grub.cfg || die "GRUB still offers our kernel"
	# What the user has made.
	rm -r /var/lib/kvmtrace /etc/sysctl.d/kvmtrace.conf "/home/$user"/{sqlite,second,third}.vmt "/home/$user/report"
	rest=$(left "$here/before" "${tools[@]}" "$kernel")
	[ -z "$rest" ] || die "what remains:"$'\n'"$rest"
	# The comparison sees what remains.
	touch /boot/vmlinuz-0-kvmtrace
	left "$here/before" "${tools[@]}" "$kernel" | grep -e vmlinuz-0-kvmtrace >/dev/null || die "the comparison does not see a file"
	;;
*) die "unknown stage $1" ;;
esac
say "$1: good"
