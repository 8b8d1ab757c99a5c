"""SIGTERM under load: what runs ends well, what comes is refused, every row is in Postgres, exit 0."""
import asyncio

import checks
from instance import Instance, until
from load import streams
from scripted_worker import tokens_in


def test_streams_finish_and_all_rows_are_shipped():
    with Instance(workers=2) as g:
        bodies = [dict(g.body("drain-%d @tokens=40 @rate=25" % i), stream=True) for i in range(150)]
        rc = []

        async def during(load):
            while load.events < 150:
                await asyncio.sleep(0.01)
            rc.append(await asyncio.to_thread(g.term))
        answers = streams(g, bodies, timeout=30).run(during)
        assert rc == [0]
        for a, b in zip(answers, bodies):
            assert tokens_in(b["messages"][0]["content"], a.clean().text) == 40
        rows = checks.ledger_is_whole(g)
        assert len(rows) == 150
        checks.every_token_is_billed(g, answers, bodies)


def test_requests_that_come_during_the_drain_are_told_to_go_elsewhere():
    """A kept connection gets a 503 with Retry-After or is closed; new connections are not taken; no row, no hang."""
    with Instance(workers=1) as g:
        text = "long @tokens=60 @rate=30"
        late = []

        async def during(load):
            while load.events < 5:
                await asyncio.sleep(0.01)
            g.procs["gateway"].p.terminate()
            await asyncio.to_thread(until, lambda: any(e.get("event") == "draining" for e in g.log_events()), 5)
            more = streams(g, [dict(g.body("late @tokens=1"), stream=True)] * 5, timeout=5)
            late.extend(await more._run(None))
        a, = streams(g, [dict(g.body(text), stream=True)], timeout=20).run(during)
        assert tokens_in(text, a.clean().text) == 60
        assert g.term() == 0
        for x in late:
            assert x.status in (0, 503), x.status
            assert x.status == 0 or "retry-after" in x.headers
        assert not g.seen("late") and len(g.rows()) == 1


def test_the_drain_ends_in_time_with_an_error_event():
    """Streams longer than drain_timeout are cut: an error event, the worker stops, the row bills what was made."""
    with Instance(workers=1, options={"drain_timeout": "1s"}) as g:
        bodies = [dict(g.body("endless-%d @tokens=5000 @rate=20" % i, max_tokens=5000), stream=True) for i in range(20)]
        rc = []

        async def during(load):
            while load.events < 60:
                await asyncio.sleep(0.01)
            rc.append(await asyncio.to_thread(g.term))
        answers = streams(g, bodies, timeout=20).run(during)
        assert rc == [0]
        for a in answers:
            assert a.status == 200 and not a.done and len(a.errors) == 1 and a.broken is None, (a.broken, a.data[-1:])
        rows = checks.ledger_is_whole(g)
        assert len(rows) == 20
        checks.every_token_is_billed(g, answers, bodies)
        made = g.generated()
        assert all(made[str(r["event_id"])]["completion"] == r["tok_out"] and r["usage_state"] == 1 for r in rows)


def test_a_drain_without_postgres_leaves_the_rows_in_the_journal():
    with Instance(workers=1, own_pg=True) as g:
        for i in range(5):
            g.chat("kept-%d @tokens=1" % i)
        g.idle()
        g.pg.stop()
        for i in range(5):
            g.chat("waits-%d @tokens=1" % i)
        assert g.term() == 0
        assert any(e.get("event") == "stopped" and "in the journal" in e["message"] for e in g.log_events())
        g.restart("postgres")
        g.restart("gateway")
        until(lambda: not g.busy() and len(g.rows()) == 10, 20, "the rows arrive")
        checks.ledger_is_whole(g)


def test_a_second_signal_stops_at_once():
    with Instance(workers=1) as g:
        bodies = [dict(g.body("two-%d @tokens=5000 @rate=20" % i, max_tokens=5000), stream=True) for i in range(10)]

        async def during(load):
            while load.events < 30:
                await asyncio.sleep(0.01)
            g.procs["gateway"].p.terminate()
            await asyncio.to_thread(until, lambda: any(e.get("event") == "draining" for e in g.log_events()), 5)
            assert g.procs["gateway"].alive()
            g.procs["gateway"].p.terminate()
            await asyncio.to_thread(g.procs["gateway"].p.wait, 10)
        g.may_die.add("gateway")
        answers = streams(g, bodies, timeout=20).run(during)
        g.restart("gateway")
        until(lambda: not g.busy(), 20, "at rest")
        checks.ledger_is_whole(g)
        checks.every_token_is_billed(g, answers, bodies)
        assert len(g.rows()) == 10
