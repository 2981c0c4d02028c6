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

# The base kernel has tests and code for debugging. A function that only these call is dead code in the release
# kernel, whose build takes minutes. So the Rust of mm/vmtrace is checked here without these two options.
check_release() {
	local cmd
	cmd=$(sed -n 's/^savedcmd_mm\/vmtrace\/vmtrace\.o := //p' mm/vmtrace/.vmtrace.o.cmd)
	# The compiler's part; what follows links and checks the object.
	cmd=${cmd%%;*}
	[[ $cmd == *rustc_cfg* && $cmd == *--emit=llvm-bc=* ]] ||
		{ echo "the kernel builds mm/vmtrace in another way"; return 1; }
	grep -vE 'CONFIG_VMTRACE_(DEBUG|KUNIT_TEST)' include/generated/rustc_cfg >.release_cfg
	cmd=${cmd//.\/include\/generated\/rustc_cfg/.\/.release_cfg}
	cmd=$(sed -E 's/--emit=dep-info=[^ ]* *//; s/--emit=llvm-bc=[^ ]*/--emit=metadata=.release.rmeta/' <<<"$cmd")
	[[ $cmd == *@./.release_cfg* && $cmd == *--emit=metadata=.release.rmeta* ]] ||
		{ echo "the command of the kernel's build has another form: $cmd"; return 1; }
	eval "RUSTC_BOOTSTRAP=1 $cmd -Dwarnings"
}
[ "$flavour" != base ] || (cd "$out" && step "$BUILD/log/kernel-check-release.log" "checking mm/vmtrace without its tests" check_release)
