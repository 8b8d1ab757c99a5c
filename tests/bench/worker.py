#!/usr/bin/env python3
"""Our worker's cpu backend beside llama.cpp on the same GGUF: decode, batch of 8, prefill, a 4k prompt.

Ours: bench_worker (the backend alone). Peer: prebuilt llama.cpp of the npm package @node-llama-cpp,
driven through the ctypes binding of llama-cpp-python's source distribution; both are fetched once
into ~/.cache/tollgate/bench. Sides take turns in every round, at equal thread counts.

    worker.py [--rounds 3] [--tests tg,b8,pp512,kv4k,spin] [--threads 1,2]
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

from common import CACHE, CPUS, LAB, RELEASE, Table, load_after, machine, median, mid, need, skip

NPM = "@node-llama-cpp/linux-x64@3.22.1"
SDIST = "llama-cpp-python==0.3.36"
PATIENCE_S = 90  # its barrier spins: on a busy machine two of its threads can take for ever
WHAT = {"tg": "decode, batch 1, tokens/s", "b8": "decode, batch 8, tokens/s", "pp512": "prefill 512, tokens/s",
        "kv4k": "4,128 tokens to the first one, ms", "spin": "decode beside a spinning process, tokens/s"}


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

    def run(self, test, threads):
        """(figures, cold figures); None: not within the patience."""
        argv = [sys.executable, str(LAB / "llama/llama_bench.py"), "--model", str(self.model), "--test", test, "--threads", str(threads), "--reps", "1", "--json"]
        try:
            got = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return None
        if got.returncode != 0:
            raise SystemExit("llama_bench %s: %s" % (test, got.stderr[-1000:]))
        d = json.loads(got.stdout.strip().splitlines()[-1])
        return d["median"], d.get("cold_ms", {}).get("median")


class Ours:
    def __init__(self, model):
        self.model = model
        self.exe = os.environ.get("TOLLGATE_BENCH_WORKER") or self.build()
        self.last = {}

    @staticmethod
    def build():
        got = subprocess.run(["cmake", "--build", str(RELEASE), "--target", "bench_worker"], capture_output=True, text=True)
        if got.returncode != 0:
            raise SystemExit("bench_worker does not build:\n" + got.stdout[-2000:])
        return str(RELEASE / "tests/bench_worker")

    def run(self, test, threads):
        got = subprocess.run([self.exe, str(self.model), str(threads), test, "1"], capture_output=True, text=True)
        if got.returncode != 0:
            raise SystemExit("bench_worker %s: %s" % (test, got.stderr))
        d = self.last[test, threads] = json.loads(got.stdout)
        return d["all"][0], d["cold"][0] if d["cold"] else None


# ---- the rounds ----

def one(side, test, threads):
    if test != "spin":
        return side.run(test, threads)
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return side.run("tg", threads)
    finally:
        spinner.kill()
        spinner.wait()


def measure(sides, tests, threads, rounds):
    got = {}
    for _ in range(rounds):
        for test in tests:
            for n in threads:
                for name, side in sides.items():
                    cell = got.setdefault((test, n, name), [])
                    if None not in cell:
                        cell.append(one(side, test, n))
    return got


def figures(cell, i=0):
    return [x[i] for x in cell if x is not None and x[i] is not None]


def show(got, tests, threads, ours):
    table = Table("work", "threads", "ours", "llama.cpp", "ours / llama.cpp", "ours / its best")
    for test in tests:
        ms = test == "kv4k"

        def better(a, b):
            return b / a if ms else a / b
        for i, name in ((0, WHAT[test] + (", 4,096 held" if ms else "")), (1, WHAT[test] + ", cold"))[:2 if ms else 1]:
            bests = [median(v) for n in threads if (v := figures(got.get((test, n, "llama.cpp"), []), i))]
            best = (min if ms else max)(bests) if bests else None
            for n in threads:
                a, b = figures(got[test, n, "ours"], i), figures(got.get((test, n, "llama.cpp"), []), i)
                table.row(name, n, mid(a), mid(b) if b else "not within %d s" % PATIENCE_S, "**%.2f**" % better(median(a), median(b)) if b else "",
                          "%.2f" % better(median(a), best) if best else "")
    for n in threads:
        d = ours.last.get(("tg", n))
        if d:
            rate = median(figures(got["tg", n, "ours"]))
            print("ours, %d threads: %.1f MB a decoded token = %.1f GB/s; reading alone measured %.1f GB/s: MBU %.0f %%" % (
                n, d["weight_mb"], rate * d["weight_mb"] / 1e3, d["read_gbs"], 100 * rate * d["weight_mb"] / 1e3 / d["read_gbs"]))
        if ("kv4k", n, "ours") in got:
            held, cold = (median(figures(got["kv4k", n, "ours"], i)) for i in (0, 1))
            print("ours, %d threads: 4k prompt, held / cold = %.1f %%" % (n, 100 * held / cold))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--tests", default="tg,b8,pp512,kv4k,spin")
    ap.add_argument("--threads", default="1,2" if CPUS > 1 else "1")
    a = ap.parse_args()
    model = os.environ.get("TOLLGATE_MODEL_FILE", os.path.expanduser("~/.cache/tollgate/SmolLM2-135M-Instruct.Q4_1.gguf"))
    need(LAB / "llama/llama_bench.py", "the peer's harness is there")
    need(model, "TOLLGATE_MODEL_FILE names the model")
    tests, threads = a.tests.split(","), [int(n) for n in a.threads.split(",")]
    machine()
    peer, ours = Peer(model), Ours(model)
    peer.check()
    got = {}
    for name, side in (("ours", ours), ("llama.cpp", peer)):  # pages of both are in
        one(side, "tg", 1)
    print("ours: %s; exact sums, bf16 KV, rows of a step at most 512" % ours.last["tg", 1]["what"])
    print("peer: %s, prebuilt, best CPU variant chosen at run time, f16 KV, no flash attention, n_ubatch 512" % NPM)
    print("model: %s; medians (least..most) of %d rounds, sides in turns\n" % (os.path.basename(model), a.rounds))
    got = measure({"ours": ours, "llama.cpp": peer}, tests, threads, a.rounds)
    show(got, tests, threads, ours)
    load_after()


if __name__ == "__main__":
    main()
