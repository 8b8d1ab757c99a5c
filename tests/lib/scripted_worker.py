#!/usr/bin/env python3
"""A worker that computes nothing: the HTTP surface of tollgate-worker, with scripted answers.

    scripted_worker.py --listen 127.0.0.1:9001 --key-file FILE --log FILE [--engine tollgate|openai]
                       [--model NAME,...] [--no-events]

The answer is made from the last user message (or the prompt), so a client can check every byte with
expected(). Words of that text give orders, wherever they stand:

    @tokens=N   tokens until the natural end (16)     @rate=R     tokens a second (as fast as may be)
    @size=B     bytes of each token (its own)         @slow=MS    wait before the head
    @wait=MS    wait between head and first token     @status=N   answer N with an error body
    @cut=N      reset the connection after N tokens   @end=N      a clean end after N, no finish
    @die        reset before the head                 @hang       no head, ever
    @hanghead   a head, then nothing                  @nofinish   [DONE] without a finish_reason
    @garbage=N  an event that is no JSON after N      @inband     an error inside the 200
    @calls=N    the tokens are the arguments of N tool calls, one after another (streams)
    @at=PORT    the faults of this text are only for the worker on that port

POST /_ctl/set {"cut": 3, "times": 2} adds orders to the next 2 requests of this worker, whatever
they say. GET /_ctl/log?event=ID gives what is known of events, GET /_ctl/stats the counts of now.
POST /_ctl/finish {"event": ID} lets a running answer come to its natural end.

Every token is counted in a mapped file before it is sent, so the count outlives a SIGKILL:
read_log() reads it. stdlib only; libxxhash (ctypes), when there, makes the chunk hashes that
/kv_events tells. Without it, or with --no-events, that path answers 404.
"""
import argparse
import asyncio
import ctypes
import ctypes.util
import hashlib
import json
import mmap
import os
import signal
import struct
import sys
import time
import urllib.parse

WORDS = ("amber birch cedar delta ember fjord grove haven iris juniper kelp lumen maple nectar ocean "
         "pine quartz river sage tulip umber violet willow zephyr é¬ü 你好 😀 naïve").split()
ORDERS = {"tokens": 16, "rate": 0, "size": 0, "slow": 0, "wait": 0, "status": 0, "cut": -1, "end": -1,
          "die": 0, "hang": 0, "hanghead": 0, "nofinish": 0, "garbage": -1, "inband": 0, "calls": 0, "at": 0}
FAULTS = ("slow", "wait", "status", "cut", "end", "die", "hang", "hanghead", "nofinish", "garbage", "inband")
LOG_SLOTS = 65536
LOG_RECORD = struct.Struct("<36sBxxxIIIId")  # event, state, attempt, prompt, cached, completion, begun
LOG_BYTES = 64
STATES = ["", "queued", "running", "stop", "length", "aborted", "refused"]
BYTES_PER_TOKEN = 4
CHUNK_TOKENS = 256 // BYTES_PER_TOKEN
HASHES_MAX = 200000


# ---- what clients use to check answers ----

def token(prompt, i, size=0):
    seed = hashlib.sha256(prompt.encode("utf-8", "replace")).digest()
    return _token(seed, i, size)


def _token(seed, i, size):
    text = "%s%d " % (WORDS[(seed[i % 32] + i) % len(WORDS)], i)
    return text if size <= 0 else (text * (size // len(text) + 1))[:size]


def expected(prompt, n):
    """The first n tokens of the answer to this prompt."""
    size = orders_of(prompt)["size"]
    seed = hashlib.sha256(prompt.encode("utf-8", "replace")).digest()
    return [_token(seed, i, size) for i in range(n)]


def tokens_in(prompt, text):
    """How many whole tokens of the right answer `text` is; -1 when it is another text."""
    size, seed, n = orders_of(prompt)["size"], hashlib.sha256(prompt.encode("utf-8", "replace")).digest(), 0
    at = 0
    while at < len(text):
        t = _token(seed, n, size)
        if not text.startswith(t, at):
            return -1
        at += len(t)
        n += 1
    return n


def orders_of(text):
    out = dict(ORDERS)
    if "@" in text:
        for word in text.split():
            if word[0] == "@":
                name, _, value = word[1:].partition("=")
                if name in out:
                    out[name] = int(value) if value else 1
    return out


def read_log(path):
    """[{event, state, attempt, prompt, cached, completion, begun}], in order of arrival."""
    out = []
    with open(path, "rb") as f:
        data = f.read()
    for at in range(0, len(data) - LOG_BYTES + 1, LOG_BYTES):
        event, state, attempt, prompt, cached, completion, begun = LOG_RECORD.unpack_from(data, at)
        if not state:
            break
        out.append({"event": event.rstrip(b"\0").decode(), "state": STATES[state], "attempt": attempt, "prompt": prompt,
                    "cached": cached, "completion": completion, "begun": begun})
    return out


# ---- prefix identity: canonical text and chunk chain, as cache/prefix.h says ----

def load_xxhash():
    try:
        lib = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
        fn = lib.XXH3_64bits_withSeed
    except (OSError, AttributeError):
        return None
    fn.argtypes, fn.restype = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64], ctypes.c_uint64
    return lambda data, seed=0: fn(data, len(data), seed)


XXH3 = load_xxhash()


def dumps(v):
    return json.dumps(v, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def parts_text(content):
    if isinstance(content, str):
        return content
    return "".join(p.get("text", "") for p in content or [] if p.get("type") == "text")


def canonical(body):
    if "prompt" in body:
        return b"\xff\xfd" + body["prompt"].encode()
    text = b"\xfftools\xfe" + dumps(body["tools"]) if body.get("tools") else b""
    for m in body["messages"]:
        text += b"\xff" + m["role"].encode() + b"\xfe"
        content = m.get("content")
        for part in [content] if isinstance(content, str) else content or []:
            if isinstance(part, str):
                text += part.encode()
            elif part["type"] == "text":
                text += part["text"].encode()
            else:
                text += hashlib.sha256(dumps(part)).digest()
        calls = [c["function"] for c in m.get("tool_calls") or []]
        for c in calls + ([m["function_call"]] if m.get("function_call") else []):
            text += b"\xffcall\xfe" + c["name"].encode() + b"\xfe" + c["arguments"].encode()
    return text


def chain(text, k0):
    """Hashes of the whole chunks, as ints; k0 as 32 hex digits."""
    if XXH3 is None:
        return []
    lo, last = struct.unpack("<QQ", bytes.fromhex(k0))
    out, at = [], 0
    while True:
        size = 256 << (len(out) // 512)
        if at + size > len(text):
            return out
        last = XXH3(struct.pack("<QQ", last, XXH3(text[at:at + size], lo)))
        at += size
        out.append(last)


def question(body):
    if "prompt" in body:
        return body["prompt"]
    return next((parts_text(m.get("content")) for m in reversed(body["messages"]) if m["role"] == "user"), "")


class Worker:
    def __init__(self, args, port):
        self.args, self.port = args, port
        self.ours = args.engine == "tollgate"
        self.key = open(args.key_file).read().strip() if args.key_file else ""
        self.epoch = str(time.time_ns() // 1000)
        self.models = args.model.split(",")
        self.events = {}       # event -> slot
        self.heads = {}        # slot -> headers and body of the request, for tests that look
        self.tasks = {}        # event -> task
        self.finish = set()    # slots that shall end now
        self.running = 0
        self.generated = 0
        self.extra, self.extra_times = {}, 0
        self.held = {}         # chunk hash -> None, oldest first
        self.seq, self.lines, self.listeners = 0, [], set()
        self.slots = 0
        fd = os.open(args.log, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, LOG_SLOTS * LOG_BYTES)
        self.map = mmap.mmap(fd, LOG_SLOTS * LOG_BYTES)
        while self.map[self.slots * LOG_BYTES + 36]:
            self.slots += 1    # what an older life wrote stays

    # ---- the log ----

    def slot_new(self, event, attempt):
        slot = self.slots
        self.slots += 1
        LOG_RECORD.pack_into(self.map, slot * LOG_BYTES, event.encode(), 1, attempt, 0, 0, 0, time.time())
        if event:
            self.events[event] = slot
        return slot

    def slot_set(self, slot, at, value):
        struct.pack_into("<I", self.map, slot * LOG_BYTES + 40 + 4 * at, value)

    def slot_state(self, slot, state):
        self.map[slot * LOG_BYTES + 36] = STATES.index(state)

    def receipt(self, slot):
        _, state, _, prompt, cached, completion, _ = LOG_RECORD.unpack_from(self.map, slot * LOG_BYTES)
        return {"state": STATES[state], "prompt": prompt, "cached": cached, "completion": completion}

    # ---- cache and events ----

    def cache_take(self, hashes):
        """How many chunks are held from the front; then all are held, and what is new is told."""
        n = 0
        while n < len(hashes) and hashes[n] in self.held:
            n += 1
        new = [h for h in hashes[n:] if h not in self.held]
        for h in hashes:
            self.held.pop(h, None)
            self.held[h] = None
        gone = []
        while len(self.held) > HASHES_MAX:
            gone.append(next(iter(self.held)))
            del self.held[gone[-1]]
        if new or gone:
            self.tell(new, gone)
        return n

    def tell(self, stored, removed):
        self.seq += 1
        line = json.dumps({"seq": self.seq, "stored": ["%016x" % h for h in stored], "removed": ["%016x" % h for h in removed]}).encode() + b"\n"
        self.lines = self.lines[-4095:] + [(self.seq, line)]
        for w in list(self.listeners):
            write_chunk(w, line)

    async def kv_events(self, r, w, query):
        self.head(w, 200, "application/x-ndjson", chunked=True)
        epoch, _, seq = query.get("from", [""])[0].partition(":")
        first = self.lines[0][0] if self.lines else self.seq + 1
        if epoch == self.epoch and seq.isdigit() and first - 1 <= int(seq) <= self.seq:
            for n, line in self.lines:
                if n > int(seq):
                    write_chunk(w, line)
        else:
            write_chunk(w, json.dumps({"publisher": "scripted", "epoch": self.epoch, "seq": self.seq, "page": 0, "pages": 1,
                                       "snapshot": ["%016x" % h for h in self.held]}).encode() + b"\n")
        if "snapshot" in query:
            w.write(b"0\r\n\r\n")
            return True
        self.listeners.add(w)
        try:
            while not await gone_within(r, 1.0):
                self.tell([], [])
        finally:
            self.listeners.discard(w)
        return False

    # ---- answers ----

    def head(self, w, status, kind, length=None, chunked=False, extra=""):
        own = "x-tollgate-worker-epoch: %s\r\n" % self.epoch if self.ours else ""
        body = "transfer-encoding: chunked\r\n" if chunked else "content-length: %d\r\n" % length
        w.write(("HTTP/1.1 %d Scripted\r\ncontent-type: %s\r\n%s%s%s\r\n" % (status, kind, own, body, extra)).encode())

    def reply(self, w, status, obj, kind="application/json", extra=""):
        data = obj if isinstance(obj, bytes) else json.dumps(obj, ensure_ascii=False).encode()
        self.head(w, status, kind, len(data), extra=extra)
        w.write(data)

    def error(self, w, status):
        extra = "retry-after: 1\r\n" if status in (429, 503) else ""
        self.reply(w, status, {"error": {"message": "scripted %d" % status, "type": "scripted", "param": None, "code": None}}, extra=extra)

    def orders(self, text):
        o = orders_of(text)
        if o["at"] and o["at"] != self.port:
            for f in FAULTS:
                o[f] = ORDERS[f]
        if self.extra_times > 0:
            self.extra_times -= 1
            o.update(self.extra)
        return o

    async def generate(self, r, w, path, headers, body):
        """False: the connection is used up."""
        chat = path == "/v1/chat/completions"
        event, attempt = headers.get("x-tollgate-event", ""), int(headers.get("x-tollgate-attempt", "1"))
        if body.get("model") not in self.models:
            self.error(w, 404)
            return True
        text, what = canonical(body), question(body)
        o = self.orders(what)
        slot = self.slot_new(event, attempt)
        self.heads[slot] = {"headers": headers, "body": body, "question": what}
        self.running += 1
        try:
            return await self.run(r, w, chat, headers, body, text, what, o, slot)
        except (ConnectionError, asyncio.CancelledError):
            self.slot_state(slot, "aborted")
            w.transport.abort()
            return False
        finally:
            self.running -= 1
            self.tasks.pop(event, None)

    async def run(self, r, w, chat, headers, body, text, what, o, slot):
        ours, stream = self.ours, bool(body.get("stream"))
        each = headers.get("x-tollgate-usage") == "each"
        if o["hang"] or o["slow"]:
            if await gone_within(r, 3600 if o["hang"] else o["slow"] / 1000):
                raise ConnectionResetError
        if o["die"] or o["status"]:
            self.slot_state(slot, "refused")
            if o["die"]:
                w.transport.abort()
                return False
            self.error(w, o["status"])
            return True
        hashes = chain(text, headers["x-tollgate-prefix-key"]) if "x-tollgate-prefix-key" in headers else []
        prompt = len(text) // BYTES_PER_TOKEN + 4
        cached = min(self.cache_take(hashes) * CHUNK_TOKENS, prompt - 1)
        self.slot_set(slot, 1, prompt)
        self.slot_set(slot, 2, cached)
        self.slot_state(slot, "running")
        limit = body.get("max_tokens")
        limit = 1 << 30 if limit is None or limit < 0 else limit
        n_end = min(o["tokens"], limit)
        finish = "stop" if o["tokens"] <= limit else "length"
        if not stream:
            return await self.whole(r, w, chat, body, what, o, slot, prompt, cached, n_end, finish)
        return await self.stream(r, w, chat, body, what, o, slot, prompt, cached, n_end, finish, each and ours)

    async def whole(self, r, w, chat, body, what, o, slot, prompt, cached, n_end, finish):
        if o["rate"] and await gone_within(r, n_end / o["rate"]):
            raise ConnectionResetError
        self.slot_set(slot, 3, n_end)
        self.generated += n_end
        choice = {"index": 0, "logprobs": None, "finish_reason": None if o["nofinish"] else finish}
        text = "".join(expected(what, n_end))
        choice.update({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
        data = {"id": "scripted-%d" % slot, "object": "chat.completion" if chat else "text_completion", "created": 1,
                "model": body["model"], "choices": [choice], "usage": usage(prompt, cached, n_end)}
        if o["inband"]:
            data = {"error": {"message": "scripted error", "type": "server_error", "param": None, "code": 500}}
        data = json.dumps(data, ensure_ascii=False).encode()
        self.slot_state(slot, finish)
        if o["garbage"] >= 0 or o["end"] >= 0:
            data = data[:len(data) // 2]
        if o["cut"] >= 0:
            self.head(w, 200, "application/json", len(data))
            w.write(data[:len(data) // 2])
            await flush(w)
            w.transport.abort()
            return False
        self.reply(w, 200, data)
        return True

    async def stream(self, r, w, chat, body, what, o, slot, prompt, cached, n_end, finish, each):
        """Chunks are joined from prepared bytes: 200 streams share one core."""
        start = '{"id":"scripted-%d","object":"%s","created":1,"model":%s,"choices":[' % (
            slot, "chat.completion.chunk" if chat else "text_completion", json.dumps(body["model"]))
        use = '"usage":{"prompt_tokens":%d,"completion_tokens":%%d,"total_tokens":%%d,"prompt_tokens_details":{"cached_tokens":%d}}' % (prompt, cached)

        def event(choice, n, with_usage):
            u = "," + use % (n, prompt + n) if with_usage else ""
            data = ("data: %s%s]%s}\n\n" % (start, choice, u)).encode()
            return b"%x\r\n%s\r\n" % (len(data), data)

        def call_piece(t, at):
            k = at * o["calls"] // n_end
            delta = {"index": k, "function": {"arguments": t}}
            if at == 0 or (at - 1) * o["calls"] // n_end != k:
                delta = {"index": k, "id": "call_%d" % k, "type": "function", "function": {"name": "tool_%d" % k, "arguments": t}}
            return '{"index":0,"delta":{"tool_calls":[%s]},"logprobs":null,"finish_reason":null}' % json.dumps(delta)

        def piece(t, at):
            if o["calls"]:
                return call_piece(t, at)
            inner = '"delta":{"content":%s}' % json.dumps(t) if chat else '"text":%s' % json.dumps(t)
            return '{"index":0,%s,"logprobs":null,"finish_reason":null}' % inner
        self.head(w, 200, "text/event-stream", chunked=True)
        if o["inband"]:
            write_chunk(w, b'data: {"error":{"message":"scripted error","type":"server_error","param":null,"code":500}}\n\n')
            self.slot_state(slot, "refused")
            w.write(b"0\r\n\r\n")
            return True
        if o["hanghead"] or o["wait"]:
            if await gone_within(r, 3600 if o["hanghead"] else o["wait"] / 1000):
                raise ConnectionResetError
        if chat:
            w.write(event('{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}', 0, each))
        seed = hashlib.sha256(what.encode("utf-8", "replace")).digest()
        t0, n = time.monotonic(), 0
        while True:
            if n in (o["cut"], o["end"]):
                self.slot_state(slot, "aborted")
                if n == o["cut"]:
                    await flush(w)
                    w.transport.abort()
                    return False
                w.write(b"0\r\n\r\n")
                return True
            if n == o["garbage"]:
                write_chunk(w, b"data: {this is no JSON\n\n")
            if n == n_end or slot in self.finish:
                break
            if o["rate"]:
                pause = t0 + (n + 1) / o["rate"] - time.monotonic()
                if pause > 0:
                    await asyncio.sleep(pause)
            elif n % 8 == 7:
                await asyncio.sleep(0)
            if r.at_eof() or w.transport.is_closing() or self.map[slot * LOG_BYTES + 36] == 5:
                raise ConnectionResetError
            n += 1
            self.slot_set(slot, 3, n)  # counted before it is sent: a kill in between bills too little, never too much
            self.generated += 1
            w.write(event(piece(_token(seed, n - 1, o["size"]), n - 1), n, each))
            await w.drain()
        finish = "stop" if slot in self.finish else finish
        self.slot_state(slot, finish)
        finish = "tool_calls" if o["calls"] and finish == "stop" else finish
        if not o["nofinish"]:
            last = '{"index":0,%s,"logprobs":null,"finish_reason":"%s"}' % ('"delta":{}' if chat else '"text":""', finish)
            w.write(event(last, n, each))
        if (body.get("stream_options") or {}).get("include_usage"):
            w.write(event("", n, True))
        write_chunk(w, b"data: [DONE]\n\n")
        w.write(b"0\r\n\r\n")
        return True

    # ---- requests ----

    def metrics(self):
        lines = ["tollgate_worker_num_requests_running %d" % self.running, "tollgate_worker_num_requests_waiting 0",
                 "tollgate_worker_kv_cache_usage_perc 0.1", "tollgate_worker_generation_tokens_total %d" % self.generated]
        return ("\n".join(lines) + "\n").encode()

    def ctl(self, w, path, query, body):
        if path == "/_ctl/set":
            o = json.loads(body)
            self.extra_times = o.pop("times", 1 << 30)
            self.extra = {k: v for k, v in o.items() if k in ORDERS}
            if not self.extra:
                self.extra_times = 0
            self.reply(w, 200, {"ok": True})
        elif path == "/_ctl/finish":
            self.finish.add(self.events[json.loads(body)["event"]])
            self.reply(w, 200, {"ok": True})
        elif path == "/_ctl/stats":
            self.reply(w, 200, {"running": self.running, "generated": self.generated, "requests": self.slots, "hashes": len(self.held), "seq": self.seq})
        elif path == "/_ctl/log":
            want, tag = query.get("event", [""])[0], query.get("tag", [""])[0]
            out = []
            for slot, h in self.heads.items():
                if (not want or h["headers"].get("x-tollgate-event") == want) and tag in h["question"]:
                    out.append({**self.receipt(slot), "event": h["headers"].get("x-tollgate-event", ""), "headers": h["headers"], "body": h["body"]})
            self.reply(w, 200, out)
        else:
            self.error(w, 404)

    def abort(self, event):
        slot = self.events.get(event)
        if slot is None:
            return None
        if self.map[slot * LOG_BYTES + 36] <= 2:
            self.slot_state(slot, "aborted")
            task = self.tasks.pop(event, None)
            if task is not None:
                task.cancel()
        return self.receipt(slot)

    async def serve(self, r, w, method, path, query, headers, body):
        """False: close the connection."""
        if path.startswith("/_ctl/"):
            self.ctl(w, path, query, body)
        elif method == "GET" and path in ("/health", "/ready"):
            self.reply(w, 200, {"status": "ok"})
        elif method == "GET" and path == "/metrics":
            self.reply(w, 200, self.metrics(), "text/plain; version=0.0.4")
        elif method == "GET" and path == "/v1/models":
            self.reply(w, 200, {"object": "list", "data": [{"id": m, "object": "model", "created": 1, "owned_by": "scripted"} for m in self.models]})
        elif self.ours and headers.get("authorization") != "Bearer " + self.key:
            self.error(w, 401)
        elif method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            task = asyncio.ensure_future(self.generate(r, w, path, headers, json.loads(body)))
            if "x-tollgate-event" in headers:
                self.tasks[headers["x-tollgate-event"]] = task
            return await task
        elif self.ours and method == "GET" and path == "/kv_events" and not self.args.no_events and XXH3:
            return await self.kv_events(r, w, query)
        elif self.ours and path.startswith("/abort/") and method == "POST" or self.ours and path.startswith("/events/") and method == "GET":
            event = path.rsplit("/", 1)[1]
            got = self.abort(event) if method == "POST" else self.receipt(self.events[event]) if event in self.events else None
            self.reply(w, 200, got) if got else self.error(w, 404)
        else:
            self.error(w, 404)
        return True

    async def connection(self, r, w):
        try:
            while True:
                method, target, headers, body = await read_request(r)
                url = urllib.parse.urlsplit(target)
                if not await self.serve(r, w, method, url.path, urllib.parse.parse_qs(url.query), headers, body):
                    return
                await w.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            w.close()


def usage(prompt, cached, n):
    return {"prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n, "prompt_tokens_details": {"cached_tokens": cached}}


def write_chunk(w, data):
    w.write(b"%x\r\n%s\r\n" % (len(data), data))


async def flush(w):
    """All that was written is with the kernel: an abort would drop it."""
    w.transport.set_write_buffer_limits(0)
    await w.drain()


async def gone_within(r, seconds):
    """True when the peer left in that time. What it may still say is no concern of ours."""
    try:
        return await asyncio.wait_for(r.read(65536), seconds) == b""
    except asyncio.TimeoutError:
        return False


async def read_request(r):
    lines = (await r.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    body = b""
    if "content-length" in headers:
        body = await r.readexactly(int(headers["content-length"]))
    elif "chunked" in headers.get("transfer-encoding", ""):
        while True:
            n = int((await r.readuntil(b"\r\n")).split(b";")[0], 16)
            body += (await r.readexactly(n + 2))[:n]
            if n == 0:
                break
    return method, target, headers, body


async def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--listen", required=True)
    ap.add_argument("--key-file", default="")
    ap.add_argument("--log", required=True)
    ap.add_argument("--engine", default="tollgate", choices=["tollgate", "openai"])
    ap.add_argument("--model", default="scripted")
    ap.add_argument("--no-events", action="store_true")
    args = ap.parse_args()
    host, _, port = args.listen.rpartition(":")
    worker = Worker(args, int(port))
    server = await asyncio.start_server(worker.connection, host, int(port), limit=64 << 20, backlog=1024)
    stop = asyncio.Event()
    for s in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(s, stop.set)
    print("listening on %s" % args.listen, flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
    os._exit(0)  # open streams are cut, as a stopped worker's would be
