"""Postgres that hangs (not one that refuses): the control loop goes on, and its own calls end with a story."""
import contextlib
import os
import re
import signal
import threading
import time

import checks
import httpx
from instance import TOP, Instance, Proc, free_ports, until

PROMPT_S = 3.0   # what does not need Postgres answers at once; a stalled loop takes 12 s
ADMIN_STORE_S = int(re.search(r"ADMIN_STORE_US (\d+)", open(os.path.join(TOP, "gateway/admin/admin.h")).read()).group(1)) / 1e6
SLACK_S = 5.0
JOBS_MAX = int(re.search(r"STORE_JOBS_MAX (\d+)", open(os.path.join(TOP, "gateway/store.h")).read()).group(1))


@contextlib.contextmanager
def hung(pg):
    """Stopped, not gone: sockets stay open and nothing comes."""
    pids = pg.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Call(threading.Thread):
    """An operator's command beside the test."""

    def __init__(self, gate, *args):
        super().__init__()
        self.gate, self.args, self.began = gate, args, time.monotonic()
        self.start()

    def run(self):
        self.got = self.gate.ctl_raw(*self.args)
        self.took = time.monotonic() - self.began


def answers_at_once(gate):
    at = time.monotonic()
    gate.metrics()
    listed = gate.ctl("worker", "list")["data"]
    assert time.monotonic() - at < PROMPT_S
    return listed


def test_a_hung_postgres_stalls_nothing_that_does_not_need_it():
    with Instance(workers=2, own_pg=True) as g:
        g.chat("before @tokens=2")
        g.idle()
        with hung(g.pg):
            calls = [Call(g, "tenant", "create", "hung-%d" % i) for i in range(3)] + [Call(g, "usage", "show", "--tenant", "acme")]
            for _ in range(10):
                answers_at_once(g)
            g.kill9("worker1")
            until(lambda: any(w["health"] == "down" for w in answers_at_once(g)), 6, "the dead worker is seen")
            assert g.post(g.body("meanwhile @tokens=3")).status_code == 200
            while any(c.is_alive() for c in calls):
                answers_at_once(g)
            for c in calls:
                c.join()
                assert c.took < ADMIN_STORE_S + SLACK_S
                assert c.got.returncode == 1 and "Postgres" in c.got.stderr, (c.args, c.got)
        until(lambda: g.ctl_raw("tenant", "create", "after").returncode == 0, 20, "a change goes through again")
        g.restart("worker1")
        g.wait_workers()
        assert g.post(g.body("after @tokens=3")).status_code == 200
        until(lambda: not g.busy(), 20, "the rows arrive")
        checks.ledger_is_whole(g)


def test_more_calls_than_the_queue_holds_are_refused_with_a_story():
    """Past the bound nothing waits: the operator hears it at once, and what was queued still ends."""
    with Instance(workers=0, own_pg=True, setup=False) as g:
        headers = {"authorization": "Bearer " + g.secrets["admin_key"]}
        with hung(g.pg):
            got, lock = [], threading.Lock()

            def call(i):
                try:
                    r = httpx.get(g.admin_url + "/admin/tenants", headers=headers, timeout=60)
                    with lock:
                        got.append((r.status_code, r.json()["error"]["message"]))
                except httpx.HTTPError as e:
                    with lock:
                        got.append((0, repr(e)))
            threads = [threading.Thread(target=call, args=(i,)) for i in range(40)]
            for t in threads:
                t.start()
            answers = httpx.get(g.admin_url + "/health", timeout=PROMPT_S).json()
            assert answers["ready"] is True
            for t in threads:
                t.join()
        assert [s for s, _ in got] == [503] * 40, got
        assert sum("%d calls wait" % JOBS_MAX in m for _, m in got) == 40 - JOBS_MAX, got
        until(lambda: g.ctl_raw("tenant", "create", "after").returncode == 0, 20, "a change goes through again")


def test_a_second_gateway_of_the_same_id_and_epoch_is_told_what_to_change():
    """It would write over the first one's numbers. The claim is made before its first row."""
    with Instance(workers=1) as g:
        epoch = g.sql("SELECT max(gw_epoch) e FROM ingest_cursor WHERE gateway_id = 1")[0]["e"]
        assert epoch == 1, "an idle gateway has claimed its epoch"
        assert g.term() == 0
        # As if both had read the cursor in the same moment, and the other one was first.
        g.sql("CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
        g.sql("CREATE TRIGGER other BEFORE INSERT ON ingest_cursor FOR EACH ROW EXECUTE FUNCTION other()")
        rc, said = g.run_gateway(g.path("gateway.yaml"))
        assert rc == 1 and "gateway_id 1 is in use" in said and "journal.dir" in said, said
        g.sql("DROP TRIGGER other ON ingest_cursor")
        g.restart("gateway")
        g.chat("claimed @tokens=1")


def test_a_second_gateway_of_the_same_id_does_not_start():
    """Two hosts with the default gateway_id, each with a journal of its own: the second one is told, however late it comes."""
    with Instance(workers=1) as g:
        g.chat("first @tokens=1")
        tls, clear, admin = free_ports(3)
        g.config["listen"] = {"tls": ["127.0.0.1:%d" % tls], "clear": ["127.0.0.1:%d" % clear], "admin": "127.0.0.1:%d" % admin}
        g.config["journal"]["dir"] = g.path("second")
        second = g.write_config("second.yaml")
        rc, said = g.run_gateway(second, timeout=40)
        assert rc == 1 and "gateway_id 1 is in use" in said and "journal.dir" in said, said
        g.config["gateway_id"] = 2
        with_its_own = Proc("gateway2", [g.bin("tollgate"), "--config", g.write_config("second.yaml")], g.path("log", "gateway2.log")).start()
        try:
            until(lambda: "serves with" in g.log_text("gateway2"), 20, "with its own id it starts")
        finally:
            assert with_its_own.term() == 0
        g.chat("still @tokens=1")
