"""What the benches share: the machine in words, CPU of process trees, medians, tables.

A figure means something only beside the other side of the same run, so every bench alternates its
sides and prints their ratio. No timing decides pass or fail.
"""
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
LAB = TOP.parent / "shared/lab"  # the peers' harness; absent in a plain clone
OUT = TOP / "build/bench"
RELEASE = pathlib.Path(os.environ.get("TOLLGATE_RELEASE_DIR", TOP / "build/release"))
CACHE = pathlib.Path(os.environ.get("TOLLGATE_CACHE", os.path.expanduser("~/.cache/tollgate"))) / "bench"
CPUS = os.cpu_count() or 1


def skip(why):
    print("nothing measured: " + why)
    sys.exit(0)


def need(path, why):
    if not pathlib.Path(path).exists():
        skip("%s is absent (%s)" % (path, why))


def first_line(*argv):
    try:
        got = subprocess.run(argv, capture_output=True, text=True, timeout=20)
        return ((got.stdout or got.stderr).splitlines() or ["?"])[0].strip()
    except (OSError, subprocess.TimeoutExpired):
        return "absent"


def machine():
    """One paragraph that a reader needs to place the figures."""
    info = open("/proc/cpuinfo").read()
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.M)
    flags = re.search(r"^flags\s*:\s*(.+)$", info, re.M)
    have = set(flags[1].split()) if flags else set()
    kib = int(re.search(r"MemTotal:\s+(\d+)", open("/proc/meminfo").read())[1])
    wide = [f for f in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if f in have]
    print("machine: %s, %d CPUs, %d GiB, %s, Linux %s, Python %s" % (
        model[1] if model else platform.machine(), CPUS, round(kib / (1 << 20)), " ".join(wide) or "no wide vectors",
        platform.release(), platform.python_version()))
    print("load before: %s" % " ".join(open("/proc/loadavg").read().split()[:3]))


def busy_share(seconds=0.3):
    """Of all CPUs, over so long."""
    def read():
        v = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
        return sum(v), v[3] + v[4]
    a = read()
    time.sleep(seconds)
    b = read()
    return 1 - (b[1] - a[1]) / max(1, b[0] - a[0])


def settle(patience_s, share=0.1):
    """Waits until neighbours leave the CPUs, but not for ever. False: they did not."""
    end = time.monotonic() + patience_s
    while busy_share() > share:
        if time.monotonic() > end:
            return False
    return True


def load_after():
    print("load after: %s" % " ".join(open("/proc/loadavg").read().split()[:3]))


# ---- CPU and memory of process trees: schedstat counts nanoseconds of user + system ----

def tree(pid):
    out, todo = [], [pid]
    while todo:
        p = todo.pop()
        out.append(p)
        try:
            for t in os.listdir("/proc/%d/task" % p):
                with open("/proc/%d/task/%s/children" % (p, t)) as f:
                    todo += [int(c) for c in f.read().split()]
        except OSError:
            pass
    return out


def threads_us(pid):
    """{thread name: CPU us} of a tree; threads of one name are summed, their digits dropped."""
    out = {}
    for p in tree(pid):
        try:
            tasks = os.listdir("/proc/%d/task" % p)
        except OSError:
            continue
        for t in tasks:
            try:
                with open("/proc/%d/task/%s/comm" % (p, t)) as f:
                    name = f.read().strip().rstrip("0123456789-")
                with open("/proc/%d/task/%s/schedstat" % (p, t)) as f:
                    out[name] = out.get(name, 0) + int(f.read().split()[0]) / 1000
            except OSError:
                pass
    return out


def cpu_us(pid):
    return sum(threads_us(pid).values())


def pss_kib(pid):
    total = 0
    for p in tree(pid):
        with open("/proc/%d/smaps_rollup" % p) as f:
            total += int(re.search(r"^Pss:\s+(\d+)", f.read(), re.M)[1])
    return total


def pin(pid, cpu):
    """A tree and what it forks later; nothing where there is one CPU."""
    if CPUS > 1:
        for p in tree(pid):
            subprocess.run(["taskset", "-a", "-c", "-p", str(cpu), str(p)], capture_output=True)


def on_cpu(cpu, argv):
    return (["taskset", "-c", str(cpu)] if CPUS > 1 else []) + [str(a) for a in argv]


def stop(p):
    if p is None or p.poll() is not None:
        return
    for q in tree(p.pid)[::-1]:
        try:
            os.kill(q, 15)
        except OSError:
            pass
    try:
        p.wait(5)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()


def until(fn, seconds, what):
    end = time.monotonic() + seconds
    while not fn():
        if time.monotonic() > end:
            raise SystemExit("not within %d s: %s" % (seconds, what))
        time.sleep(0.05)


# ---- figures ----

def median(v):
    return statistics.median(v)


def mid(v, digits=1):
    """Median and the range it came from."""
    return "%.*f (%.*f..%.*f)" % (digits, median(v), digits, min(v), digits, max(v))


def ratio(ours, theirs):
    """Median of the ratios of the same repeat: what drifts over a run cancels."""
    return median([a / b for a, b in zip(ours, theirs)])


class Table:
    """Rows printed as they come, in Markdown."""

    def __init__(self, *head):
        self.row(*head)
        self.row(*["---"] * len(head))

    @staticmethod
    def row(*cells):
        print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)
