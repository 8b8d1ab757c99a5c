"""HTTP/2 by hand: windows, stalled readers, resets, the goodbye."""
import json
import threading
import time

import pytest
from checks import OUTCOME
from instance import Answer, Instance, until
from rawhttp import H2
from scripted_worker import tokens_in


def answer(x):
    return Answer(x["status"], x["headers"], bytes(x["data"]))


def stream(gate, text, **kw):
    return dict(gate.body(text, **kw), stream=True)


@pytest.mark.parametrize("window", [1, 100])
def test_a_tiny_window_gets_the_whole_answer(gate, window):
    text = "window @tokens=6"
    with H2(gate, initial_window=window, auto=False) as c:
        sid = c.open(body=stream(gate, text))
        x, fed = c.st[sid], window
        while not x["ended"] and x["reset"] is None and not c.eof:
            if len(x["data"]) >= fed:
                step = 1 if fed < 30 else 211
                c.c.increment_flow_control_window(step, stream_id=sid)
                c.c.increment_flow_control_window(step)
                c.flush()
                fed += step
            assert c.pump(5) or len(x["data"]) >= fed, "stuck after %d of %d bytes" % (len(x["data"]), fed)
        assert tokens_in(text, answer(x).clean().text) == 6


def test_many_streams_share_a_connection(gate):
    with H2(gate, initial_window=1 << 20) as c:
        c.c.increment_flow_control_window(1 << 24)
        texts = ["mux-%d @tokens=%d" % (i, i % 20 + 1) for i in range(60)]
        sids = [c.open(body=stream(gate, t)) for t in texts]
        for sid, t in zip(sids, texts):
            x = c.wait(sid, 20)
            a = answer(x).clean()
            assert "".join(a.text) and tokens_in(t, a.text) == int(t.split("=")[1])


def test_a_stalled_reader_holds_back_its_worker_and_nobody_else(gate):
    """16 streams of 50 MB each that nobody reads: the worker stops, memory stays, neighbours go on."""
    rss = gate.procs["gateway"].rss_kib()
    with H2(gate, initial_window=0, auto=False) as c:
        stuck = [c.open(body=stream(gate, "stalled-%d @tokens=3000 @size=16000" % i, max_tokens=4000)) for i in range(16)]
        for s in stuck:
            assert c.wait(s, 10, ("status", "reset"))["reset"] is None
        last = [-1]

        def steady():
            now = sum(r["completion"] for _, r in gate.seen("stalled-"))
            same, last[0] = now == last[0], now
            return same and now
        until(steady, 15, "the workers stand still", every=0.4)
        made = [r["completion"] * 16000 for _, r in gate.seen("stalled-")]
        assert len(made) == 16 and max(made) < 12 << 20, "a worker ran ahead: %s" % made
        assert gate.procs["gateway"].rss_kib() - rss < 160 << 10
        sid = c.open("GET", "/v1/models")
        c.c.increment_flow_control_window(65535, stream_id=sid)
        c.flush()
        assert c.wait(sid, 5)["status"] == 200 and c.st[sid]["ended"]
        assert gate.chat("neighbour @tokens=2")
        assert all(c.st[s]["data"] == b"" for s in stuck)
        for s in stuck[1:]:
            c.c.reset_stream(s, 8)
        c.flush()
        # The one that is read again gets everything, in order.
        c.auto = True
        c.c.increment_flow_control_window(1 << 26)
        c.c.increment_flow_control_window(1 << 24, stream_id=stuck[0])
        c.flush()
        assert c.until(lambda: len(c.st[stuck[0]]["data"]) > 1 << 23, 20)
        c.c.reset_stream(stuck[0], 8)
        c.flush()
        running = lambda: [(p, r["event"], r["state"], r["completion"]) for p, r in gate.seen("stalled-") if r["state"] != "aborted"]
        end = time.monotonic() + 20
        while running():
            assert time.monotonic() < end, "still at work: %s" % running()
            c.pump(0.2)  # a client that does not read is not read from either
    gate.idle()


def test_resets_release_everything(gate):
    with H2(gate) as c:
        for i in range(20):
            sid = c.open(body=stream(gate, "reset-%d @tokens=1000 @rate=50" % i, max_tokens=2000))
            if i % 2:
                c.wait(sid, 5, ("status", "reset"))
            c.c.reset_stream(sid, 8)
            c.flush()
    gate.idle()
    for _, rec in gate.seen("reset-"):
        row = gate.row(rec["event"])
        assert row["outcome"] == OUTCOME["client_abort"] and row["tok_out"] <= rec["completion"] < 300


def test_a_rapid_reset_flood_is_ended(gate):
    with H2(gate) as c:
        for i in range(3000):
            sid = c.c.get_next_available_stream_id()
            c.c.send_headers(sid, [(":method", "POST"), (":scheme", "https"), (":authority", "x"), (":path", "/v1/chat/completions"),
                                   ("authorization", "Bearer " + gate.key)], end_stream=False)
            c.c.reset_stream(sid, 8)
            if i % 50 == 49:
                c.flush()
                c.pump(0)
            if c.eof or c.goaway is not None:
                break
        c.until(lambda: c.goaway is not None, 5)
        assert c.goaway == 11, "ENHANCE_YOUR_CALM is due, got %r" % c.goaway
        c.until(lambda: c.eof, 5)
    assert gate.chat("after the flood @tokens=1")
    gate.idle()


@pytest.mark.parametrize("kind", ["ping", "settings", "empty_data", "window_update"])
def test_control_floods_are_bounded(gate, kind):
    """They end the connection or are survived; others are served, memory stays."""
    rss = gate.procs["gateway"].rss_kib()
    frames = {"ping": b"\0\0\x08\x06\0\0\0\0\0" + b"a" * 8, "settings": b"\0\0\0\x04\0\0\0\0\0", "window_update": b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01"}
    with H2(gate) as c:
        frame = frames.get(kind)
        if kind == "empty_data":
            sid = c.open(headers=[("content-type", "application/json")], end=False)
            frame = b"\0\0\0\0\0" + sid.to_bytes(4, "big")
        try:
            for _ in range(60):
                c.s.sendall(frame * 1000)
        except OSError:
            pass
        c.until(lambda: c.goaway is not None or c.eof, 3)
    assert gate.chat("others are served @tokens=1")
    assert gate.procs["gateway"].rss_kib() - rss < 64 << 10
    gate.idle()


def test_oversized_headers_spare_the_neighbours(gate):
    text = "neighbour-of-big @tokens=20 @rate=40"
    with H2(gate) as c:
        a = c.open(body=stream(gate, text))
        b = c.open("GET", "/v1/models", headers=[("x-big-%d" % i, "v" * 8000) for i in range(6)])
        y = c.wait(b, 5)
        assert y["status"] in (400, 431) or y["reset"] is not None or c.goaway is not None
        if c.goaway is None and not c.eof:
            assert tokens_in(text, answer(c.wait(a, 10)).clean().text) == 20
    assert gate.chat("fine @tokens=1")


def test_bad_pseudo_headers_are_refused(gate):
    good = [(":method", "GET"), (":scheme", "https"), (":authority", "x"), (":path", "/health")]
    bad = [good[:3], [good[0], good[0]] + good[1:], good + [("connection", "close")], good + [("X-Upper", "1")], good + [("te", "gzip")], good + [(":path", "/x")],
           good + [("x-nl", "a\nb")], [(":method", "GET"), (":scheme", "https"), (":authority", "x"), (":path", "")]]
    for fields in bad:
        with H2(gate) as c:
            sid = c.c.get_next_available_stream_id()
            c.st[sid] = {"status": None, "headers": {}, "data": bytearray(), "ended": False, "reset": None}
            c.c.send_headers(sid, fields, end_stream=True)
            c.flush()
            x = c.wait(sid, 3)
            assert x["reset"] is not None or c.goaway is not None or c.eof or x["status"] in (400, 404), (fields, x)
    assert gate.chat("fine @tokens=1")


def test_content_length_that_lies(gate):
    data = json.dumps(gate.body("liar @tokens=1")).encode()
    for n in (len(data) - 1, len(data) + 1):
        with H2(gate) as c:
            sid = c.open(headers=[("content-length", str(n)), ("content-type", "application/json")], end=False)
            c.write(sid, data)
            x = c.wait(sid, 3)
            assert x["reset"] is not None or c.goaway is not None or x["status"] == 400, x
    assert not gate.seen("liar")


def test_a_goodbye_lets_running_streams_finish():
    """SIGTERM: GOAWAY, the stream runs to its end, the connection closes, exit 0, the row is there."""
    with Instance(workers=1) as g:
        text = "goodbye @tokens=40 @rate=30"
        with H2(g) as c:
            sid = c.open(body=stream(g, text))
            c.until(lambda: b"content" in c.st[sid]["data"], 5)
            g.procs["gateway"].p.terminate()
            assert c.until(lambda: c.goaway is not None, 5) and c.goaway == 0
            x = c.wait(sid, 10)
            a = answer(x).clean()
            assert tokens_in(text, a.text) == 40
            c.until(lambda: c.eof, 5)
            assert c.eof
        assert g.term() == 0
        assert g.row(a.request_id)["tok_out"] == 40
        assert any(e.get("event") == "stopped" and "in Postgres" in e["message"] for e in g.log_events())


def test_h2_and_h1_at_once(gate):
    out = []

    def run(i):
        c = gate.http(clear=i % 2 == 1)
        a = gate.stream("mixed-%d @tokens=15 @rate=100" % i, client=c)
        out.append(tokens_in("mixed-%d @tokens=15 @rate=100" % i, a.clean().text))
    ts = [threading.Thread(target=run, args=(i,)) for i in range(12)]
    [t.start() for t in ts]
    [t.join(20) for t in ts]
    assert out == [15] * 12
