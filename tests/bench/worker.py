#!/usr/bin/env python3
"""Our worker's cpu backend beside llama.cpp on the same GGUF: decode, batch of 8, prefill, a 4k prompt, load.

Ours: bench_worker (the backend alone; `tollgate-worker bench` is the same code). Peer: prebuilt llama.cpp of the npm
package @node-llama-cpp, driven through the ctypes binding of llama-cpp-python's source distribution; both are fetched
once into ~/.cache/tollgate/bench. Sides take turns in every round, at equal thread counts; the peer in several settings,
of which the best counts. Tokens a second in wall time, and per CPU-second, which neighbours disturb less.

    worker.py [--rounds 3] [--tests tg,b8,v8,pp512,pp512fast,kv4k,load,spin,copy] [--threads 1,2] [--peer passive,spinning,passive+fa]
              [--patience 20]
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

from common import CACHE, CPUS, LAB, RELEASE, Table, load_after, machine, median, mid, need, settle, skip
from worker_copy import measure_copy

NPM = "@node-llama-cpp/linux-x64@3.22.1"
SDIST = "llama-cpp-python==0.3.36"
PATIENCE_S = 90  # its barrier spins: on a busy machine two of its threads can take for ever
WHAT = {"tg": "decode, batch 1, tokens/s", "b8": "decode, batch 8, tokens/s", "pp512": "prefill 512, tokens/s", "pp512fast": "prefill 512, fast, tokens/s",
        "kv4k": "4,128 tokens to the first one, ms", "load": "load to first token, file cached, ms",
        "spin": "decode beside a spinning process, tokens/s", "v8": "8 rows of one sequence, tokens/s"}
LATENCY = ("kv4k", "load")
OURS_ONLY = ("v8",)
TIMES = {"tg": 3, "b8": 3, "v8": 3}  # within a figure, which is their median: they are short
# How its threads wait (OMP_WAIT_POLICY), and flash attention, which only long prompts could want.
SETTINGS = {"passive": ("passive", 0), "spinning": ("active", 0), "passive+fa": ("passive", 1)}
FA_TESTS = ("pp512", "pp512fast", "kv4k")
FAST_TESTS = {"pp512fast": "pp512"}  # measured with our policy `fast`; the same work for the peer
NO_FAST = "no AMX on this machine: fast equals exact, not measured"


# ---- the peer ----

def fetch_peer():
    """(library folder, binding folder); ends the run with a reason when they cannot be had."""
    lib, py = CACHE / "lib", CACHE / "py"
    if (CACHE / "ready").exists():
        return lib, py
    if os.uname().machine != "x86_64":
        skip("the prebuilt llama.cpp is for x86_64")
    for tool in ("npm", "cc"):
        if not shutil.which(tool):
            skip(tool + " is not installed, which fetches or builds a side")
    shutil.rmtree(CACHE, ignore_errors=True)
    (CACHE / "npm").mkdir(parents=True)
    env = dict(os.environ, NODE_LLAMA_CPP_SKIP_DOWNLOAD="true")
    for argv, cwd in ((["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", NPM], CACHE / "npm"),
                      ([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary", "llama-cpp-python", SDIST], CACHE)):
        got = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True)
        if got.returncode != 0:
            skip("%s: %s" % (" ".join(argv[:3]), (got.stderr.strip().splitlines() or ["failed"])[-1]))
    lib.mkdir()
    for f in (CACHE / "npm/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64").glob("*.so*"):
        (lib / f.name).symlink_to(f)
        short = re.sub(r"\.v[\d.]+\.so$", ".so", f.name)
        if short != f.name:
            (lib / short).symlink_to(f)
    unpack_binding(py)
    (CACHE / "ready").touch()
    return lib, py


def unpack_binding(py):
    """Only the ctypes declarations; what this library does not have stays undeclared."""
    (py / "llama_cpp").mkdir(parents=True)
    (py / "llama_cpp/__init__.py").write_text("from .llama_cpp import *\n")
    with tarfile.open(next(CACHE.glob("llama_cpp_python-*.tar.gz"))) as t:
        for m in t.getmembers():
            name = os.path.basename(m.name)
            if m.name.endswith("/llama_cpp/" + name) and name in ("llama_cpp.py", "_ctypes_extensions.py", "_ggml.py"):
                text = t.extractfile(m).read().decode()
                if name == "_ctypes_extensions.py":
                    text = text.replace("func = getattr(lib, name)\n", "func = getattr(lib, name, None)\n                if func is None:\n                    return f\n")
                (py / "llama_cpp" / name).write_text(text)


class Peer:
    def __init__(self, model):
        lib, py = fetch_peer()
        self.model = model
        self.env = dict(os.environ, LLAMA_CPP_LIB_PATH=str(lib), LD_LIBRARY_PATH=str(lib), PYTHONPATH="%s:%s" % (py, LAB / "llama"),
                        OMP_WAIT_POLICY="passive", OPENBLAS_NUM_THREADS="1")
        self.cpu = {}

    def check(self):
        """The structs fit: it finds the known first tokens of known prompts."""
        truth = LAB.parent / "golden/greedy.jsonl"
        if not truth.exists():
            print("peer: not checked against known tokens (%s is absent)" % truth)
            return
        code = ("import json, llc; llc.quiet(); c = llc.Ctx(%r, n_ctx=512, threads=1)\nfor line in open(%r):\n    v = json.loads(line)\n"
                "    if len(v['ids']) < 400:\n        c.clear(); c.prefill(v['ids']); print(int(int(c.logits().argmax()) == v['np_f32']['ids'][0]))\n" % (str(self.model), str(truth)))
        got = subprocess.run([sys.executable, "-c", code], env=self.env, capture_output=True, text=True, timeout=300)
        same = got.stdout.split()
        if not same or same.count("1") < 0.75 * len(same):
            skip("llama.cpp does not find known tokens (%s of %d): its binding does not fit\n%s" % (same.count("1"), len(same), got.stderr[-800:]))
        print("peer: llama.cpp finds the known first token of %d of %d prompts (f32 truth, quantised weights)" % (same.count("1"), len(same)))

    def run(self, test, threads, setting):
        """A figure; None: not within the patience."""
        wait, fa = SETTINGS[setting]
        test = FAST_TESTS.get(test, test)
        argv = [sys.executable, str(LAB / "llama/llama_bench.py"), "--model", str(self.model), "--test", test, "--threads", str(threads),
                "--reps", str(TIMES.get(test, 1)), "--fa", str(fa), "--json"]
        try:
            got = subprocess.run(argv, env=dict(self.env, OMP_WAIT_POLICY=wait), capture_output=True, text=True, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return None
        if got.returncode != 0:
            raise SystemExit("llama_bench %s: %s" % (test, got.stderr[-1000:]))
        d = json.loads(got.stdout.strip().splitlines()[-1])
        cpu = d.get("cpu_based") or {}
        return Figure(d["median"], cpu.get("median"), d.get("cold_ms", {}).get("median"))


class Figure:
    def __init__(self, wall, cpu, cold):
        self.wall, self.cpu, self.cold = wall, cpu, cold


class Ours:
    def __init__(self, model):
        self.model = model
        self.exe = os.environ.get("TOLLGATE_BENCH_WORKER") or self.build()
        self.last = {}  # (test, threads): [whole reports]

    @staticmethod
    def build():
        got = subprocess.run(["cmake", "--build", str(RELEASE), "--target", "bench_worker"], capture_output=True, text=True)
        if got.returncode != 0:
            raise SystemExit("bench_worker does not build:\n" + got.stdout[-2000:])
        return str(RELEASE / "tests/bench_worker")

    def run(self, test, threads, _setting=None):
        policy = "fast" if test in FAST_TESTS else "exact"
        got = subprocess.run([self.exe, "--model", str(self.model), "--threads", str(threads), "--only", FAST_TESTS.get(test, test), "--repeats", str(TIMES.get(test, 1)),
                              "--policy", policy, "--json"], capture_output=True, text=True)
        if got.returncode != 0:
            raise SystemExit("bench_worker %s: %s" % (test, got.stderr))
        d = json.loads(got.stdout)
        self.last.setdefault((test, threads), []).append(d)
        t = d["tests"][0]
        return Figure(median(t["wall"]), median(t["cpu"]), t.get("cold", [None])[0])

    def has_fast(self):
        """Whether policy `fast` has kernels of its own on this machine, as the backend itself tells."""
        self.run("pp512fast", 1)
        return ", fast (" in self.last.pop(("pp512fast", 1))[0]["what"]


# ---- the rounds ----

def one(side, test, threads, setting=None, patience_s=0):
    settle(patience_s)
    if test != "spin":
        return side.run(test, threads, setting)
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return side.run("tg", threads, setting)
    finally:
        spinner.kill()
        spinner.wait()


def measure(ours, peer, settings, tests, threads, rounds, patience_s):
    """{(test, threads, None for ours or the peer's setting): [Figure or None]}"""
    got = {}
    for _ in range(rounds):
        for test in tests:
            for n in threads:
                got.setdefault((test, n, None), []).append(one(ours, test, n, None, patience_s))
                for setting in settings if test not in OURS_ONLY else ():
                    cell = got.setdefault((test, n, setting), [])
                    if None not in cell and (SETTINGS[setting][1] == 0 or test in FA_TESTS):
                        cell.append(one(peer, test, n, setting, patience_s))
    return got


def figures(cell, field="wall"):
    return [v for x in cell if x is not None and (v := getattr(x, field)) is not None]


def show(got, settings, tests, threads):
    table = Table("work", "threads", "ours", "per CPU-s", "llama.cpp, best of its settings", "per CPU-s", "ours / its", "ours / its best", "per CPU-s")
    for test in tests:
        lower = test in LATENCY
        if not any((test, n, None) in got for n in threads):
            table.row(WHAT[test], "", NO_FAST, "", "", "", "", "", "")
            continue

        def best(field, counts):
            cells = [(median(v), n, s) for n in counts for s in settings if (v := figures(got.get((test, n, s), []), field))]
            return (min if lower else max)(cells) if cells else None

        def ratio_of(mine, his):
            return "" if his is None else "**%.2f**" % (his / mine if lower else mine / his)
        rows = [("wall", WHAT[test] + (", 4,096 held" if test == "kv4k" else ""))] + ([("cold", WHAT[test] + ", cold")] if test == "kv4k" else [])
        for field, name in rows:
            top = best(field, threads)
            for n in threads:
                mine, his = figures(got[test, n, None], field), best(field, [n])
                cpu = figures(got[test, n, None], "cpu") if field == "wall" and not lower else []
                his_cpu = best("cpu", [n]) if cpu else None
                spread = "%s, %s" % (mid(figures(got[test, n, his[2]], field)), his[2]) if his else "" if test in OURS_ONLY else "not within %d s" % PATIENCE_S
                table.row(name, n, mid(mine), "%.0f" % median(cpu) if cpu else "", spread, "%.0f" % his_cpu[0] if his_cpu else "",
                          ratio_of(median(mine), his and his[0]), ratio_of(median(mine), top and top[0]),
                          "%.2f" % (median(cpu) / his_cpu[0]) if his_cpu else "")


def show_ours(got, ours, settings, threads):
    for n in threads:
        if ("tg", n) in ours.last:
            d = [x for x in ours.last["tg", n]]
            rate, read = median(figures(got["tg", n, None])), median([x["read_gbs"] for x in d])
            gbs = rate * d[0]["weight_bytes"] / 1e9
            print("ours, %d threads: %.1f MB a decoded token = %.1f GB/s; reading alone measured %.1f GB/s: MBU %.0f %% (with KV %.0f %%)" % (
                n, d[0]["weight_bytes"] / 1e6, gbs, read, 100 * gbs / read, 100 * median([x["tests"][0]["mbu"] for x in d])))
        if ("v8", n, None) in got and ("tg", n, None) in got:
            for field, name in (("wall", "wall"), ("cpu", "CPU time")):
                cost = 8 * median(figures(got["tg", n, None], field)) / median(figures(got["v8", n, None], field))
                print("ours, %d threads, %s: 8 rows of one sequence cost %.2f x one row; decode %.1f x where 0.8 of 7 drafts are right" % (
                    n, name, cost, (1 + 0.8 * 7) / cost))
        if ("kv4k", n, None) in got:
            held, cold = (median(figures(got["kv4k", n, None], f)) for f in ("wall", "cold"))
            print("ours, %d threads: 4k prompt, held / cold = %.1f %%" % (n, 100 * held / cold))
        if ("spin", n, None) in got and ("tg", n, None) in got:
            print("ours, %d threads: beside a spinning process %.2f of alone" % (
                n, median(figures(got["spin", n, None])) / median(figures(got["tg", n, None]))))
        for setting in settings:
            his = figures(got.get(("spin", n, setting), []))
            if his:
                print("beside a spinning process, %d threads: ours / llama.cpp %s = %.2f" % (n, setting, median(figures(got["spin", n, None])) / median(his)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--tests", default="tg,b8,v8,pp512,pp512fast,kv4k,load,spin,copy")
    ap.add_argument("--threads", default="1,2" if CPUS > 1 else "1")
    ap.add_argument("--patience", type=int, default=20, help="seconds to wait, before each figure, for neighbours to leave the CPUs")
    ap.add_argument("--peer", default=",".join(SETTINGS))
    a = ap.parse_args()
    model = os.environ.get("TOLLGATE_MODEL_FILE", os.path.expanduser("~/.cache/tollgate/SmolLM2-135M-Instruct.Q4_1.gguf"))
    need(LAB / "llama/llama_bench.py", "the peer's harness is there")
    need(model, "TOLLGATE_MODEL_FILE names the model")
    copy = "copy" in a.tests.split(",")
    tests, threads, settings = [t for t in a.tests.split(",") if t != "copy"], [int(n) for n in a.threads.split(",")], a.peer.split(",")
    machine()
    peer, ours = Peer(model), Ours(model)
    peer.check()
    one(ours, "tg", 1)  # pages of both are in
    one(peer, "tg", 1, settings[0])
    print("ours: %s; exact sums, rows of a step at most 512" % ours.last["tg", 1][0]["what"])
    print("peer: %s, prebuilt, best CPU variant chosen at run time, f16 KV, n_ubatch 512; settings %s (OMP_WAIT_POLICY; fa: flash attention)" % (NPM, ", ".join(settings)))
    print("model: %s; medians (least..most) of %d rounds, sides in turns\n" % (os.path.basename(model), a.rounds))
    ours.last.clear()
    without = [] if ours.has_fast() else [t for t in tests if t in FAST_TESTS]
    got = measure(ours, peer, settings, [t for t in tests if t not in without], threads, a.rounds, a.patience)
    show(got, settings, tests, threads)
    print()
    show_ours(got, ours, settings, threads)
    for n in threads if copy else ():
        measure_copy(model, n, a.rounds)
    load_after()


if __name__ == "__main__":
    main()
