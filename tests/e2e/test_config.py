"""Configuration files, secrets, and the command line's manners."""
import json
import os
import re
import subprocess

import pytest
from instance import TOP, Instance, free_ports

GOOD = """listen:
  clear: ["127.0.0.1:%d"]
  admin: "127.0.0.1:%d"
journal:
  dir: "%s"
secrets:
  deployment_file: "d"
  pepper_file: "p"
  worker_key_file: "w"
  admin_key_file: "a"
"""


@pytest.fixture
def good(tmp_path):
    return GOOD % (*free_ports(2), tmp_path / "journal")


def check(gate, tmp_path, text):
    p = tmp_path / "gateway.yaml"
    p.write_text(text) if isinstance(text, str) else p.write_bytes(text)
    return gate.run_gateway("check", str(p))


def test_a_good_file_is_good(gate, tmp_path, good):
    rc, said = check(gate, tmp_path, good)
    assert rc == 0 and "ok" in said


def test_the_commented_example_is_complete(gate, tmp_path):
    """configs/gateway.yaml names every option that the program knows, and check understands it."""
    path = os.path.join(TOP, "configs/gateway.yaml")
    rc, said = gate.run_gateway("check", path)
    assert rc == 0, said
    text = open(path).read()
    for option in re.findall(r'(?:OPT\(|\.path = )"([a-z0-9_.]+)"', open(os.path.join(TOP, "gateway/config.c")).read()):
        assert re.search(r"^[# ]*%s:" % re.escape(option.split(".")[-1]), text, re.M), "%s is not in configs/gateway.yaml" % option


BAD = {
    "unknown option": ("loopz: 3\n", 11, "loopz"), "unknown in a section": ("http:\n  nonsense: 3\n", 12, "nonsense"),
    "wrong unit": ("http:\n  idle_timeout: \"5 bananas\"\n", 12, "idle_timeout"), "no unit": ("drain_timeout: 30\n", 11, "drain_timeout"),
    "below its minimum": ("http:\n  header_count_max: 3\n", 12, "header_count_max"), "above its maximum": ("loops: 1000\n", 11, "loops"),
    "not a number": ("loops: many\n", 11, "loops"), "a float": ("loops: 1.5\n", 11, "loops"), "bad enum": ("log_level: loud\n", 11, "log_level"),
    "twice": ("loops: 1\nloops: 2\n", 12, "loops"), "a section twice": ("journal:\n  dir: \"x\"\n", 11, "journal"),
    "anchor": ("loops: &a 1\n", 11, ""), "tag": ("loops: !!int 1\n", 11, ""), "tab": ("http:\n\tidle_timeout: 3s\n", 12, ""), "a list for a word": ("log_level: [info]\n", 11, "log_level"),
    "a second document": ("---\nloops: 1\n", 11, ""),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_file_is_refused_with_its_line(gate, tmp_path, good, name):
    more, line, word = BAD[name]
    rc, said = check(gate, tmp_path, good + more)
    assert rc == 2 and word in said, said
    assert re.search(r":%d\b|line %d\b" % (line, line), said), "line %d is not named: %s" % (line, said)


def test_what_only_makes_sense_together(gate, tmp_path, good):
    for change in (("clear: [\"127.0.0.1", "clear: [\"0.0.0.0"), ("admin: \"127.0.0.1", "admin: \"0.0.0.0"), ("  pepper_file: \"p\"\n", ""), ("clear: ", "tls: "),
                   ("127.0.0.1:", "localhost:")):
        rc, said = check(gate, tmp_path, good.replace(*change))
        assert rc == 2 and said.strip(), change
    rc, said = check(gate, tmp_path, good.replace("  clear: [", "  # clear: ["))
    assert rc == 2 and "listen" in said
    assert check(gate, tmp_path, b"\xff\xfe" + good.encode())[0] == 2
    assert check(gate, tmp_path, good.replace("d\"", "d\0\""))[0] == 2
    assert gate.run_gateway("check", str(tmp_path / "absent.yaml"))[0] == 2
    assert gate.run_gateway("check", str(tmp_path))[0] == 2


def test_secrets_are_0600_files_with_something_in_them(gate):
    for name, mode, text in (("pepper", 0o644, "x" * 64), ("admin_key", 0o640, "x" * 64), ("deployment", 0o600, ""), ("worker_key", None, "")):
        was = gate.secrets[name]
        try:
            if mode is None:
                os.unlink(gate.path("secrets", name))
            else:
                gate.write_secret(name, text, mode)
            rc, said = gate.run_gateway(gate.path("gateway.yaml"))
            assert rc in (1, 2) and name + "_file" in said and gate.path("secrets", name) in said, said
            assert "x" * 64 not in said and was not in said
        finally:
            gate.write_secret(name, was)


def test_usage_and_version(gate):
    rc, said = gate.run_gateway("--help")[0], gate.run_gateway("--version", "x")[1]
    assert subprocess.run([gate.bin("tollgate"), "--help"], capture_output=True).returncode == 0
    assert subprocess.run([gate.bin("tollgate")], capture_output=True).returncode == 2
    assert subprocess.run([gate.bin("tollgate"), "--nonsense"], capture_output=True).returncode == 2
    assert subprocess.run([gate.bin("tollctl"), "--help"], capture_output=True).returncode == 0


def test_a_second_gateway_on_the_same_journal_is_refused(gate):
    config = json.loads(json.dumps(gate.config))
    a, b, c = free_ports(3)
    old, gate.config = gate.config, config
    config["listen"] = {"tls": ["127.0.0.1:%d" % a], "clear": ["127.0.0.1:%d" % b], "admin": "127.0.0.1:%d" % c}
    try:
        rc, said = gate.run_gateway(gate.write_config("second.yaml"))
    finally:
        gate.config = old
    assert rc == 1 and gate.journal in said


def test_a_port_in_use_is_said(gate, tmp_path):
    config = json.loads(json.dumps(gate.config))
    old, gate.config = gate.config, config
    config["journal"]["dir"] = str(tmp_path / "j")
    config["gateway_id"] = 2
    try:
        rc, said = gate.run_gateway(gate.write_config("second.yaml"))
    finally:
        gate.config = old
    assert rc == 1 and "127.0.0.1:" in said and "in use" in said.lower()


def test_a_worker_that_is_none_is_refused(gate):
    foreign = "http://127.0.0.1:%d" % gate.openai_ports[0]
    before = gate.ctl("worker", "list")["data"]
    for url, engine, why in ((foreign, "tollgate", "not a tollgate-worker"), ("http://127.0.0.1:%d" % free_ports(1)[0], "tollgate", "nothing listens"),
                             (gate.admin_url, "openai", "/v1/models"), ("http://127.0.0.1:%d" % gate.pg.port, "openai", "HTTP"),
                             ("https://127.0.0.1:1", "openai", "http://"), ("http://127.0.0.1:1/v1", "openai", "path"), ("http://u@127.0.0.1:1", "openai", ""),
                             ("http://127.0.0.1:99999", "openai", "port"), ("http://no.such.host.invalid:80", "openai", "resolve"), (foreign, "vllm", "engine")):
        r = gate.ctl_raw("worker", "add", "--url", url, "--engine", engine)
        assert r.returncode == 1 and why in r.stderr, (url, engine, r.returncode, r.stderr)
    assert [w["url"] for w in gate.ctl("worker", "list")["data"]] == [w["url"] for w in before]


def test_exit_codes(gate):
    assert gate.ctl_raw("tenant", "list").returncode == 0
    assert gate.ctl_raw("tenant", "create", "acme").returncode == 1
    assert "acme" in gate.ctl_raw("tenant", "create", "acme").stderr
    for words in (["key", "create", "--tenant", "nobody"], ["key", "revoke", "999999"], ["worker", "drain", "999"], ["quota", "set", "--tenant", "nobody", "--concurrent", "1"],
                  ["price", "publish", "--model", "m", "--input", "1.0000001", "--output", "1"], ["price", "publish", "--model", "m", "--input", "-1", "--output", "1"],
                  ["quota", "set", "--tenant", "acme", "--budget-month", "1e5"], ["tenant", "create", "x" * 200]):
        r = gate.ctl_raw(*words)
        assert r.returncode == 1 and r.stderr.strip(), (words, r)
    for words in ([], ["nonsense"], ["tenant"], ["tenant", "create"], ["key", "create"], ["key", "revoke", "abc"], ["tenant", "list", "--nope", "1"], ["tenant", "list", "more"],
                  ["quota", "set", "--tenant", "acme", "--concurrent", "many"], ["price", "publish", "--model", "m"], ["journal", "verify"], ["migrate"]):
        r = gate.ctl_raw(*words)
        assert r.returncode == 2 and r.stderr.strip() and not r.stdout, (words, r)
    assert gate.ctl_raw("tenant", "list", env={"TOLLGATE_ADMIN_URL": "http://127.0.0.1:%d" % free_ports(1)[0]}).returncode == 3
    assert gate.ctl_raw("tenant", "list", env={"TOLLGATE_ADMIN_KEY": ""}).returncode == 2
    assert gate.ctl_raw("tenant", "list", env={"TOLLGATE_ADMIN_KEY": "wrong"}).returncode == 1
    assert gate.ctl_raw("migrate", "--database", "host=/nowhere").returncode == 3
    assert gate.ctl_raw("journal", "verify", "/nowhere").returncode == 1


def test_json_is_one_object_and_the_key_its_only_secret(gate):
    made = gate.ctl("key", "create", "--tenant", "acme", "--name", "shown once")
    assert made["key"].startswith("tg_") and isinstance(made["key_id"], int)
    assert [v for v in made.values() if isinstance(v, str) and v.startswith("tg_")] == [made["key"]]
    listed = json.dumps(gate.ctl("key", "list", "--tenant", "acme"))
    assert made["key"] not in listed and "tg_" not in listed.replace(made["key"][:7], "tg_") or made["key"][10:20] not in listed
    for words in (["tenant", "list"], ["worker", "list"], ["price", "list"], ["quota", "show", "--tenant", "acme"], ["usage", "show", "--tenant", "acme"]):
        out = gate.ctl_raw(*words, "--json").stdout
        assert isinstance(json.loads(out), dict) and out.count("\n") == 1
        people = gate.ctl_raw(*words)
        assert people.returncode == 0 and people.stdout.strip() and "{" not in people.stdout


def test_amounts_take_twelve_decimals(gate):
    gate.tenant("precise")
    gate.ctl("quota", "set", "--tenant", "precise", "--budget-month", "1.234567890123")
    assert gate.ctl("quota", "show", "--tenant", "precise")["budget_month_pusd"] == 1_234_567_890_123
    gate.ctl("price", "publish", "--model", "precise", "--input", "0.123456", "--output", "0.000001")
    p, = [x for x in gate.ctl("price", "list", "--model", "precise")["data"] if x["tier"] == "standard"]
    assert (p["input_pusd"], p["output_pusd"]) == (123456, 1)


def test_adding_a_known_worker_updates_it():
    with Instance(workers=1) as g:
        url = "http://127.0.0.1:%d" % g.worker_ports[0]
        first = g.ctl("worker", "list")["data"][0]
        g.ctl("worker", "drain", url)
        again = g.ctl("worker", "add", "--url", url + "/", "--engine", "tollgate")
        assert again["worker_id"] == first["worker_id"] and again["draining"] is False
        assert len(g.ctl("worker", "list")["data"]) == 1
        g.wait_workers()
        g.chat("again @tokens=1")


def test_the_project_of_a_key_is_made(gate):
    gate.ctl("key", "create", "--tenant", "globex", "--project", "brand-new")
    assert "brand-new" in [k["project"] for k in gate.ctl("key", "list", "--tenant", "globex")["data"]]
