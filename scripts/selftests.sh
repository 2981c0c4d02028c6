#!/usr/bin/env bash
# Build the mm selftests of the patched kernel's own tree, all static, and put
# them on a disk for the guest: build/selftests.ext4.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH
readarray -t missing < <(missing_packages libcap-dev libnuma-dev liburing-dev)
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
"$TOP/scripts/tree.sh"
out=$BUILD/selftests
img=$BUILD/selftests.ext4
key=$(cat "$BUILD/linux/.stamp" "$0" | sha256sum | cut -d' ' -f1)
[ -f "$img" ] && [ "$(cat "$img.key" 2>/dev/null)" = "$key" ] && exit 0
rm -rf "$out" "$img" "$img.key"
mkdir -p "$out/headers" "$out/bin"
# The sources are copied, for their Makefile writes beside them.
rsync -a --include=/tools/ --include=/tools/testing/ --include=/tools/testing/selftests/ \
	--include='/tools/testing/selftests/*.*' --include='/tools/testing/selftests/'{mm,x86,filesystems,lib,kselftest,pidfd,clone3}'/***' \
	--include='/tools/'{include,arch,lib,scripts}'/***' --include=/mm/ --include=/mm/gup_test.h --include='/scripts/***' \
	--include=/include/ --include='/include/vdso/***' --include=/lib/ --include=/lib/test_hmm_uapi.h --exclude='*' "$BUILD/linux/" "$out/src/"
step "$BUILD/log/selftests-headers.log" "installing the kernel's headers" \
	make -s -C "$BUILD/linux" O="$out/headers" ARCH=x86_64 LLVM=-22 INSTALL_HDR_PATH="$out/headers/usr" headers_install
step "$BUILD/log/selftests.log" "building the mm selftests" \
	make -C "$out/src/tools/testing/selftests/mm" OUTPUT="$out/bin" ARCH=x86_64 CC=gcc "-j$JOBS" \
	KHDR_INCLUDES="-isystem $out/headers/usr/include" EXTRA_CFLAGS="-static -O1"
cp "$out/src/tools/testing/selftests/mm/"{charge_reserved_hugetlb,write_hugetlb_memory,hugetlb_reparenting_test}.sh "$out/bin/"
mke2fs -q -t ext4 -d "$out/bin" -L selftests "$img.new" 256M >"$BUILD/log/mke2fs.log" 2>&1 ||
	{ cat "$BUILD/log/mke2fs.log" >&2; die "mke2fs failed"; }
mv "$img.new" "$img"
rm -rf "$out"
echo "$key" >"$img.key"
