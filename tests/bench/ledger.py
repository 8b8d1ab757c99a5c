#!/usr/bin/env python3
"""The ledger's parts: records a second into the journal, rows a second from there into Postgres beside
one bare COPY of the same rows, and the price of a hold.

bench_ledger measures; this repeats it, on a disk folder and the Postgres of TOLLGATE_TEST_PG.

    ledger.py [--reps 3] [--rows 200000]
"""
import argparse
import os
import re
import subprocess

from common import OUT, RELEASE, Table, cpu_us, load_after, machine, mid, skip


def build(target):
    got = subprocess.run(["cmake", "--build", str(RELEASE), "--target", target], capture_output=True, text=True)
    if got.returncode != 0:
        skip("%s does not build: %s" % (target, (got.stdout + got.stderr).strip()[-1500:]))
    return str(RELEASE / "tests" / target)


def postgres_pid(conninfo):
    m = re.search(r"host=(\S+)", conninfo)
    try:
        with open(os.path.join(m[1], "data/postmaster.pid")) as f:
            return int(f.readline())
    except (OSError, TypeError, ValueError):
        return None


def postgres_us(pid):
    """CPU of the server, its sessions and the sessions that ended (those in ticks)."""
    with open("/proc/%d/stat" % pid) as f:
        ended = sum(int(v) for v in f.read().rpartition(")")[2].split()[13:15])
    return cpu_us(pid) + ended * 1e6 / os.sysconf("SC_CLK_TCK")


def number(pattern, text):
    m = re.search(pattern, text)
    return float(m[1]) if m else None


FIGURES = {  # name: (pattern in the bench's lines, digits)
    "journal, durable records/s": (r"journal: (\d+) records/s", 0),
    "journal, MB/s": (r"durable, (\d+) MB/s", 0),
    "journal, records a sync": (r"(\d+) records a sync", 0),
    "journal, ms a sync": (r"([\d.]+) ms a sync", 2),
    "ship, rows/s with sums and cursor": (r"ship: (\d+) rows/s", 0),
    "bare COPY, rows/s": (r"bare COPY (\d+) rows/s", 0),
    "ship / bare COPY": (r"ratio ([\d.]+)", 2),
}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--reps", type=int, default=3)
    ap.add_argument("--rows", type=int, default=200000)
    a = ap.parse_args()
    exe = os.environ.get("TOLLGATE_BENCH_LEDGER") or build("bench_ledger")
    conninfo = os.environ.get("TOLLGATE_TEST_PG", "")
    OUT.mkdir(parents=True, exist_ok=True)
    pid = postgres_pid(conninfo)
    machine()
    print("ours: 2 producers, 400,000 records each, one writer, fdatasync a group, in %s; shipping: one connection, 5,000 rows a transaction" % OUT)
    print("peer: one binary COPY of the same %d rows into a table without index or partition; Postgres: %s" % (a.rows, conninfo or "none (TOLLGATE_TEST_PG is not set)"))
    print("medians (least..most) of %d repeats\n" % a.reps)
    got, pg = {k: [] for k in FIGURES}, []
    for _ in range(a.reps):
        before = postgres_us(pid) if pid else 0
        run = subprocess.run([exe, str(OUT), str(a.rows)], capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit("bench_ledger ended with %d: %s" % (run.returncode, run.stderr[-2000:]))
        if pid:
            pg.append((postgres_us(pid) - before) / a.rows)
        for k, (pattern, _) in FIGURES.items():
            v = number(pattern, run.stdout)
            if v is not None:
                got[k].append(v)
    table = Table("what", "median (least..most)")
    for k, (_, digits) in FIGURES.items():
        if got[k]:
            table.row(k, mid(got[k], digits))
    if any(pg):
        print("Postgres' CPU of both copies and what they need around them: %s us a row" % mid(pg))
    load_after()


if __name__ == "__main__":
    main()
