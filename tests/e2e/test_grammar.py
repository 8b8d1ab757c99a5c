"""Constrained decoding beside oracles: jsonschema, hypothesis-jsonschema and llguidance.

Soundness: what the masks let through, drawn at random, parses and validates. Completeness: an instance
that validates is taken, byte by byte and as the longest allowed tokens. Both over schemas made of the
keywords that we enforce. `grammar_probe` is the grammar on a pipe, built with the sanitizers; while it
draws it also checks that masks and grammar_accept_token agree.

Where we and others differ on purpose: property order is the schema's; white space is at most 40 bytes a
place; numbers have at most 64 digits a side and exponents under 200; a bounded number has no exponent;
strings under a pattern, names beside declared ones and literals have one spelling a character; keys that
are not declared may repeat.
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest

jsonschema = pytest.importorskip("jsonschema")
hypothesis = pytest.importorskip("hypothesis")
hj = pytest.importorskip("hypothesis_jsonschema")
from hypothesis import HealthCheck, given, settings, strategies as st  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICK = settings(max_examples=int(os.environ.get("TOLLGATE_EXAMPLES", "60")), deadline=None, derandomize=True, database=None,
                 suppress_health_check=list(HealthCheck))
UNSATISFIABLE = "no value satisfies"
TOO_MUCH = ("begin alike", "too many states", "needs more than", "bind one value")


def probe_path():
    bases = [os.environ.get("TOLLGATE_BUILD_DIR"), os.environ.get("TOLLGATE_ASAN_DIR"), ROOT / "build/asan", ROOT / "build/release"]
    for base in filter(None, bases):
        path = pathlib.Path(base) / "tests/grammar_probe"
        if os.access(path, os.X_OK):
            return str(path)
    pytest.skip("grammar_probe is not built")


class Probe:
    def __init__(self):
        self.p = subprocess.Popen([probe_path()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")

    def ask(self, op, **k):
        self.p.stdin.write(json.dumps(dict(op=op, **k), ensure_ascii=False) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        assert line, "the probe died on %s %s" % (op, json.dumps(k)[:2000])
        return json.loads(line)

    def schema(self, s):
        return self.ask("compile", kind="schema", schema=s)

    def takes(self, text, greedy=False):
        r = self.ask("text", text=text, greedy=greedy)
        return r["taken"] == len(text.encode()) and r["accepting"]

    def close(self):
        self.p.stdin.close()
        self.p.wait(timeout=60)
        assert self.p.returncode == 0


# Bytes, and pieces that cross the borders of JSON's tokens.
PIECES = ['{"', '":', '": ', '", "', '","', '"}', '"]', '}]', ']}', '}}', '},{', '}, {', '[[', '[{', '[]', '{}', "true", "false", "null", " null",
          "tru", "e,", "12", "0.", "-1", "1e", ".5", "00", "  ", "\n  ", "\n\n", "\t", "ab", "abc", "a b", "_x", "name", '"name"', "é", "日本", "\U0001f600",
          "\\n", "\\u", '\\"', "\\\\", "d83d", "\\ud83d\\ude00", " the", "The", "ing", "2024", "-01", "T12:", "Z", "@", ".com", "://", "a" * 40]


@pytest.fixture(scope="module")
def small():
    """A vocabulary of 400 tokens or so: every byte, pieces of JSON, torn characters, one control token, EOS."""
    rng = random.Random(5)
    tokens = [b"", b""] + [bytes([i]) for i in range(256)] + [p.encode() for p in PIECES]
    while len(tokens) < 420:
        t = rng.choice(tokens) + rng.choice(tokens)
        if 1 < len(t) < 12:
            tokens.append(t)
    p = Probe()
    p.ask("vocab", hex=[t.hex() for t in tokens], eos=[0])
    p.tokens = tokens
    yield p
    p.close()


@pytest.fixture(scope="module")
def real():
    path = os.environ.get("TOLLGATE_MODEL_FILE") or os.path.expanduser("~/.cache/tollgate/SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(path):
        pytest.skip("no SmolLM2 model file: set TOLLGATE_MODEL_FILE")
    p = Probe()
    p.ask("model", path=path)
    yield p
    p.close()


# ---- schemas of the keywords that we enforce ----

PATTERNS = ["^[a-z]+$", "^[a-z]{2,5}$", "a", "^x", "y$", "^(ab|cd)*$", "^\\d{3}-\\d{4}$", "^[^0-9]*$", "[A-Z][a-z]+ [0-9]", "^.{3,8}$", "^(?:a|b|cd){1,3}$", "^\\w+@\\w+\\.com$",
            "é", "^[\\u00e0-\\u00ff]{1,4}$", '^"[^"]*"$', "^\\\\+$", "^$", "^a?b?c?$", "^[ -~]*$", "(foo|ba[rz])+"]
NAMES = st.sampled_from(["a", "b", "ab", "abc", "name", "na", "id", "é", "x y", 'q"t', "日本", "z" * 30, ""])
SMALL = st.integers(0, 4)


@st.composite
def number_schema(draw):
    s = {"type": draw(st.sampled_from(["integer", "integer", "number"]))}
    bound = st.one_of(st.integers(-300, 300), st.sampled_from([0, -1, 10, 99, 100, 1000, -0.5, 0.25, 12.75, -7.125, 1e3, 10**12]))
    for k in draw(st.lists(st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), max_size=2, unique=True)):
        s[k] = draw(bound)
    return s


@st.composite
def string_schema(draw):
    s = {"type": "string"}
    what = draw(st.integers(0, 3))
    if what == 1:
        s["pattern"] = draw(st.sampled_from(PATTERNS))
    if what == 2:
        s["format"] = draw(st.sampled_from(["date", "date-time", "uuid"]))
    if what != 2 and draw(st.booleans()):
        s["minLength"] = draw(SMALL)
    if what != 2 and draw(st.booleans()):
        s["maxLength"] = s.get("minLength", 0) + draw(st.sampled_from([0, 1, 3, 9, 10000]))
    return s


LITERALS = st.one_of(st.none(), st.booleans(), st.integers(-50, 50), st.sampled_from(["", "a", "ab", 'q"', "é", "\n", 1.5, -0.25, [], {}, [1, "x"], {"k": [None]}]))


def leaves():
    return st.one_of(number_schema(), string_schema(), st.just({"type": "boolean"}), st.just({"type": "null"}), st.just({}), st.just(True),
                     st.builds(lambda v: {"enum": v}, st.lists(LITERALS, min_size=1, max_size=4)), st.builds(lambda v: {"const": v}, LITERALS),
                     st.builds(lambda t: {"type": t}, st.lists(st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"]),
                                                               min_size=1, max_size=3, unique=True)))


@st.composite
def object_schema(draw, children):
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    s = {"type": "object", "properties": {n: draw(children) for n in names}}
    required = [n for n in names if draw(st.booleans())]
    if draw(st.integers(0, 5)) == 0:
        required.append("more")
    if required:
        s["required"] = required
    extra = draw(st.integers(0, 3))
    if extra < 2:
        s["additionalProperties"] = False
    elif extra == 2:
        s["additionalProperties"] = draw(children)
    return s


@st.composite
def array_schema(draw, children):
    s = {"type": "array"}
    if draw(st.booleans()):
        s["items"] = draw(children)
    if draw(st.booleans()):
        s["minItems"] = draw(st.integers(0, 2))
    if draw(st.booleans()):
        s["maxItems"] = s.get("minItems", 0) + draw(SMALL)
    return s


@st.composite
def any_of_schema(draw, children):
    s = {"anyOf": draw(st.lists(children, min_size=1, max_size=3))}
    if draw(st.integers(0, 3)) == 0:
        s["type"] = draw(st.sampled_from(["object", "string", "integer", ["string", "array", "null"]]))
    return s


SCHEMAS = st.recursive(leaves(), lambda c: st.one_of(object_schema(c), array_schema(c), any_of_schema(c)), max_leaves=8)


@st.composite
def recursive_schema(draw):
    item = st.sampled_from([{"$ref": "#/$defs/t"}, {"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/t"}}])
    t = draw(object_schema(st.one_of(item, leaves())))
    root = draw(st.sampled_from([{"$ref": "#/$defs/t"}, {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2},
                                 {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}]))
    return {"$defs": {"t": t}, **root}


# ---- the oracle: jsonschema, with patterns and formats as ECMA and we read them ----

def ecma(pattern):
    return re.compile(pattern.replace("\\d", "[0-9]").replace("\\w", "[0-9A-Za-z_]").replace("$", "\\Z"))


def check_pattern(validator, pattern, instance, schema):
    if isinstance(instance, str) and not ecma(pattern).search(instance):
        yield jsonschema.ValidationError("%r does not match %r" % (instance, pattern))


FORMATS = jsonschema.FormatChecker(formats=())


@FORMATS.checks("date", raises=ValueError)
def is_date(v):
    import datetime
    return not isinstance(v, str) or (len(v) == 10 and bool(datetime.date.fromisoformat(v)))


@FORMATS.checks("date-time", raises=ValueError)
def is_date_time(v):
    import datetime
    if not isinstance(v, str):
        return True
    m = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", v, re.ASCII)
    return bool(m and datetime.datetime.fromisoformat(m[1] + "T" + m[2] + (m[4].replace("Z", "+00:00"))))


@FORMATS.checks("uuid", raises=ValueError)
def is_uuid(v):
    return not isinstance(v, str) or bool(re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", v))


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": check_pattern})


def problems(schema, value):
    return [e.message for e in Validator(schema, format_checker=FORMATS).iter_errors(value)]


def draws_are_valid(probe, schema, seeds, most=400):
    """Random walks; returns how many ended."""
    ended = 0
    for seed in seeds:
        r = probe.ask("walk", seed=seed, calm=3 + 9 * (seed % 5), max=most)
        if not r["ended"]:
            continue
        ended += 1
        try:
            value = json.loads(r["text"])
        except ValueError as e:
            raise AssertionError("not JSON (%s): %r under %s" % (e, r["text"], json.dumps(schema)))
        bad = problems(schema, value)
        assert not bad, "%s: %r under %s" % (bad[0], r["text"], json.dumps(schema))
    return ended


def ordered(schema, value, root):
    """The value with members in the order in which the grammar writes them; None where several orders could be meant."""
    if schema is True or schema == {}:
        return value
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].split("/")[1:]:
            target = target[step]
        return ordered(target, value, root)
    if "anyOf" in schema:
        for s in schema["anyOf"]:
            if not Validator({**s, "$defs": root.get("$defs", {})} if isinstance(s, dict) else s, format_checker=FORMATS).is_valid(value):
                continue
            return ordered(s, value, root)
        return value
    if isinstance(value, list) and "items" in schema:
        return [ordered(schema["items"], v, root) for v in value]
    if isinstance(value, dict) and "properties" in schema:
        declared = list(schema["properties"]) + [n for n in schema.get("required", []) if n not in schema["properties"]]
        names = [n for n in declared if n in value] + [n for n in value if n not in declared]
        extra = schema.get("additionalProperties", True)
        return {n: ordered(schema["properties"].get(n, extra), value[n], root) for n in names}
    return value


def numbers_fit(v):
    if isinstance(v, float):
        return v == v and 1e-150 < abs(v) < 1e150 or v == 0
    if isinstance(v, int):
        return abs(v) < 10**60
    if isinstance(v, list):
        return all(map(numbers_fit, v))
    return all(map(numbers_fit, v.values())) if isinstance(v, dict) else True


def bounded_numbers(schema):
    """Under bounds exponents and -0 are not written: such instances are not asked for."""
    return bool(re.search(r'"(exclusiveM|m)(in|ax)imum"', json.dumps(schema)))


# ---- tests ----

@QUICK
@given(SCHEMAS, st.integers(0, 10**6))
def test_whatever_the_masks_let_through_validates(small, schema, seed):
    r = small.schema(schema)
    if "error" in r:
        assert UNSATISFIABLE in r["error"] or any(t in r["error"] for t in TOO_MUCH) or "cannot stand beside" in r["error"] or "leaves nothing" in r["error"], r
        return
    draws_are_valid(small, schema, range(seed, seed + 4))


@QUICK
@given(recursive_schema(), st.integers(0, 10**6))
def test_recursive_schemas_too(small, schema, seed):
    r = small.schema(schema)
    if "error" in r:
        assert UNSATISFIABLE in r["error"] or any(t in r["error"] for t in TOO_MUCH) or "leaves nothing" in r["error"], r
        return
    draws_are_valid(small, schema, range(seed, seed + 4))


def instance_of(data, schema):
    """A valid instance, and its compact text in the grammar's order of members; None: hypothesis has none that we would write."""
    try:
        value = data.draw(hj.from_schema(json.loads(json.dumps(schema))))
    except hypothesis.errors.HypothesisException:
        return None
    if problems(schema, value) or not numbers_fit(value):
        return None  # hypothesis reads patterns and formats its own way
    text = json.dumps(ordered(schema, value, schema), ensure_ascii=False, separators=(",", ":"))
    if bounded_numbers(schema):
        if re.search(r"\d[eE]", text):
            return None
        text = re.sub(r"-0(?![0-9.])", "0", text)
    return text


def test_every_valid_instance_is_taken(small):
    taken = 0

    @QUICK
    @given(st.data())
    def check(data):
        nonlocal taken
        schema = data.draw(SCHEMAS)
        if "error" in small.schema(schema):
            return
        text = instance_of(data, schema)
        for greedy in (False, True) if text is not None else ():
            assert small.takes(text, greedy), "%r under %s stops at %s" % (text, json.dumps(schema), small.ask("text", text=text, greedy=greedy))
            taken += 1

    check()
    assert taken >= QUICK.max_examples // 2


def test_instances_of_every_pattern_are_taken(small):
    """Draws from the regular expression as Python reads it."""
    seen = 0
    for pattern in PATTERNS:
        assert "error" not in small.schema({"type": "string", "pattern": pattern}), pattern

        @settings(QUICK, max_examples=25)
        @given(st.from_regex(ecma(pattern)))
        def check(text):
            nonlocal seen
            if any(0xD800 <= ord(c) < 0xE000 for c in text):
                return
            text = json.dumps(text, ensure_ascii=False)
            seen += 1
            assert small.takes(text), (pattern, text)

        check()
    assert seen > 200


@pytest.mark.parametrize("pattern", PATTERNS)
def test_strings_at_random_are_judged_as_by_python(small, pattern):
    small.schema({"type": "string", "pattern": pattern})
    rng = random.Random(pattern)
    for _ in range(150):
        text = "".join(rng.choice('abcdxy.@- 019"\\éàA\n') for _ in range(rng.randrange(9)))
        assert small.takes(json.dumps(text, ensure_ascii=False)) == bool(ecma(pattern).search(text)), (pattern, text)


@pytest.mark.parametrize("bounds", [(0, 0), (0, 9), (1, 150), (-5, 5), (-1000, -17), (99, 101), (7, None), (None, -3), (None, 12), (-120, 98765), (1.5, 3.25), (-0.5, 0.5), (0.05, 0.051)])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_numbers_are_judged_as_by_comparing(small, bounds, exclusive, kind):
    lo, hi = bounds
    schema = {"type": kind}
    if lo is not None:
        schema["exclusiveMinimum" if exclusive else "minimum"] = lo
    if hi is not None:
        schema["exclusiveMaximum" if exclusive else "maximum"] = hi
    r = small.schema(schema)
    if "error" in r:
        assert not any(not problems(schema, v) for v in range(-1001, 1001)) and (kind == "integer" or lo == hi), (schema, r)
        return
    rng = random.Random(str(schema))
    near = [b + d for b in bounds if b is not None for d in (-1, 0, 1)] + [0, 10, 100]
    for _ in range(300):
        v = rng.choice(near) if rng.random() < 0.4 else rng.randrange(-10 ** rng.randrange(1, 8), 10 ** rng.randrange(1, 8))
        v = int(v)
        if kind == "number" and rng.random() < 0.6:
            v = v + rng.choice([0.5, 0.25, 0.125, 0.05, 0.051, 0.0505, -0.001])
        text = repr(v)
        if "e" in text or text == "-0.0":
            continue
        assert small.takes(text) == (not problems(schema, v)), (schema, text)


REAL = [
    {"type": "object", "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 40}, "temp": {"type": "number"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
     "required": ["city", "unit"], "additionalProperties": False},
    {"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["v"]}}, "$ref": "#/$defs/n"},
    {"type": "object", "properties": {"mail": {"type": "string", "pattern": "^[a-z.]{1,9}@[a-z]{1,9}\\.(com|org)$"}, "at": {"type": "string", "format": "date-time"}}, "required": ["mail", "at"]},
]


@pytest.mark.parametrize("schema", REAL)
def test_a_real_vocabulary(real, schema):
    assert "error" not in real.schema(schema)
    assert draws_are_valid(real, schema, range(6), 300) >= 3


def test_any_object_is_an_object(real):
    real.ask("compile", kind="object")
    for seed in range(8):
        r = real.ask("walk", seed=seed, calm=10 * seed, max=300)
        if r["ended"]:
            assert isinstance(json.loads(r["text"]), dict)


# ---- llguidance: its masks and ours on the same prefixes ----

SAME = [
    (REAL[0], ['{"city":"Oslo","temp":-3.5,"unit":"celsius"}', '{"city":"é日","unit":"fahrenheit"}']),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}, ["[1,22,-3]"]),
    ({"type": "object", "properties": {"k": {"const": "x"}, "f": {"type": "boolean"}, "n": {"type": "null"}}, "required": ["k", "f", "n"], "additionalProperties": False},
     ['{"k":"x","f":true,"n":null}']),
    ({"anyOf": [{"type": "object", "properties": {"t": {"const": "a"}, "v": {"type": "integer"}}, "required": ["t", "v"], "additionalProperties": False},
                {"type": "object", "properties": {"t": {"const": "b"}, "w": {"type": "boolean"}}, "required": ["t", "w"], "additionalProperties": False}]},
     ['{"t":"a","v":5}', '{"t":"b","w":false}']),
    ({"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"}, ['"abc-42"']),
    ({"type": "integer", "minimum": 8, "maximum": 120}, ["8", "57", "120"]),
]


def difference(schema, prefix, token, ours):
    """Why one of the two allows the token; None: no reason that we know."""
    if ours and re.search(rb"[ \n\r\t]", token):
        return "white space between tokens, which compact JSON lacks"
    if b"\\" in token or prefix.endswith("\\"):
        return "escapes: which spellings of a character are taken"
    if b"\x7f" in token:
        return "DEL in a string"
    return None


def test_masks_beside_llguidance(small):
    """On the same prefixes; each difference has a known reason. Where the text is forced they name one token: there only that ours allow it."""
    llg = pytest.importorskip("llguidance")

    class Tok:
        eos_token_id, bos_token_id, special_token_ids = 0, None, [0, 1]
        tokens = [t or b"<%d>" % i for i, t in enumerate(small.tokens)]

        def __call__(self, s):
            return [2 + c for c in (s if isinstance(s, bytes) else s.encode())]

    tokenizer = llg.LLTokenizer(llg.TokenizerWrapper(Tok()), n_vocab=len(small.tokens))
    compared, forced, seen = 0, 0, {}
    for schema, texts in SAME:
        assert "error" not in small.schema(schema)
        grammar = llg.LLMatcher.grammar_from_json_schema(json.dumps(schema), {"whitespace_flexible": False})
        for text in texts:
            matcher = llg.LLMatcher(tokenizer, grammar)
            assert not matcher.get_error(), matcher.get_error()
            data = text.encode()
            for at in range(len(data)):
                try:
                    prefix = data[:at].decode()
                except UnicodeDecodeError:
                    prefix = None
                if prefix is not None:
                    raw = matcher.compute_bitmask()
                    theirs = {small.tokens[i] for i in range(len(small.tokens)) if raw[i // 8] >> (i % 8) & 1}
                    ours = {small.tokens[i] for i in small.ask("mask", text=prefix)["allowed"]}
                    if matcher.compute_ff_tokens():  # they name the one canonical token of a forced text
                        assert theirs <= ours, (schema, prefix, theirs - ours)
                        theirs = ours
                        forced += 1
                    for t in ours ^ theirs:
                        why = difference(schema, prefix, t, t in ours)
                        assert why, (schema, prefix, t, "ours" if t in ours else "theirs")
                        seen[why] = seen.get(why, 0) + 1
                    compared += 1
                assert matcher.consume_token(2 + data[at])
    assert compared - forced > 40 and len(seen) == 3, (compared, forced, seen)
