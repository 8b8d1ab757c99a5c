"""Bytes on the wire: HTTP/1.1 by hand, HTTP/2 by hyper-h2 with its own checks off."""
import contextlib
import json
import socket
import ssl
import time

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings


class H1:
    """One connection to the clear listener, or over TLS without h2."""

    def __init__(self, gate, tls=False, timeout=10):
        self.gate = gate
        self.s = socket.create_connection(("127.0.0.1", gate.p_tls if tls else gate.p_clear), timeout=timeout)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            ctx = gate.tls_context()
            ctx.set_alpn_protocols(["http/1.1"])
            self.s = ctx.wrap_socket(self.s, server_hostname="localhost")
        self.s.settimeout(timeout)
        self.buf = b""

    def __enter__(self):
        return self

    def __exit__(self, *a):
        with contextlib.suppress(OSError):
            self.s.close()

    def head(self, method="POST", path="/v1/chat/completions", headers=(), key=None):
        lines = ["%s %s HTTP/1.1" % (method, path), "Host: gate", "Authorization: Bearer " + (key or self.gate.key)]
        return ("\r\n".join(lines + ["%s: %s" % kv for kv in headers]) + "\r\n\r\n").encode("latin-1")

    def send(self, data):
        self.s.sendall(data)

    def fill(self):
        b = self.s.recv(65536)
        self.buf += b
        return bool(b)

    def response(self, timeout=10):
        """(status, headers, body); status None when the peer closed or reset first."""
        self.s.settimeout(timeout)
        try:
            while b"\r\n\r\n" not in self.buf:
                if not self.fill():
                    return None, {}, self.buf
        except (ConnectionError, ssl.SSLError):
            return None, {}, self.buf
        head, self.buf = self.buf.split(b"\r\n\r\n", 1)
        lines = head.decode("latin-1").split("\r\n")
        status, h = int(lines[0].split()[1]), {}
        for line in lines[1:]:
            k, _, v = line.partition(":")
            h[k.strip().lower()] = v.strip()
        body = b""
        if status < 200 or status == 204:
            return status, h, b""
        if "chunked" in h.get("transfer-encoding", ""):
            while True:
                while b"\r\n" not in self.buf:
                    assert self.fill(), "closed inside a chunked body"
                size, self.buf = self.buf.split(b"\r\n", 1)
                n = int(size.split(b";")[0], 16)
                while len(self.buf) < n + 2:
                    assert self.fill(), "closed inside a chunk"
                body, self.buf = body + self.buf[:n], self.buf[n + 2:]
                if n == 0:
                    return status, h, body
        n = int(h.get("content-length", 0))
        while len(self.buf) < n:
            assert self.fill(), "closed before content-length was reached"
        body, self.buf = self.buf[:n], self.buf[n:]
        return status, h, body

    def closed(self, timeout=5):
        self.s.settimeout(timeout)
        try:
            return self.s.recv(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True
        except TimeoutError:
            return False


class H2:
    """One TLS connection with ALPN h2. st[stream] = {status, headers, data, ended, reset}."""

    def __init__(self, gate, initial_window=65535, auto=True):
        self.gate, self.auto = gate, auto
        s = socket.create_connection(("127.0.0.1", gate.p_tls), timeout=10)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ctx = gate.tls_context()
        ctx.set_alpn_protocols(["h2"])
        self.s = ctx.wrap_socket(s, server_hostname="localhost")
        assert self.s.selected_alpn_protocol() == "h2"
        self.c = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False,
                                                                     normalize_outbound_headers=False, validate_inbound_headers=False))
        self.c.local_settings = h2.settings.Settings(client=True, initial_values={
            h2.settings.SettingCodes.ENABLE_PUSH: 0, h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: initial_window})
        self.st, self.goaway, self.goaway_last, self.eof = {}, None, None, False
        self.buf = b""
        self.c.initiate_connection()
        self.flush()

    def __enter__(self):
        return self

    def __exit__(self, *a):
        with contextlib.suppress(OSError):
            self.s.close()

    def flush(self):
        d = self.c.data_to_send()
        if d and not self.eof:
            try:
                self.s.sendall(d)
            except OSError:
                while not self.eof and self.pump(0.2):
                    pass
                self.eof = True

    def open(self, method="POST", path="/v1/chat/completions", body=None, headers=(), key=None, end=True):
        sid = self.c.get_next_available_stream_id()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        h = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path),
             ("authorization", "Bearer " + (key or self.gate.key))] + list(headers)
        if data is not None:
            h.append(("content-type", "application/json"))
        self.c.send_headers(sid, h, end_stream=end and data is None)
        self.st[sid] = {"status": None, "headers": {}, "data": bytearray(), "ended": False, "reset": None}
        self.flush()
        if data is not None:
            self.write(sid, data, end)
        return sid

    def write(self, sid, data, end=True, deadline=10):
        """Sends under flow control; stops early when the peer ends or resets. Returns bytes sent."""
        off, t = 0, time.monotonic() + deadline
        while True:
            x = self.st[sid]
            if x["reset"] is not None or self.eof or self.goaway is not None:
                return off
            n = min(self.c.local_flow_control_window(sid), self.c.max_outbound_frame_size, len(data) - off)
            if n > 0 or off == len(data):
                off += n
                self.c.send_data(sid, data[off - n:off], end_stream=end and off == len(data))
                self.flush()
                if off == len(data):
                    return off
                self.pump(0)
            elif x["ended"] or time.monotonic() > t:
                return off
            else:
                self.pump(0.2)

    def pump(self, timeout=1.0):
        """Reads what is there; False on a timeout or the end."""
        self.s.settimeout(timeout or 0.001)
        try:
            b = self.s.recv(65536)
        except (TimeoutError, ssl.SSLWantReadError):
            return False
        except OSError:
            b = b""
        if not b:
            self.eof = True
            return False
        self.buf += b
        while len(self.buf) >= 9 and len(self.buf) >= 9 + int.from_bytes(self.buf[:3], "big"):
            n = 9 + int.from_bytes(self.buf[:3], "big")
            frame, self.buf = self.buf[:n], self.buf[n:]
            if frame[3] == 7:  # hyper-h2 takes no frame after a GOAWAY, so it does not see it
                self.goaway, self.goaway_last = int.from_bytes(frame[13:17], "big"), int.from_bytes(frame[9:13], "big")
                continue
            try:
                events = self.c.receive_data(frame)
            except h2.exceptions.ProtocolError as e:
                raise AssertionError("the server broke HTTP/2: %r" % e)
            for e in events:
                self._take(e)
        with contextlib.suppress(OSError):
            self.flush()
        return True

    def _take(self, e):
        x = self.st.get(getattr(e, "stream_id", None))
        if isinstance(e, h2.events.ResponseReceived):
            x["headers"] = dict(e.headers)
            x["status"] = int(x["headers"][":status"])
        elif isinstance(e, h2.events.DataReceived):
            x["data"] += e.data
            if self.auto and e.flow_controlled_length:
                self.c.acknowledge_received_data(e.flow_controlled_length, e.stream_id)
        elif isinstance(e, h2.events.StreamEnded):
            x["ended"] = True
        elif isinstance(e, h2.events.StreamReset) and x is not None:
            x["reset"] = e.error_code

    def wait(self, sid, timeout=10, what=("ended", "reset")):
        t = time.monotonic() + timeout
        x = self.st[sid]
        while time.monotonic() < t and not self.eof and all(x[w] in (None, False) for w in what):
            self.pump(0.2)
        return x

    def until(self, fn, timeout=10):
        t = time.monotonic() + timeout
        while not fn() and time.monotonic() < t and not self.eof:
            self.pump(0.1)
        return fn()
