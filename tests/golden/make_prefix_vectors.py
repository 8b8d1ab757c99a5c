#!/usr/bin/env python3
"""Writes prefix_vectors.jsonl: keys, canonical text and chunk chains, made by no code of ours.

pip install xxhash. Follows the format in cache/prefix.h: the whole canonical text is built first,
then cut and hashed. One JSON object a line; `prompt_repeat` [text, n] stands for a long prompt, and
of a long chain only some links are written.
"""
import hashlib
import hmac
import json
import os
import struct

import xxhash

HERE = os.path.dirname(os.path.abspath(__file__))


def key(secret, salt, model, adapter):
    parts = [salt, model, adapter, b"256"]
    data = b"".join(struct.pack("<I", len(p)) + p for p in parts)
    return hmac.new(secret, data, hashlib.sha256).digest()[:16]


def link(before, local):
    return xxhash.xxh3_64_intdigest(struct.pack("<QQ", before, local))


def fold(text, k0):
    """Chain over whole chunks; (seq, ends, hash of all text)."""
    lo, hi = struct.unpack("<QQ", k0)
    seq, ends, at, last = [], [], 0, hi
    while True:
        size = 256 << (len(seq) // 512)
        if at + size > len(text):
            return seq, ends, link(last, xxhash.xxh3_64_intdigest(text[at:], lo))
        last = link(last, xxhash.xxh3_64_intdigest(text[at:at + size], lo))
        at += size
        seq.append(last)
        ends.append(at)


def dumps(v):
    return json.dumps(v, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def canonical(request):
    """(text, end of the head, first user text, spans, bytes counted for the bound)"""
    text, spans, counted, head, first = b"", [], 0, None, None
    if request.get("tools"):
        text += b"\xfftools\xfe" + dumps(request["tools"])
        counted += len(dumps(request["tools"]))
    for index, m in enumerate(request["messages"]):
        role = "system" if m["role"] == "developer" else m["role"]
        if head is None and role != "system":
            head = len(text)
        if role not in ("system", "user", "assistant", "tool", "function"):
            counted += len(role.encode())
        text += b"\xff" + role.encode() + b"\xfe"
        start = len(text)
        content = m.get("content")
        parts = [content] if isinstance(content, str) else content or []
        for part in parts:
            plain = part if isinstance(part, str) else part["text"] if part["type"] == "text" else None
            if plain is None:
                text += hashlib.sha256(dumps(part)).digest()
                counted += len(dumps(part))
            elif plain:
                spans.append([len(text), len(plain.encode()), index])
                text += plain.encode()
                counted += len(plain.encode())
        if role == "user" and first is None:
            first = text[start:][:1024]
        calls = [c["function"] for c in m.get("tool_calls") or []]
        for c in calls + ([m["function_call"]] if m.get("function_call") else []):
            text += b"\xffcall"
            for said in (c["name"].encode(), c["arguments"].encode()):
                text += b"\xfe"
                if said:
                    spans.append([len(text), len(said), index])
                text += said
                counted += len(said)
    return text, len(text) if head is None else head, first or b"", spans, counted


def vector(name, request=None, prompt=None, repeat=None, secret="deployment secret", salt="tenant 7",
           model="smollm2-135m", adapter=""):
    k0 = key(secret.encode(), salt.encode(), model.encode(), adapter.encode())
    lo = struct.unpack("<Q", k0[:8])[0]
    row = {"name": name, "secret": secret, "salt": salt, "model": model, "adapter": adapter,
           "key": k0.hex()}
    if request is not None:
        row["request"] = request
        text, head_end, first, spans, counted = canonical(request)
        messages = len(request["messages"])
    else:
        body = (repeat[0] * repeat[1] if repeat else prompt).encode()
        row.update({"prompt_repeat": repeat} if repeat else {"prompt": prompt})
        text, head_end, first, counted, messages = b"\xff\xfd" + body, 0, body[:1024], len(body), 0
        spans = [[2, len(body), 0]] if body else []
    seq, ends, _ = fold(text, k0)
    head = fold(text[:head_end], k0)[2]
    keep = range(len(seq)) if len(seq) <= 16 else sorted(
        {0, 1, 510, 511, 512, 513, 1023, 1024, 1025, len(seq) - 1} & set(range(len(seq))))
    row.update({
        "bytes": len(text), "text_bytes": counted, "messages": messages, "spans": spans,
        "count": len(seq), "chunks": [[i, ends[i], "%016x" % seq[i]] for i in keep],
        "head": "%016x" % head,
        "root": "%016x" % link(head, xxhash.xxh3_64_intdigest(first, lo)),
        "root_of_key": "%016x" % link(head, xxhash.xxh3_64_intdigest(b"session-1", lo)),
    })
    return row


def user(content):
    return {"role": "user", "content": content}


TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {
    "type": "object", "required": ["q"], "properties": {"q": {"type": "string"}, "Ä": {"type": "null"}}}}}]
LONG = "The quick brown fox jumps over the lazy dog. " * 30


def vectors():
    yield vector("no messages", request={"messages": []})
    yield vector("one short message", request={"messages": [user("Hello, world")]})
    yield vector("no chunk yet at 255 bytes", request={"messages": [user("x" * 249)]})
    yield vector("one chunk at 256 bytes", request={"messages": [user("x" * 250)]})
    yield vector("still one chunk at 257 bytes", request={"messages": [user("x" * 251)]})
    yield vector("system and user", request={"messages": [
        {"role": "system", "content": LONG}, user("Grüße 🙂 " + LONG)]})
    yield vector("developer is system", request={"messages": [
        {"role": "developer", "content": LONG}, user("Grüße 🙂 " + LONG)]})
    yield vector("text that grows keeps its prefix", request={"messages": [
        {"role": "system", "content": LONG}, user("Grüße 🙂 " + LONG + " and more " * 40)]})
    yield vector("tools, calls and their results", request={"tools": TOOLS, "messages": [
        {"role": "system", "content": "Be brief."}, user("What is 日本?"),
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{\"q\":\"日本\"}"}},
            {"id": "c2", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": LONG}, user("Thanks")]})
    yield vector("no tools is empty tools", request={"tools": [], "messages": [user("hi")]})
    yield vector("parts, one of them an image", request={"messages": [user([
        {"type": "text", "text": "Look: "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "text", "text": LONG}, {"type": "text", "text": ""}])]})
    yield vector("an old function call", request={"messages": [
        user("go"), {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "1"}}]})
    yield vector("only a system message", request={"messages": [{"role": "system", "content": LONG}]})
    yield vector("a late system message is not the head", request={"messages": [
        user("a"), {"role": "system", "content": LONG}, user("b")]})
    yield vector("an unusual role", request={"messages": [{"role": "narrator", "content": "x"}]})
    yield vector("root takes 1024 bytes", request={"messages": [user("r" * 1024 + "tail")]})
    yield vector("NUL and quotes", request={"messages": [user("a\u0000b\"\\\u007f" * 80)]})
    yield vector("a completion", prompt="Once upon a time " * 40)
    yield vector("an empty completion", prompt="")
    yield vector("another tenant", prompt="Once upon a time " * 40, salt="tenant 8")
    yield vector("an adapter", prompt="Once upon a time " * 40, adapter="lora-1")
    yield vector("another model", prompt="Once upon a time " * 40, model="llama")
    yield vector("another deployment", prompt="Once upon a time " * 40, secret="other")
    yield vector("parts do not run into each other", prompt="Once upon a time " * 40,
                 salt="tenant 7s", model="mollm2-135m")
    yield vector("chunks double", repeat=["0123456789abcdef", 128 * 1024 // 16 + 100])
    yield vector("chunks double twice", repeat=["0123456789abcde", 700 * 1024 // 15])


def main():
    with open(os.path.join(HERE, "prefix_vectors.jsonl"), "w", encoding="utf-8") as out:
        for row in vectors():
            out.write(json.dumps(row) + "\n")


main()
