"""Speculation by reference, end to end: the served worker answers a prompt whose answer is mostly in it.

Both settings answer the same prompt in turns, over HTTP, greedy; the answers must be equal. A token's time is
(time of a long answer - time of its first token) / tokens, the prompt held in the prefix cache. The copy share is
measured on the answer without speculation: the tokens that prompt lookup (what followed the newest 3, 2 or 1 tokens
when they last came) would have drafted rightly."""
import json
import re
import subprocess
import time
import urllib.request

from common import RELEASE, mid, median

TOKENS = 256
DRAFTS = 7
PARAGRAPH = ("The river rises in the northern hills and runs for two hundred miles before it meets the sea. Along its banks stand nine "
             "towns, each with a market, a mill and a bridge of stone. In spring the water is high and boats carry timber to the coast; "
             "in late summer one can walk across it at the old ford near Ashby. ")
PROMPT = ("Copy the text between the lines, word for word.\n---\n" + PARAGRAPH + "\n---\n" + ("Copy:\n---\n" + PARAGRAPH + "\n---\n") + "Copy:\n---\n")


class Served:
    def __init__(self, model, threads, speculate):
        exe = RELEASE / "worker/tollgate-worker"
        self.process = subprocess.Popen([str(exe), "--model", str(model), "--listen", "127.0.0.1:0", "--threads", str(threads), "--speculate", speculate],
                                        stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stderr:
            if '"listening"' in line:
                self.port = re.search(r"127\.0\.0\.1:(\d+)", line).group(1)
                break
        if self.port is None:
            raise SystemExit("tollgate-worker did not start")
        self.name = self.get("/v1/models")["data"][0]["id"]

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request("http://127.0.0.1:%s%s" % (self.port, path), data, {"content-type": "application/json"})
        text = urllib.request.urlopen(request, timeout=120).read().decode()
        return json.loads(text) if text.startswith("{") else text

    def answer(self, tokens):
        """(seconds, text)"""
        begin = time.monotonic()
        got = self.get("/v1/completions", {"model": self.name, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
        return time.monotonic() - begin, got["choices"][0]["text"]

    def drafts(self):
        """(verified, accepted) since start"""
        text = self.get("/metrics")
        return [float(re.search(r"^vllm:spec_decode_num_%s_tokens_total\S* (\S+)" % what, text, re.M).group(1)) for what in ("draft", "accepted")]

    def tokens(self, text):
        return self.get("/tokenize", {"model": self.name, "prompt": text})["tokens"]

    def close(self):
        self.process.kill()
        self.process.wait()


def looked_up(ids):
    """The token that prompt lookup drafts after ids; None: nothing matches."""
    for n in (3, 2, 1):
        for at in range(len(ids) - n - 1, -1, -1):
            if ids[at:at + n] == ids[-n:]:
                return ids[at + n]
    return None


def copy_share(served, text):
    prompt, ids = len(served.tokens(PROMPT)), served.tokens(PROMPT + text)
    right = sum(looked_up(ids[:i]) == ids[i] for i in range(prompt, len(ids)))
    return right / max(1, len(ids) - prompt)


def measure_copy(model, threads, rounds):
    got = subprocess.run(["cmake", "--build", str(RELEASE), "--target", "tollgate-worker"], capture_output=True, text=True)
    if got.returncode != 0:
        raise SystemExit("tollgate-worker does not build:\n" + got.stdout[-2000:])
    sides = {name: Served(model, threads, name) for name in ("off", str(DRAFTS))}
    rates = {name: [] for name in sides}
    texts = set()
    try:
        for _ in range(rounds):
            for name, served in sides.items():
                first, _text = min(served.answer(1) for _ in range(3))
                whole, text = served.answer(TOKENS)
                rates[name].append((TOKENS - 1) / (whole - first))
                texts.add(text)
        share = copy_share(sides["off"], texts.copy().pop())
        verified, accepted = sides[str(DRAFTS)].drafts()
    finally:
        for served in sides.values():
            served.close()
    if len(texts) != 1:
        raise SystemExit("speculation changed an answer: %d different ones" % len(texts))
    print("speculation by reference, %d threads, served over HTTP, %d tokens: copy share %.2f; decode %s without, %s with up to %d drafts "
          "(%.0f of %.0f accepted): **%.2f** x; answers equal" % (
              threads, TOKENS, share, mid(rates["off"]), mid(rates[str(DRAFTS)]), DRAFTS, accepted, verified,
              median(rates[str(DRAFTS)]) / median(rates["off"])))
