"""Counts misses of libCacheSim: misses_by_libcachesim.py TRACE POLICY:SIZE...

Policies have postproc's names. Prints a JSON object: "policy:size" -> misses,
and "requests".
"""

import json
import sys

import libcachesim as lcs

POLICIES = {
    "lru": lcs.LRU,
    "fifo": lcs.FIFO,
    "clock": lcs.Clock,
    "sieve": lcs.Sieve,
    "s3-fifo": lcs.S3FIFO,
    "2q": lcs.TwoQ,
    "arc": lcs.ARC,
    "lirs": lcs.LIRS,
    "opt": lcs.Belady,
}


def main():
    path, wanted = sys.argv[1], sys.argv[2:]
    counts = {}
    for name in wanted:
        policy, size = name.split(":")
        reader = lcs.TraceReader(path, lcs.TraceType.ORACLE_GENERAL_TRACE)
        requests = reader.get_num_of_req()
        # A table of the default size, 2^24, takes longer than the requests.
        cache = POLICIES[policy](cache_size=int(size), hashpower=16)
        ratio, _ = cache.process_trace(reader)
        misses = round(ratio * requests)
        # A ratio of whole numbers this small tells them apart.
        assert abs(ratio * requests - misses) < 0.01, (ratio, requests)
        counts[name] = misses
        counts["requests"] = requests
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
