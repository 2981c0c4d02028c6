# Sourced by the tests of the packages: what a machine has, so that what remains of ours after a removal is seen.
# shellcheck shell=bash

# Files, accounts, who owns what, and the named packages. Not what changes by itself.
state() { # PACKAGE…
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /packages -o -path /var/cache \
		-o -path /var/log -o -path /var/tmp -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd \) \
		-prune -o -printf '%p %M %u %g %l\n' |
		grep -vE '^(/etc/(group|gshadow|passwd|shadow|subuid|subgid)-|/|/etc|/root) ' | sort
	getent passwd | sort
	getent group | sort
	dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true
}

# The lines by which the state differs from that of the file.
left() { # FILE PACKAGE…
	{ diff "$1" <(state "${@:2}") || true; } | sed -n "s/^[<>]/&/p"
}
