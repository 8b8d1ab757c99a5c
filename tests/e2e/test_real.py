"""The real model on the release build, brought up by configs/dev/up as a newcomer would do it."""
import json
import os
import shutil
import subprocess
import tempfile
import threading

import httpx
import psycopg
import pytest
from instance import BUILDS, TOP, Answer, until
from psycopg.rows import dict_row

pytestmark = pytest.mark.real

PREFIX = "You keep the log of a lighthouse. Every line names the hour, the wind and the ships that passed, and nothing else. " * 12


class Dev:
    """An instance of configs/dev/up: its environment file, its clients, its ledger."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="tg-dev-")
        self.os_env = {**os.environ, "TOLLGATE_DEV_DIR": self.dir, "TOLLGATE_BUILD_DIR": BUILDS["release"]}
        self.run("up", "--wait")
        self.env = {}
        for line in open(self.dir + "/env"):
            name, _, value = line.strip().partition("=")
            self.env[name] = value.strip("'")
        self.url, self.model = self.env["TOLLGATE_URL"], self.env["TOLLGATE_MODEL"]
        self.key, self.key_b = self.env["TOLLGATE_KEY"], self.env["TOLLGATE_KEY_B"]
        self.workers = self.env["TOLLGATE_WORKER_URLS"].split(",")
        self.client = httpx.Client(base_url=self.url, verify=self.tls(), http2=True, timeout=120)
        self.db = psycopg.connect(self.env["DATABASE_URL"], row_factory=dict_row, autocommit=True)

    def run(self, name, *args, timeout=900):
        # Output to a file: what it starts would keep a pipe open.
        with open(self.dir + "/up.out", "ab") as f:
            got = subprocess.run([os.path.join(TOP, "configs/dev", name), *args], env=self.os_env, stdin=subprocess.DEVNULL, stdout=f, stderr=f, timeout=timeout)
        assert got.returncode == 0, "%s failed: %s" % (name, open(self.dir + "/up.out").read()[-2000:])

    def tls(self):
        import ssl
        return ssl.create_default_context(cafile=self.env["TOLLGATE_CA"])

    def close(self):
        self.client.close()
        self.db.close()
        self.run("down", "--purge")
        shutil.rmtree(self.dir, ignore_errors=True)

    def body(self, text, system=None, **kw):
        messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, "max_tokens": 16, "temperature": 0, **kw}

    def head(self, key=None):
        return {"authorization": "Bearer " + (key or self.key)}

    def chat(self, text, key=None, **kw):
        r = self.client.post("/v1/chat/completions", json=self.body(text, **kw), headers=self.head(key))
        assert r.status_code == 200, r.text[:300]
        return r.json(), self.row(r.headers["x-request-id"])

    def stream(self, text, key=None, **kw):
        body = dict(self.body(text, **kw), stream=True, stream_options={"include_usage": True})
        with self.client.stream("POST", "/v1/chat/completions", json=body, headers=self.head(key)) as r:
            return Answer(r.status_code, r.headers, r.read()).clean()

    def row(self, request_id):
        return until(lambda: self.db.execute("SELECT * FROM usage_event WHERE request_id = %s", [request_id]).fetchone(), 10, "the row of %s" % request_id)

    def worker_key(self):
        return open(self.dir + "/secrets/worker_key").read().strip()

    def receipt(self, event):
        head = {"authorization": "Bearer " + self.worker_key()}
        got = [r.json() for r in (httpx.get("%s/events/%s" % (u, event), headers=head) for u in self.workers) if r.status_code == 200]
        assert len(got) == 1, got
        return got[0]


@pytest.fixture(scope="module")
def dev():
    if not os.environ.get("TOLLGATE_MODEL_FILE"):
        pytest.skip("TOLLGATE_MODEL_FILE is not set")
    d = Dev()
    yield d
    d.close()


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_stream_says_what_a_whole_answer_says(dev):
    text = "Name three colours of the rainbow."
    whole, row = dev.chat(text)
    a = dev.stream(text)
    assert a.text == whole["choices"][0]["message"]["content"] and a.text.strip()
    assert a.usages[-1]["completion_tokens"] == whole["usage"]["completion_tokens"] == row["tok_out"]
    assert a.finishes == [whole["choices"][0]["finish_reason"]] and len(a.chunks) > 5
    second = dev.row(a.request_id)
    assert (second["tok_in_uncached"] + second["tok_in_cached"], second["tok_out"]) == (a.usages[-1]["prompt_tokens"], a.usages[-1]["completion_tokens"])
    assert second["usage_state"] == 1 and second["cost_pusd"] > 0
    assert dev.receipt(second["event_id"])["completion"] == second["tok_out"]


def test_a_shared_prefix_is_computed_once(dev):
    """The second request finds the first one's blocks: in the answer, in the row, at the same worker, and as predicted."""
    first, a = dev.chat("It is noon.", system=PREFIX)
    second, b = dev.chat("It is midnight.", system=PREFIX)
    assert cached(first) == 0 == a["tok_in_cached"]
    assert cached(second) == b["tok_in_cached"] > 200 and b["worker_id"] == a["worker_id"]
    assert second["usage"]["prompt_tokens"] == b["tok_in_cached"] + b["tok_in_uncached"]
    assert abs(b["tok_in_cached_predicted"] - b["tok_in_cached"]) <= 32 + 64 + 64, b
    again, _ = dev.chat("It is midnight.", system=PREFIX)
    assert again["choices"][0]["message"] == second["choices"][0]["message"], "a hit changes nothing"


def test_nothing_is_shared_across_tenants(dev):
    system = "Between tenants nothing is shared. " + PREFIX
    _, a = dev.chat("One.", system=system)
    mine, b = dev.chat("Two.", system=system)
    other, c = dev.chat("Two.", system=system, key=dev.key_b)
    assert cached(mine) > 200 and cached(other) == 0 == c["tok_in_cached"] == c["tok_in_cached_predicted"]
    assert c["tenant_id"] != b["tenant_id"]
    assert other["choices"][0]["message"] == mine["choices"][0]["message"], "cached or not, the same answer"


def test_leaving_stops_the_worker(dev):
    body = dict(dev.body("Write a very long story about a bridge.", max_tokens=2000), stream=True)
    pieces = 0
    with httpx.Client(base_url=dev.url, verify=dev.tls(), timeout=60) as c:
        with c.stream("POST", "/v1/chat/completions", json=body, headers=dev.head()) as r:
            rid = r.headers["x-request-id"]
            for line in r.iter_lines():
                pieces += '"content"' in line
                if pieces == 8:
                    break
    row = dev.row(rid)
    rec = dev.receipt(row["event_id"])
    assert row["outcome"] == 2 and rec["state"] == "aborted"
    assert 8 <= row["tok_out"] + 2 and row["tok_out"] == rec["completion"] < 400
    assert dev.receipt(row["event_id"]) == rec, "it stands still"


def test_several_at_once_are_each_right(dev):
    """Batched or alone, the same bytes."""
    texts = ["List the number %d and its double." % i for i in range(6)]
    alone = [dev.stream(t).text for t in texts]
    out = [None] * len(texts)

    def run(i):
        with httpx.Client(base_url=dev.url, verify=dev.tls(), http2=True, timeout=120) as c:
            r = c.post("/v1/chat/completions", json=dev.body(texts[i]), headers=dev.head(dev.key_b))
            out[i] = r.json()["choices"][0]["message"]["content"]
    ts = [threading.Thread(target=run, args=(i,)) for i in range(len(texts))]
    [t.start() for t in ts]
    [t.join(120) for t in ts]
    assert out == alone


def test_limits_of_the_context(dev):
    r = dev.client.post("/v1/chat/completions", json=dev.body("word " * 30000), headers=dev.head())
    assert r.status_code == 400 and r.json()["error"]["code"] == "context_length_exceeded", r.text[:300]
    assert "maximum context length" in r.json()["error"]["message"]
    a = dev.stream("Say hi.", max_tokens=10 ** 9, stop=["."])
    assert a.finishes[0] in ("stop", "length")


def test_stop_seed_and_logprobs(dev):
    whole, _ = dev.chat("Count: one, two, three, four, five, six", max_tokens=30, stop=[","])
    assert "," not in whole["choices"][0]["message"]["content"]
    hot = [dev.chat("Tell me something odd.", temperature=1.0, seed=7)[0]["choices"][0]["message"]["content"] for _ in range(2)]
    assert hot[0] == hot[1]
    lp, _ = dev.chat("Say yes.", logprobs=True, top_logprobs=2, max_tokens=3)
    content = lp["choices"][0]["logprobs"]["content"]
    assert len(content) == lp["usage"]["completion_tokens"] and all(len(t["top_logprobs"]) == 2 and t["logprob"] <= 0 for t in content)


def test_up_again_changes_nothing(dev):
    before = open(dev.dir + "/env").read(), json.dumps(sorted(os.listdir(dev.dir + "/pids")))
    dev.run("up", "--wait", timeout=60)
    assert (open(dev.dir + "/env").read(), json.dumps(sorted(os.listdir(dev.dir + "/pids")))) == before
    assert dev.chat("Still there?")[0]["choices"]
