/* bench.c - the command line of `tollgate-worker bench`; see bench.h. */
#include "worker/bench.h"

#include "worker/bench_internal.h"

#include <stdio.h>

static bool add_test(struct bench *g, struct str name, struct err *e)
{
    static const struct {
        const char *prefix;
        enum bench_kind kind;
        uint32_t most; /* 0: no number follows */
        uint32_t value;
    } kinds[] = {
        {"tg@", BENCH_DECODE, BENCH_LONG_HELD, 0},
        {"tg", BENCH_DECODE, 0, BENCH_BEHIND},
        {"pp", BENCH_PREFILL, BENCH_LONG_HELD, 0},
        {"b", BENCH_BATCH, BENCH_SEQUENCES_MAX, 0},
        {"v", BENCH_VERIFY, BENCH_LOGITS_MAX, 0},
        {"kv4k", BENCH_LONG, 0, 0},
        {"load", BENCH_LOAD, 0, 0},
    };

    for (size_t i = 0; i < ARRAY_LEN(kinds) && g->tests < BENCH_TESTS_MAX; i++) {
        struct bench_test *t = &g->test[g->tests];
        size_t n = strlen(kinds[i].prefix);
        uint64_t value = kinds[i].value;

        if (name.n >= sizeof(t->name) || !str_starts(name, str_c(kinds[i].prefix)) ||
            (kinds[i].most == 0 && name.n != n) ||
            (kinds[i].most != 0 && (!str_u64(str_of(name.p + n, name.n - n), &value) || value < 1 ||
                                    value > kinds[i].most))) {
            continue;
        }
        if (kinds[i].kind == BENCH_DECODE && value != BENCH_BEHIND && value % BENCH_BLOCK != 0) {
            continue;
        }
        memcpy(t->name, name.p, name.n);
        t->kind = kinds[i].kind;
        t->n = (uint32_t)value;
        g->tests++;
        return true;
    }
    return err_set(e, ERR_INPUT,
                   "there is no test \"" STR_FMT "\" (or too many): ppN, tg, tg@N (multiples of "
                   "32), bN, vN, kv4k, load",
                   STR_ARG(name));
}

static bool add_tests(struct bench *g, struct str list, struct err *e)
{
    struct str name, rest;

    for (; list.n > 0; list = rest) {
        if (!str_cut(list, ',', &name, &rest)) {
            name = list;
            rest = STR("");
        }
        if (!add_test(g, name, e)) {
            return false;
        }
    }
    return true;
}

static bool set_number(struct str value, uint64_t most, uint32_t *out, const char *name,
                       struct err *e)
{
    uint64_t n;

    if (!str_u64(value, &n) || n < 1 || n > most) {
        return err_set(e, ERR_INPUT, "%s must be a number from 1 to %llu", name,
                       (unsigned long long)most);
    }
    *out = (uint32_t)n;
    return true;
}

static bool set_option(struct bench *g, struct str name, const char *value, struct err *e)
{
    struct str v = str_c(value);

    if (str_eq(name, STR("--model"))) {
        g->path = value;
        return true;
    }
    if (str_eq(name, STR("--threads"))) {
        return set_number(v, 256, &g->options.threads, "--threads", e);
    }
    if (str_eq(name, STR("--repeats"))) {
        return set_number(v, BENCH_REPEATS_MAX, &g->repeats, "--repeats", e);
    }
    if (str_eq(name, STR("--only"))) {
        return add_tests(g, v, e);
    }
    if (str_eq(name, STR("--level"))) {
        return backend_level_named(v, &g->options.level) ||
               err_set(e, ERR_INPUT, "there is no level \"%s\"", value);
    }
    if (str_eq(name, STR("--kv-dtype"))) {
        return backend_kv_dtype_named(v, &g->options.kv_dtype) ||
               err_set(e, ERR_INPUT, "--kv-dtype is bf16 or int8, not \"%s\"", value);
    }
    if (str_eq(name, STR("--policy"))) {
        return backend_policy_named(v, &g->options.policy) ||
               err_set(e, ERR_INPUT, "--policy is exact or fast, not \"%s\"", value);
    }
    return err_set(e, ERR_INPUT, "there is no option \"" STR_FMT "\"", STR_ARG(name));
}

static bool parse(struct bench *g, int argc, char **argv, struct err *e)
{
    for (int i = 1; i < argc; i++) {
        struct str name = str_c(argv[i]), value = STR("");
        bool joined = str_cut(name, '=', &name, &value);

        if (str_eq(name, STR("--json")) || str_eq(name, STR("--help"))) {
            g->json = g->json || str_eq(name, STR("--json"));
            g->help = g->help || str_eq(name, STR("--help"));
            continue;
        }
        if (!joined && i + 1 == argc) {
            return err_set(e, ERR_INPUT, "%s needs a value", argv[i]);
        }
        if (!set_option(g, name, joined ? value.p : argv[++i], e)) {
            return false;
        }
    }
    if (g->tests == 0) {
        CHECK(add_tests(g,
                        STR("pp32,pp128,pp512,pp2048,tg,tg@1024,tg@4096,b2,b4,b8,b16,b32,v2,v4,v8,"
                            "kv4k,load"),
                        e));
    }
    return g->help || g->path != NULL || err_set(e, ERR_INPUT, "--model FILE is required");
}

static void print_help(void)
{
    puts("tollgate-worker bench - speed of the cpu backend on a model, and how near its roofs\n\n"
         "usage: tollgate-worker bench --model FILE [options]\n"
         "  --threads N       default: what this process may use\n"
         "  --repeats N       medians of so many; default 3\n"
         "  --only LIST       ppN prefill of N tokens; tg decode behind 128, tg@N behind N; bN "
         "decode\n"
         "                    of N sequences; vN rows of one sequence at once; kv4k first "
         "token\n"
         "                    of 4,128, cold and with 4,096 held; load to first token\n"
         "  --kv-dtype NAME   bf16 (default) or int8\n"
         "  --policy NAME     exact (default), or fast: AMX in bf16 for many rows, where it is\n"
         "  --level NAME      portable, avx2, avx512, avx512bf16, amx or best\n"
         "                    (default)\n"
         "  --json            one object instead of tables\n\n"
         "MFU and MBU: share of the roofs that the same run measures. Tokens a CPU-second: what "
         "one\n"
         "undisturbed core would give.");
}

int bench_main(int argc, char **argv)
{
    struct bench *g = mem_new(sizeof(*g));
    struct err e = {0};
    int rc = 2;

    g->options =
        (struct backend_options){.threads = backend_default_threads(), .rows_max = BENCH_ROWS_MAX};
    g->repeats = 3;
    if (!parse(g, argc, argv, &e)) {
        fprintf(stderr, "bench: %s; see --help\n", e.text);
    } else if (g->help) {
        print_help();
        rc = 0;
    } else if (!bench_open(g, &e)) {
        fprintf(stderr, "bench: %s\n", e.text);
        rc = 1;
    } else {
        bench_measure(g);
        (g->json ? bench_print_json : bench_print_text)(g);
        rc = 0;
    }
    bench_close(g);
    mem_free(g->logits);
    mem_free(g);
    return rc;
}
