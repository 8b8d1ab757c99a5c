"""The admin listener: every route is in its table and needs the key; secrets appear nowhere."""
import os
import re

import httpx
import pytest
from instance import TOP, Instance

ROUTES = re.findall(r'\{HTTP_(\w+), "([^"]+)", ADMIN_(\w+),', open(os.path.join(TOP, "gateway/admin/admin.c")).read())


def test_the_table_was_found():
    assert len(ROUTES) >= 16 and {r for _, _, r in ROUTES} == {"OPEN", "KEY"}
    assert {p for _, p, r in ROUTES if r == "OPEN"} == {"/health", "/metrics"}


@pytest.mark.parametrize("method,path,role", ROUTES)
def test_each_route_asks_for_the_key(gate, method, path, role):
    url = gate.admin_url + path
    kw = {"json": {}} if method == "POST" else {}
    changes = "SELECT count(*) n FROM admin_audit"
    before = gate.sql(changes)
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer " + gate.key}, {"authorization": "Bearer "[:6]}, {"x-api-key": gate.key},
                    {"authorization": "Bearer " + gate.secrets["admin_key"][:-1]}, {"authorization": "Bearer " + gate.secrets["worker_key"]}):
        assert httpx.request(method, url, headers=headers, **kw).status_code == (401 if role == "KEY" else 200), (method, path, sorted(headers))
    r = httpx.request(method, url, headers={"authorization": "Bearer " + gate.secrets["admin_key"]}, **kw)
    assert r.status_code not in (401, 403, 405, 500) and "no tenant" in r.text if r.status_code == 404 else r.status_code in (200, 400)
    assert gate.sql(changes) == before, "an empty body changed something"


def test_unknown_routes_do_not_tell(gate):
    for method, path in (("GET", "/admin/nope"), ("POST", "/admin"), ("DELETE", "/admin/tenants"), ("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
        assert httpx.request(method, gate.admin_url + path).status_code == 401
    good = {"authorization": "Bearer " + gate.secrets["admin_key"]}
    assert httpx.get(gate.admin_url + "/admin/nope", headers=good).status_code == 404
    assert httpx.request("DELETE", gate.admin_url + "/admin/tenants", headers=good).status_code in (404, 405)


def test_the_public_listener_has_no_operator_surface(gate):
    for path in {p for _, p, _ in ROUTES} - {"/health"}:
        for key in (gate.key, gate.secrets["admin_key"]):
            assert httpx.get(gate.clear_url + path, headers={"authorization": "Bearer " + key}).status_code == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"name":7}', b'{"name":""}', b'{"name":"a","name":"b"}', b"\xff", b'{"name":"' + b"x" * 300000 + b'"}'],
                         ids=lambda b: b[:12].decode("latin-1") or "empty")
def test_bad_bodies_are_refused_whole(gate, body):
    before = gate.sql("SELECT count(*) n FROM tenant")
    r = httpx.post(gate.admin_url + "/admin/tenants", content=body, headers={"authorization": "Bearer " + gate.secrets["admin_key"]})
    assert r.status_code in (400, 413) and r.json()["error"]["message"]
    assert gate.sql("SELECT count(*) n FROM tenant") == before


def test_names_with_anything_in_them_stay_data(gate):
    for name in ("Robert'); DROP TABLE tenant;--", "naïve 你好 😀", "a\nb", "%s%n", "\\x00"):
        gate.ctl("tenant", "create", name)
        assert gate.ctl("key", "create", "--tenant", name)["key"]
        assert name in [t["name"] for t in gate.ctl("tenant", "list")["data"]]
        assert len(gate.ctl("key", "list", "--tenant", name)["data"]) == 1
    gate.ctl("tenant", "create", os.fsdecode(b"bad\xff"))
    assert "bad\ufffd" in [t["name"] for t in gate.ctl("tenant", "list")["data"]], "a byte that is no UTF-8 is replaced, not stored"


def test_each_change_is_audited(gate):
    gate.tenant("audited", requests_per_min=3)
    what = [r["what"] for r in gate.sql("SELECT what FROM admin_audit ORDER BY admin_audit_id DESC LIMIT 3")]
    assert "tenant.create" in what and "key.create" in what
    q = gate.sql("SELECT * FROM quota_audit ORDER BY quota_audit_id DESC LIMIT 1")[0]
    assert q["after_value"] == 3 and q["before_value"] is None and q["who"]


def test_no_secret_in_logs_metrics_journal_or_database():
    """The canary: keys, secrets and words of prompts and answers are in no file that the gateway wrote."""
    with Instance(workers=1, openai=1, options={"log_level": "debug"}) as g:
        word = "canary-" + os.urandom(8).hex()
        g.chat("%s @tokens=3" % word)
        g.stream("%s @tokens=5 @cut=2" % word)
        g.stream("%s @tokens=3" % word, model=g.model + "-openai").clean()
        g.post(g.body(word + " @status=500"))
        g.post({**g.body(word), "temperature": 99})
        g.post(b'{"model":"scripted","messages":[{"role":"user","content":"' + word.encode())
        g.post(g.body(word), key=g.key + "x")
        g.post(g.body(word), path="/v1/" + word[:9] + "?key=" + g.key)
        revoked, key_id = g.tenant()
        g.ctl("key", "revoke", key_id)
        g.post(g.body(word), key=revoked)
        g.ctl_raw("tenant", "list", env={"TOLLGATE_ADMIN_KEY": "wrong-" + word})
        g.idle()
        metrics = httpx.get(g.admin_url + "/metrics").text
        tables = [r["t"] for r in g.sql("SELECT table_name AS t FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'")]
        dump = "\n".join(str(g.sql('SELECT x::text FROM "%s" x' % t)) for t in tables)
        secrets = [g.key, g.key_b, revoked, g.key[3:], *g.secrets.values(), word, "amber", "zephyr"]
        assert g.term() == 0
        files = [os.path.join(d, f) for root in (g.journal, g.path("log")) for d, _, fs in os.walk(root) for f in fs]
        assert any("snapshot" in f for f in files) and len(files) >= 4
        for f in files:
            data = open(f, "rb").read()
            for s in secrets:
                assert s.encode() not in data, "%s holds %s..." % (f, s[:10])
        for s in secrets:
            assert s not in metrics and s not in dump, "%s... is in metrics or tables" % s[:10]
        k0 = {bytes.fromhex(k) for k in {r["headers"]["x-tollgate-prefix-key"] for _, r in g.seen(word, g.worker_ports)}}
        for f in files:
            data = open(f, "rb").read()
            assert not any(k in data or k.hex().encode() in data for k in k0), "%s holds a prefix key" % f


def test_files_of_the_gateway_are_private(gate):
    for d, _, fs in os.walk(gate.journal):
        assert os.stat(d).st_mode & 0o077 == 0, d
        for f in fs:
            assert os.stat(os.path.join(d, f)).st_mode & 0o077 == 0, f
