#!/usr/bin/env python3
"""Writes pretokens.jsonl: where other people's regex engine cuts the texts of tokenizer.jsonl.

pip install tokenizers. The patterns are the published ones of the families; the engine
(Oniguruma inside Hugging Face tokenizers) is none of ours. Offsets are bytes of UTF-8.
"""
import json
import os
import random
import unicodedata

from tokenizers import Regex, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA = (r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# DeepSeek's, one after another.
LETTERS = ("A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽ"
           "ᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-"
           "Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-"
           "ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")
CJK = "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK_LLM = ["[\r\n]", r"\s?[%s]+" % LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK, r"\p{N}+"]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"]


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


FAMILIES = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split(GPT2)]),
    "gpt-2": split(GPT2),
    "llama-bpe": split(LLAMA),
    "qwen2": split(LLAMA.replace("{1,3}", "")),
    "deepseek-llm": pre_tokenizers.Sequence([split(p) for p in DEEPSEEK_LLM]),
    "deepseek-coder": pre_tokenizers.Sequence([split(p) for p in DEEPSEEK_CODER]),
}
# Pieces that the patterns treat apart, to be strung together at random.
PIECES = ["'s", "'RE", "'", "a", "Zz", "é", "日本", "1", "23", "٣", "½", " ", "  ", "\t", "\n", "\r\n",
          "\u00a0", "\u2003", ".", "!!", "\u0301", "🙂", "\u200b", "_", "'ll"]
# And those that DeepSeek's do: letters and signs of their lists, spaces that are signs.
MORE = PIECES + ["\u3000", "。", "！", "Ａ", "Ж", "ß", "ʔ", "字", "한", "£", "ༀ", "‘", "\u2028", "µa", "aé", "¡", "𞤀", "א", "\r"]


def texts():
    with open(os.path.join(HERE, "tokenizer.jsonl"), encoding="utf-8") as f:
        for line in f:
            text = json.loads(line)["text"]
            # Characters that are no letters yet in one Unicode version are in the next.
            if 0 < len(text) <= 400 and not any(unicodedata.category(c) == "Cn" for c in text):
                yield text
    rng = random.Random(7)
    for _ in range(300):
        yield "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 14)))
    # The ends of each range of letters, signs and cjk, and their neighbours.
    edges = {ord(c) + d for c in LETTERS + "ࠀ一龥가퟿！／：～‘‟　。" for d in (-1, 0, 1)}
    edges = [chr(c) for c in sorted(edges) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    for i in range(0, len(edges), 20):
        yield "".join("£ " + c for c in edges[i:i + 20])
    for _ in range(600):
        yield "".join(rng.choice(MORE) for _ in range(rng.randint(1, 14)))


def main():
    with open(os.path.join(HERE, "pretokens.jsonl"), "w", encoding="utf-8") as out:
        for text in texts():
            at = [0]
            for ch in text:
                at.append(at[-1] + len(ch.encode("utf-8", "surrogatepass")))
            row = {"text": text}
            for name, pre in FAMILIES.items():
                row[name] = [at[end] for _, (_, end) in pre.pre_tokenize_str(text)]
            out.write(json.dumps(row) + "\n")


main()
