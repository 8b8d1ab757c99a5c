/* fuzz_conf.c - any bytes as a configuration file: a value or a story, never anything else. */
#include "base/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct settings {
    struct str name;
    bool flag;
    int64_t number, bytes, duration, price;
    int mode;
    struct conf_list list;
};

static const char *const modes[] = {"open", "closed", NULL};

static const struct conf_option options[] = {
    {"name", CONF_STRING, offsetof(struct settings, name), "n", 0, 0, NULL},
    {"flag", CONF_BOOL, offsetof(struct settings, flag), "false", 0, 0, NULL},
    {"a.number", CONF_INT, offsetof(struct settings, number), "4", 1, 16, NULL},
    {"a.bytes", CONF_BYTES, offsetof(struct settings, bytes), "32MiB", 0, 0, NULL},
    {"a.duration", CONF_DURATION, offsetof(struct settings, duration), "10s", 0, 0, NULL},
    {"a.b.price", CONF_USD_PUSD, offsetof(struct settings, price), "0.5", 0, 0, NULL},
    {"a.b.mode", CONF_ENUM, offsetof(struct settings, mode), "open", 0, 0, modes},
    {"list", CONF_LIST, offsetof(struct settings, list), "", 0, 0, NULL},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct settings got;
    struct arena arena;
    struct err err;
    bool ok;

    err_clear(&err);
    arena_init(&arena, 4u << 20);
    ok = conf_parse(str_of(data, size), "fuzz", options, ARRAY_LEN(options), &got, &arena, &err);
    CHECK(ok == (err.code == ERR_NONE));
    CHECK(ok || strncmp(err.text, "fuzz:", 5) == 0);
    if (ok) {
        CHECK(got.number >= 1 && got.number <= 16);
        CHECK(got.bytes >= 0 && got.duration >= 0 && got.price >= 0);
        CHECK(got.mode == 0 || got.mode == 1);
    }
    arena_fini(&arena);
    return 0;
}
