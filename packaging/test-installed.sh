#!/bin/bash
# Runs in a clean Debian: installs the packages of /packages by apt, uses them, and takes them away again.
# Nothing of ours may be left then. /packages also has a trace, trace.vmt.zst, and the version, version.
set -euo pipefail
cd /packages
# What fish and others keep for a user is not ours.
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/tmp
say() { printf 'test-installed: %s\n' "$*"; }
die() { say "failed: $*" >&2; exit 1; }
trap 'say "failed in line $LINENO: $BASH_COMMAND" >&2' ERR
upstream=$(sed 's/~.*//' version)

. ./state.sh
ours=(kvmtrace python3-kvmtrace)

# apt finds what the packages need. The second time, all that is there already, so that what remains
# when they are gone is theirs.
apt-get update -qq
apt-get install -qq -y --no-install-recommends ./*.deb >/tmp/install.log 2>&1 || { cat /tmp/install.log; die "apt install"; }
apt-get purge -qq -y kvmtrace python3-kvmtrace >/dev/null
apt-get install -qq -y --no-install-recommends man-db bash-completion zsh fish udev passwd >/tmp/install.log 2>&1 ||
	{ cat /tmp/install.log; die "apt install of what the test needs"; }
python3 -c 'import json, importlib.metadata' # its bytecode is there now
state "${ours[@]}" >/tmp/before
apt-get install -qq -y --no-install-recommends ./*.deb >/tmp/install.log 2>&1 || { cat /tmp/install.log; die "apt install"; }

# Each tool runs, and has its manual pages and completions.
tools=$(dpkg -L kvmtrace | sed -n 's,^/usr/bin/,,p')
[ "$(wc -w <<<"$tools")" -ge 2 ]
for tool in $tools; do
	"$tool" --version | grep "^$tool $upstream" >/dev/null || die "$tool has another version: $("$tool" --version)"
	man -w "$tool" >/dev/null
	man "$tool" 2>/dev/null | grep "$tool $upstream" >/dev/null || die "the manual page of $tool has another version"
	bash -c '. /usr/share/bash-completion/bash_completion; _comp_load "$0" 2>/dev/null || _completion_loader "$0" || true
		complete -p "$0"' "$tool" | grep "_$tool" >/dev/null || die "bash does not complete $tool"
	zsh -fc 'autoload -U compinit; compinit -u -D; print $_comps['"$tool"']' | grep -x "_$tool" >/dev/null || die "zsh does not complete $tool"
	fish -c "complete -C '$tool comp'" | grep "^completions" >/dev/null || die "fish does not complete $tool"
done
man -w activator-run postproc-check >/dev/null
activator status >/tmp/status 2>&1 && die "activator status succeeds without the kernel"
grep -q vmtrace /tmp/status

# postproc reads a trace, and Python computes the same from it.
postproc check trace.vmt.zst >/dev/null
postproc simulate trace.vmt.zst --policy lru --curve >/tmp/curve
cd /tmp
python3 - "$upstream" <<'PYTHON'
import importlib.metadata, pathlib, sys
import kvmtrace
assert kvmtrace.__version__ == sys.argv[1] == importlib.metadata.version("kvmtrace"), kvmtrace.__version__
assert kvmtrace.__file__.startswith("/usr/lib/python3/dist-packages/"), kvmtrace.__file__
trace = kvmtrace.open("/packages/trace.vmt.zst")
assert trace.check().good
curve = trace.curve("lru")
rows = (line.replace(",", "").split() for line in pathlib.Path("/tmp/curve").read_text().splitlines())
misses = {int(row[0]): int(row[3]) for row in rows if len(row) > 4 and row[2] == "lru"}
assert len(misses) > 30, misses
for size in misses:
    assert curve.at(size).misses == misses[size], size
print(f"Python {sys.version.split()[0]}: {len(misses)} sizes of memory as in postproc")
PYTHON
cd /packages

# The group, the rule and the service are there; the service is off.
getent group kvmtrace >/dev/null
echo "$(activator --version), $(postproc --version)"
systemd-analyze verify --man=no /usr/lib/systemd/system/kvmtrace-boot.service
[ "$(systemctl is-enabled kvmtrace-boot || true)" = disabled ] || die "the service is on by itself"
! udevadm verify --help >/dev/null 2>&1 || udevadm verify /usr/lib/udev/rules.d/60-kvmtrace.rules >/dev/null
systemctl enable kvmtrace-boot 2>/dev/null
[ -L /etc/systemd/system/sysinit.target.wants/kvmtrace-boot.service ]
[ -s /usr/share/doc/kvmtrace/sbom.cdx.json ] || [ -s /usr/share/doc/kvmtrace/sbom.cdx.json.gz ]

# Purging leaves what is the user's: traces. It says so.
mkdir -p /var/lib/kvmtrace && touch /var/lib/kvmtrace/boot-0.vmt
apt-get remove -qq -y kvmtrace python3-kvmtrace >/dev/null
for tool in $tools; do ! command -v "$tool" >/dev/null || die "$tool remains after removal"; done
! python3 -c 'import kvmtrace' 2>/dev/null || die "the Python module remains after removal"
apt-get purge -qq -y kvmtrace python3-kvmtrace >/tmp/purge.log 2>&1
grep -q 'traces remain in /var/lib/kvmtrace' /tmp/purge.log || die "purging says nothing about traces"
rm -r /var/lib/kvmtrace
rest=$(left /tmp/before "${ours[@]}")
[ -z "$rest" ] || die "what remains:"$'\n'"$rest"

# The comparison sees a file, a group, and a link of the service.
touch /usr/share/man/man1/activator-left.1 && groupadd --system kvmtrace
ln -s /dev/null /etc/systemd/system/kvmtrace-boot.service
for what in activator-left.1 '^> kvmtrace:' kvmtrace-boot.service; do
	left /tmp/before "${ours[@]}" | grep -e "$what" >/dev/null || die "the comparison does not see $what"
done
say "good: $(tr '\n' ' ' <<<"$tools")with python3-kvmtrace on $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release)"
