"""A whole private instance of the product, from real processes: Postgres, scripted workers, gateway.

    with Instance(workers=2, options={"drain_timeout": "5s"}) as gate:
        gate.chat("hello @tokens=3")

Everything lives in one folder under the system's temporary one and on free ports; stop() ends what
was started and nothing else. A sanitizer's report in any log is a failure (see check_logs).
"""
import atexit
import contextlib
import glob
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import httpx
import psycopg
from psycopg.rows import dict_row

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import scripted_worker  # noqa: E402

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILDS = {"asan": os.environ.get("TOLLGATE_ASAN_DIR", os.path.join(TOP, "build/asan")),
          "release": os.environ.get("TOLLGATE_RELEASE_DIR", os.path.join(TOP, "build/release"))}
PRICE = {"input": "1.0", "cached": "0.1", "output": "2.0"}  # USD per 1M tokens = these pico-USD a token:
IN, CACHED, OUT = 1_000_000, 100_000, 2_000_000
REPORTS = re.compile(r"ERROR: (Address|Leak|Undefined\w*)Sanitizer|runtime error:|WARNING: ThreadSanitizer|CHECK failed|check failed", re.I)
SANITIZERS = {"ASAN_OPTIONS": "detect_stack_use_after_return=0:quarantine_size_mb=16:abort_on_error=0:exitcode=99",
              "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1", "TSAN_OPTIONS": "halt_on_error=1"}


def until(fn, timeout=10.0, what="condition", every=0.02):
    """fn's first true answer; fails after timeout. Never a sleep for luck."""
    end = time.monotonic() + timeout
    while True:
        got = fn()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError("not within %.1f s: %s (last: %r)" % (timeout, what, got))
        time.sleep(every)


_ports = set()


def free_ports(n):
    """Free loopback ports below the ephemeral range, so that no client socket takes one meanwhile."""
    out, r = [], random.SystemRandom()
    while len(out) < n:
        p = r.randrange(20000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", p))
            except OSError:
                continue
        if p not in _ports:
            _ports.add(p)
            out.append(p)
    return out


class Proc:
    """One process of the instance: start again at will, kill at will, its log kept over lives."""

    def __init__(self, name, argv, log, env=None):
        self.name, self.argv, self.log, self.env = name, argv, log, env
        self.p = None

    def start(self, argv=None, **kw):
        with open(self.log, "ab") as f:
            self.p = subprocess.Popen(argv or self.argv, stdin=subprocess.DEVNULL, stdout=f, stderr=f, start_new_session=True,
                                      env={**os.environ, **SANITIZERS, **(self.env or {})}, **kw)
        return self

    def alive(self):
        return self.p is not None and self.p.poll() is None

    def kill9(self):
        if self.alive():
            self.p.kill()
        return self.p.wait(10)

    def term(self, timeout=30):
        """The exit status; None: it had to be killed."""
        if not self.alive():
            return self.p.returncode if self.p is not None else 0
        self.p.terminate()
        try:
            return self.p.wait(timeout)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait(10)
            return None

    def rss_kib(self):
        with open("/proc/%d/status" % self.p.pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


class Postgres:
    """A cluster of a test run. Databases are copies of one migrated template."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="tg-pg-")
        os.chmod(self.dir, 0o755)
        got = subprocess.run(["sh", os.path.join(TOP, "tests/pg.sh"), "start", self.dir], capture_output=True, text=True)
        assert got.returncode == 0, "Postgres did not start: %s" % got.stderr
        self.conninfo = got.stdout.strip()
        self.port = int(re.search(r"port=(\d+)", self.conninfo).group(1))
        self.bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        # Processes are killed here, machines are not: what was written to the kernel stays.
        with psycopg.connect(self.conninfo, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET fsync = off")
            db.execute("SELECT pg_reload_conf()")
        self.n = 0
        self.migrated = False
        atexit.register(self.close)

    def dsn(self, db, user="postgres"):
        return "host=%s port=%d user=%s dbname=%s" % (self.dir, self.port, user, db)

    def database(self, ctl):
        """A fresh migrated database's name."""
        if not self.migrated:
            got = subprocess.run([ctl, "migrate", "--database", self.conninfo, "--dir", os.path.join(TOP, "sql"), "--json"],
                                 capture_output=True, text=True, env={**os.environ, **SANITIZERS})
            assert got.returncode == 0, "migrate: %s" % got.stderr
            self.migrated = True
        self.n += 1
        name = "tg_%d" % self.n
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as db:
            db.execute("CREATE DATABASE %s TEMPLATE tollgate" % name)
        return name

    def _as_user(self):
        return [] if os.getuid() != 0 else ["runuser", "-u", "postgres", "--"]

    def pids(self):
        """The server and its children."""
        with open(os.path.join(self.dir, "data/postmaster.pid")) as f:
            head = int(f.readline())
        return [head] + _children(head)

    def kill9(self):
        try:
            pids = self.pids()
        except OSError:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any(_runs(p) for p in pids), 10, "Postgres is dead")

    def start(self):
        opts = "-k %s -h 127.0.0.1 -p %d -c max_connections=50 -c shared_buffers=64MB" % (self.dir, self.port)
        for _ in range(40):
            got = subprocess.run(self._as_user() + [self.bin + "/pg_ctl", "-D", self.dir + "/data", "-l", self.dir + "/log", "-w", "-t", "60",
                                                    "-o", opts, "start"], capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/")
            if got.returncode == 0:
                return
            time.sleep(0.3)  # a killed server's shared memory goes with its last child
        raise AssertionError("Postgres does not start again: %s" % got.stdout)

    def stop(self):
        subprocess.run(self._as_user() + [self.bin + "/pg_ctl", "-D", self.dir + "/data", "-m", "immediate", "-w", "stop"],
                       capture_output=True, cwd="/")

    def close(self):
        if os.path.isdir(self.dir):
            self.kill9()
            shutil.rmtree(self.dir, ignore_errors=True)
        atexit.unregister(self.close)


def _runs(pid):
    """Neither gone nor a zombie that its parent has not looked at yet."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _children(pid):
    out = []
    for d in os.listdir("/proc"):
        if d.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open("/proc/%s/stat" % d) as f:
                    if int(f.read().rpartition(")")[2].split()[1]) == pid:
                        out.append(int(d))
    return out


_shared = []


def shared_postgres():
    """One cluster a test run, for everyone who does not stop it."""
    if not _shared:
        _shared.append(Postgres())
    return _shared[0]


_tls = []


def tls_files():
    """(ca.pem, server.pem, server.key), made once a run by the openssl command."""
    if not _tls:
        d = tempfile.mkdtemp(prefix="tg-tls-")
        atexit.register(shutil.rmtree, d, True)
        with open(d + "/ext", "w") as f:
            f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n"
                    "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n")
        script = """set -e; cd %s; umask 077
            openssl ecparam -genkey -name prime256v1 -out ca.key
            openssl req -x509 -new -key ca.key -days 30 -subj '/CN=test CA' -out ca.pem -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
            openssl ecparam -genkey -name prime256v1 -out server.key
            openssl req -new -key server.key -subj /CN=localhost -out server.csr
            openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile ext -out leaf.pem
            cat leaf.pem ca.pem >server.pem""" % d
        subprocess.run(["sh", "-c", script], check=True, capture_output=True)
        _tls.append((d + "/ca.pem", d + "/server.pem", d + "/server.key"))
    return _tls[0]


def yaml_of(tree, indent=0):
    """Blocks of mappings; strings quoted, lists in brackets."""
    out = ""
    for k, v in tree.items():
        if isinstance(v, dict):
            out += "%s%s:\n%s" % (" " * indent, k, yaml_of(v, indent + 2))
        else:
            out += "%s%s: %s\n" % (" " * indent, k, v if isinstance(v, int) else json.dumps(v))
    return out


class Answer:
    """A streamed answer, parsed strictly: LF, one `data: ` line an event, comments allowed."""

    def __init__(self, status, headers, raw, broken=None):
        self.status, self.headers, self.raw, self.broken = status, headers, raw, broken
        self.data, self.comments = [], 0
        if headers.get("content-type", "").startswith("text/event-stream"):
            self._parse()
        self.done = bool(self.data) and self.data[-1] == "[DONE]"
        self.chunks = [json.loads(d) for d in self.data if d != "[DONE]"]
        self.errors = [c["error"] for c in self.chunks if "error" in c]
        choices = [c for k in self.chunks for c in k.get("choices") or []]
        self.text = "".join((c["delta"].get("content") or "") if "delta" in c else c.get("text") or "" for c in choices)
        self.finishes = [c["finish_reason"] for c in choices if c.get("finish_reason") is not None]
        self.usages = [k["usage"] for k in self.chunks if k.get("usage")]
        self.request_id = headers.get("x-request-id")

    def _parse(self):
        text = self.raw.decode("utf-8") if self.broken is None else self.raw.decode("utf-8", "ignore")
        blocks = text.split("\n\n")
        rest = blocks.pop()
        assert self.broken is not None or rest == "", "the last event is not closed: %r" % rest[-80:]
        for b in blocks:
            for line in b.split("\n"):
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    assert line.startswith("data: ") and "\r" not in line, "no SSE line: %r" % line[:120]
                    self.data.append(line[6:])

    def clean(self):
        assert self.status == 200, "%d %s" % (self.status, self.raw[:300])
        assert self.broken is None and not self.errors, (self.broken, self.errors)
        assert self.done and self.data.count("[DONE]") == 1, self.data[-2:]
        return self


class Instance:
    def __init__(self, build="asan", workers=2, openai=0, model="scripted", options=None, own_pg=False, loops=2, real=None,
                 worker_args=(), journal_dir=None, setup=True, wrap=()):
        """real: path of a GGUF for real workers instead of scripted ones. wrap: words before the gateway's command."""
        self.build, self.model, self.real, self.wrap = BUILDS[build], model, real, list(wrap)
        self.options, self.own_pg, self.do_setup = options or {}, own_pg, setup
        self.n_workers, self.n_openai, self.loops, self.worker_args = workers, openai, loops, list(worker_args)
        self.journal_dir = journal_dir
        self.dir = None
        self.procs = {}
        self.clients = []
        self.scanned = {}
        self.may_die = set()   # names whose death is the test's own doing

    # ---- life ----

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.show_logs()
            self._abandon()
            if self.own_pg and hasattr(self, "pg"):
                self.pg.close()
            shutil.rmtree(self.dir, ignore_errors=True)
            raise
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self.show_logs()
        try:
            self.stop()
            if kind is None:
                self.check_logs()
        finally:
            if not os.environ.get("TOLLGATE_TEST_KEEP"):
                shutil.rmtree(self.dir, ignore_errors=True)

    def bin(self, name):
        path = os.path.join(self.build, "worker" if name == "tollgate-worker" else "gateway", name)
        assert os.access(path, os.X_OK), "%s is not built" % path
        return path

    def start(self):
        self.dir = tempfile.mkdtemp(prefix="tg-")
        atexit.register(self._abandon)
        self.journal = self.journal_dir or os.path.join(self.dir, "journal")
        os.makedirs(self.journal, mode=0o700, exist_ok=True)
        os.makedirs(self.path("log"))
        self.secrets = {}
        for name in ("deployment", "pepper", "worker_key", "admin_key"):
            self.secrets[name] = os.urandom(32).hex()
            self.write_secret(name, self.secrets[name])
        self.ca, cert, key = tls_files()
        ports = free_ports(3 + self.n_workers + self.n_openai)
        self.p_tls, self.p_clear, self.p_admin = ports[:3]
        self.worker_ports, self.openai_ports = ports[3:3 + self.n_workers], ports[3 + self.n_workers:]
        self.url, self.clear_url = "https://127.0.0.1:%d" % self.p_tls, "http://127.0.0.1:%d" % self.p_clear
        self.admin_url = "http://127.0.0.1:%d" % self.p_admin
        self.pg = Postgres() if self.own_pg else shared_postgres()
        self.db = self.pg.database(self.bin("tollctl"))
        self.config = {
            "listen": {"tls": ["127.0.0.1:%d" % self.p_tls], "clear": ["127.0.0.1:%d" % self.p_clear], "admin": "127.0.0.1:%d" % self.p_admin},
            "tls": {"certificate": cert, "key": key}, "loops": self.loops,
            "journal": {"dir": self.journal, "segment_bytes": "1MiB"},
            "postgres": {"conninfo": self.pg.dsn(self.db, "tollgate_gateway")},
            "secrets": {n + "_file": self.path("secrets", n) for n in self.secrets},
        }
        for name, value in self.options.items():
            at = self.config
            *folders, last = name.split(".")
            for f in folders:
                at = at.setdefault(f, {})
            at[last] = value
        self.write_config()
        for i, port in enumerate(self.worker_ports + self.openai_ports):
            self.start_worker(i + 1, port, "tollgate" if i < self.n_workers else "openai")
        self.procs["gateway"] = Proc("gateway", self.wrap + [self.bin("tollgate"), "--config", self.path("gateway.yaml")], self.path("log", "gateway.log")).start()
        self.wait_ready()
        if self.do_setup:
            self.setup()

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def write_secret(self, name, text, mode=0o600):
        os.makedirs(self.path("secrets"), mode=0o700, exist_ok=True)
        with open(os.open(self.path("secrets", name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as f:
            f.write(text + "\n")
        os.chmod(self.path("secrets", name), mode)

    def write_config(self, name="gateway.yaml"):
        with open(self.path(name), "w") as f:
            f.write(yaml_of(self.config))
        return self.path(name)

    def start_worker(self, i, port, engine):
        name = "worker%d" % i
        key, listen = self.path("secrets", "worker_key"), "127.0.0.1:%d" % port
        if self.real:
            argv = [self.bin("tollgate-worker"), "--model", self.real, "--served-name", self.model, "--listen", listen, "--threads", "1",
                    "--worker-key-file", key, *self.worker_args]
        else:
            argv = [sys.executable, os.path.join(TOP, "tests/lib/scripted_worker.py"), "--listen", listen, "--key-file", key,
                    "--log", self.path(name + ".tokens"), "--engine", engine, "--model", self.model if engine == "tollgate" else self.model + "-openai",
                    *self.worker_args]
        self.procs[name] = Proc(name, argv, self.path("log", name + ".log")).start()
        return name

    def run_gateway(self, *args, timeout=20):
        """(exit status, what it said) of a gateway that is meant to end by itself, e.g. on a bad file.
        It ends at once and leaves its memory to the system, so leaks are not looked for."""
        env = {**os.environ, **SANITIZERS, "ASAN_OPTIONS": SANITIZERS["ASAN_OPTIONS"] + ":detect_leaks=0"}
        got = subprocess.run([self.bin("tollgate"), *(["--config"] if len(args) == 1 else []), *args], capture_output=True, text=True, timeout=timeout, env=env)
        assert not REPORTS.search(got.stderr), got.stderr
        return got.returncode, got.stdout + got.stderr

    def wait_ready(self, timeout=30):
        def ready():
            assert self.procs["gateway"].alive(), "the gateway ended with %s\n%s" % (self.procs["gateway"].p.returncode, self.log_text("gateway")[-3000:])
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(self.clear_url + "/ready", timeout=2).status_code == 200
        until(ready, timeout, "the gateway is ready")

    def setup(self):
        """Two tenants, a price, the workers; until every worker is seen up."""
        for port in self.worker_ports + self.openai_ports:
            until(lambda p=port: self.worker_answers(p), 60, "worker on %d listens" % port)
            ours = port in self.worker_ports
            self.ctl("worker", "add", "--url", "http://127.0.0.1:%d" % port, "--engine", "tollgate" if ours else "openai")
            name = self.model if ours else self.model + "-openai"
            self.ctl("price", "publish", "--model", name, "--input", PRICE["input"], "--cached", PRICE["cached"], "--output", PRICE["output"])\
                if port in (self.worker_ports[:1] + self.openai_ports[:1]) else None
        self.key, self.key_id = self.tenant("acme")
        self.key_b, self.key_b_id = self.tenant("globex")
        self.wait_workers()

    def worker_answers(self, port):
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get("http://127.0.0.1:%d/ready" % port, timeout=2).status_code == 200

    def wait_workers(self, timeout=15):
        def up():
            data = self.ctl("worker", "list")["data"]
            return all(w["health"] == "up" and (w["kv_events"] or w["engine"] != "tollgate" or "--no-events" in self.worker_args) for w in data) and data
        return until(up, timeout, "all workers are up and tell their events")

    def tenant(self, name=None, **limits):
        """(key, key_id) of a new tenant; limits as tollctl's options with underscores."""
        name = name or "t-" + os.urandom(4).hex()
        self.ctl("tenant", "create", name)
        made = self.ctl("key", "create", "--tenant", name)
        if limits:
            self.ctl("quota", "set", "--tenant", name, *[w for k, v in limits.items() for w in ("--" + k.replace("_", "-"), str(v))])
        return made["key"], made["key_id"]

    def kill9(self, name):
        self.may_die.add(name)
        if name == "postgres":
            return self.pg.kill9()
        return self.procs[name].kill9()

    def restart(self, name, timeout=60):
        if name == "postgres":
            return self.pg.start()
        self.procs[name].start()
        if name == "gateway":
            self.wait_ready(timeout)

    def term(self, name="gateway", timeout=40):
        self.may_die.add(name)
        return self.procs[name].term(timeout)

    def stop(self):
        for c in self.clients:
            c.close()
        self.clients = []
        unexpected = [n for n, p in self.procs.items() if not p.alive() and n not in self.may_die]
        rc = self.procs["gateway"].term(40) if "gateway" in self.procs else 0
        for n, p in self.procs.items():
            if n != "gateway":
                p.term(5)
        if self.own_pg and hasattr(self, "pg"):
            self.pg.close()
        atexit.unregister(self._abandon)
        assert not unexpected, "died on their own: %s\n%s" % (unexpected, self.tail())
        assert rc == 0 or "gateway" in self.may_die, "the gateway ended with %s\n%s" % (rc, self.tail())

    def _abandon(self):
        for p in self.procs.values():
            if p.alive():
                p.p.kill()

    # ---- logs ----

    def log_text(self, name):
        with contextlib.suppress(OSError), open(self.path("log", name + ".log"), errors="replace") as f:
            return f.read()
        return ""

    def log_events(self, name="gateway"):
        """Parsed JSON lines of a log."""
        out = []
        for line in self.log_text(name).splitlines():
            with contextlib.suppress(ValueError):
                out.append(json.loads(line))
        return out

    def tail(self, n=40):
        return "\n".join("--- %s ---\n%s" % (name, "\n".join(self.log_text(name).splitlines()[-n:])) for name in self.procs)

    def show_logs(self):
        print(self.tail())

    def check_logs(self):
        """Fails on a sanitizer's report that was not seen before."""
        for name in self.procs:
            text = self.log_text(name)
            new, self.scanned[name] = text[self.scanned.get(name, 0):], len(text)
            m = REPORTS.search(new)
            assert not m, "%s: %s" % (name, new[max(0, m.start() - 200):m.start() + 6000])
            assert name == "gateway" or "Traceback" not in new, "%s: %s" % (name, new[-3000:])

    # ---- operator ----

    def ctl_raw(self, *args, env=None):
        e = {**os.environ, **SANITIZERS, "TOLLGATE_ADMIN_URL": self.admin_url, "TOLLGATE_ADMIN_KEY": self.secrets["admin_key"], **(env or {})}
        return subprocess.run([self.bin("tollctl"), *map(str, args)], capture_output=True, text=True, timeout=60, env=e)

    def ctl(self, *args):
        got = self.ctl_raw(*args, "--json")
        assert got.returncode == 0, "tollctl %s: %d %s" % (" ".join(map(str, args)), got.returncode, got.stderr)
        return json.loads(got.stdout)

    def sql(self, query, *params):
        with psycopg.connect(self.pg.dsn(self.db), row_factory=dict_row, autocommit=True) as db:
            got = db.execute(query, params or None)
            return got.fetchall() if got.description else None

    def metrics(self):
        """{"name" or 'name{labels}': number}"""
        out = {}
        for line in httpx.get(self.admin_url + "/metrics", timeout=10).text.splitlines():
            if line and line[0] != "#":
                name, _, value = line.rpartition(" ")
                out[name] = float(value)
        return out

    def busy(self):
        """What is not at rest; empty when idle (invariant 9)."""
        m = self.metrics()
        names = ("tollgate_requests_live", "tollgate_holds_open", "tollgate_ship_behind_rows")
        return {k: v for k, v in m.items() if v != 0 and (k in names or k.startswith(("tollgate_worker_in_flight", "tollgate_worker_queued_tokens")))}

    def idle(self, timeout=15):
        until(lambda: not self.busy(), timeout, "everything at rest", 0.05) if self.busy() else None

    def rows(self, *request_ids):
        """Rows of these requests (or all), oldest first."""
        if request_ids:
            return self.sql("SELECT * FROM usage_event WHERE request_id = ANY(%s::uuid[]) ORDER BY occurred_at, attempt", list(request_ids))
        return self.sql("SELECT * FROM usage_event ORDER BY occurred_at, attempt")

    def row(self, request_id, n=1, timeout=10):
        got = until(lambda: (lambda r: r if len(r) >= n else None)(self.rows(request_id)), timeout, "%d rows of %s" % (n, request_id))
        assert len(got) == n, got
        return got[0] if n == 1 else got

    def journal_verify(self):
        got = self.ctl_raw("journal", "verify", self.journal, "--json")
        assert got.returncode == 0, "journal verify: %s" % got.stderr
        return json.loads(got.stdout)

    def journal_show(self):
        got = self.ctl_raw("journal", "show", self.journal)
        assert got.returncode == 0, "journal show: %s" % got.stderr
        return [json.loads(line) for line in got.stdout.splitlines()]

    # ---- clients ----

    def http(self, key=None, clear=False, timeout=30, http2=True):
        c = httpx.Client(base_url=self.clear_url if clear else self.url, verify=False if clear else self.tls_context(), http2=http2 and not clear,
                         timeout=timeout, headers={"authorization": "Bearer " + (key or self.key)}, limits=httpx.Limits(max_connections=1000))
        self.clients.append(c)
        return c

    def tls_context(self):
        import ssl
        return ssl.create_default_context(cafile=self.ca)

    def body(self, text="Say hello.", **kw):
        out = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 64, "temperature": 0, **kw}
        return {k: v for k, v in out.items() if v is not ...}

    @property
    def client(self):
        if not getattr(self, "_client", None) or self._client.is_closed:
            self._client = self.http()
        return self._client

    def post(self, body, path="/v1/chat/completions", key=None, headers=None, **kw):
        h = {"authorization": "Bearer " + (key or self.key), **(headers or {})}
        if isinstance(body, (bytes, str)):
            return self.client.post(path, content=body, headers={"content-type": "application/json", **h}, **kw)
        return self.client.post(path, json=body, headers=h, **kw)

    def chat(self, text="Say hello.", key=None, **kw):
        """A whole answer that must be right; the parsed object."""
        r = self.post(self.body(text, **kw), key=key)
        assert r.status_code == 200, "%d %s" % (r.status_code, r.text[:400])
        out = r.json()
        out["request_id"] = r.headers["x-request-id"]
        return out

    def stream(self, text="Say hello.", key=None, path="/v1/chat/completions", body=None, client=None, **kw):
        b = dict(body or self.body(text, **kw), stream=True)
        raw, broken = b"", None
        with (client or self.client).stream("POST", path, json=b, headers={"authorization": "Bearer " + (key or self.key)}) as r:
            try:
                for part in r.iter_raw():
                    raw += part
            except httpx.HTTPError as e:
                broken = e
            return Answer(r.status_code, r.headers, raw, broken)

    # ---- scripted workers ----

    def worker_ctl(self, port, path, body=None):
        url = "http://127.0.0.1:%d/_ctl/%s" % (port, path)
        return (httpx.get(url, timeout=10) if body is None else httpx.post(url, json=body, timeout=10)).json()

    def seen(self, tag, ports=None):
        """[(port, record)] of requests whose question holds tag, in all scripted workers."""
        return [(p, r) for p in ports or self.worker_ports + self.openai_ports for r in self.worker_ctl(p, "log?tag=" + tag)]

    def generated(self):
        """{event: record} over all lives of all workers of our kind; a second record of one event is an error."""
        out = {}
        for i in range(self.n_workers):
            for r in scripted_worker.read_log(self.path("worker%d.tokens" % (i + 1))):
                assert r["event"] not in out, "event %s reached two workers, or one twice" % r["event"]
                out[r["event"]] = r
        return out

    def worker_id(self, port):
        return next(w["worker_id"] for w in self.ctl("worker", "list")["data"] if w["url"].endswith(":%d" % port))
