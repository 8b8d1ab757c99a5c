"""Tenants are apart: cache, counts, lists, words."""
from checks import envelope
from instance import until

PROMPT = "The same long text for both tenants, byte for byte, which must be computed for each of them alone. " * 20


def prefix_keys(gate, tag):
    return {r["headers"]["x-tollgate-prefix-key"] for _, r in gate.seen(tag)}


def test_each_tenant_has_its_own_prefix_key(gate):
    gate.chat("salt-a @tokens=1", key=gate.key)
    gate.chat("salt-a again @tokens=1", key=gate.key)
    gate.chat("salt-b @tokens=1", key=gate.key_b)
    a, b = prefix_keys(gate, "salt-a"), prefix_keys(gate, "salt-b")
    assert len(a) == len(b) == 1 and a != b
    assert all(len(k) == 32 and int(k, 16) for k in a | b)
    second = gate.ctl("key", "create", "--tenant", "acme", "--name", "second", "--project", "other")["key"]
    gate.chat("salt-c @tokens=1", key=second)
    assert prefix_keys(gate, "salt-c") == a, "keys of one tenant share its cache"


def test_no_cache_hit_across_tenants(gate):
    for n in range(3):
        gate.chat(PROMPT + "warm-%d @tokens=1" % n, key=gate.key)
    hit = gate.chat(PROMPT + "own @tokens=1", key=gate.key)
    assert hit["usage"]["prompt_tokens_details"]["cached_tokens"] > 300
    other = gate.chat(PROMPT + "other @tokens=1", key=gate.key_b)
    row = gate.row(other["request_id"])
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert row["tok_in_cached"] == 0 and row["tok_in_cached_predicted"] == 0, "not even expected: the index is apart too"


def test_a_client_cannot_choose_its_salt(gate):
    """Headers of ours that a client sends never reach a worker."""
    forged = {"x-tollgate-prefix-key": "0" * 32, "x-tollgate-event": "01a00000-0000-7000-8000-000000000000", "x-tollgate-attempt": "9", "x-tollgate-class": "interactive"}
    r = gate.post(gate.body("forged @tokens=1", cache_salt="other", user="x"), headers=forged)
    assert r.status_code == 200
    (_, rec), = gate.seen("forged")
    assert rec["headers"]["x-tollgate-prefix-key"] != "0" * 32 and rec["headers"]["x-tollgate-event"] != forged["x-tollgate-event"]
    assert rec["headers"]["x-tollgate-attempt"] == "1" and "cache_salt" not in rec["body"] and "user" not in rec["body"]
    assert "x-tollgate-prefix-key" not in r.headers and "x-tollgate-worker-epoch" not in r.headers


def test_lists_and_sums_are_of_one_tenant(gate):
    key, key_id = gate.tenant("lonely")
    gate.chat("lonely @tokens=3", key=key)
    gate.idle()
    mine = gate.ctl("key", "list", "--tenant", "lonely")["data"]
    assert [k["key_id"] for k in mine] == [key_id] and all(k["tenant"] == "lonely" for k in mine)
    used = gate.ctl("usage", "show", "--tenant", "lonely")
    assert used["total"]["requests"] == 1 and used["total"]["tok_out"] == 3
    assert gate.ctl_raw("usage", "show", "--tenant", "nobody").returncode == 1


def test_one_tenants_limits_do_not_touch_another(gate):
    key, _ = gate.tenant(requests_per_min=1)
    assert [gate.post(gate.body("x @tokens=1"), key=key).status_code for _ in range(2)] == [200, 429]
    assert gate.post(gate.body("x @tokens=1"), key=gate.key_b).status_code == 200


def test_a_disabled_tenant_is_refused(gate):
    key, key_id = gate.tenant("disabled-one")
    gate.chat("fine @tokens=1", key=key)
    gate.sql("UPDATE tenant SET disabled = true WHERE name = 'disabled-one'")
    until(lambda: gate.post(gate.body("x"), key=key).status_code != 200, 2, "refused")
    envelope(gate.post(gate.body("x"), key=key), 403)
    assert gate.chat("others @tokens=1")


def test_metrics_name_no_tenant(gate):
    import httpx
    text = httpx.get(gate.admin_url + "/metrics").text
    assert "acme" not in text and "globex" not in text and "tg_" not in text
