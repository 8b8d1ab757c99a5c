#!/usr/bin/env python3
"""CPU, latency and memory of the gateway beside nghttpx that merely proxies the same work.

Both sides: TLS 1.3 h2 in, HTTP/1.1 out to the same fake upstream, one event loop pinned to the last
CPU; load, upstream and Postgres share CPU 0. Ours counts its whole process (loop, journal, shipper,
control, log); Postgres is named apart. Authentication, quotas, routing, usage and the ledger are on.

    gateway.py [--reps 3] [--only json,sse,latency,memory] [--profile FILE [--kib 2]]
"""
import argparse
import atexit
import http.client
import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from common import (CPUS, LAB, OUT, Table, cpu_us, first_line, load_after, machine, median, mid, need, on_cpu, pin, pss_kib, ratio,  # noqa: E402
                    skip, stop, threads_us, until)

N_EVENTS = 64
PACED_US, IDLE_US = 5000, 600_000_000
LOAD_CPU, PROXY_CPU = 0, CPUS - 1
STREAMS = 1000  # of the memory rows


def build_upstream():
    """The lab's fake upstream; a copy a model name, because workers are told apart by their models."""
    OUT.mkdir(parents=True, exist_ok=True)
    out = []
    for name in ("fake-1", "fake-2", "fake-3"):
        text = (LAB / "fake_upstream.c").read_text().replace("fake-1", name)
        (OUT / (name + ".c")).write_text(text)
        (OUT / "fake_common.h").write_text((LAB / "fake_common.h").read_text().replace("fake-1", name))
        subprocess.run(["cc", "-O2", "-o", OUT / name, OUT / (name + ".c")], check=True)
        out.append(OUT / name)
    return out


def body(kib, model, stream):
    b = {"model": model, "temperature": 0.7, "max_tokens": 256, "stream": stream,
         "messages": [{"role": "system", "content": "You are a careful assistant."}]}

    def dump():
        return json.dumps(b, separators=(",", ":"))
    while len(dump()) < kib * 1024 - 450:
        i = len(b["messages"])
        b["messages"].append({"role": ("user", "assistant")[i % 2 == 0], "content": 'The quick brown fox jumps over the lazy dog, said "%d".\n' % i * 6})
    b["messages"].append({"role": "user", "content": ""})
    b["messages"][-1]["content"] = "x" * (kib * 1024 - len(dump()))
    path = OUT / ("body_%d_%s_%s.json" % (kib, model, "s" if stream else "n"))
    path.write_text(dump())
    return path


class Sides:
    """The upstreams and both proxies, started and stopped together."""

    def __init__(self):
        from instance import Instance, free_ports  # needs the test packages
        self.procs = []
        self.ports = free_ports(4)
        for exe, port, pace in zip(build_upstream(), self.ports, (0, PACED_US, IDLE_US)):
            self.spawn(on_cpu(LOAD_CPU, [exe, "-p", port, "-n", N_EVENTS, "-i", pace]))
        self.upstreams = list(self.procs)
        self.gate = Instance(build="release", workers=0, loops=1, own_pg=True, setup=False, wrap=on_cpu(PROXY_CPU, []),
                             options={"journal.segment_bytes": "16MiB", "http.connections_max": 4096, "log_level": "warn"})
        self.gate.start()
        pin(self.gate.pg.pids()[0], LOAD_CPU)
        for port, name in zip(self.ports, ("fake-1", "fake-2", "fake-3")):
            self.gate.ctl("worker", "add", "--url", "http://127.0.0.1:%d" % port, "--engine", "openai")
            self.gate.ctl("price", "publish", "--model", name, "--input", "1.0", "--cached", "0.1", "--output", "2.0")
        self.key, _ = self.gate.tenant("bench", requests_per_min=100_000_000, input_tokens_per_min=10**12, concurrent=100_000, budget_month=1_000_000)
        self.gate.wait_workers()
        self.nghttpx = None
        self.restart_nghttpx()

    def spawn(self, argv, **kw):
        p = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, start_new_session=True, **kw)
        self.procs.append(p)
        atexit.register(stop, p)
        return p

    def restart_nghttpx(self):
        stop(self.nghttpx)
        backends = ["--backend=127.0.0.1,%d;%s" % (p, path) for p, path in zip(self.ports, ("/fake-1/:/", "/fake-2/", "/fake-3/"))]
        _, cert, key = self.tls()
        self.nghttpx = self.spawn(on_cpu(PROXY_CPU, ["nghttpx", "--conf=/dev/null", "--workers=1", "--no-ocsp", "--log-level=FATAL", "--backlog=4096",
                                                     "--backend-read-timeout=10m", "--backend-connections-per-host=2048",
                                                     "--frontend=127.0.0.1,%d" % self.ports[3], *backends, key, cert]), stderr=subprocess.DEVNULL)
        time.sleep(0.5)

    @staticmethod
    def tls():
        from instance import tls_files
        return tls_files()

    def restart_gateway(self):
        self.gate.procs["gateway"].term()
        self.gate.procs["gateway"].start()
        self.gate.wait_ready()
        self.gate.wait_workers()

    def pid(self, side):
        return self.gate.procs["gateway"].p.pid if side == "ours" else self.nghttpx.pid

    def url(self, side, model):
        if side == "ours":
            return self.gate.url + "/v1/chat/completions"
        return "https://127.0.0.1:%d/%s/v1/chat/completions" % (self.ports[3], model)

    def pg_us(self):
        return cpu_us(self.gate.pg.pids()[0])

    def metrics(self):
        c = http.client.HTTPConnection("127.0.0.1", self.gate.p_admin)
        c.request("GET", "/metrics", headers={"authorization": "Bearer " + self.gate.secrets["admin_key"]})
        text = c.getresponse().read().decode()
        return {m[1]: float(m[2]) for m in re.finditer(r"^(tollgate_\w+) ([-\d.e+]+)$", text, re.M)}

    def shipped(self):
        until(lambda: self.metrics()["tollgate_ship_behind_rows"] == 0, 60, "all rows are in Postgres")

    def close(self):
        stop(self.nghttpx)
        for p in self.procs:
            stop(p)
        self.gate.stop()


def h2load(sides, side, path, model, n, c, m, extra=(), background=False):
    argv = ["h2load", "-n", n, "-c", c, "-m", m, "-t", 1, "-d", path, "--tls13-ciphers=TLS_AES_128_GCM_SHA256", "-H", "content-type: application/json",
            "-H", "authorization: Bearer " + sides.key, *extra, sides.url(side, model)]
    p = subprocess.Popen(on_cpu(LOAD_CPU, argv), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    if background:
        return p
    try:
        out = p.communicate(timeout=90)[0]
    except subprocess.TimeoutExpired:
        p.kill()
        raise SystemExit("%s: h2load did not end: %s" % (side, argv))
    good = re.search(r"status codes: (\d+) 2xx", out)
    if not good or int(good[1]) != n:
        print("  ! %s: not all answers were good: %s" % (side, re.findall(r"(?:requests|status codes):.*", out)))
    return float(re.search(r"([\d.]+) req/s", out)[1])


class Work:
    def __init__(self, name, path, model, n, c, m, rate=0, events=0):
        self.name, self.path, self.model, self.n, self.c, self.m, self.rate, self.events = name, path, model, n, c, m, rate, events

    def run(self, sides, side):
        """(CPU us a request, requests a second, CPU us a request by thread)."""
        pid = sides.pid(side)
        before, was = threads_us(pid), cpu_us(pid)
        got = h2load(sides, side, self.path, self.model, self.n, self.c, self.m, ["--rps=%d" % (self.rate // self.c)] if self.rate else [])
        if side == "ours":
            sides.shipped()  # the shipper's work on these rows counts
        after = threads_us(pid)
        return (cpu_us(pid) - was) / self.n, got, {k: (v - before.get(k, 0)) / self.n for k, v in after.items()}


def cpu_rows(sides, works, reps):
    table = Table("work", "ours us/request", "nghttpx us/request", "ratio", "ours us/event", "nghttpx us/event", "ours req/s", "nghttpx req/s",
                  "ours by thread, us/request", "Postgres us/request", "rows a sync", "durable wait ms")
    for w in works:
        us, rates, threads, pg, groups, waits = {"ours": [], "nghttpx": []}, {"ours": [], "nghttpx": []}, [], [], [], []
        for side in us:
            h2load(sides, side, w.path, w.model, max(w.n // 5, w.c * w.m), w.c, w.m)  # warm
        sides.shipped()
        for rep in range(reps):
            for side in ("ours", "nghttpx") if rep % 2 == 0 else ("nghttpx", "ours"):
                a, p = sides.metrics(), sides.pg_us()
                cpu, got, split = w.run(sides, side)
                us[side].append(cpu)
                rates[side].append(got)
                if side == "ours":
                    b = sides.metrics()
                    threads.append(split)
                    pg.append((sides.pg_us() - p) / w.n)
                    groups.append((b["tollgate_journal_rows_total"] - a["tollgate_journal_rows_total"]) /
                                  max(1, b["tollgate_journal_groups_total"] - a["tollgate_journal_groups_total"]))
                    waits.append((b["tollgate_durable_wait_seconds_sum"] - a["tollgate_durable_wait_seconds_sum"]) * 1e3 / w.n)
        split = {k: median([t.get(k, 0) for t in threads]) for k in threads[0]}
        table.row(w.name, mid(us["ours"]), mid(us["nghttpx"]), "**%.2f**" % ratio(us["ours"], us["nghttpx"]),
                  *(["%.2f" % (median(us[s]) / w.events) for s in us] if w.events else ["", ""]),
                  *["%.0f" % median(rates[s]) for s in ("ours", "nghttpx")],
                  ", ".join("%s %.1f" % kv for kv in sorted(split.items(), key=lambda kv: -kv[1]) if kv[1] >= 0.05),
                  "%.1f" % median(pg), "%.1f" % median(groups), "%.2f" % median(waits))


# ---- latency: one client, one request at a time ----

def first_byte_us(port, path, key, body_bytes, n, rate):
    """us from a request sent to the first bytes of its stream's body, over one h1 connection."""
    c = http.client.HTTPConnection("127.0.0.1", port)
    out, due = [], time.perf_counter()
    for _ in range(n):
        due += 1 / rate
        time.sleep(max(0, due - time.perf_counter()))
        t = time.perf_counter()
        c.request("POST", path, body_bytes, {"content-type": "application/json", "authorization": "Bearer " + key})
        r = c.getresponse()
        r.read1(1)
        out.append((time.perf_counter() - t) * 1e6)
        r.read()
    c.close()
    return sorted(out)


def whole_us(sides, side, path, n, rate):
    """us of whole answers by h2load's log."""
    log = OUT / "latency.log"
    log.unlink(missing_ok=True)
    h2load(sides, side, path, "fake-1", n, 1, 1, ["--rps=%d" % rate, "--log-file=%s" % log])
    return sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())


def latency_rows(sides, reps):
    table = Table("latency at 200/s, us", "p50", "p99")
    stream = body(2, "fake-1", True).read_bytes()
    sets = {"first byte of a stream, direct (h1)": lambda: first_byte_us(sides.ports[0], "/v1/chat/completions", "-", stream, 400, 200),
            "first byte of a stream, ours (h1, clear)": lambda: first_byte_us(sides.gate.p_clear, "/v1/chat/completions", sides.key, stream, 400, 200),
            "whole answer, nghttpx (h2, TLS)": lambda: whole_us(sides, "nghttpx", body(2, "fake-1", False), 400, 200),
            "whole answer, ours (h2, TLS, with one sync of the journal)": lambda: whole_us(sides, "ours", body(2, "fake-1", False), 400, 200)}
    got = {k: [] for k in sets}
    for fn in sets.values():
        fn()
    for _ in range(reps):
        for k, fn in sets.items():
            v = fn()
            got[k].append((v[len(v) // 2], v[int(len(v) * 0.99)]))
    for k, v in got.items():
        table.row(k, mid([x[0] for x in v], 0), mid([x[1] for x in v], 0))
    added = [[b[i] - a[i] for a, b in zip(*list(got.values())[:2])] for i in (0, 1)]
    table.row("**added to the first byte**", mid(added[0], 0), mid(added[1], 0))


# ---- memory: streams that got one event and wait ----

def memory_rows(sides, reps):
    table = Table("memory, %d waiting streams" % STREAMS, "ours KiB/stream", "nghttpx KiB/stream", "ratio")
    path = body(2, "fake-3", True)
    holder = sides.upstreams[2].pid
    for name, c, m in (("own TLS connection each", STREAMS, 1), ("%d shared TLS h2 connections" % (STREAMS // 100), STREAMS // 100, 100)):
        got = {"ours": [], "nghttpx": []}
        for _ in range(reps):
            for side in got:
                sides.restart_gateway() if side == "ours" else sides.restart_nghttpx()
                h2load(sides, side, body(2, "fake-1", False), "fake-1", 64, 2, 8)  # code and tables are paged in
                sockets = len(os.listdir("/proc/%d/fd" % holder))
                before = pss_kib(sides.pid(side))
                load = h2load(sides, side, path, "fake-3", STREAMS, c, m, background=True)
                until(lambda: len(os.listdir("/proc/%d/fd" % holder)) - sockets >= STREAMS - 8, 60, "%d streams are open (%s)" % (STREAMS, side))
                time.sleep(1.5)
                got[side].append((pss_kib(sides.pid(side)) - before) / STREAMS)
                stop(load)
                until(lambda: len(os.listdir("/proc/%d/fd" % holder)) - sockets < 16, 60, "the streams are closed (%s)" % side)
        table.row(name, mid(got["ours"]), mid(got["nghttpx"]), "**%.2f**" % ratio(got["ours"], got["nghttpx"]))


def profile(sides, path, out):
    perf = subprocess.Popen(["perf", "record", "-q", "-F", "1999", "-g", "-p", str(sides.pid("ours")), "-o", out], stdin=subprocess.DEVNULL)
    for _ in range(4):
        h2load(sides, "ours", path, "fake-1", 12000, 16, 64)
    perf.send_signal(2)
    perf.wait()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--reps", type=int, default=3)
    ap.add_argument("--only", default="json,sse,latency,memory")
    ap.add_argument("--profile", default="", help="only perf record the gateway, into this file")
    ap.add_argument("--kib", type=int, default=2, help="body of the profiled work")
    a = ap.parse_args()
    need(LAB / "fake_upstream.c", "the peers' harness and the fake upstream are there")
    for tool in ("nghttpx", "h2load"):
        if first_line(tool, "--version") == "absent":
            skip(tool + " is not installed")
    parts = a.only.split(",")
    machine()
    print("ours: tollgate of %s, loops 1, journal with fdatasync on %s, Postgres on a socket" % ("build/release", "the system's temporary folder"))
    print("peer: %s, workers 1; load: %s; upstream: fake_upstream, %d events a stream" % (
        first_line("nghttpx", "--version"), first_line("h2load", "--version"), N_EVENTS))
    print("medians (least..most) of %d repeats, sides in turns; ratio: median of the repeats' ratios\n" % a.reps)
    sides = Sides()
    try:
        if a.profile:
            profile(sides, body(a.kib, "fake-1", False), a.profile)
            return
        small, large = body(2, "fake-1", False), body(16, "fake-1", False)
        works = []
        if "json" in parts:
            works += [Work("JSON 2 KB, saturated, 1,024 streams", small, "fake-1", 12000, 16, 64),
                      Work("JSON 16 KB, saturated, 1,024 streams", large, "fake-1", 8000, 16, 64),
                      Work("JSON 2 KB at 1,600/s", small, "fake-1", 4800, 16, 64, rate=1600),
                      Work("JSON 16 KB at 1,600/s", large, "fake-1", 4800, 16, 64, rate=1600)]
        if "sse" in parts:
            works += [Work("SSE burst, 128 streams", body(2, "fake-1", True), "fake-1", 2000, 8, 16, events=N_EVENTS),
                      Work("SSE an event each 5 ms, 128 streams", body(2, "fake-2", True), "fake-2", 640, 8, 16, events=N_EVENTS)]
        if works:
            cpu_rows(sides, works, a.reps)
            print()
        if "latency" in parts:
            latency_rows(sides, a.reps)
            print()
        if "memory" in parts:
            memory_rows(sides, a.reps)
            print()
    finally:
        sides.close()
    load_after()


if __name__ == "__main__":
    main()
