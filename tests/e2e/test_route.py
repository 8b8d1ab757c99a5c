"""Where requests go: retries, prefixes, what the rows say about it."""
import concurrent.futures
import os
import socket
import threading
import time

from checks import OUTCOME, envelope
from instance import Instance, until
from scripted_worker import tokens_in

REASON = {"best": 1, "tie_fewer": 2, "tie_rendezvous": 3, "only_one": 4, "load_only": 5, "retry": 6}
LONG = "This is a long common beginning that many requests share, word for word, so that it can be reused. " * 30


def find_retry(gate, order, tag):
    """A request whose first worker obeyed the order: (answer, rows). Fails when routing never chose it."""
    port = gate.worker_ports[0]
    for i in range(40):
        text = "%s-%d @tokens=5 %s @at=%d" % (tag, i, order, port)
        a = gate.stream(text)
        if any(p == port for p, _ in gate.seen("%s-%d " % (tag, i), gate.worker_ports)):
            return a, text
    raise AssertionError("no request of 40 went to worker %d first" % port)


def test_refused_before_the_first_byte_goes_to_the_other(gate):
    for order, tag in (("@status=503", "r503"), ("@status=500", "r500"), ("@die", "rdie"), ("@inband", "rinband")):
        a, text = find_retry(gate, order, tag)
        assert tokens_in(text, a.clean().text) == 5
        first, second = gate.row(a.request_id, 2)
        assert (first["attempt"], second["attempt"]) == (1, 2) and first["event_id"] != second["event_id"]
        assert first["cost_pusd"] == 0 and first["outcome"] in (OUTCOME["refused_by_worker"], OUTCOME["worker_error"])
        assert second["route_reason"] == REASON["retry"] and second["worker_id"] != first["worker_id"] and second["tok_out"] == 5
        assert str(first["event_id"]) == str(first["request_id"]), "the request bears the first attempt's id"


def test_a_whole_answer_is_retried_as_well(gate):
    port = gate.worker_ports[0]
    for i in range(40):
        r = gate.chat("whole-retry-%d @tokens=2 @status=503 @at=%d" % (i, port))
        assert r["usage"]["completion_tokens"] == 2
        if len(gate.seen("whole-retry-%d " % i)) == 2:
            return
    raise AssertionError("never retried")


def test_a_dead_worker_is_left_out_and_comes_back():
    with Instance(workers=2) as g:
        g.kill9("worker1")
        for i in range(10):
            g.chat("dead-%d @tokens=1" % i)
        until(lambda: [w["health"] for w in g.ctl("worker", "list")["data"]].count("down") == 1, 5, "seen as down")
        g.restart("worker1")
        until(lambda: all(w["health"] == "up" for w in g.ctl("worker", "list")["data"]), 5, "seen as up")
        before = len(g.generated())
        until(lambda: g.chat("back-%d @tokens=1" % len(g.generated())) and any(r["event"] in g.generated() for _, r in g.seen("back-", g.worker_ports[:1])), 10, "it gets work again")
        assert len(g.generated()) > before


def test_nobody_there_is_a_503_with_retry_after():
    with Instance(workers=1) as g:
        g.kill9("worker1")
        r = until(lambda: (lambda x: x if x.status_code == 503 else None)(g.post(g.body("x"))), 10, "a 503")
        envelope(r, 503)
        assert int(r.headers["retry-after"]) >= 1
        g.idle()


def test_no_retry_after_the_first_byte(gate):
    a, text = find_retry(gate, "@cut=3", "cut-after")
    assert len(a.errors) == 1 and not a.done and tokens_in(text, a.text) == 3
    assert len(gate.seen(text[:text.index(" ") + 1])) == 1
    row = gate.row(a.request_id)
    assert row["tok_out"] == 3 and row["outcome"] == OUTCOME["worker_error"]


def test_at_most_two_other_workers():
    with Instance(workers=4) as g:
        r = g.post(g.body("all-refuse @status=503"))
        envelope(r, (502, 503))
        assert len(g.seen("all-refuse")) == 3 and len({p for p, _ in g.seen("all-refuse")}) == 3
        assert "retry-after" in r.headers
        g.idle()


def test_a_client_error_is_not_retried(gate):
    r = gate.post(gate.body("teapot @status=400"))
    envelope(r, 400)
    assert len(gate.seen("teapot")) == 1
    r = gate.post(gate.body("teacup @status=422"))
    assert 400 <= r.status_code < 500 and len(gate.seen("teacup")) == 1
    assert all(w["health"] == "up" for w in gate.ctl("worker", "list")["data"])


def test_a_429_of_a_worker_goes_elsewhere_or_back_with_retry_after(gate):
    r = gate.post(gate.body("busy @status=429"))
    envelope(r, (429, 503))
    assert int(r.headers["retry-after"]) >= 1


def test_the_shared_prefix_goes_home(gate):
    """A second request with the same beginning goes where the first one went; the row says why, what
    was expected in the cache and what was there."""
    homes = set()
    for i in range(8):
        system = "home-%d. %s" % (i, LONG)
        rows = []
        for turn in range(3):
            body = gate.body("turn-%d-%d @tokens=2" % (i, turn))
            body["messages"].insert(0, {"role": "system", "content": system})
            r = gate.post(body)
            assert r.status_code == 200
            rows.append((gate.row(r.headers["x-request-id"]), r.json()["usage"]))
        (first, _), *later = rows
        homes.add(first["worker_id"])
        assert first["tok_in_cached"] == 0 and first["tok_in_cached_predicted"] == 0
        assert first["route_reason"] in (REASON["best"], REASON["tie_fewer"], REASON["tie_rendezvous"])
        for row, usage in later:
            assert row["worker_id"] == first["worker_id"] and row["route_reason"] == REASON["best"]
            assert row["tok_in_cached"] > 600 and usage["prompt_tokens_details"]["cached_tokens"] == row["tok_in_cached"]
            assert abs(row["tok_in_cached_predicted"] - row["tok_in_cached"]) <= 32 + 64 + 16, row
    assert len(homes) == 2, "every conversation went to one worker"


def test_events_tell_a_new_gateway_who_holds_what():
    """After a restart the gateway knows from the workers alone where each prefix is."""
    with Instance(workers=3) as g:
        home = {}

        def ask(i, turn):
            body = g.body("after-%d-%d @tokens=1" % (i, turn))
            body["messages"].insert(0, {"role": "system", "content": "events-%d. %s" % (i, LONG)})
            r = g.post(body)
            assert r.status_code == 200
            return g.row(r.headers["x-request-id"])
        for i in range(6):
            home[i] = ask(i, 0)["worker_id"]
        assert g.term() == 0
        g.client.close()
        g.restart("gateway")
        g.wait_workers()
        for i in range(6):
            row = ask(i, 1)
            assert row["worker_id"] == home[i] and row["tok_in_cached_predicted"] > 600 and row["tok_in_cached"] > 600, row


def test_a_restarted_worker_is_known_to_be_empty():
    with Instance(workers=1) as g:
        def ask(turn):
            return g.row(g.chat(LONG + "empty-%d @tokens=1" % turn)["request_id"])
        ask(0)
        assert ask(1)["tok_in_cached_predicted"] > 600
        g.kill9("worker1")
        until(lambda: g.ctl("worker", "list")["data"][0]["health"] == "down", 5, "down")
        g.restart("worker1")
        g.wait_workers()
        until(lambda: g.metrics()["tollgate_whohas_entries"] == 0 or g.worker_ctl(g.worker_ports[0], "stats")["hashes"] == 0, 5, "resynced")
        row = ask(2)
        assert row["tok_in_cached"] == 0 and row["tok_in_cached_predicted"] == 0, row


def test_a_drained_worker_gets_nothing_new_and_ends_what_it_has():
    with Instance(workers=2) as g:
        text = "draining @tokens=60 @rate=40"
        out = []
        c = g.http()
        t = threading.Thread(target=lambda: out.append(g.stream(text, client=c)))
        t.start()
        (port, _), = until(lambda: g.seen("draining"), 5, "it runs")
        g.ctl("worker", "drain", "http://127.0.0.1:%d" % port)
        for i in range(10):
            g.chat("elsewhere-%d @tokens=1" % i)
        assert not [p for p, _ in g.seen("elsewhere-") if p == port]
        t.join(10)
        assert tokens_in(text, out[0].clean().text) == 60
        g.ctl("worker", "remove", "http://127.0.0.1:%d" % port)
        assert len(g.ctl("worker", "list")["data"]) == 1
        g.idle()


def test_load_is_spread(gate):
    ts = [threading.Thread(target=gate.stream, args=("spread-%d @tokens=10 @rate=20" % i,), kwargs={"client": c}) for i, c in enumerate([gate.http() for _ in range(12)])]
    [t.start() for t in ts]
    [t.join(20) for t in ts]
    per = [len(gate.seen("spread-", [p])) for p in gate.worker_ports]
    assert sum(per) == 12 and min(per) >= 3, per


def test_our_own_want_of_descriptors_is_no_fault_of_the_worker():
    """No descriptor is left for a connection to the worker: 503, and the worker stays up."""
    most = 120
    with Instance(workers=1, loops=1, wrap=["prlimit", "--nofile=%d:%d" % (most, most)]) as g:
        def of_workers():
            return [e["event"] for e in g.log_events() if e.get("event") in ("worker_up", "worker_down")]

        def descriptors():
            return len(os.listdir("/proc/%d/fd" % g.procs["gateway"].p.pid))

        long, short, out, socks = g.http(), g.http(), [], []
        assert short.get("/v1/models").status_code == 200
        before = of_workers()
        t = threading.Thread(target=lambda: out.append(g.stream("holder @tokens=120 @rate=20", client=long, max_tokens=200)))
        t.start()
        until(lambda: g.seen("holder"), 5, "the kept connection to the worker is in use")
        try:
            for _ in range(most + 20):  # some wait in the backlog, so that none that gets free stays free
                s = socket.socket()
                s.connect(("127.0.0.1", g.p_clear))
                socks.append(s)
            until(lambda: descriptors() >= most, 10, "all descriptors are taken")
            for i in range(5):
                r = short.post("/v1/chat/completions", json=g.body("want-%d @tokens=1" % i))
                assert r.status_code == 503 and float(r.headers["retry-after"]) >= 1, (r.status_code, r.text)
        finally:
            for s in socks:
                s.close()
        assert not g.seen("want-")
        until(lambda: g.post(g.body("again @tokens=2")).status_code == 200, 10, "served again")
        t.join(20)
        out[0].clean()
        end = time.monotonic() + 1.2  # two probes and more: a worker that had been put down would come up again
        while time.monotonic() < end:
            assert all(w["health"] == "up" for w in g.ctl("worker", "list")["data"])
        assert of_workers() == before


def test_a_retry_and_the_head_that_waits_do_not_meet():
    """A worker refuses just before the client would be told to wait: the head must not go out between two attempts."""
    with Instance(workers=2, options={"requests.head_hold": "1s"}) as g:
        def ask(i, k):
            return g.stream("backoff-%d-%d @tokens=2 @slow=%d @status=503" % (i, k, 955 + 6 * k)).status
        for i in range(8):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                assert set(pool.map(lambda k: ask(i, k), range(8))) <= {200, 503}
            assert g.procs["gateway"].alive(), g.tail(60)
        g.idle()
