#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Hold DAMON's working sets of real programs against exact ones of the same run.

In the style of the kernel's tools/testing/selftests/damon/, whose _damon_sysfs.py it uses. Those
tests know the working set because they run a program that was made for them. This one knows it
from a trace of the page references: `activator` (kVMTrace) records, while DAMON samples, which pages
the program uses. The set of the trace is small, and all stays end after each interval, so a page that
is used again has a record soon after the last one. `postproc damon` computes the working set of each of DAMON's
aggregation intervals from both.

The exact working set is a pair of bounds, for a page may have been used at any moment of its stay in
the set. A bound that is too far from the other one fails the test, whatever
DAMON found: the truth must be known better than what is held against it.

Exit code: 0 if all is well, 1 if DAMON's error is too large, 2 if the truth is not exact enough or
something failed, 4 (skip) if the kernel or a tool lacks something.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

KSFT_SKIP = 4
TRACING = "/sys/kernel/tracing"
PERCENTILES = ["p50", "p75"]


def skip(why):
    print("SKIP: %s" % why)
    sys.exit(KSFT_SKIP)


try:
    import _damon_sysfs
except ImportError:
    skip("no _damon_sysfs.py beside this script: take it from tools/testing/selftests/damon")


class Failed(Exception):
    """Something other than DAMON's error is wrong."""


def checked(err, what):
    """Raises Failed if a call of _damon_sysfs gave an error."""
    if err is not None:
        raise Failed("%s: %s" % (what, err))


def tool(*argv):
    """The standard output of a tool that must succeed."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed("%s exits with %d: %s" % (" ".join(argv), done.returncode, done.stderr.strip()))
    return done.stdout


class Record:
    """What DAMON reports by its tracepoint while this is open, in a file."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        if not os.path.isdir(TRACING + "/events"):
            tool("mount", "-t", "tracefs", "tracefs", TRACING)
        event = TRACING + "/events/damon/damon_aggregated/enable"
        if not os.path.exists(event):
            skip("the kernel has no tracepoint damon:damon_aggregated")
        # The clock of the trace.
        checked(_damon_sysfs.write_file(TRACING + "/trace_clock", "mono"), "trace_clock")
        checked(_damon_sysfs.write_file(event, "1"), event)
        self.event = event
        self.pipe = os.open(TRACING + "/trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        self.over = False
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        return self

    def read(self):
        with open(self.path, "wb") as out:
            while True:
                last = self.over
                try:
                    while some := os.read(self.pipe, 1 << 16):
                        out.write(some)
                except BlockingIOError:
                    pass
                if last:
                    return
                time.sleep(0.02)

    def __exit__(self, *_):
        _damon_sysfs.write_file(self.event, "0")
        self.over = True
        self.reader.join()
        os.close(self.pipe)


def kdamonds(pid, args):
    """DAMON on the address space of one process."""
    attrs = _damon_sysfs.DamonAttrs(sample_us=args.sample_ms * 1000, aggr_us=args.aggr_ms * 1000)
    target = _damon_sysfs.DamonTarget(pid=pid)
    ctx = _damon_sysfs.DamonCtx(ops="vaddr", monitoring_attrs=attrs, targets=[target])
    return _damon_sysfs.Kdamonds([_damon_sysfs.Kdamond(contexts=[ctx])])


def compare(command, args, folder):
    """Runs a command under both, and gives what `postproc damon` says of them."""
    trace, record = folder + "/run.vmt", folder + "/damon.txt"
    with open(os.devnull, "w") as null:
        program = subprocess.Popen(command, stdout=null)
    try:
        # As the kernel's own tests: DAMON begins when the program runs.
        time.sleep(args.wait)
        tool("activator", "on", "--pid", str(program.pid), "-n", args.n, "--interval",
             args.interval, "--events", "none", "-o", trace)
        try:
            with Record(record):
                damon = kdamonds(program.pid, args)
                checked(damon.start(), "kdamond start")
                try:
                    program.wait(args.seconds)
                except subprocess.TimeoutExpired:
                    pass
                # If the program has ended, so has the kdamond.
                damon.stop()
        finally:
            tool("activator", "off")
    finally:
        program.kill()
        program.wait()
    answer = tool("postproc", "damon", trace, "--record", record, "--process", str(program.pid),
                  "--sampling", "%dms" % args.sample_ms, "--json")
    return json.loads(answer)["comparison"]


def judge(name, found, args):
    """Prints the errors; gives the worst one of DAMON and that of the truth, as shares."""
    print("%s: %d intervals, %.0f regions" % (name, found["snapshots"], found["regions"]))
    if found["snapshots"] < args.least:
        raise Failed("%s: %d aggregation intervals are too few" % (name, found["snapshots"]))
    worst, unknown = 0.0, 0.0
    for p in PERCENTILES:
        damon, least, most = found["damon"][p], found["least"][p], found["most"][p]
        if least == 0:
            raise Failed("%s: the program used nothing" % name)
        # Half of the distance, for the middle of both is the estimate.
        truth = (most - least) / (most + least)
        error = abs(damon - (most + least) / 2) / ((most + least) / 2)
        worst, unknown = max(worst, error), max(unknown, truth)
        print("%s-th percentile error %f (expect %d to %d, result %d)"
              % (p[1:], error, least, most, damon))
    print("%s: error of the truth %f; of accessed pages, DAMON found %f; of what it reports, %f is false"
          % (name, unknown, found["found"], found["false_share"]))
    return worst, unknown


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        epilog="example: damon_truth.py --acceptable 0.5 -- python3 job.py")
    parser.add_argument("--acceptable", type=float, default=0.2, metavar="SHARE",
                        help="largest error of DAMON [default: 0.2, as in the kernel's test]")
    parser.add_argument("--truth", type=float, default=0.01, metavar="SHARE",
                        help="largest error of the exact working set [default: 0.01]")
    parser.add_argument("-n", default="1024", metavar="N",
                        help="pages of the set of the trace; fewer pages have shorter stays, and slow"
                        " the program down more [default: 1024]")
    parser.add_argument("--interval", default="1ms", metavar="TIME",
                        help="stays in the trace end after each of these [default: 1ms]")
    parser.add_argument("--sample-ms", type=int, default=5, metavar="MS")
    parser.add_argument("--aggr-ms", type=int, default=100, metavar="MS")
    parser.add_argument("--wait", type=float, default=0.5, metavar="S",
                        help="before DAMON and the trace begin [default: 0.5]")
    parser.add_argument("--seconds", type=float, default=10, metavar="S",
                        help="the longest that they run [default: 10]")
    parser.add_argument("--least", type=int, default=20, metavar="N",
                        help="aggregation intervals that are enough [default: 20]")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, last")
    parser.add_argument("command", nargs="+", help="the program; it is best to put -- before it")
    return parser.parse_args()


def main():
    args = arguments()
    for name in ["activator", "postproc"]:
        if shutil.which(name) is None:
            skip("no %s: it is part of kVMTrace" % name)
    if not os.path.exists("/dev/vmtrace"):
        skip("the kernel has no /dev/vmtrace")
    name = os.path.basename(args.command[0])
    try:
        with tempfile.TemporaryDirectory(prefix="damon-truth-") as folder:
            found = compare(args.command, args, folder)
        worst, unknown = judge(name, found, args)
    except Failed as failed:
        print("FAILED: %s" % failed)
        return 2
    if args.json:
        print(json.dumps({"error": worst, "truth": unknown, **found}))
    if unknown > args.truth:
        print("the truth is not exact enough (> %f): give a smaller -n or a shorter --interval" % args.truth)
        return 2
    if worst > args.acceptable:
        print("the error rate is not acceptable (> %f)" % args.acceptable)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
