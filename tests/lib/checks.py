"""What must be true of the ledger, whatever happened: used by e2e and fault tests alike."""
import json
from collections import Counter

import scripted_worker
from instance import CACHED, IN, OUT

OUTCOME = {"done": 1, "client_abort": 2, "worker_error": 3, "timeout": 4, "clamped": 5, "gateway_restart": 7, "refused_by_worker": 8}
STATE = {"measured": 1, "streamed_count": 2, "estimated": 3, "clamped": 4, "unknown": 5}


def envelope(r, status, code=None, param=...):
    """The error body with its four keys; r is an httpx answer or (status, headers, body)."""
    got, headers, body = (r.status_code, r.headers, r.content) if hasattr(r, "status_code") else r
    assert got == status if isinstance(status, int) else got in status, "%s, wanted %s: %s" % (got, status, body[:300])
    assert headers.get("content-type", "").startswith("application/json"), headers
    e = json.loads(body)
    assert set(e) == {"error"} and set(e["error"]) == {"message", "type", "param", "code"}, e
    e = e["error"]
    assert isinstance(e["message"], str) and e["message"].strip() and isinstance(e["type"], str), e
    if code is not None:
        assert e["code"] == code, e
    if param is not ...:
        assert e["param"] == param, e
    return e


def cost(r):
    return r["tok_in_uncached"] * IN + r["tok_in_cached"] * CACHED + r["tok_out"] * OUT


def money_is_exact(rows):
    """Tokens times price, as integers; never above what was held."""
    for r in rows:
        assert r["cost_pusd"] == cost(r), r
        # nano-USD are rounded up a row
        assert -(-r["cost_pusd"] // 1000) <= r["hold_nusd"] or r["outcome"] == OUTCOME["gateway_restart"], r


def rollup_is_rows(gate):
    sums = "sum(tok_in_uncached)::numeric a, sum(tok_in_cached)::numeric b, sum(tok_out)::numeric c, sum(cost_pusd)::numeric m, sum(list_pusd)::numeric l"
    by = "tenant_id, key_id, model_id, tier_served, kind, period"
    rows = gate.sql("SELECT %s, date_bin('15 minutes', occurred_at, '2000-01-01Z') AS bucket, count(*)::numeric n, %s FROM usage_event GROUP BY %s, bucket ORDER BY %s, bucket" % (by, sums, by, by))
    roll = gate.sql("SELECT %s, bucket, sum(n)::numeric n, %s FROM usage_15m GROUP BY %s, bucket ORDER BY %s, bucket" % (by, sums, by, by))
    assert rows == roll


def sequence_is_dense(gate):
    """gw_seq runs 1..n in every epoch, and the cursor stands at n."""
    got = gate.sql("SELECT gateway_id, gw_epoch, count(*) n, min(gw_seq) a, max(gw_seq) b, count(DISTINCT gw_seq) d FROM usage_event "
                   "GROUP BY gateway_id, gw_epoch ORDER BY gateway_id, gw_epoch")
    for r in got:
        assert r["a"] == 1 and r["n"] == r["b"] == r["d"], r
    # A second gateway may have claimed its own epochs here.
    cursor = {(r["gateway_id"], r["gw_epoch"]): r["last_seq"] for r in gate.sql("SELECT gateway_id, gw_epoch, last_seq FROM ingest_cursor")}
    for r in got:
        assert cursor.get((r["gateway_id"], r["gw_epoch"])) == r["b"], (cursor, r)


def journal_is_rows(gate):
    """Every CLOSE still in the journal is one row, column for column; verify finds nothing wrong."""
    rows = {str(r["event_id"]): r for r in gate.rows()}
    for _ in range(5):  # a shipped segment may be trimmed between the two reads
        v = gate.journal_verify()
        closes = [r for r in gate.journal_show() if r["type"] == "CLOSE"]
        if v["rows"] == len(closes):
            break
    assert v["rows"] == len(closes) and len({c["event"] for c in closes}) == len(closes)
    for c in closes:
        r = rows.get(c["event"])
        assert r is not None, "in the journal, not in Postgres: %s" % c
        for k in ("gw_seq", "attempt", "tenant_id", "key_id", "worker_id", "tok_in_uncached", "tok_in_cached", "tok_out", "cost_pusd", "hold_nusd"):
            assert r[k] == c[k], (k, c, r)
        assert r["gw_epoch"] == c["epoch"]
    last = max((c["epoch"] for c in closes), default=0)
    newest = max((r["gw_epoch"] for r in rows.values()), default=0)
    if newest == last and closes:
        assert sum(r["gw_epoch"] == last for r in rows.values()) >= sum(c["epoch"] == last for c in closes)


def ledger_is_whole(gate):
    rows = gate.rows()
    events = Counter(str(r["event_id"]) for r in rows)
    assert not events or max(events.values()) == 1
    money_is_exact(rows)
    rollup_is_rows(gate)
    sequence_is_dense(gate)
    journal_is_rows(gate)
    return rows


def every_token_is_billed(gate, answers=(), bodies=()):
    """received <= billed <= generated for each attempt, and one row for each that reached a worker."""
    rows = {str(r["event_id"]): r for r in gate.rows()}
    made = gate.generated()
    lost = [g for e, g in made.items() if e not in rows]
    assert not lost, "%d attempts reached a worker and have no row, e.g. %s" % (len(lost), lost[:3])
    for e, r in rows.items():
        g = made.get(e)
        if g is None:  # its DISPATCH was durable, the worker never saw it
            assert r["tok_out"] == 0 and r["cost_pusd"] == 0, "billed, but no worker made it: %s" % r
            continue
        assert r["tok_out"] <= g["completion"], ("billed more than was made", g, r)
        assert r["tok_in_uncached"] + r["tok_in_cached"] <= g["prompt"], (g, r)
    by_request = {}
    for r in rows.values():
        by_request.setdefault(str(r["request_id"]), []).append(r)
    for a, b in zip(answers, bodies):
        if a.status != 200:
            continue
        asked = b.get("prompt") or b["messages"][-1]["content"]
        n = scripted_worker.tokens_in(asked, a.text)
        assert n >= 0, "wrong bytes in the answer to %r: %r" % (asked[:60], a.text[:200])
        billed = sum(r["tok_out"] for r in by_request.get(a.request_id, []))
        states = {r["usage_state"] for r in by_request.get(a.request_id, [])}
        assert n <= billed or STATE["unknown"] in states, ("received %d, billed %d" % (n, billed), by_request.get(a.request_id))
