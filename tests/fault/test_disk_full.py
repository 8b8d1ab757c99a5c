"""The journal's disk fills up: admission stops, what runs ends and is booked, and it goes on when there is room."""
import asyncio
import os
import shutil
import subprocess
import tempfile

import checks
import pytest
from checks import envelope
from instance import Instance, until
from load import streams
from scripted_worker import tokens_in


@pytest.fixture
def small_disk():
    """A folder on a file system of 6 MiB."""
    d = tempfile.mkdtemp(prefix="tg-small-")
    got = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "tmpfs", d], capture_output=True, text=True)
    if got.returncode != 0:
        os.rmdir(d)
        pytest.skip("a small file system cannot be mounted here: %s" % got.stderr.strip())
    yield os.path.join(d, "journal")
    subprocess.run(["umount", "-l", d], capture_output=True)
    shutil.rmtree(d, ignore_errors=True)


def test_a_full_disk_stops_admission_and_nothing_else(small_disk):
    """Postgres is away, so the journal cannot be trimmed, and fills its disk under load."""
    with Instance(workers=2, own_pg=True, journal_dir=small_disk) as g:
        g.pg.stop()
        slow = [dict(g.body("slow-%d @tokens=100000 @rate=20" % i, max_tokens=100000), stream=True) for i in range(20)]
        quick = {"answers": [], "bodies": []}
        full = []

        async def during(load):
            while load.begun < 20:
                await asyncio.sleep(0.01)
            for n in range(40):
                bodies = [dict(g.body("quick-%d-%d @tokens=1" % (n, i)), stream=True) for i in range(250)]
                got = await streams(g, bodies, at_once=50)._run(None)
                quick["answers"] += got
                quick["bodies"] += bodies
                full.extend(a for a in got if a.status != 200)
                if full:
                    break
            # What was admitted goes on for a second, then comes to its end by order.
            seen = load.events
            await asyncio.sleep(1)
            assert load.events > seen + 100, "running streams stand still"
            for p in g.worker_ports:
                for _, r in await asyncio.to_thread(g.seen, "slow-", [p]):
                    await asyncio.to_thread(g.worker_ctl, p, "finish", {"event": r["event"]})
        answers = streams(g, slow, timeout=120).run(during)
        assert full, "the disk never filled up"
        for a in full:
            assert a.status == 503 and "retry-after" in a.headers and b"journal" in a.raw
        assert g.metrics()["tollgate_journal_admits"] == 0
        envelope(g.post(g.body("refused")), 503)
        for a, b in zip(answers, slow):
            assert tokens_in(b["messages"][0]["content"], a.clean().text) > 20
        assert all(a.status in (200, 503) for a in quick["answers"])
        assert [a.clean() for a in quick["answers"] if a.status == 200]
        g.restart("postgres")
        until(lambda: g.post(g.body("room again @tokens=1")).status_code == 200, 30, "admission is back once rows are shipped", 0.2)
        until(lambda: not g.busy(), 30, "all shipped")
        checks.ledger_is_whole(g)
        n = sum(a.status == 200 for a in quick["answers"]) + 20
        assert len(g.rows()) == n + 1
        checks.every_token_is_billed(g, answers + quick["answers"], slow + quick["bodies"])


def test_a_start_on_a_full_disk_says_so(small_disk):
    with Instance(workers=0, setup=False) as g:
        os.makedirs(small_disk, mode=0o700)
        with open(small_disk + "/filler", "wb") as f:
            try:
                while True:
                    f.write(b"x" * 65536)
                    f.flush()
            except OSError:
                pass
        assert g.term() == 0
        g.config["journal"]["dir"] = small_disk
        rc, said = g.run_gateway(g.write_config())
        assert rc == 1 and ("space" in said or "journal" in said), said
