"""A first streamed chat: shows the answer as it comes, its usage, and the ledger row it cost.

Standard library only (and psql): this runs before anything of the tests is installed.
usage: first_chat.py ENV_FILE
"""
import http.client
import json
import ssl
import subprocess
import sys
import time
import urllib.parse

QUESTION = "In one sentence: what is a toll gate?"
ROW = """SELECT event_id, occurred_at, worker_id, tok_in_uncached, tok_in_cached, tok_out, tok_in_cached_predicted,
       price_id, cost_pusd, round(cost_pusd / 1e12, 12) AS cost_usd, list_pusd, ttft_us, dur_us, outcome
  FROM usage_event WHERE request_id = '%s'"""


def read_env(path):
    env = {}
    for line in open(path, encoding="utf-8"):
        name, _, value = line.strip().partition("=")
        env[name] = value.strip("'")
    return env


def connect(env):
    url = urllib.parse.urlsplit(env["TOLLGATE_URL"])
    ctx = ssl.create_default_context(cafile=env["TOLLGATE_CA"])
    return http.client.HTTPSConnection(url.hostname, url.port, context=ctx, timeout=120)


def chat(env):
    c = connect(env)
    body = {"model": env["TOLLGATE_MODEL"], "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
            "max_tokens": 48, "messages": [{"role": "user", "content": QUESTION}]}
    c.request("POST", "/v1/chat/completions", json.dumps(body),
              {"authorization": "Bearer " + env["TOLLGATE_KEY"], "content-type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        text = r.read().decode()
        hint = "\nA limit set before is still there; tollctl quota set lifts it with the value none." if r.status == 429 else ""
        sys.exit("HTTP %d: %s%s" % (r.status, text, hint))
    usage = None
    for raw in r:
        line = raw.decode().strip()
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line[6:])
        if chunk.get("error"):
            sys.exit("the stream failed: %s" % chunk["error"]["message"])
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)
    print()
    return r.headers["x-request-id"], usage


def row(env, request_id):
    for _ in range(50):
        out = subprocess.run(["psql", env["DATABASE_URL"], "-x", "-c", ROW % request_id], capture_output=True, text=True)
        if out.returncode != 0:
            sys.exit("psql: " + out.stderr)
        if "event_id" in out.stdout:
            return out.stdout
        time.sleep(0.1)
    sys.exit("no ledger row for request %s came within 5 s" % request_id)


def main():
    env = read_env(sys.argv[1])
    print("\n  you:    " + QUESTION)
    print("  answer: ", end="")
    request_id, usage = chat(env)
    print("  usage:  %s\n\n  what it cost, from Postgres:" % json.dumps(usage))
    print("".join("  " + line + "\n" for line in row(env, request_id).splitlines()))


main()
