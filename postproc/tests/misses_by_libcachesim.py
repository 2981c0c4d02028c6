"""Counts misses of libCacheSim's LRU: lru_by_libcachesim.py TRACE SIZE...

Prints a JSON object: size -> misses, and "requests".
"""

import json
import sys

import libcachesim as lcs


def main():
    path, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]
    counts = {}
    for size in sizes:
        reader = lcs.TraceReader(path, lcs.TraceType.ORACLE_GENERAL_TRACE)
        requests = reader.get_num_of_req()
        ratio, _ = lcs.LRU(cache_size=size).process_trace(reader)
        misses = round(ratio * requests)
        # A ratio of whole numbers this small tells them apart.
        assert abs(ratio * requests - misses) < 0.01, (ratio, requests)
        counts[size] = misses
        counts["requests"] = requests
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
