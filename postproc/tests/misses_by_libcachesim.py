"""Counts misses of libCacheSim: misses_by_libcachesim.py TRACE POLICY:SIZE...

Policies have postproc's names; a TRACE with .lcs in its name is of that format,
any other oracleGeneral. Prints a JSON object: "policy:size" -> misses,
"requests", and "seconds": "policy:size" -> what the simulation took of a processor.
"""

import json
import sys
import time

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


def trace_type(path):
    if ".lcs" in path:
        return lcs.TraceType.LCS_TRACE
    return lcs.TraceType.ORACLE_GENERAL_TRACE


def main():
    path, wanted = sys.argv[1], sys.argv[2:]
    counts = {"seconds": {}}
    for name in wanted:
        policy, size = name.split(":")
        reader = lcs.TraceReader(path, trace_type(path))
        requests = reader.get_num_of_req()
        # A table of the default size, 2^24, takes longer than few requests; one
        # of this size need not grow.
        hashpower = max(16, int(size).bit_length() + 1)
        cache = POLICIES[policy](cache_size=int(size), hashpower=hashpower)
        start = time.process_time()
        ratio, _ = cache.process_trace(reader)
        counts["seconds"][name] = time.process_time() - start
        misses = round(ratio * requests)
        # A ratio of whole numbers this small tells them apart.
        assert abs(ratio * requests - misses) < 0.01, (ratio, requests)
        counts[name] = misses
        counts["requests"] = requests
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
