#!/usr/bin/env bash
# Build the kernel after each patch of the series, so that a bisection through
# it never meets a tree that does not compile: all that the series touches or
# hooks, and after the last patch an image.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH LIBCLANG_PATH=${LIBCLANG_PATH:-/usr/lib/llvm-22/lib}
[ -f "$BUILD/linux-orig/.source" ] || "$TOP/scripts/kernel-source.sh" "$BUILD/linux-orig"
"$TOP/scripts/series.sh" >/dev/null
tree=$BUILD/series-build/linux out=$BUILD/series-build/out
rm -rf "$tree" && mkdir -p "$tree" "$out"
cp -a "$BUILD/linux-orig/." "$tree"
cat "$TOP"/configs/{base,vmtrace}.config >"$out/wanted"
mk=(make -C "$tree" O="$out" LLVM=-22 ARCH=x86_64 RUSTC=/usr/bin/rustc RUSTFMT=/usr/bin/rustfmt
	BINDGEN="$BUILD/tools/bin/bindgen" KBUILD_BUILD_TIMESTAMP=1970-01-01)
patches=()
for p in "$BUILD"/series/*.patch; do
	case $p in *-cover-letter.patch) ;; *) patches+=("$p") ;; esac
done
n=0
for p in "${patches[@]}"; do
	n=$((n + 1))
	targets=(rust/ mm/ kernel/ fs/ io_uring/ ipc/ arch/x86/{entry,kernel,mm}/ lib/)
	[ "$n" -lt "${#patches[@]}" ] || targets=(bzImage)
	patch -s -d "$tree" -p1 --no-backup-if-mismatch <"$p" || die "$(basename "$p") does not apply"
	"${mk[@]}" KCONFIG_ALLCONFIG="$out/wanted" allnoconfig >/dev/null
	step "$BUILD/log/series-build-$n.log" "building with $(basename "$p")" "${mk[@]}" "-j$JOBS" "${targets[@]}" ||
		die "the tree does not build after $(basename "$p")"
	if grep -q ': warning:\|^warning:' "$BUILD/log/series-build-$n.log"; then
		die "warnings after $(basename "$p"); see $BUILD/log/series-build-$n.log"
	fi
done
grep -qx CONFIG_VMTRACE=y "$out/.config" || die "the last build has no CONFIG_VMTRACE"
say "$n patches: each builds, the last one to an image"
