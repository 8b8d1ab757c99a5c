"""The tree's own rules: include directions, one door a library, headers alone, banned calls."""
import pathlib
import re
import shutil
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
AREAS = ("base", "cache", "ledger", "worker", "gateway")
SOURCES = sorted(p for a in AREAS for p in (TOP / a).rglob("*.[ch]"))
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)

# Who may include whom: three floors, no arrow upwards.
MAY = {
    "base": {"base"},
    "base/net": {"base", "base/net"},
    "cache": {"base", "cache"},
    "ledger": {"base", "base/net", "ledger"},
    "worker": {"base", "base/net", "cache", "worker"},
    "gateway": {"base", "base/net", "cache", "ledger", "gateway"},
}
# Inside gateway: request names api, admit, route, ledger; these never name one another's owners.
NEVER = {
    "gateway/api": ("gateway/admit", "gateway/route", "gateway/request", "gateway/gateway.h"),
    "gateway/route": ("gateway/admit", "gateway/request", "gateway/gateway.h", "gateway/proxy.h"),
    "gateway/admit": ("gateway/api", "gateway/route", "gateway/request", "gateway/gateway.h"),
    "worker/model": ("worker/engine", "worker/cpu", "worker/serve"),
    "worker/cpu": ("worker/engine", "worker/serve"),
    "worker/engine": ("worker/serve", "worker/cpu", "base/net/server"),
}
DOORS = {
    "nghttp2/": "base/net/h2",
    "openssl/ssl": "base/net/tls",
    "openssl/": ("base/net/tls", "base/hash"),
    "libpq": "ledger/pg",
    "xxhash": "base/hash",
    "zlib": "base/net/encoding",
    "zstd": "base/net/encoding",
    "yaml": "base/conf",
    "utf8proc": "cache/tokenizer",
    "hiredis": "base/net/redis",
    "cuda": "worker/cuda",
}
BANNED = re.compile(r"(?<![\w.>])(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|strtok|rand|srand|system|popen|alloca|localtime|gmtime|ctime|asctime|tmpnam|mktemp)\s*\(")
CLOCKS = re.compile(r"(?<![\w.>])(clock_gettime|gettimeofday|time|getrandom|random)\s*\(")


def area(path):
    rel = path.relative_to(TOP).as_posix()
    return "base/net" if rel.startswith("base/net/") else rel.split("/")[0]


def rel(path):
    return path.relative_to(TOP).as_posix()


def code_of(path):
    """The text without comments and string bodies."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def test_there_is_something_to_check():
    assert len(SOURCES) > 50


def test_includes_point_downwards():
    bad = []
    for p in SOURCES:
        for inc in INCLUDE.findall(p.read_text(encoding="utf-8")):
            head = inc.split("/")[0]
            if head not in AREAS:
                continue
            target = "base/net" if inc.startswith("base/net/") else head
            if target not in MAY[area(p)]:
                bad.append("%s includes %s" % (rel(p), inc))
            for folder, never in NEVER.items():
                if rel(p).startswith(folder + "/") and any(inc.startswith(n) for n in never):
                    # usage repairs into api's shapes: the one arrow between the two
                    bad.append("%s includes %s" % (rel(p), inc))
    assert bad == []


def test_each_foreign_library_has_one_door():
    bad = []
    for p in SOURCES:
        for inc in INCLUDE.findall(p.read_text(encoding="utf-8")):
            for lib, doors in DOORS.items():
                doors = (doors,) if isinstance(doors, str) else doors
                if (inc.startswith(lib) or inc == lib + ".h" or inc.startswith(lib + "-")) and not any(rel(p).startswith(d) for d in doors):
                    bad.append("%s includes <%s>" % (rel(p), inc))
    assert bad == []


def test_no_banned_calls():
    bad = []
    for p in SOURCES:
        for m in BANNED.finditer(code_of(p)):
            bad.append("%s: %s" % (rel(p), m.group(1)))
    assert bad == []


def test_clock_and_randomness_come_through_env():
    allowed = ("base/net/os", "worker/cpu/", "worker/bench", "worker/main.c", "base/net/resolve", "gateway/admin/ctl", "worker/engine_thread.c")
    bad = []
    for p in SOURCES:
        if rel(p).startswith(allowed):
            continue
        for m in CLOCKS.finditer(code_of(p)):
            bad.append("%s: %s" % (rel(p), m.group(1)))
    assert bad == []


def test_no_mutable_state_at_file_scope():
    """Only const tables (and thread-local scratch of none): main owns everything else."""
    bad = []
    pat = re.compile(r"^(?:static\s+)?(?!const|typedef|struct \w+;|enum|extern|union|_Static_assert|static const|static inline|inline)(?:(?:static|unsigned|struct|_Atomic\([^)]*\)|atomic_\w+|_Thread_local)\s+)*[\w]+\s+\**\w+(?:\[[^\]]*\])*\s*(?:=|;)", re.M)
    for p in SOURCES:
        if p.suffix != ".c":
            continue
        depth = 0
        for n, line in enumerate(code_of(p).split("\n"), 1):
            if depth == 0 and pat.match(line) and "const" not in line and "(" not in line.split("=")[0] and not line.startswith(("return", "goto", "break", "#")):
                bad.append("%s:%d: %s" % (rel(p), n, line.strip()))
            depth += line.count("{") - line.count("}")
    assert bad == []


@pytest.mark.parametrize("folder", AREAS)
def test_headers_compile_alone(folder, tmp_path):
    cc = shutil.which("gcc") or shutil.which("cc")
    flags = subprocess.run(["pkg-config", "--cflags", "libpq"], capture_output=True, text=True).stdout.split()
    bad = []
    for h in sorted((TOP / folder).rglob("*.h")):
        if h.name.endswith("_body.h"):
            continue  # a kernel's text, compiled once a level by the file that sets the level's macros
        one = tmp_path / "one.c"
        one.write_text('#include "%s"\n#include "%s"\nextern int unused;\n' % (rel(h), rel(h)))
        r = subprocess.run([cc, "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-fsyntax-only", "-I", str(TOP), *flags, str(one)], capture_output=True, text=True)
        if r.returncode:
            bad.append("%s: %s" % (rel(h), r.stderr.splitlines()[0] if r.stderr else "?"))
    assert bad == []


def test_files_stay_within_their_subject():
    big = [(rel(p), n) for p in SOURCES if (n := p.read_text(encoding="utf-8").count("\n")) > 900]
    assert big == []


def test_every_folder_has_a_readme():
    folders = ["base", "base/net", "cache", "ledger", "worker", "worker/model", "worker/engine", "worker/cpu", "gateway", "gateway/api",
               "gateway/admit", "gateway/route", "gateway/admin", "sql", "configs", "tests"]
    assert [f for f in folders if not (TOP / f / "README.md").exists()] == []


def test_no_left_over_marks():
    bad = []
    for p in SOURCES:
        for n, line in enumerate(p.read_text(encoding="utf-8").split("\n"), 1):
            if re.search(r"\b(TODO|FIXME|XXX|HACK)\b|not implemented|unimplemented", line):
                bad.append("%s:%d" % (rel(p), n))
    assert bad == []
