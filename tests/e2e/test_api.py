"""The public API: the official client, the bytes of a stream, and what bad input is answered."""
import gzip
import json
import threading
import time

import httpx
import openai
import pytest
import zstandard
from checks import envelope
from instance import until
from rawhttp import H1, H2
from scripted_worker import expected, tokens_in


@pytest.fixture(scope="module")
def sdk(shared):
    c = openai.OpenAI(base_url=shared.url + "/v1", api_key=shared.key, max_retries=0, timeout=30, http_client=_sdk_http(shared))
    yield c
    c.close()


def _sdk_http(g):
    """Newer SDKs take httpx2's client, older ones httpx's."""
    try:
        import httpx2
        return httpx2.Client(verify=g.tls_context(), timeout=30)
    except ImportError:
        return httpx.Client(verify=g.tls_context(), http2=True, timeout=30)


def ask(text, **kw):
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], "max_tokens": 64, **kw}


# ---- the official client ----

def test_the_sdk_gets_a_whole_answer(gate, sdk):
    text = "whole @tokens=12"
    r = sdk.chat.completions.create(**ask(text))
    assert r.choices[0].message.content == "".join(expected(text, 12))
    assert r.choices[0].finish_reason == "stop" and r.object == "chat.completion" and r.model == "scripted"
    assert r.usage.completion_tokens == 12 and r.usage.total_tokens == r.usage.prompt_tokens + 12


def test_the_sdk_streams(gate, sdk):
    text = "streamed @tokens=40"
    parts, finishes, ids = [], [], set()
    for c in sdk.chat.completions.create(**ask(text), stream=True):
        ids.add((c.id, c.created))
        if c.choices:
            parts.append(c.choices[0].delta.content or "")
            finishes.append(c.choices[0].finish_reason)
    assert "".join(parts) == "".join(expected(text, 40))
    assert len(ids) == 1 and finishes[-1] == "stop" and finishes.count(None) == len(finishes) - 1


def test_the_sdk_helper_assembles_a_stream(gate, sdk):
    text = "helper @tokens=9"
    with sdk.chat.completions.stream(**ask(text), stream_options={"include_usage": True}) as s:
        done = s.get_final_completion()
    assert done.choices[0].message.content == "".join(expected(text, 9)) and done.usage.completion_tokens == 9


def test_the_sdk_completes_text(gate, sdk):
    text = "complete me @tokens=7"
    r = sdk.completions.create(model="scripted", prompt=text, max_tokens=50)
    assert r.choices[0].text == "".join(expected(text, 7)) and r.object == "text_completion"
    got = "".join(c.choices[0].text for c in sdk.completions.create(model="scripted", prompt=text, max_tokens=50, stream=True) if c.choices)
    assert got == r.choices[0].text


def test_the_sdk_lists_models(gate, sdk):
    names = [m.id for m in sdk.models.list()]
    assert "scripted" in names and "scripted-openai" in names
    m = sdk.models.retrieve("scripted")
    assert m.id == "scripted" and m.object == "model" and m.created > 0
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("nope")


def test_the_sdk_raises_what_it_should(gate, sdk):
    with pytest.raises(openai.NotFoundError) as e:
        sdk.chat.completions.create(**{**ask("x"), "model": "nope"})
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as e:
        sdk.chat.completions.create(model="scripted", messages=[])
    assert e.value.param == "messages"
    with pytest.raises(openai.AuthenticationError):
        sdk.with_options(api_key="tg_wrong").chat.completions.create(**ask("x"))
    with pytest.raises(openai.APIError):
        for _ in sdk.chat.completions.create(**ask("broken @tokens=9 @cut=3"), stream=True):
            pass
    with pytest.raises(openai.InternalServerError):
        sdk.chat.completions.create(**ask("refused @status=500"))


def test_closing_a_stream_stops_the_worker_and_bills_what_was_made(gate, sdk):
    text = "cancel-me @tokens=5000 @rate=100"
    s = sdk.chat.completions.create(**ask(text, max_tokens=5000), stream=True)
    got = 0
    for c in s:
        got += bool(c.choices and c.choices[0].delta.content)
        if got == 5:
            break
    s.close()
    rec = until(lambda: next((r for _, r in gate.seen("cancel-me") if r["state"] == "aborted"), None), 5, "the worker stopped")
    assert 5 <= rec["completion"] < 200
    row = gate.row(rec["event"])
    assert row["tok_out"] == rec["completion"] and row["outcome"] == 2 and row["usage_state"] == 1
    assert gate.seen("cancel-me")[0][1]["completion"] == rec["completion"], "it went on after the abort"


def test_openai_engine_gets_no_header_of_ours(gate):
    gate.stream("foreign @tokens=3", model="scripted-openai").clean()
    (_, rec), = gate.seen("foreign")
    assert not [h for h in rec["headers"] if h.startswith("x-tollgate")] and "authorization" not in rec["headers"]


# ---- the bytes of a stream ----

def test_stream_framing(gate):
    text = "framing @tokens=6"
    with H1(gate) as c:
        data = json.dumps(dict(ask(text), stream=True, stream_options={"include_usage": True})).encode()
        c.send(c.head(headers=[("Content-Type", "application/json"), ("Content-Length", len(data))]) + data)
        status, h, body = c.response()
        assert status == 200 and h["content-type"] == "text/event-stream; charset=utf-8"
        assert h["cache-control"] == "no-cache" and h["x-accel-buffering"] == "no" and "content-encoding" not in h
        assert len(h["x-request-id"]) == 36 and h["openai-version"] == "2020-10-01" and int(h["openai-processing-ms"]) >= 0
        assert b"\r" not in body and body.endswith(b"data: [DONE]\n\n")
        events = body.decode().split("\n\n")[:-1]
        assert all(e.startswith("data: ") and "\n" not in e for e in events)
        chunks = [json.loads(e[6:]) for e in events[:-1]]
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [k["choices"][0]["finish_reason"] for k in chunks[:-1]] == [None] * 7 + ["stop"]
        assert chunks[-2]["choices"][0]["delta"] == {}, "text inside the finish chunk"
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 6
        assert all(k["usage"] is None for k in chunks[:-1]), "usage: null is due before the usage chunk"
        assert len({(k["id"], k["created"], k["object"], k["model"]) for k in chunks}) == 1
        c.send(c.head("GET", "/v1/models"))
        assert c.response()[0] == 200, "the connection is kept"


def test_no_usage_unless_asked(gate):
    a = gate.stream("nousage @tokens=3").clean()
    assert not a.usages and all(k["choices"] for k in a.chunks) and not any("usage" in k and k["usage"] for k in a.chunks)


@pytest.mark.parametrize("model", ["scripted", "scripted-openai"])
def test_length_and_max_completion_tokens(gate, model):
    for limits in ({"max_tokens": 5}, {"max_tokens": 9, "max_completion_tokens": 5}, {"max_tokens": ..., "max_completion_tokens": 5}):
        a = gate.stream("long @tokens=50", model=model, stream_options={"include_usage": True}, **limits).clean()
        assert a.finishes == ["length"] and a.usages[-1]["completion_tokens"] == 5
        assert tokens_in("long @tokens=50", a.text) == 5


@pytest.mark.parametrize("order", ["@cut=3", "@end=3", "@nofinish", "@garbage=3"])
@pytest.mark.parametrize("model", ["scripted", "scripted-openai"])
def test_a_broken_worker_never_looks_like_an_end(gate, order, model):
    text = "broken @tokens=6 " + order
    a = gate.stream(text, model=model)
    assert a.status == 200 and a.broken is None and not a.done and not a.finishes
    e, = a.errors
    assert e["code"] == "upstream_error" and e["message"] and set(e) == {"message", "type", "param", "code"}
    assert 3 <= tokens_in(text, a.text) <= 6
    envelope(gate.post(gate.body(text, model=model)), 502, "upstream_error")


@pytest.mark.parametrize("streamed", [True, False])
def test_an_error_inside_a_200_becomes_a_status(gate, streamed):
    envelope(gate.post(dict(gate.body("inband @inband"), stream=streamed)), (500, 502, 503))


def test_a_late_first_token_is_bridged_by_comments(shared):
    from instance import Instance
    with Instance(workers=1, options={"requests.head_hold": "1s", "requests.keepalive_interval": "1s"}) as g:
        a = g.stream("late @tokens=2 @wait=2500").clean()
        assert a.comments >= 2 and tokens_in("late @tokens=2 @wait=2500", a.text) == 2


# ---- bad input: section 5 of what a gateway must withstand ----

def nested(n):
    return b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"x":' + b"[" * n + b"]" * n + b"}"


BAD_JSON = {
    "empty": b"", "open": b"{", "truncated": b'{"model":"scripted","messages":[{"role":"user","content":"x"}', "list": b"[]", "scalar": b"7",
    "trailing": b'{"model":"scripted","messages":[{"role":"user","content":"x"}]} x', "single_quotes": b"{'model':'scripted'}",
    "nan": b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "two_models": b'{"model":"scripted","model":"other","messages":[{"role":"user","content":"x"}]}',
    "two_max": b'{"model":"scripted","max_tokens":1,"max_tokens":100000,"messages":[{"role":"user","content":"x"}]}',
    "deep": nested(10000), "bad_utf8": b'{"model":"scripted","messages":[{"role":"user","content":"a\xff\xfeb"}]}',
    "overlong": b'{"model":"scripted","messages":[{"role":"user","content":"\xc0\xaf"}]}',
    "surrogate_bytes": b'{"model":"scripted","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    "raw_nul": b'{"model":"scripted","messages":[{"role":"user","content":"a\x00b"}]}',
    "raw_newline": b'{"model":"scripted","messages":[{"role":"user","content":"a\nb"}]}',
    "bom_utf16": '{"model":"scripted"}'.encode("utf-16"), "number": b'{"model":"scripted","max_tokens":01,"messages":[{"role":"user","content":"x"}]}',
}


@pytest.mark.parametrize("name", sorted(BAD_JSON))
def test_malformed_json_is_a_400(gate, name):
    before = len(gate.rows())
    envelope(gate.post(BAD_JSON[name]), 400)
    assert len(gate.rows()) == before and not gate.metrics()["tollgate_holds_open"]


BAD_FIELDS = [
    ("messages", []), ("messages", None), ("messages", "x"), ("messages", {}), ("messages", [1]), ("messages", [{"role": "user"}]),
    ("messages", [{"role": "king", "content": "x"}]), ("messages", [{"content": "x"}]), ("messages", [{"role": "user", "content": 7}]),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}]), ("messages", [{"role": "tool", "content": "x"}]),
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", "5"), ("max_tokens", 1.5), ("max_completion_tokens", 0), ("max_completion_tokens", -3),
    ("temperature", 2.1), ("temperature", -1), ("temperature", "hot"), ("temperature", 1e308), ("top_p", 1.5), ("presence_penalty", 3), ("frequency_penalty", -9),
    ("n", 0), ("n", 1000), ("stop", ["a"] * 5), ("stop", [1]), ("stop", ""), ("top_logprobs", 21), ("logit_bias", {"1": 101}), ("logit_bias", []),
    ("stream", "yes"), ("stream_options", 3), ("tools", {}), ("tools", [{}]), ("tool_choice", 5), ("response_format", {"type": "xml"}),
    ("service_tier", "gold"), ("model", 7), ("model", None), ("model", ""),
]


@pytest.mark.parametrize("field,value", BAD_FIELDS, ids=["%s-%d" % (f, i) for i, (f, _) in enumerate(BAD_FIELDS)])
def test_a_wrong_field_is_a_400_that_names_it(gate, field, value):
    e = envelope(gate.post({**gate.body("x @tokens=1"), "logprobs": True, field: value}), 400)
    assert e["type"] == "invalid_request_error"
    assert e["param"] is None or e["param"].startswith(field), e
    assert gate.metrics()["tollgate_holds_open"] == 0


GOOD_FIELDS = [
    {"max_tokens": 10 ** 9}, {"seed": 2 ** 63 - 1}, {"seed": -2 ** 63}, {"unknown_field": {"a": [1]}}, {"stop": None}, {"tools": []}, {"user": "u"},
    {"metadata": {"a": "b"}, "store": False, "prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "service_tier": "auto"},
    {"temperature": None, "top_p": None, "n": 1}, {"messages": [{"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "text", "text": "hi @tokens=2"}]}]},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                  {"role": "tool", "tool_call_id": "c", "content": "r"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "go @tokens=2"}]},
    {"messages": [{"role": "user", "content": "nul \u0000 and lone \\ud83d is fine @tokens=2"}]},
]


@pytest.mark.parametrize("i", range(len(GOOD_FIELDS)))
def test_what_clients_really_send_is_accepted(gate, i):
    r = gate.post({**gate.body("ok @tokens=2"), **GOOD_FIELDS[i]})
    assert r.status_code == 200, r.text[:300]


def test_a_lone_surrogate_is_replaced(gate):
    r = gate.post(b'{"model":"scripted","messages":[{"role":"user","content":"lone-surrogate \\ud83d y @tokens=2"}]}')
    assert r.status_code == 200, r.text
    (_, rec), = gate.seen("lone-surrogate")
    assert rec["body"]["messages"][0]["content"] == "lone-surrogate \ufffd y @tokens=2"


def test_an_unknown_model_is_a_404_and_an_unpriced_one_a_403(gate):
    envelope(gate.post({**gate.body("x"), "model": "nope"}), 404, "model_not_found", "model")
    p = gate.openai_ports[0]
    try:
        gate.ctl("worker", "add", "--url", "http://127.0.0.1:%d" % p, "--engine", "openai", "--model", "scripted-openai,free-of-charge")
        envelope(gate.post({**gate.body("x"), "model": "free-of-charge"}), 403, "model_not_priced")
        assert "free-of-charge" not in gate.client.get("/v1/models", headers={"authorization": "Bearer " + gate.key}).text
        until(lambda: any(e.get("event") == "model_not_priced" for e in gate.log_events()), 3, "the log says so")
    finally:
        gate.ctl("worker", "add", "--url", "http://127.0.0.1:%d" % p, "--engine", "openai", "--model", "scripted-openai")


def post_with(gate, *fields):
    """One request with exactly these authentication fields, as bytes."""
    data = json.dumps(gate.body("x @tokens=1")).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: gate", "Content-Type: application/json", "Content-Length: %d" % len(data), *fields]
    with H1(gate) as c:
        c.send(("\r\n".join(lines) + "\r\n\r\n").encode() + data)
        return c.response()


def test_keys(gate):
    bad = ["Authorization: Bearer tg_wrong", "Authorization: Bearer ", "Authorization: Bearer", "Authorization:", "Authorization: Basic eDp5", "Authorization: " + gate.key,
           "Authorization: Bearer " + gate.key[:-1], "Authorization: Bearer " + gate.key + "x", "Authorization: Bearer " + gate.key.upper(), "x-api-key: tg_" + "0" * 40,
           "Authorization: Bearer " + "a" * 20000]
    for field in [()] + [(f,) for f in bad]:
        got = post_with(gate, *field)
        envelope(got, 401, "invalid_api_key")
        assert got[1]["www-authenticate"] == "Bearer"
    for field in ("Authorization: Bearer " + gate.key, "authorization: bearer " + gate.key, "AUTHORIZATION: BEARER  " + gate.key, "x-api-key: " + gate.key):
        assert post_with(gate, field)[0] == 200, field.replace(gate.key, "KEY")


def test_a_revoked_key_is_refused_within_a_second(gate):
    key, key_id = gate.tenant()
    assert gate.post(gate.body("x @tokens=1"), key=key).status_code == 200
    gate.ctl("key", "revoke", key_id)
    t = time.monotonic()
    until(lambda: gate.post(gate.body("x @tokens=1"), key=key).status_code == 401, 1.0, "the revoked key is refused")
    assert time.monotonic() - t < 1.0


def test_a_revoke_by_another_hand_is_seen_within_a_second(gate):
    """Another gateway's change: only the NOTIFY or the poll tells."""
    key, key_id = gate.tenant()
    assert gate.post(gate.body("x @tokens=1"), key=key).status_code == 200
    gate.sql("UPDATE api_key SET revoked_at = now() WHERE key_id = %s", key_id)
    until(lambda: gate.post(gate.body("x @tokens=1"), key=key).status_code == 401, 1.5, "the revoked key is refused")


def test_a_running_stream_survives_a_config_change(gate):
    text = "survivor @tokens=60 @rate=60"
    out = []
    t = threading.Thread(target=lambda: out.append(gate.stream(text, client=c)))
    c = gate.http()
    t.start()
    until(lambda: gate.seen("survivor"), 5, "it runs")
    for _ in range(3):
        gate.tenant()
    t.join(20)
    assert tokens_in(text, out[0].clean().text) == 60


def test_paths_and_methods(gate):
    get = lambda p, **kw: gate.client.get(p, **kw)
    for p in ("/health", "/ready", "/"):
        assert httpx.get(gate.clear_url + p).status_code == 200 and httpx.head(gate.clear_url + p).status_code == 200
    for p in ("/metrics", "/admin/tenants", "/v1/nope", "/v1/chat/completionsx", "/..//etc/passwd", "/v1/files"):
        envelope(get(p), 404)
    envelope(get("/v1/models/nope"), 404, "model_not_found")
    for method, p in (("GET", "/v1/chat/completions"), ("DELETE", "/v1/chat/completions"), ("PUT", "/v1/completions"), ("POST", "/v1/models")):
        r = gate.client.request(method, p)
        envelope(r, 405)
        assert r.headers["allow"]
    r = gate.client.options("/v1/chat/completions", headers={"origin": "https://x", "access-control-request-headers": "authorization,x-stainless-os"})
    assert r.status_code == 204 and "authorization" in r.headers["access-control-allow-headers"]
    for p in ("//v1/chat/completions", "/v1/chat/completions/", "/v1//chat/completions", "/v1/chat/completions?beta=true"):
        assert gate.post(gate.body("x @tokens=1"), path=p).status_code == 200, p


# ---- bodies ----

def test_encodings(gate):
    raw = json.dumps(gate.body("encoded @tokens=2")).encode()
    for enc, data in (("gzip", gzip.compress(raw)), ("zstd", zstandard.ZstdCompressor().compress(raw)), ("identity", raw)):
        r = gate.post(data, headers={"content-encoding": enc})
        assert r.status_code == 200, (enc, r.text)
    envelope(gate.post(raw, headers={"content-encoding": "br"}), 415)
    envelope(gate.post(raw, headers={"content-encoding": "gzip, gzip"}), 415)
    envelope(gate.post(gzip.compress(raw)[:-9], headers={"content-encoding": "gzip"}), 400)
    envelope(gate.post(b"\x1f\x8bnonsense", headers={"content-encoding": "gzip"}), 400)
    envelope(gate.post(zstandard.ZstdCompressor().compress(raw)[:-5], headers={"content-encoding": "zstd"}), 400)


@pytest.mark.parametrize("enc", ["gzip", "zstd"])
def test_a_bomb_is_refused_fast(gate, enc):
    rss = gate.procs["gateway"].rss_kib()
    if enc == "zstd":
        c = zstandard.ZstdCompressor().compressobj(size=-1)
    else:
        import zlib
        c = zlib.compressobj(9, zlib.DEFLATED, 31)
    zero = b" " * (1 << 20)
    data = b"".join(c.compress(zero) for _ in range(300)) + c.flush()
    t = time.monotonic()
    envelope(gate.post(data, headers={"content-encoding": enc}), 413)
    assert time.monotonic() - t < 5
    assert gate.procs["gateway"].rss_kib() - rss < 120 << 10


def test_a_body_too_large_is_refused_before_it_is_read(gate):
    with H1(gate) as c:
        c.send(c.head(headers=[("Content-Type", "application/json"), ("Content-Length", 64 << 20)]))
        envelope(c.response(), 413)
    with H2(gate) as c:
        sid = c.open(headers=[("content-type", "application/json"), ("content-length", str(64 << 20))], end=False)
        x = c.wait(sid, 5, ("status",))
        assert x["status"] == 413


def test_a_chunked_body_too_large_is_refused_on_the_way(shared):
    from instance import Instance
    with Instance(workers=1, options={"requests.body_bytes_max": "64KiB"}) as g:
        with H1(g) as c:
            c.send(c.head(headers=[("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")]))
            try:
                for _ in range(40):
                    c.send(b"1000\r\n" + b" " * 4096 + b"\r\n")
            except ConnectionError:
                pass
            assert c.response()[0] == 413
        assert g.chat("still fine @tokens=1")
        g.idle()


def test_a_big_prompt_arrives_whole(gate):
    text = "big @tokens=2 " + "naïve text 你好 " * 100000
    a = gate.stream(text).clean()
    assert tokens_in(text, a.text) == 2
    assert gate.row(a.request_id)["tok_in_uncached"] > 100000


def test_expect_100_continue_and_chunked(gate):
    data = json.dumps(gate.body("expect @tokens=1")).encode()
    with H1(gate) as c:
        c.send(c.head(headers=[("Content-Type", "application/json"), ("Content-Length", len(data)), ("Expect", "100-continue")]))
        assert c.response()[0] == 100
        c.send(data)
        assert c.response()[0] == 200
        c.send(c.head(headers=[("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")]))
        for p in (data[:1], data[1:9], data[9:]):
            c.send(b"%x;x=1\r\n%s\r\n" % (len(p), p))
        c.send(b"0\r\nX-Trailer: 1\r\n\r\n")
        assert c.response()[0] == 200


SMUGGLE = {
    "cl_te": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "te_space": "Transfer-Encoding : chunked\r\n", "two_cl": "Content-Length: 5\r\nContent-Length: 6\r\n",
    "cl_plus": "Content-Length: +5\r\n", "cl_hex": "Content-Length: 0x5\r\n", "cl_list": "Content-Length: 5, 5\r\n", "obs_fold": "X-A: 1\r\n  2\r\nContent-Length: 5\r\n",
    "te_twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "te_odd": "Transfer-Encoding: xchunked\r\n", "te_gzip": "Transfer-Encoding: gzip, chunked\r\n",
    "nul_name": "X\0A: 1\r\nContent-Length: 5\r\n", "no_colon": "Nonsense\r\nContent-Length: 5\r\n", "two_hosts": "Host: other\r\nContent-Length: 5\r\n", "bare_cr": "X-A: 1\rX-B: 2\r\nContent-Length: 5\r\n",
}


@pytest.mark.parametrize("name", sorted(SMUGGLE))
def test_ambiguous_framing_ends_the_connection(gate, name):
    before = gate.metrics()["tollgate_requests_total"]
    with H1(gate) as c:
        second = "GET /v1/models HTTP/1.1\r\nHost: gate\r\nAuthorization: Bearer %s\r\n\r\n" % gate.key
        c.send(("POST /v1/chat/completions HTTP/1.1\r\nHost: gate\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n%s\r\n0\r\n\r\n%s"
                % (gate.key, SMUGGLE[name], second)).encode("latin-1"))
        status, _, _ = c.response()
        assert status in (400, 501, None), status
        if status is not None:
            assert c.closed() and c.buf == b"", "the connection went on"
    assert gate.metrics()["tollgate_requests_total"] == before


@pytest.mark.parametrize("what", ["garbage", "tls_on_clear", "h2_on_clear_cut", "long_line", "many_headers", "http09", "absolute", "no_host"])
def test_odd_first_bytes(gate, what):
    data = {"garbage": b"\x00\x01\x02\r\n\r\n", "tls_on_clear": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 64 + b"\r\n\r\n", "h2_on_clear_cut": b"PRI * HTTP/2.0\r\n\r\nXX",
            "long_line": b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", "many_headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"x-%d: 1\r\n" % i for i in range(300)) + b"\r\n",
            "http09": b"GET /health\r\n\r\n", "absolute": b"GET http://x/health HTTP/1.1\r\nHost: x\r\n\r\n", "no_host": b"GET /health HTTP/1.1\r\n\r\n"}[what]
    with H1(gate, timeout=5) as c:
        try:
            c.send(data)
            status, _, _ = c.response(5)
        except ConnectionError:
            status = None
        assert status in ((200, 400) if what == "absolute" else (400, 414, 431, 505, None)), status
    assert httpx.get(gate.clear_url + "/health").status_code == 200


def test_a_client_that_leaves_mid_body_leaves_nothing(gate):
    for _ in range(5):
        with H1(gate) as c:
            c.send(c.head(headers=[("Content-Type", "application/json"), ("Content-Length", 1000)]) + b'{"model":')
    gate.idle()


def test_pipelined_requests_are_answered_in_order(gate):
    with H1(gate) as c:
        one = json.dumps(gate.body("first @tokens=2")).encode()
        c.send(c.head(headers=[("Content-Type", "application/json"), ("Content-Length", len(one))]) + one + c.head("GET", "/v1/models") + c.head("GET", "/health"))
        assert json.loads(c.response()[2])["object"] == "chat.completion"
        assert json.loads(c.response()[2])["object"] == "list"
        assert json.loads(c.response()[2])["status"] == "ok"


def test_tool_calls_of_our_worker_arrive_whole_and_streamed(gate):
    """Our worker is always asked for a stream; a whole answer is put together again, call by call."""
    what = "weather and time @calls=2 @tokens=7"
    pieces = expected(what, 7)
    tools = [{"type": "function", "function": {"name": "tool_%d" % i, "parameters": {"type": "object"}}} for i in range(2)]
    want = ["".join(pieces[:4]), "".join(pieces[4:])]
    choice = gate.chat(what, tools=tools)["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert [(c["type"], c["function"]["name"], c["function"]["arguments"]) for c in choice["message"]["tool_calls"]] == \
        [("function", "tool_%d" % i, want[i]) for i in range(2)]
    assert len({c["id"] for c in choice["message"]["tool_calls"]}) == 2
    got, finish = {}, None
    for e in gate.stream(what, tools=tools).chunks:
        for c in e.get("choices", ()):
            finish = c["finish_reason"] or finish
            for d in c["delta"].get("tool_calls") or ():
                got[d["index"]] = got.get(d["index"], "") + d["function"]["arguments"]
    assert finish == "tool_calls" and got == dict(enumerate(want))
