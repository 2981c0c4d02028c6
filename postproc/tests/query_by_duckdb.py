"""Runs queries on a data set: query_by_duckdb.py DIRECTORY QUERY.sql...

Prints a JSON list: for each query the list of its rows.
"""

import json
import os
import sys

import duckdb


def main():
    queries = [open(path).read() for path in sys.argv[2:]]
    os.chdir(sys.argv[1])
    # What writes a file has no rows.
    results = [duckdb.sql(query) for query in queries]
    print(json.dumps([result.fetchall() if result is not None else [] for result in results]))


if __name__ == "__main__":
    main()
