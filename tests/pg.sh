#!/bin/sh
# A private Postgres for a test run: tests/pg.sh start DIR | stop DIR
#
# start makes a cluster in DIR/data, on a unix socket in DIR and a free loopback port, with an empty
# database `tollgate`, and prints a conninfo for its superuser. It runs as the caller, or as postgres
# (else nobody) when the caller is root, whom Postgres refuses. stop ends it at once and removes it.
set -eu

usage() {
    echo "usage: pg.sh start|stop DIR" >&2
    exit 2
}

as_user() {
    if [ "$(id -u)" -ne 0 ]; then
        "$@"
    elif id postgres >/dev/null 2>&1; then
        runuser -u postgres -- "$@"
    else
        runuser -u nobody -- "$@"
    fi
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start() {
    mkdir -p "$dir"
    if [ "$(id -u)" -eq 0 ]; then
        chown "$(as_user id -u)" "$dir"
    fi
    as_user "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C -N >"$dir/initdb.log" 2>&1
    port=$(free_port)
    as_user "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 60 -o "-k $dir -h 127.0.0.1 -p $port \
        -c max_connections=50 -c shared_buffers=64MB -c max_wal_size=512MB" start >"$dir/start.log" 2>&1 || {
        cat "$dir/start.log" "$dir/log" >&2
        exit 1
    }
    as_user "$bin/createdb" -h "$dir" -p "$port" -U postgres tollgate
    echo "host=$dir port=$port user=postgres dbname=tollgate"
}

[ $# -eq 2 ] || usage
# Postgres refuses socket paths of 108 bytes and more, and wants an absolute one.
mkdir -p "$2"
dir=$(cd "$2" && pwd)
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
[ -n "$bin" ] || {
    echo "pg.sh: no Postgres under /usr/lib/postgresql" >&2
    exit 1
}
case $1 in
start) start ;;
stop)
    as_user "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >/dev/null 2>&1 || true
    rm -rf "$dir/data" "$dir"/*.log "$dir/log" "$dir"/.s.PGSQL.*
    rmdir "$dir" 2>/dev/null || true
    ;;
*) usage ;;
esac
