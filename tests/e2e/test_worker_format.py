"""What an answer must look like and how many there are: schemas, tools, n, deadlines; and the worker's own paths.

The model is tiny and random, so whatever is well-formed here is so because it was enforced.
"""
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
import uuid

import pytest

from test_worker import K0, KEY, WAIT_S, Reader, Worker, built, error, eventually, events, gate, real_model, snapshot, stream, strict, text_of
from test_worker import key_file, keyed, plain, tiny  # noqa: F401 (fixtures)

CHAT = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": CITY}},
         {"type": "function", "function": {"name": "stop_now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}]


@pytest.fixture(scope="module", params=["qwen2.5", "llama3.1", "mistral-nemo"])
def caller(request, tiny):  # noqa: F811
    w = Worker(tiny, "--backend", "ref", "--chat-format", request.param)
    w.family = request.param
    yield w
    assert w.stop() == 0


def is_city(text):
    o = strict(text)
    assert set(o) == {"city", "days"} and o["city"] in ("Paris", "Rome") and 1 <= o["days"] <= 9, o
    return True


@pytest.mark.parametrize("seed", range(6))
def test_a_schema_is_kept_whole_and_streamed(plain, seed):  # noqa: F811
    fmt = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
    body = plain.chat(max_tokens=300, temperature=1, seed=seed, response_format=fmt)
    whole = plain.ok(CHAT, body)["choices"][0]
    assert whole["finish_reason"] == "stop" and is_city(whole["message"]["content"])
    assert text_of(stream(plain, body)) == whole["message"]["content"]
    c = plain.ok("/v1/completions", {"model": plain.name, "prompt": "x", "max_tokens": 300, "seed": seed, "response_format": fmt})
    assert is_city(c["choices"][0]["text"])


def test_other_forms_of_a_format(plain):  # noqa: F811
    def text(**kw):
        return plain.ok(CHAT, plain.chat(max_tokens=400, temperature=1, seed=3, **kw))["choices"][0]["message"]["content"]
    assert re.fullmatch(r"[a-c]{3}-\d+", text(response_format={"type": "regex", "regex": r"[a-c]{3}-\d{1,4}"}))
    assert re.fullmatch(r"yes|no", text(guided_regex="yes|no"))
    assert re.fullmatch(r"yes|no", text(structured_outputs={"regex": "yes|no"}))
    assert is_city(text(guided_json=CITY)) and is_city(text(guided_json=json.dumps(CITY))) and is_city(text(structured_outputs={"json": CITY}))
    assert text(response_format={"type": "text"})
    done = 0
    for seed in range(8):
        c = plain.ok(CHAT, plain.chat(max_tokens=300, temperature=1, seed=seed, response_format={"type": "json_object"}))["choices"][0]
        assert c["message"]["content"].lstrip()[:1] in ("{", "")
        if c["finish_reason"] == "stop":
            assert isinstance(strict(c["message"]["content"]), dict)
            done += 1
    assert done >= 1


@pytest.mark.parametrize("kw,param,says", [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "nothing"}}}}}}, "response_format", "#/properties/a"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, "response_format", "object"),
    ({"response_format": {"type": "regex", "regex": "(a"}}, "response_format", ""),
    ({"response_format": {"type": "regex"}}, "response_format", ""),
    ({"response_format": "json"}, "response_format", ""),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format", "one form"),
    ({"guided_json": "{"}, "guided_json", "no JSON"),
    ({"guided_choice": ["a"]}, "guided_choice", ""),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs", ""),
    ({"structured_outputs": "yes|no"}, "structured_outputs", "object"), ({"structured_outputs": [{"regex": "a"}]}, "structured_outputs", "object"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs", "object"), ({"structured_outputs": {"regex": ["a"]}}, "structured_outputs", "string"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "response_format", "one form"),
    ({"structured_outputs": {"json": {}}, "guided_json": {"type": "null"}}, "response_format", "one form"),
    ({"guided_json": 5}, "guided_json", "object"), ({"guided_json": ["a"]}, "guided_json", "object"), ({"guided_regex": {"a": 1}}, "guided_regex", "string"),
    ({"guided_regex": "(a", "structured_outputs": {}}, "guided_regex", ""), ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", ""),
    ({"response_format": {"type": 5}}, "response_format", "type"), ({"response_format": ["json_object"]}, "response_format", "object"),
    ({"response_format": {"type": "json_schema", "json_schema": "x"}}, "response_format", "schema"),
    ({"tools": TOOLS}, "tools", "smollm2"), ({"tools": TOOLS, "tool_choice": "required"}, "tools", ""),
    ({"tool_choice": "required"}, "tool_choice", "tools"), ({"tool_choice": "perhaps"}, "tool_choice", ""),
    ({"tools": [{"type": "function"}], "tool_choice": "none"}, "tools", ""), ({"tools": [{"type": "web_search"}]}, "tools", "function"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "9"), ({"min_tokens": -1}, "min_tokens", ""), ({"n": 17}, "n", "16"), ({"n": "2"}, "n", ""),
])
def test_what_cannot_be_enforced_is_refused_with_its_place(plain, kw, param, says):  # noqa: F811
    assert says in error(plain.post(CHAT, plain.chat(**kw)), 400, param=param)["message"]


def test_a_schema_too_deep_or_too_large_is_refused_at_once(plain):  # noqa: F811
    deep = {"type": "string"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    wide = {"enum": ["%06d" % i * 4 for i in range(20000)]}
    for schema in (deep, wide):
        t = time.time()
        error(plain.post(CHAT, plain.chat(response_format={"type": "json_schema", "json_schema": {"schema": schema}})), 400)
        assert time.time() - t < 3
    plain.ok(CHAT, plain.chat())


def check_calls(w, message, finish):
    assert message["content"] is None and finish in ("tool_calls", "length")
    calls = message["tool_calls"]
    whole = calls if finish == "tool_calls" else calls[:-1]
    for c in whole:
        assert c["type"] == "function" and c["function"]["name"] in ("weather", "stop_now")
        assert c["function"]["name"] != "weather" or is_city(c["function"]["arguments"])
        assert c["function"]["name"] != "stop_now" or strict(c["function"]["arguments"]) == {}
    assert len({c["id"] for c in calls}) == len(calls)
    if w.family.startswith("mistral"):
        assert all(re.fullmatch(r"[0-9A-Za-z]{9}", c["id"]) for c in calls)
    return whole


@pytest.mark.parametrize("seed", range(4))
def test_required_calls_are_valid_whole_and_streamed(caller, seed):
    body = caller.chat(max_tokens=400, temperature=1, seed=seed, tools=TOOLS, tool_choice="required", parallel_tool_calls=seed % 2 == 0,
                       logit_bias={"2": -100})  # it would go on for ever
    whole = caller.ok(CHAT, body)["choices"][0]
    calls = check_calls(caller, whole["message"], whole["finish_reason"])
    assert len(calls) == 1 if seed % 2 or caller.family == "llama3.1" else len(calls) > (caller.family == "qwen2.5")
    chunks = stream(caller, body)
    got, finish = {}, None
    for k in chunks:
        for c in k["choices"]:
            finish = c["finish_reason"] or finish
            assert not c["delta"].get("content")
            for d in c["delta"].get("tool_calls", ()):
                if d["index"] not in got:
                    assert d["index"] == len(got) and d["type"] == "function" and d["id"] and d["function"]["arguments"] == ""
                    got[d["index"]] = [d["id"], d["function"]["name"], ""]
                else:
                    assert set(d) == {"index", "function"} and set(d["function"]) == {"arguments"}
                    got[d["index"]][2] += d["function"]["arguments"]
    assert finish == whole["finish_reason"]
    assert [g[1:] for g in got.values()] == [[c["function"]["name"], c["function"]["arguments"]] for c in whole["message"]["tool_calls"]]


def test_a_named_call_is_that_one_and_none_is_none(caller):
    named = {"type": "function", "function": {"name": "stop_now"}}
    c = caller.ok(CHAT, caller.chat(max_tokens=300, temperature=1, tools=TOOLS, tool_choice=named))["choices"][0]
    assert [t["function"]["name"] for t in c["message"]["tool_calls"]] == ["stop_now"] and c["finish_reason"] == "tool_calls"
    error(caller.post(CHAT, caller.chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "other"}})), 400, param="tool_choice")
    c = caller.ok(CHAT, caller.chat(tools=TOOLS, tool_choice="none"))["choices"][0]
    assert "tool_calls" not in c["message"] and isinstance(c["message"]["content"], str)
    error(caller.post(CHAT, caller.chat(tools=TOOLS, response_format={"type": "json_object"})), 400, param="response_format")


def test_auto_is_text_unless_the_model_calls(caller):
    body = caller.chat(max_tokens=60, temperature=1, seed=5, tools=TOOLS, ignore_eos=True)
    c = caller.ok(CHAT, body)["choices"][0]
    assert c["finish_reason"] == "length" and c["message"]["content"] and "tool_calls" not in c["message"]
    assert text_of(stream(caller, body)) == c["message"]["content"]


def test_a_conversation_with_calls_goes_on(caller):
    c = caller.ok(CHAT, caller.chat(max_tokens=300, temperature=1, seed=1, tools=TOOLS, parallel_tool_calls=False,
                                    tool_choice={"type": "function", "function": {"name": "weather"}}))["choices"][0]["message"]
    call = c["tool_calls"][0]
    messages = [{"role": "user", "content": "hello there"}, c, {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]
    r = caller.ok(CHAT, caller.chat(messages=messages, tools=TOOLS, tool_choice="none"))
    assert r["usage"]["prompt_tokens"] > 20


def test_tools_are_part_of_the_prefix(tiny, key_file):  # noqa: F811
    w = Worker(tiny, "--backend", "ref", "--chat-format", "qwen2.5", key_file=key_file)
    text = "a long question about the weather in some city. " * 12
    def cached(tools, **kw):
        u = w.ok(CHAT, w.chat(text, max_tokens=1, tools=tools, **kw), key=KEY, headers=gate())["usage"]
        return u["prompt_tokens_details"]["cached_tokens"], u["prompt_tokens"]
    first, n = cached(TOOLS)
    assert first == 0 and cached(TOOLS)[0] >= n - 33
    assert cached(TOOLS, tool_choice="none")[0] >= n - 33  # rendered all the same
    other, m = cached(TOOLS[:1])
    assert m < n and other < m // 2
    assert len(snapshot(w).held) >= len(text) // 256 - 1
    assert w.stop() == 0


ODD = [None, True, False, 0, 1, 2, -1, 3.5, 1e300, 10**30, "", "x", "none", "required", [], [[]], [1], ["a"], {}, {"type": "text"}, {"type": "json_object"},
       {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}, {"type": "regex", "regex": "(a|b)*c{2,5}"}, {"type": "regex", "regex": "[" * 500},
       {"type": "json_schema", "json_schema": {"schema": {"anyOf": [{"$ref": "#/x"}, CITY]}}}, {"type": "function", "function": {"name": "weather"}}, TOOLS, TOOLS + TOOLS,
       [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"$ref": "#/$defs/q"}}}}}],
       [{"role": "tool", "content": "x"}], [{"role": "assistant", "content": None, "tool_calls": [{}]}], [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
       "\ud83d", "a\u0000b", "<tool_call>", {"5": 100, "2": -100}, {"x": {"y": {"z": []}}}]
FIELDS = ["n", "max_tokens", "min_tokens", "tools", "tool_choice", "parallel_tool_calls", "response_format", "guided_json", "guided_regex", "structured_outputs", "messages", "stop", "seed",
          "logit_bias", "logprobs", "top_logprobs", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "ignore_eos", "echo", "suffix", "best_of", "prompt",
          "tokens", "model", "speculate", "add_special_tokens", "return_token_strs"]


def test_no_request_ends_the_worker(caller):
    rng = random.Random(caller.family)
    seen = set()
    for i in range(250):
        path = rng.choice([CHAT, CHAT, CHAT, "/v1/completions", "/tokenize", "/detokenize"])
        body = caller.chat(prompt="one two", max_tokens=12, temperature=1, seed=i)
        for _ in range(rng.randint(1, 4)):
            body[rng.choice(FIELDS)] = rng.choice(ODD)
        status, _, data = caller.post(path, json.dumps(body))
        assert status in (200, 400, 404), (status, data[:300], body)
        assert status == 200 or strict(data)["error"]["message"], body
        seen.add((path, status))
    assert len(seen) > 6 and caller.p.poll() is None
    eventually(lambda: caller.metric("vllm:num_requests_running") == 0)
    assert caller.metric("vllm:kv_cache_usage_perc") == 0


def test_n_answers_count_the_prompt_once_and_repeat_per_seed(keyed):  # noqa: F811
    e = str(uuid.uuid4())
    body = keyed.chat(n=3, max_tokens=12, temperature=1, seed=11, ignore_eos=True, stream_options={"include_usage": True})
    one = keyed.ok(CHAT, {k: v for k, v in dict(body, n=1).items() if k != "stream_options"}, key=KEY)
    chunks = stream(keyed, body, key=KEY, headers=gate(e))
    texts = {i: "".join(c["delta"].get("content") or "" for k in chunks for c in k["choices"] if c["index"] == i) for i in range(3)}
    finishes = [(c["index"], c["finish_reason"]) for k in chunks for c in k["choices"] if c["finish_reason"]]
    assert sorted(finishes) == [(i, "length") for i in range(3)] and len(set(texts.values())) == 3
    assert sorted(c["index"] for k in chunks for c in k["choices"] if c["delta"].get("role")) == [0, 1, 2]
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == 36 and usage["prompt_tokens"] == one["usage"]["prompt_tokens"]
    whole = keyed.ok(CHAT, {k: v for k, v in body.items() if k != "stream_options"}, key=KEY, headers=gate())
    assert [c["message"]["content"] for c in whole["choices"]] == [texts[i] for i in range(3)]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2] and whole["usage"]["completion_tokens"] == 36
    assert texts[0] == one["choices"][0]["message"]["content"]
    r = strict(keyed.call("GET", "/events/" + e, key=KEY)[2])
    assert r["ended"] and r["completion"] == 36 and r["prompt"] == usage["prompt_tokens"] and r["state"] == "length"
    c = keyed.ok("/v1/completions", {"model": keyed.name, "prompt": "one two", "n": 2, "best_of": 2, "max_tokens": 4, "temperature": 1, "logprobs": 1, "echo": False}, key=KEY)
    assert len(c["choices"]) == 2 and all(len(x["logprobs"]["tokens"]) <= 4 for x in c["choices"])
    error(keyed.post("/v1/completions", {"model": keyed.name, "prompt": "x", "n": 2, "best_of": 3}, key=KEY), 400, param="best_of")
    error(keyed.post(CHAT, keyed.chat(n=13), key=KEY), 400, param="n")  # more than its places: 4 + 8


def test_n_answers_compute_their_prompt_once(plain):  # noqa: F811
    names = ("tollgate_worker_billed_prompt_tokens_total", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    ids = [random.randrange(3, 289) for _ in range(70)]  # three times that fits one step
    before = [plain.metric(m) for m in names]
    u = plain.ok("/v1/completions", {"model": plain.name, "prompt": ids, "n": 3, "max_tokens": 3})["usage"]
    billed, hits, queries = [plain.metric(m) - b for m, b in zip(names, before)]
    assert billed == u["prompt_tokens"] == 70 and queries == 3 * 70 and hits == 2 * 64
    assert u["prompt_tokens_details"]["cached_tokens"] == 0  # of the first; the others' hits are our own


def test_abort_and_hang_up_cover_every_choice(keyed):  # noqa: F811
    e = str(uuid.uuid4())
    body = keyed.chat(n=4, max_tokens=800, ignore_eos=True, stream=True, temperature=1)
    for way in ("abort", "hang up"):
        c = keyed.connect()
        e = str(uuid.uuid4())
        c.request("POST", CHAT, json.dumps(body), dict(gate(e), authorization="Bearer " + KEY))
        r = c.getresponse()
        head = r.read(2000)
        if way == "abort":
            receipt = strict(keyed.call("POST", "/abort/" + e, key=KEY)[2])
            assert receipt["ended"] and receipt["state"] == "aborted" and receipt["completion"] >= 1
            ev = events(head + r.read())
            assert strict(ev[-1])["error"]["code"] == "aborted"
            assert strict(ev[-2])["usage"]["completion_tokens"] <= receipt["completion"]
        r.close()
        c.close()
        eventually(lambda: strict(keyed.call("GET", "/events/" + e, key=KEY)[2])["ended"])
        receipt = strict(keyed.call("GET", "/events/" + e, key=KEY)[2])
        assert receipt["state"] == "aborted" and 1 <= receipt["completion"] < 3200
        eventually(lambda: keyed.metric("vllm:num_requests_running") + keyed.metric("vllm:num_requests_waiting") == 0)
        assert keyed.metric("vllm:kv_cache_usage_perc") == 0


def test_some_choices_stop_before_others(keyed):  # noqa: F811
    body = keyed.chat(n=4, max_tokens=60, ignore_eos=True, temperature=1, seed=2)
    full = [c["message"]["content"] for c in keyed.ok(CHAT, body, key=KEY)["choices"]]
    stop = next(full[0][i:i + 3] for i in range(5, len(full[0]) - 3) if not any(full[0][i:i + 3] in f for f in full[1:]))
    whole = keyed.ok(CHAT, dict(body, stop=[stop]), key=KEY)
    assert [c["finish_reason"] for c in whole["choices"]] == ["stop", "length", "length", "length"]
    assert whole["choices"][0]["message"]["content"] == full[0][:full[0].index(stop)]
    assert [c["message"]["content"] for c in whole["choices"][1:]] == full[1:]
    chunks = stream(keyed, dict(body, stop=[stop], stream_options={"include_usage": True}), key=KEY)
    assert chunks[-1]["usage"] == dict(whole["usage"], prompt_tokens_details=chunks[-1]["usage"]["prompt_tokens_details"])


def test_min_tokens_hold_back_the_end(plain):  # noqa: F811
    bias = {"2": 100}  # the end token
    short = plain.ok(CHAT, plain.chat(max_tokens=20, logit_bias=bias))
    assert short["usage"]["completion_tokens"] == 1
    longer = plain.ok(CHAT, plain.chat(max_tokens=20, logit_bias=bias, min_tokens=7))
    assert longer["usage"]["completion_tokens"] == 8 and longer["choices"][0]["finish_reason"] == "stop"
    assert plain.ok(CHAT, plain.chat(max_tokens=20, logit_bias=bias, ignore_eos=True))["usage"]["completion_tokens"] == 20


def test_a_format_ends_the_answer_whatever_holds_back_the_end(plain):  # noqa: F811
    def ends(regex, **kw):
        a = plain.ok(CHAT, plain.chat(max_tokens=60, temperature=1, seed=4, guided_regex=regex, **kw))["choices"][0]
        assert a["finish_reason"] == "stop", a
        return a["message"]["content"]
    for kw in ({}, {"ignore_eos": True}, {"min_tokens": 50}, {"ignore_eos": True, "min_tokens": 50}):
        assert re.fullmatch(r"[xy]{3}", ends(r"[xy]{3}", **kw))
        assert strict(ends(r'\{"a": [12]\}', **kw)) in ({"a": 1}, {"a": 2})
        assert re.fullmatch(r"z{0,9}", ends(r"z{0,9}", **kw))
    assert ends(r"z{0,9}", ignore_eos=True) == "z" * 9
    a = plain.ok(CHAT, plain.chat(max_tokens=400, temperature=1, seed=3, response_format={"type": "json_schema", "json_schema": {"schema": CITY}}, ignore_eos=True))
    assert is_city(a["choices"][0]["message"]["content"]) and a["choices"][0]["finish_reason"] == "stop"


def test_equal_formats_give_equal_answers(plain):  # noqa: F811
    body = plain.chat(max_tokens=200, temperature=1, seed=8, response_format={"type": "json_schema", "json_schema": {"schema": CITY}})
    texts = {plain.ok(CHAT, body)["choices"][0]["message"]["content"] for _ in range(4)}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        texts |= {a["choices"][0]["message"]["content"] for a in pool.map(lambda _: plain.ok(CHAT, body), range(8))}
    assert len(texts) == 1
    for i in range(100):  # more formats than are kept
        assert strict(plain.ok(CHAT, plain.chat(max_tokens=20, guided_regex=str(1000 + i)))["choices"][0]["message"]["content"]) == 1000 + i
    assert plain.ok(CHAT, body)["choices"][0]["message"]["content"] in texts


def test_stop_token_ids_end_the_answer(plain):  # noqa: F811
    body = plain.chat(max_tokens=12, ignore_eos=True, temperature=1, seed=5, logprobs=True)
    all_ids = plain.ok("/tokenize", {"prompt": plain.ok(CHAT, body)["choices"][0]["message"]["content"]})["tokens"]
    got = plain.ok(CHAT, dict(body, stop_token_ids=all_ids[:16]))
    assert got["choices"][0]["finish_reason"] == "stop" and got["usage"]["completion_tokens"] < 12
    for bad in ([-1], [10 ** 6], "x", list(range(17))):
        status, _, data = plain.call("POST", CHAT, dict(body, stop_token_ids=bad))
        assert status == 400 and b"stop_token_ids" in data


def test_a_drawn_seed_is_told_and_gives_the_answer_again(plain):  # noqa: F811
    body = plain.chat(max_tokens=16, temperature=1)
    status, headers, data = plain.post(CHAT, body)
    again = plain.ok(CHAT, dict(body, seed=int(headers["x-tollgate-seed"])))
    assert status == 200 and again["choices"] == strict(data)["choices"]
    assert plain.post(CHAT, dict(body, seed=-5, stream=True))[1]["x-tollgate-seed"] == "-5"


def test_tokenize_and_back(plain):  # noqa: F811
    text = "hello there, and the user's <|im_end|> \u00e9\U0001f600"
    t = plain.ok("/tokenize", {"model": plain.name, "prompt": text, "return_token_strs": True})
    assert t["count"] == len(t["tokens"]) == len(t["token_strs"]) and t["max_model_len"] == 2048
    assert plain.ok("/detokenize", {"tokens": t["tokens"]}) == {"prompt": text}
    chat = plain.ok("/tokenize", {"messages": [{"role": "user", "content": "hello there"}]})
    assert chat["token_strs"] is None
    assert chat["count"] == plain.ok(CHAT, plain.chat(max_tokens=1))["usage"]["prompt_tokens"]
    assert "<|im_start|>user\nhello there<|im_end|>" in plain.ok("/detokenize", {"tokens": chat["tokens"]})["prompt"]
    assert plain.ok("/tokenize", {"prompt": ""})["count"] == 0
    error(plain.post("/tokenize", {}), 400, param="prompt")
    error(plain.post("/tokenize", {"prompt": "x", "model": "other"}), 404, "model_not_found")
    error(plain.post("/detokenize", {"tokens": [5, 10**6]}), 400, param="tokens")
    error(plain.post("/detokenize", {"tokens": "x"}), 400, param="tokens")
    error(plain.call("GET", "/tokenize"), 405)


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_read(plain):  # noqa: F811
    waits = []
    with concurrent.futures.ThreadPoolExecutor(1) as ex:
        c = plain.connect()
        c.request("POST", CHAT, json.dumps(plain.chat(max_tokens=1500, ignore_eos=True, stream=True)))
        r = c.getresponse()
        huge = ex.submit(plain.post, CHAT, plain.chat("word " * 6_000_000))
        last = time.time()
        while not huge.done():
            if not r.readline():
                break
            waits.append(time.time() - last)
            last = time.time()
        e = error(huge.result(), 400, "context_length_exceeded")
        assert "maximum context length is 2048 tokens" in e["message"] and re.search(r"\d{8} bytes", e["message"])
        r.close()
        c.close()
    assert max(waits, default=0) < 2, max(waits)  # sanitizers and a busy machine; a parse of it takes longer
    eventually(lambda: plain.metric("vllm:num_requests_running") == 0)


def test_prompts_of_many_small_things_are_refused_soon(plain):  # noqa: F811
    many = [{"role": "user", "content": ""}] * 40000
    t = time.time()
    error(plain.post(CHAT, plain.chat(messages=many)), 400, "context_length_exceeded")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": "x" * 500000})}}
    error(plain.post(CHAT, plain.chat(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}])), 400, "context_length_exceeded")
    assert time.time() - t < 10


@pytest.mark.parametrize("options", [["--kv-dtype", "int8"], ["--policy", "fast"], ["--kv-dtype", "int8", "--policy", "fast", "--speculate", "3"]])
def test_other_ways_to_compute_serve_as_well(tiny, options):  # noqa: F811
    w = Worker(tiny, "--backend", "cpu", "--threads", "1", *options)
    plan = [e["message"] for e in w.log if e["event"] == "plan"]
    assert len(plan) == 1 and ("fast" not in options or "exact (fast equals it: no AMX bf16 in use)" in plan[0] or "fast (AMX bf16 from 32 rows on)" in plan[0])
    body = w.chat("the harbour has many boats. " * 12, max_tokens=12)
    runs = [w.ok(CHAT, body) for _ in range(3)]
    assert runs[0]["choices"] == runs[1]["choices"] or "fast" in options
    assert runs[1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
    assert w.stop() == 0


def test_a_request_that_waits_too_long_is_told_so(keyed):  # noqa: F811
    body = json.dumps(keyed.chat(max_tokens=900, ignore_eos=True, stream=True))
    socks = []
    try:
        for _ in range(4):
            c = keyed.connect()
            c.request("POST", CHAT, body, {"authorization": "Bearer " + KEY})
            socks.append(c)
        eventually(lambda: keyed.metric("vllm:num_requests_running") == 4)
        e = str(uuid.uuid4())
        t = time.time()
        a = keyed.post(CHAT, keyed.chat(), key=KEY, headers=gate(e, **{"x-tollgate-deadline-ms": "60", "x-tollgate-class": "batch"}))
        error(a, 503, "queue_deadline_exceeded")
        assert int(a[1]["retry-after"]) >= 1 and time.time() - t < 5
        r = strict(keyed.call("GET", "/events/" + e, key=KEY)[2])
        assert r["ended"] and r["completion"] == 0 and r["state"] == "refused"
        assert keyed.metric("tollgate_worker_expired_total") >= 1
    finally:
        for c in socks:
            c.close()
    eventually(lambda: keyed.metric("vllm:num_requests_running") + keyed.metric("vllm:num_requests_waiting") == 0)
    error(keyed.post(CHAT, keyed.chat(), key=KEY, headers=gate(**{"x-tollgate-deadline-ms": "0"})), 400, param="x-tollgate-deadline-ms")


def test_the_operators_bound_of_the_queue_needs_no_header(tiny):  # noqa: F811
    w = Worker(tiny, "--backend", "ref", "--max-num-seqs", "1", "--queue-seconds", "1")
    c = w.connect()
    c.request("POST", CHAT, json.dumps(w.chat(max_tokens=1900, ignore_eos=True, stream=True, temperature=1)))
    r = c.getresponse()
    assert r.status == 200
    # One after another in the only place, each as long as a context: what comes now waits for more than the second.
    more = [w.connect() for _ in range(20)]
    for m in more:
        m.request("POST", CHAT, json.dumps(w.chat(max_tokens=1900, ignore_eos=True, temperature=1)))
    eventually(lambda: w.metric("vllm:num_requests_waiting") == 20)
    t = time.monotonic()
    a = w.post(CHAT, w.chat(), headers={"x-tollgate-deadline-ms": "1"})  # not trusted without a key
    waited = time.monotonic() - t
    e = error(a, 503, "queue_deadline_exceeded")
    assert 0.9 < waited < 10 and int(re.search(r"waited (\d+) ms", e["message"])[1]) >= 1000
    assert int(a[1]["retry-after"]) >= 1 and w.metric("tollgate_worker_expired_total") >= 1
    for m in [c, *more]:
        m.close()
    assert w.stop() == 0


def test_every_served_name_is_accepted_and_the_first_reported(tiny):  # noqa: F811
    w = Worker(tiny, "--backend", "ref", "--served-name", "big,big-2025", "--served-name", "alias/x")
    names = ["big", "big-2025", "alias/x"]
    assert [m["id"] for m in strict(w.call("GET", "/v1/models")[2])["data"]] == names
    for n in names:
        assert w.ok(CHAT, w.chat(model=n))["model"] == "big"
        assert w.call("GET", "/v1/models/" + n)[0] == 200
    error(w.post(CHAT, w.chat(model="tiny")), 404, "model_not_found")
    assert w.stop() == 0


def test_metrics_bear_the_names_that_dashboards_know(plain):  # noqa: F811
    plain.ok(CHAT, plain.chat())
    text = plain.call("GET", "/metrics")[2].decode()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total",
                 "num_preemptions_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total", "prompt_tokens_total", "generation_tokens_total"):
        assert re.search(r"^vllm:%s\{model_name=\"tiny\"\} [0-9.e+-]+$" % name, text, re.M), name
    for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "inter_token_latency_seconds", "request_queue_time_seconds", "e2e_request_latency_seconds"):
        for part in ("_bucket", "_sum", "_count"):
            assert "vllm:%s%s{" % (name, part) in text, name
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


@pytest.mark.parametrize("options,says", [
    (["--draft-model", "SELF", "--speculate", "off"], "--speculate off"), (["--speculate", "17"], "from 1 to 16"), (["--kv-dtype", "fp4"], "kv-dtype"),
    (["--policy", "sloppy"], "policy"), (["--backend", "gpu"], "cpu or ref"), (["--chat-format", "nope"], "mistral-nemo"), (["--served-name", "a,,b"], "served-name"),
    (["--kv-bytes", "64K", "--max-model-len", "2048"], "bytes"), (["--max-model-len", "9999"], "context of 2048"), (["--draft-model", "/nowhere.gguf"], "nowhere.gguf"),
])
def test_a_start_that_cannot_be_says_why(tiny, options, says):  # noqa: F811
    argv = [built("tollgate-worker", "TOLLGATE_WORKER"), "--model", tiny, "--backend", "ref", "--listen", "127.0.0.1:0"]
    p = subprocess.run(argv + [tiny if o == "SELF" else o for o in options], stderr=subprocess.PIPE, timeout=WAIT_S)
    assert p.returncode in (1, 2) and says in p.stderr.decode(), p.stderr.decode()


def test_a_draft_of_another_vocabulary_is_refused_with_the_numbers(tiny):  # noqa: F811
    argv = [built("tollgate-worker", "TOLLGATE_WORKER"), "--model", tiny, "--backend", "ref", "--listen", "127.0.0.1:0", "--draft-model", real_model()]
    p = subprocess.run(argv, stderr=subprocess.PIPE, timeout=WAIT_S)
    assert p.returncode == 1 and "49152" in p.stderr.decode() and "289" in p.stderr.decode()


def test_speculation_changes_no_answer(tiny, plain):  # noqa: F811
    bodies = [plain.chat("the boats and the boats and the " * 3 + str(i), max_tokens=80, seed=i, temperature=i % 2, logprobs=True) for i in range(4)]
    for options in (["--speculate", "lookup"], ["--speculate", "7"], ["--draft-model", tiny]):
        w = Worker(tiny, "--backend", "ref", *options)
        for b in bodies:
            assert w.ok(CHAT, b)["choices"] == plain.ok(CHAT, b)["choices"]
        assert w.metric("vllm:spec_decode_num_accepted_tokens_total") <= w.metric("vllm:spec_decode_num_draft_tokens_total")
        assert w.metric("vllm:spec_decode_num_draft_tokens_total") > 0
        assert w.stop() == 0


def test_the_port_answers_while_the_model_is_loaded(key_file):  # noqa: F811
    argv = [built("tollgate-worker", "TOLLGATE_WORKER"), "--model", real_model(), "--listen", "127.0.0.1:0", "--worker-key-file", str(key_file)]
    p = subprocess.Popen(argv, stderr=subprocess.PIPE)
    with contextlib.ExitStack() as stack:
        stack.callback(p.wait)
        stack.callback(p.kill)
        line = strict(p.stderr.readline())
        assert line["event"] == "loading"
        w = Worker.__new__(Worker)
        w.port = int(re.search(r":(\d+),", line["message"]).group(1))
        seen = {}
        end = time.time() + WAIT_S
        while time.time() < end:
            status, headers, data = w.call("GET", "/ready")
            state = strict(data)["status"]
            if status == 200:
                break
            assert status == 503 and headers["retry-after"]
            if state not in seen:
                seen[state] = True
                assert w.call("GET", "/health")[0] == 200
                a = w.post(CHAT, {"model": "x"}, key=KEY)
                if w.call("GET", "/ready")[0] == 503:
                    error(a, 503, "server_is_loading")
            time.sleep(0.01)
        assert status == 200 and state == "ok" and seen
        p.send_signal(signal.SIGTERM)
        assert p.wait(WAIT_S) == 0


def test_a_signal_while_the_model_is_loaded_ends_at_once():
    argv = [built("tollgate-worker", "TOLLGATE_WORKER"), "--model", real_model(), "--listen", "127.0.0.1:0"]
    p = subprocess.Popen(argv, stderr=subprocess.PIPE)
    p.stderr.readline()
    p.send_signal(signal.SIGTERM)
    assert p.wait(WAIT_S) == 0 and b"stopped" in p.stderr.read()


def test_a_mirror_of_the_events_follows_through_restarts_and_cuts(tiny, key_file):  # noqa: F811
    """Twenty moments: after each, the mirror equals a reading of the whole set with the same seq."""
    options = ["--backend", "ref", "--kv-bytes", "1M", "--max-num-seqs", "4"]
    w = Worker(tiny, *options, key_file=key_file)
    mirror = Reader(w)
    mirror.line()
    for i in range(20):
        for k in range(3):
            w.ok(CHAT, w.chat("talk %d of %d. " % (k, i) + "it goes on and on. " * 25, max_tokens=2), key=KEY, headers=gate())
        if i % 5 == 4:  # the worker dies and comes back
            w.p.send_signal(signal.SIGKILL)
            w.p.wait()
            old = mirror
            w = Worker(tiny, *options, key_file=key_file)
            mirror = Reader(w, "?from=%s:%d" % (old.epoch, old.seq))
            assert "snapshot" in mirror.line() and mirror.epoch != old.epoch
            old.close()
        elif i % 5 == 2:  # the connection is cut and taken up again
            old = mirror
            old.close()
            mirror = Reader(w, "?from=%s:%d" % (old.epoch, old.seq))
            mirror.held, mirror.seq, mirror.epoch = set(old.held), old.seq, old.epoch
        now = snapshot(w)
        while mirror.seq < now.seq:
            mirror.line()
        if mirror.seq == now.seq:
            assert mirror.held == now.held and mirror.epoch == now.epoch
    mirror.close()
    error(w.call("GET", "/kv_events?snapshot=1"), 401)
    assert w.stop() == 0


@pytest.fixture(scope="module")
def smol():
    w = Worker(real_model(), "--backend", os.environ.get("TOLLGATE_TEST_BACKEND", "cpu"), "--served-name", "SmolLM2-135M-Instruct")
    yield w
    assert w.stop() == 0


def test_smollm2_fills_a_form(smol):
    schema = {"type": "object", "properties": {"capital": {"type": "string", "maxLength": 20}, "eu": {"type": "boolean"}}, "required": ["capital", "eu"], "additionalProperties": False}
    r = smol.ok(CHAT, smol.chat("Give the capital of France as JSON.", max_tokens=60, response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}}))
    o = strict(r["choices"][0]["message"]["content"])
    assert r["choices"][0]["finish_reason"] == "stop" and set(o) == {"capital", "eu"} and isinstance(o["eu"], bool)
