"""The ledger: a row an attempt, exact integers, exactly once, with Postgres away and back."""
import asyncio
import json
import os
import shutil
import threading

import checks
import pytest
from checks import OUTCOME, STATE
from instance import CACHED, IN, OUT, Instance, until
from load import streams
from scripted_worker import tokens_in


def usage_of(u):
    return u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"], u["completion_tokens"]


def row_usage(r):
    return r["tok_in_uncached"] + r["tok_in_cached"], r["tok_in_cached"], r["tok_out"]


def test_each_answer_is_one_row_with_its_usage(gate):
    shared = "a common beginning of some length. " * 30
    for i in range(8):
        text = shared + "rows-%d @tokens=%d" % (i, i + 1)
        if i % 2:
            a = gate.stream(text, stream_options={"include_usage": True}).clean()
            rid, u = a.request_id, a.usages[-1]
        else:
            r = gate.chat(text)
            rid, u = r["request_id"], r["usage"]
        row = gate.row(rid)
        assert row_usage(row) == usage_of(u) and row["tok_out"] == i + 1
        assert row["cost_pusd"] == row["tok_in_uncached"] * IN + row["tok_in_cached"] * CACHED + row["tok_out"] * OUT
        assert row["list_pusd"] == (row["tok_in_uncached"] + row["tok_in_cached"]) * IN + row["tok_out"] * OUT
        assert (row["outcome"], row["usage_state"], row["http_status"], row["attempt"]) == (OUTCOME["done"], STATE["measured"], 200, 1)
        assert row["tok_in_cached"] > 0 or i == 0
        assert 0 <= row["ttft_us"] <= row["dur_us"]


def test_a_row_is_there_within_250_ms(gate):
    rid = gate.chat("soon @tokens=1")["request_id"]
    gate.row(rid)
    r, = gate.sql("SELECT extract(epoch FROM recorded_at - occurred_at) * 1e6 - dur_us AS late_us FROM usage_event WHERE request_id = %s", rid)
    assert r["late_us"] < 250_000, r


def test_foreign_engines_are_booked_by_what_is_known(gate):
    a = gate.stream("foreign-usage @tokens=7", model="scripted-openai").clean()
    r = gate.row(a.request_id)
    assert r["tok_out"] == 7 and r["usage_state"] == STATE["measured"]
    a = gate.stream("foreign-cut @tokens=9 @cut=4", model="scripted-openai")
    r = gate.row(a.request_id)
    assert r["tok_out"] == 4 == tokens_in("foreign-cut @tokens=9 @cut=4", a.text) and r["usage_state"] == STATE["streamed_count"]
    assert r["outcome"] == OUTCOME["worker_error"] and r["tok_in_uncached"] >= 1


@pytest.mark.parametrize("order", ["@end=1", "@cut=1"])
def test_a_whole_answer_of_a_foreign_engine_that_breaks_off_is_not_asked_for_again(order):
    """Half of a 200's body came: it was produced, once. The row says so, and no other engine is asked."""
    with Instance(workers=0, openai=2) as g:
        text = "half-of-it @tokens=40 %s" % order
        r = g.post(g.body(text, model="scripted-openai"))
        assert r.status_code == 502, r.text
        assert len(g.seen("half-of-it")) == 1, "it ran twice"
        row = g.row(r.headers["x-request-id"])
        assert (row["outcome"], row["usage_state"], row["http_status"]) == (OUTCOME["worker_error"], STATE["estimated"], 502)
        assert 1 <= row["tok_out"] <= 64 and row["tok_in_uncached"] >= 1
        assert g.sql("SELECT count(*) n FROM usage_event")[0]["n"] == 1


def test_failures_before_content_cost_nothing(gate):
    for text in ("f500 @status=500", "f429 @status=429", "finband @inband"):
        assert gate.post(gate.body(text)).status_code >= 400
        for _, rec in gate.seen(text.split()[0]):
            r = until(lambda e=rec["event"]: gate.sql("SELECT * FROM usage_event WHERE event_id = %s", e), 5, "its row")[0]
            assert r["cost_pusd"] == 0 and r["tok_out"] == 0 and r["tok_in_uncached"] == 0
            assert r["outcome"] == OUTCOME["refused_by_worker"]


def test_refused_requests_leave_no_row(gate):
    before = len(gate.rows())
    gate.post(b"{")
    gate.post(gate.body("x"), key="tg_wrong")
    gate.post({**gate.body("x"), "model": "nope"})
    gate.idle()
    assert len(gate.rows()) == before


def test_rows_are_append_only(gate):
    import psycopg
    gate.row(gate.chat("fixed @tokens=1")["request_id"])
    for q in ("UPDATE usage_event SET cost_pusd = 0", "DELETE FROM usage_event", "TRUNCATE usage_event"):
        with pytest.raises(psycopg.Error):
            gate.sql(q)


def test_the_ledger_agrees_with_itself(gate):
    """After all that ran before: rollup = rows, rows = journal, sequence dense, cost = tokens x price."""
    for i in range(5):
        gate.chat("self-%d @tokens=2" % i)
    gate.idle()
    assert checks.ledger_is_whole(gate)
    used = gate.ctl("usage", "show", "--tenant", "acme")
    t = gate.sql("SELECT tenant_id FROM tenant WHERE name = 'acme'")[0]["tenant_id"]
    want = gate.sql("SELECT count(*) n, coalesce(sum(cost_pusd), 0) c FROM usage_event WHERE tenant_id = %s", t)[0]
    assert used["total"]["requests"] == want["n"] and int(used["total"]["cost_pusd"]) == want["c"]


def test_the_price_is_fixed_at_admission(gate):
    """A new price while a stream runs: this answer is billed at the old one, the next at the new."""
    out = []
    c = gate.http()
    t = threading.Thread(target=lambda: out.append(gate.stream("repriced @tokens=30 @rate=40", model="scripted-openai", client=c)))
    t.start()
    until(lambda: gate.seen("repriced"), 5, "it runs")
    gate.ctl("price", "publish", "--model", "scripted-openai", "--input", "5", "--cached", "5", "--output", "7")
    t.join(20)
    old = gate.row(out[0].clean().request_id)
    new = gate.row(gate.stream("dearer @tokens=30", model="scripted-openai").clean().request_id)
    gate.ctl("price", "publish", "--model", "scripted-openai", "--input", "1.0", "--cached", "0.1", "--output", "2.0")
    assert old["cost_pusd"] == old["tok_in_uncached"] * IN + 30 * OUT
    assert new["cost_pusd"] == new["tok_in_uncached"] * 5_000_000 + 30 * 7_000_000 and new["price_id"] != old["price_id"]


def test_exactly_once_while_postgres_dies_and_returns():
    """Postgres is killed twice under load: no answer fails, every row comes once."""
    with Instance(workers=2, own_pg=True) as g:
        bodies = [dict(g.body("pg-%d @tokens=8 @rate=80" % i), stream=True) for i in range(240)]

        async def during(load):
            for at in (40, 140):
                while load.ended < at:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(g.kill9, "postgres")
                while load.ended < at + 50:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(g.restart, "postgres")
        answers = streams(g, bodies, at_once=30).run(during)
        for a, b in zip(answers, bodies):
            assert tokens_in(b["messages"][0]["content"], a.clean().text) == 8
        until(lambda: not g.busy(), 20, "all rows are in Postgres")
        assert len(checks.ledger_is_whole(g)) == 240
        checks.every_token_is_billed(g, answers, bodies)


def test_a_start_without_postgres_uses_the_snapshot_and_says_so():
    with Instance(workers=1, own_pg=True) as g:
        g.chat("before @tokens=3")
        g.idle()
        key, key_id = g.tenant(budget_month="0.000200000000")  # 2e8 pico-USD
        assert g.post(g.body("spend @tokens=10", max_tokens=10), key=key).status_code == 200
        g.idle()
        assert g.term() == 0
        g.pg.stop()
        g.restart("gateway")
        ev = [e for e in g.log_events() if e.get("event") == "started_from_snapshot"]
        assert ev and ev[0]["level"] == "warn" and "snapshot" in ev[0]["message"]
        g.client.close()
        until(lambda: g.post(g.body("away @tokens=4")).status_code == 200, 10, "served from the snapshot")
        r = g.ctl_raw("tenant", "create", "late")
        assert r.returncode == 1 and r.stderr.strip(), "a change needs Postgres, and says so"
        assert g.metrics()["tollgate_postgres_up"] == 0
        until(lambda: g.metrics()["tollgate_ship_behind_rows"] >= 1, 5, "the shipper tells how far it is behind")
        # What was spent is known from the snapshot: the budget still ends.
        n = 0
        while g.post(g.body("spend @tokens=10", max_tokens=10), key=key).status_code == 200:
            n += 1
            assert n < 10
        g.restart("postgres")
        until(lambda: not g.busy(), 20, "the rows arrive")
        checks.ledger_is_whole(g)
        r = g.sql("SELECT sum(cost_pusd) c FROM usage_event WHERE key_id = %s", key_id)[0]
        assert r["c"] <= 200_000_000
        g.tenant()


def test_no_start_with_neither_postgres_nor_snapshot():
    with Instance(workers=0, setup=False) as g:
        assert g.term() == 0
        g.config["postgres"]["conninfo"] = "host=/nowhere dbname=x"
        g.config["journal"]["dir"] = g.path("empty")
        rc, said = g.run_gateway(g.write_config())
        assert rc == 1 and "no configuration" in said and "snapshot" in said


def test_journal_verify_show_replay():
    """Offline: the journal alone makes the same ledger, and a second replay adds nothing."""
    with Instance(workers=2) as g:
        for i in range(30):
            g.chat("replayed-%d @tokens=%d" % (i, i % 5 + 1))
        g.stream("cut @tokens=9 @cut=2")
        g.idle()
        rows = g.rows()
        assert g.term() == 0
        v = g.journal_verify()
        assert v["rows"] == len(rows) and v["rows_dense"] is True and v["torn_tails"] == 0
        assert v["cost_pusd"] == sum(r["cost_pusd"] for r in rows)
        kinds = [r["type"] for r in g.journal_show()]
        assert kinds.count("OPEN") == 31 and kinds.count("DISPATCH") == kinds.count("CLOSE") == len(rows)
        other = g.pg.database(g.bin("tollctl"))
        copy = g.path("copy")
        shutil.copytree(g.journal, copy)
        for want in (len(rows), 0):
            got = g.ctl_raw("journal", "replay", copy, "--database", g.pg.dsn(other, "tollgate_gateway"), "--json")
            assert got.returncode == 0, got.stderr
            assert json.loads(got.stdout)["rows"] == want
        g.db, old = other, g.db
        again = g.rows()
        g.db = old
        skip = ("recorded_at",)
        assert [{k: v for k, v in r.items() if k not in skip} for r in again] == [{k: v for k, v in r.items() if k not in skip} for r in rows]


def test_a_flipped_byte_in_the_journal_is_found():
    with Instance(workers=1) as g:
        for i in range(10):
            g.chat("flip-%d @tokens=1" % i)
        g.idle()
        assert g.term() == 0
        segment = next(p for p in sorted(os.path.join(g.journal, f) for f in os.listdir(g.journal)) if open(p, "rb").read(1 << 20).count(b"127.0.0.1") >= 5)
        data = open(segment, "rb").read()
        at = data.index(b"127.0.0.1", data.index(b"127.0.0.1") + 1000)
        with open(segment, "r+b") as f:
            f.seek(at)
            f.write(b"9")
        got = g.ctl_raw("journal", "verify", g.journal)
        assert got.returncode == 1 and os.path.basename(segment) in got.stderr, got
