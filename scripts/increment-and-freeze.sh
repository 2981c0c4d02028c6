#!/usr/bin/env bash
# Build Increment-and-Freeze from its public source, as its authors do for their fastest figures;
# print where it is. It is only measured: nothing of it becomes part of kVMTrace. INCREMENT_AND_FREEZE
# is the repository, if another copy than the one on GitHub is to be used.
. "$(dirname "$0")/lib.sh"
repository=${INCREMENT_AND_FREEZE:-https://github.com/etwest/Increment-and-Freeze}
commit=da5f4d368254d9d390b290b16922bf83caea987e
dir=$BUILD/tools/increment-and-freeze
program=$dir/curve

if [ ! -x "$program" ]; then
	readarray -t missing < <(missing_packages g++ git)
	[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
	rm -rf "$dir"
	# The commit's name is a checksum of all that is built.
	step "$BUILD/log/increment-and-freeze-download.log" "downloading Increment-and-Freeze" bash -c "
		git init -q '$dir' && git -C '$dir' fetch -q '$repository' &&
		git -C '$dir' -c advice.detachedHead=false checkout -q $commit"
	cat >"$dir/curve.cc" <<-'EOC'
		// Reads 32-bit numbers of pages from a file, and writes the hits of each size of memory as
		// 64-bit numbers. Prints the seconds on the clock and of the processor that the curve took,
		// and the bytes that it took at most, without the result.
		#include <chrono>
		#include <cstdio>
		#include <cstring>
		#include <ctime>
		#include <vector>

		#include "bounded_iaf.h"
		#include "increment_and_freeze.h"

		static double status_kib(const char *name) {
		    FILE *status = fopen("/proc/self/status", "r");
		    char line[256];
		    double kib = 0;
		    while (status && fgets(line, sizeof line, status))
		        if (!strncmp(line, name, strlen(name))) sscanf(line + strlen(name), ":%lf", &kib);
		    if (status) fclose(status);
		    return kib;
		}

		int main(int argc, char **argv) {
		    if (argc != 4) return 2;
		    FILE *in = fopen(argv[2], "rb"), *out = fopen(argv[3], "wb");
		    if (!in || !out) return 1;
		    std::vector<uint32_t> pages(1 << 16), all;
		    size_t count;
		    while ((count = fread(pages.data(), 4, pages.size(), in)) > 0)
		        all.insert(all.end(), pages.begin(), pages.begin() + count);
		    BoundedIAF bounded;
		    IncrementAndFreeze whole;
		    bool is_bounded = !strcmp(argv[1], "bounded");
		    CacheSim &curve = is_bounded ? static_cast<CacheSim &>(bounded) : whole;
		    double before = status_kib("VmRSS");
		    if (FILE *clear = fopen("/proc/self/clear_refs", "w")) {
		        fputs("5", clear);
		        fclose(clear);
		    }
		    auto start = std::chrono::steady_clock::now();
		    clock_t cpu = clock();
		    for (uint32_t page : all) curve.memory_access(page);
		    auto hits = curve.get_success_function();
		    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
		    double result = hits.size() * sizeof hits[0];
		    printf("%f %f %f\n", seconds.count(), double(clock() - cpu) / CLOCKS_PER_SEC,
		           (status_kib("VmHWM") - before) * 1024 - result);
		    for (uint64_t sum : hits) fwrite(&sum, sizeof sum, 1, out);
		    return fclose(out);
		}
	EOC
	step "$BUILD/log/increment-and-freeze.log" "building Increment-and-Freeze" bash -c "
		cd '$dir' && g++ -std=c++17 -O3 -march=native -fopenmp -DNDEBUG -DADDR_BIT32 -D_GLIBCXX_PARALLEL \
			-o curve curve.cc increment_and_freeze.cc bounded_iaf.cc projection.cc"
fi
printf '%s\n' "$program"
