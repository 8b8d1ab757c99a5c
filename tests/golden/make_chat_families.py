#!/usr/bin/env python3
"""Writes chat_families.jsonl (what jinja2 makes of each known template, or that it refuses) and
worker/model/chat_known.inc (digests of the known texts). pip install jinja2; see chat_templates.py.
"""
import hashlib
import json
import os
import random

import chat_templates as ct

HERE = os.path.dirname(os.path.abspath(__file__))
ENUM = {"smollm2": "SMOLLM2", "chatml": "CHATML", "qwen2": "QWEN2", "qwen2.5": "QWEN25", "llama3": "LLAMA3", "llama3.1": "LLAMA31", "mistral-v0.1": "MISTRAL_V01",
        "mistral-v0.2": "MISTRAL_V02", "mistral-v1": "MISTRAL_V1", "mistral-v3": "MISTRAL_V3", "mistral-nemo": "MISTRAL_NEMO", "mistral-v7": "MISTRAL_V7"}


def main():
    env, digests, cases = ct.environment(), {}, {}
    for family, name, text in ct.families():
        for spelling in ct.spellings(text):
            digests[hashlib.sha256(spelling.encode()).hexdigest()] = (family, name)
        if not ct.always_generates(family, text):
            cases.setdefault(family, env.from_string(text))
    with open(os.path.join(HERE, "../../worker/model/chat_known.inc"), "w", encoding="utf-8") as out:
        for digest, (family, name) in digests.items():
            out.write('{"%s",\n CHAT_%s}, /* %s */\n' % (digest, ENUM[family], name.split(" (")[0].removesuffix(".jinja")))
    with open(os.path.join(HERE, "chat_families.jsonl"), "w", encoding="utf-8") as out:
        for family, template in cases.items():
            rng = random.Random(11)
            for _ in range(40):
                case = ct.conversation(rng)
                out.write(json.dumps({"family": family, **case, "text": ct.render(template, family, case)}) + "\n")


main()
