#!/usr/bin/env bash
# Prove the README's two commands on machines that have nothing of ours: make
# minimal Debian 12 and 13 roots, copy a clean clone in, run them there.
# Needs root (chroot). FRESH="bookworm" or "trixie" for one of them, TARGETS=run
# for one of the commands.
. "$(dirname "$0")/lib.sh"
for suite in ${FRESH:-bookworm trixie}; do
	dir=$BUILD/fresh/$suite
	make_root "$suite" "$dir" make,git,ca-certificates
	git -C "$TOP" clone -q "$TOP" "$dir/root/kvmtrace"
	enter_root "$dir"
	for target in ${TARGETS:-run test}; do
		say "make $target in a clean $suite"
		in_root "$dir" make -C /root/kvmtrace "$target" || die "make $target failed in a clean $suite"
	done
	leave_root "$dir"
done
