"""Writes quant_vectors.jsonl: blocks of random bytes and what the gguf package makes of them.

An implementation that is not ours (pip install gguf numpy). Scales are kept finite and moderate.
"""
import json
import os

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

# type, columns, bytes, offsets of fp16 scales
TYPES = [(T.F32, 32, 128, ()), (T.F16, 32, 64, ()), (T.BF16, 32, 64, ()), (T.Q4_0, 32, 18, (0,)),
         (T.Q4_1, 32, 20, (0, 2)), (T.Q5_0, 32, 22, (0,)), (T.Q8_0, 32, 34, (0,)),
         (T.Q4_K, 256, 144, (0, 2)), (T.Q6_K, 256, 210, (208,))]


def main():
    rng = np.random.default_rng(20240601)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quant_vectors.jsonl")
    with open(path, "w") as out:
        for kind, columns, size, scales in TYPES:
            for _ in range(3):
                if scales:
                    raw = rng.integers(0, 256, size, dtype=np.uint8)
                    for at in scales:
                        raw[at:at + 2] = np.array([rng.normal()], np.float16).view(np.uint8)
                else:
                    values = rng.normal(size=columns).astype(np.float32)
                    raw = {T.F32: lambda: values.view(np.uint8),
                           T.F16: lambda: values.astype(np.float16).view(np.uint8),
                           T.BF16: lambda: (values.view(np.uint32) >> 16).astype(np.uint16)
                           .view(np.uint8)}[kind]()
                want = dequantize(raw.reshape(1, -1), kind).astype(np.float32).reshape(-1)
                assert want.size == columns
                out.write(json.dumps({"type": int(kind), "name": kind.name,
                                      "block": raw.tobytes().hex(),
                                      "float32": want.tobytes().hex()}) + "\n")


if __name__ == "__main__":
    main()
