"""Many streams at once from one thread: a lean HTTP/1.1 client over asyncio, stdlib only."""
import asyncio
import json

from instance import Answer


class Load:
    """One request a body; run() gives one Answer each, in their order, also of those that broke."""

    def __init__(self, host, port, key, bodies, path="/v1/chat/completions", at_once=1000, spread=0.0, timeout=60):
        self.host, self.port, self.key, self.bodies, self.path = host, port, key, bodies, path
        self.at_once, self.spread, self.timeout = at_once, spread, timeout
        self.events = 0      # data lines that came so far
        self.begun = 0       # answers whose head came
        self.ended = 0

    def run(self, during=None):
        """during: a coroutine function of this Load that runs beside the streams."""
        return asyncio.run(self._run(during))

    async def _run(self, during):
        gate = asyncio.Semaphore(self.at_once)
        side = asyncio.ensure_future(during(self)) if during else None
        out = await asyncio.gather(*[self._one(b, i, gate) for i, b in enumerate(self.bodies)])
        if side:
            await side
        return out

    async def _one(self, body, i, gate):
        if self.spread:
            await asyncio.sleep(self.spread * i / len(self.bodies))
        async with gate:
            head, parts, broken = {}, [], None
            try:
                await asyncio.wait_for(self._exchange(body, head, parts), self.timeout)
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as e:
                broken = e
            self.ended += 1
            return Answer(head.get(":status", 0), head, b"".join(parts), broken)

    async def _exchange(self, body, head, parts):
        r, w = await asyncio.open_connection(self.host, self.port, limit=1 << 22)
        try:
            data = json.dumps(body).encode()
            w.write(("POST %s HTTP/1.1\r\nhost: load\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                     "connection: close\r\n\r\n" % (self.path, self.key, len(data))).encode() + data)
            lines = (await r.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            for line in lines[1:]:
                name, colon, value = line.partition(":")
                if colon:
                    head[name.lower()] = value.strip()
            head[":status"] = int(lines[0].split()[1])
            self.begun += 1
            if "chunked" in head.get("transfer-encoding", ""):
                while True:
                    n = int((await r.readuntil(b"\r\n"))[:-2].split(b";")[0], 16)
                    parts.append((await r.readexactly(n + 2))[:-2])
                    self.events += parts[-1].count(b"data: ")
                    if n == 0:
                        break
            else:
                parts.append(await r.readexactly(int(head["content-length"])))
        finally:
            w.transport.abort()


def streams(gate, bodies, key=None, **kw):
    return Load("127.0.0.1", gate.p_clear, key or gate.key, bodies, **kw)
