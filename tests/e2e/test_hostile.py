"""What operators and neighbours get wrong on a bad day: names, URLs, secrets, ports, a second `up`."""
import contextlib
import json
import os
import socket
import subprocess
import threading
import time

import httpx
import pytest
from instance import TOP
from rawhttp import H1


def admin(gate, path, body):
    return httpx.post(gate.admin_url + path, json=body, headers={"authorization": "Bearer " + gate.secrets["admin_key"]}, timeout=20)


def test_a_name_with_a_nul_is_refused_and_not_cut_to_another_name(gate):
    gate.ctl("tenant", "create", "nul-tenant")
    before = gate.sql("SELECT count(*) n FROM api_key")
    for path, body in (("/admin/tenants", {"name": "nul-new\0x"}), ("/admin/keys", {"tenant": "nul-tenant\0x"}),
                       ("/admin/keys", {"tenant": "nul-tenant", "project": "p\0q"}),
                       ("/admin/prices", {"model": "m\0n", "input_usd": "1", "output_usd": "1"})):
        r = admin(gate, path, body)
        assert r.status_code == 400 and "NUL" in r.json()["error"]["message"], (path, r.text)
    assert gate.sql("SELECT count(*) n FROM api_key") == before
    assert not gate.sql("SELECT 1 FROM tenant WHERE name = 'nul-new'")


@pytest.mark.parametrize("path,body,word", [
    ("/admin/tenants", {"name": "wrong-type", "timezone": 7}, "timezone"), ("/admin/keys", {"tenant": "wrong", "project": []}, "project"),
    ("/admin/keys", {"tenant": "wrong", "name": {}}, "name"), ("/admin/quotas", {}, "tenant"),
    ("/admin/quotas", {"tenant": "wrong", "concurrent": 10**13}, "1000000000000"),
    ("/admin/workers", {"url": "http://[zz", "engine": "openai", "models": ["a"]}, "url"),
    ("/admin/workers", {"url": "http://[::1]x:9", "engine": "openai", "models": ["a"]}, "url"),
    ("/admin/workers", {"url": "http://:9", "engine": "openai", "models": ["a"]}, "url")], ids=str)
def test_a_wrong_value_is_told_and_never_taken_for_a_default(gate, path, body, word):
    r = admin(gate, path, body)
    assert r.status_code == 400 and word in r.json()["error"]["message"], r.text


def test_a_key_name_that_is_too_long_is_told_in_words(gate):
    gate.ctl("tenant", "create", "long-key-name")
    got = gate.ctl_raw("key", "create", "--tenant", "long-key-name", "--name", "x" * 500)
    assert got.returncode == 1 and "128 bytes" in got.stderr and "constraint" not in got.stderr


def test_tollctl_shows_no_control_character_of_a_name(gate):
    gate.ctl("tenant", "create", "esc\x1b[2J\nnew\u202egnp")
    got = gate.ctl_raw("tenant", "list")
    line = next(x for x in got.stdout.splitlines() if "esc" in x)
    assert "\\u001b[2J\\u000anew\\u202egnp" in line and "\x1b" not in got.stdout


def serve_once(answer):
    """The port of a server that answers every request by calling answer(socket)."""
    s = socket.create_server(("127.0.0.1", 0))

    def run():
        with contextlib.suppress(OSError):
            while True:
                c, _ = s.accept()
                with contextlib.suppress(OSError), c:
                    c.recv(65536)
                    answer(c)
    threading.Thread(target=run, daemon=True).start()
    return s


def endless(c):
    c.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        c.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


def dripping(c):
    c.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n")
    while True:
        c.sendall(b" ")
        time.sleep(0.1)


@pytest.mark.parametrize("answer,word", [(endless, "no end"), (dripping, "in time")], ids=["endless", "dripping"])
def test_adding_a_worker_whose_answer_never_ends_comes_back(gate, answer, word):
    with serve_once(answer) as s:
        t = time.monotonic()
        got = gate.ctl_raw("worker", "add", "--url", "http://127.0.0.1:%d" % s.getsockname()[1], "--engine", "openai")
        assert got.returncode == 1 and word in got.stderr, got.stderr
        assert time.monotonic() - t < 15


def test_a_worker_with_too_many_models_is_not_added_in_part(gate):
    body = json.dumps({"data": [{"id": "many-%d" % i} for i in range(2000)]}).encode()
    with serve_once(lambda c: c.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)) as s:
        got = gate.ctl_raw("worker", "add", "--url", "http://127.0.0.1:%d" % s.getsockname()[1], "--engine", "openai")
        assert got.returncode == 1 and "--model" in got.stderr


def test_a_deep_pipeline_does_not_stall(gate):
    n = 5000
    with H1(gate) as c:
        t = threading.Thread(target=c.send, args=(b"GET /health HTTP/1.1\r\nHost: gate\r\n\r\n" * n,), daemon=True)
        t.start()
        assert sum(c.response()[0] == 200 for _ in range(n)) == n


# ---- starts that cannot be ----

def start_fails(gate, tmp_path, change, clear="127.0.0.1:0", pre=None):
    """The story of a gateway that ends by itself; nothing else may be in its output."""
    secrets = {}
    for name in ("deployment", "pepper", "worker_key", "admin_key"):
        secrets[name] = tmp_path / name
        secrets[name].write_text("a" * 32)
        secrets[name].chmod(0o600)
    journal = tmp_path / "journal"
    change(secrets, journal)
    conf = tmp_path / "gateway.yaml"
    conf.write_text('listen:\n  clear: ["%s"]\n  admin: "127.0.0.1:0"\nloops: 2\njournal:\n  dir: "%s"\nsecrets:\n' % (clear, journal) +
                    "".join('  %s_file: "%s"\n' % (k, v) for k, v in secrets.items()))
    got = subprocess.run((pre or []) + [gate.bin("tollgate"), "--config", str(conf)], capture_output=True, text=True, timeout=20)
    assert got.returncode == 1 and "Sanitizer" not in got.stderr and "CHECK" not in got.stderr, got.stderr
    return got.stderr


def fifo(secrets, _):
    secrets["pepper"].unlink()
    os.mkfifo(secrets["pepper"], 0o600)


def damaged(_, journal):
    journal.mkdir(mode=0o700)
    (journal / "snapshot").write_bytes(b"\0" * 300)


def two_lines(secrets, _):
    secrets["worker_key"].write_text("a\nb\n")


@pytest.mark.parametrize("change,word", [(fifo, "regular file"), (two_lines, "one line"), (damaged, "snapshot"), (lambda *_: None, "snapshot")],
                         ids=["fifo", "two-lines", "damaged-snapshot", "nothing"])
def test_a_start_that_cannot_be_says_why_and_ends(gate, tmp_path, change, word):
    story = start_fails(gate, tmp_path, change)
    assert word in story
    assert word != "snapshot" or (change is damaged) != ("No such file" in story), "a damaged snapshot is no missing one"


def test_too_few_open_files_are_told(gate, tmp_path):
    assert "ulimit -n" in start_fails(gate, tmp_path, lambda *_: None, pre=["prlimit", "--nofile=20:20"])


# ---- configs/dev ----

def test_what_up_starts_does_not_keep_its_lock(tmp_path):
    """Else a second `up` waits for the first one's daemons to end."""
    script = """. configs/dev/lib.sh; mkdir -p "$DEV/pids" "$DEV/log"; exec 9>"$DEV/.lock"; flock 9
                start sleeper sleep 60; cat "$DEV/pids/sleeper.pid" """
    env = {**os.environ, "TOLLGATE_DEV_DIR": str(tmp_path)}
    pid = int(subprocess.run(["bash", "-c", "set -- x; BASH_ARGV0=configs/dev/up; " + script], cwd=TOP, env=env, capture_output=True, text=True, timeout=10).stdout)
    try:
        assert subprocess.run(["flock", "-n", str(tmp_path / ".lock"), "true"], timeout=5).returncode == 0
    finally:
        os.kill(pid, 9)
