#!/usr/bin/env bash
# Build one flavour of the kernel: scripts/kernel.sh plain|vanilla|base|release|lockdep|kasan|kcsan|wide
#
# vanilla is the unpatched source with the same configuration, plain with little
# more than it takes to boot; all others are the patched tree, release without
# what is for debugging the tracer. Fails if
# any wanted option did not survive olddefconfig.
. "$(dirname "$0")/lib.sh"
flavour=${1:?usage: kernel.sh plain|vanilla|base|release|lockdep|kasan|kcsan|wide}
case $flavour in
plain) src=$BUILD/linux-orig frags=(plain) ;;
vanilla) src=$BUILD/linux-orig frags=(base) ;;
base) src=$BUILD/linux frags=(base vmtrace) ;;
release) src=$BUILD/linux frags=(base release) ;;
lockdep | kasan | kcsan | wide) src=$BUILD/linux frags=(base vmtrace "$flavour") ;;
*) die "unknown flavour $flavour: plain, vanilla, base, release, lockdep, kasan, kcsan or wide" ;;
esac
export PATH=/usr/bin:$PATH
[ -f "$BUILD/linux-orig/.source" ] || "$TOP/scripts/kernel-source.sh" "$BUILD/linux-orig"
[ "$src" = "$BUILD/linux-orig" ] || "$TOP/scripts/tree.sh"
out=$BUILD/kernel/$flavour
kernel_make "$src" "$out"

wanted=$out/.wanted
for f in "${frags[@]}"; do cat "$TOP/configs/$f.config"; done >"$wanted.new"
if ! cmp -s "$wanted.new" "$wanted" || [ ! -f "$out/.config" ]; then
	"${mk[@]}" KCONFIG_ALLCONFIG="$wanted.new" allnoconfig >/dev/null
	cp "$wanted.new" "$wanted"
fi
"${mk[@]}" olddefconfig >/dev/null
missing=$(not_survived "$wanted" "$out/.config")
if [ -n "$missing" ]; then
	rm -f "$wanted"
	die "these wanted options did not survive olddefconfig:"$'\n'"$missing"$'\n'"(a missing CONFIG_RUST: run 'make -C $src LLVM=-22 rustavailable' to see why)"
fi
step "$BUILD/log/kernel-$flavour.log" "building the $flavour kernel" "${mk[@]}" "-j$JOBS" bzImage ${KERNEL_EXTRA:-}
if grep -q ': warning:\|^warning:' "$BUILD/log/kernel-$flavour.log"; then
	grep ': warning:\|^warning:' "$BUILD/log/kernel-$flavour.log" | head -20 >&2
	die "the kernel build gave warnings; see $BUILD/log/kernel-$flavour.log"
fi
