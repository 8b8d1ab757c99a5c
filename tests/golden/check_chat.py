#!/usr/bin/env python3
"""Our recognition of every real template, and our rendering against jinja2's on random
conversations. check_chat.py CHAT_CLI [CASES]; exit 77 when jinja2 or the templates are absent."""
import json
import os
import random
import subprocess
import sys

try:
    import chat_templates as ct
except ImportError as e:
    print("skipped: %s (tests/requirements.txt)" % e)
    sys.exit(77)

# What we refuse though the template renders it (dropping or mislabelling something), by our words.
REFUSALS = ("defines no tools", "has tool calls, which", "has a role that", "must be a user's", "messages is empty")


def main():
    if not os.path.isdir(ct.DIST):
        print("skipped: no %s (tests/run golden fetches it)" % ct.DIST)
        sys.exit(77)
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 1500
    cli = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    bad = []

    def ask(row):
        cli.stdin.write(json.dumps(row).encode() + b"\n")
        cli.stdin.flush()
        return json.loads(cli.stdout.readline())

    texts = ct.distribution()
    known = {s for _, _, text in ct.families() for s in ct.spellings(text)}
    for name, text in texts.items():
        got, want = ask({"template": text})["family"], ct.RECOGNISED.get(name, "none")
        if got != want:
            bad.append("%s: recognised as %s, not %s" % (name, got, want))
        for other in (text[:-2] + text[-1:], text + " ", text.replace("content", "contents", 1), text.replace("user", "User", 1)):
            if other.removesuffix("\n") not in known and ask({"template": other})["family"] != "none":
                bad.append("%s, changed: recognised" % name)
    print("%d templates: %d recognised, %d refused" % (len(texts), len(ct.RECOGNISED), len(texts) - len(ct.RECOGNISED)))

    env = ct.environment()
    for family, name, text in ct.families():
        template, rng, equal, refused, both = env.from_string(text), random.Random(5), 0, 0, 0
        for _ in range(cases):
            case = ct.conversation(rng)
            case["generate"] |= ct.always_generates(family, text)
            want, got = ct.render(template, family, case), ask({"family": family, **case})
            if want is not None and got.get("text") == want:
                equal += 1
            elif want is None and "refused" in got:
                both += 1
            elif want is not None and any(r in got.get("refused", "") for r in REFUSALS):
                refused += 1
            else:
                bad.append("%s: %s\n  jinja2 %r\n  ours   %r" % (name, json.dumps(case), want, got))
        print("%-13s %-60.60s %4d equal, %4d refused by both, %4d by us alone" % (family, name, equal, both, refused))
        if equal < cases // 4:
            bad.append("%s: only %d of %d compared" % (name, equal, cases))
    cli.stdin.close()
    cli.wait()
    for line in bad[:10]:
        print(line[:3000])
    print("%d bad" % len(bad))
    sys.exit(1 if bad else 0)


main()
