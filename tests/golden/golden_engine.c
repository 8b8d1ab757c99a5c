/* golden_engine.c - the engine's numbers against ground truth, on SmolLM2-135M-Instruct Q4_1.
 *
 *   golden_engine ref|cpu greedy|nll        compares with an independent implementation
 *   golden_engine cpu nll                   also with int8 KV, and prints what that costs
 *   golden_engine cpu self|self8            compares with itself: every way to cut the work, bit by
 *                                           bit; self8 with int8 KV
 *   golden_engine cpu fast                  policy fast against the truth and beside exact; on
 *                                           emulated tiles where the CPU has no AMX
 *   golden_engine cpu memory                what stays resident after load
 *
 * Ground truth: $TOLLGATE_SHARED (default ../shared beside the source) /golden; its README states
 * the tolerances used here. Model: $TOLLGATE_MODEL_FILE (default ~/.cache/tollgate/...). Exits 77,
 * with the reason, when either is absent. */
#include "base/json.h"
#include "tests/unit/drive.h"
#if defined(__x86_64__)
#include "tests/unit/amx_emulated.h"
#include "worker/cpu/cpu.h"
#endif

#include <math.h>
#include <stdio.h>
#include <unistd.h>
#include <stdlib.h>

#define MODEL_NAME "SmolLM2-135M-Instruct.Q4_1.gguf"
#define PROMPTS_MAX DRIVE_SEQUENCES_MAX
#define IDS_MAX 2048u
#define STEPS 48u
#define ROWS_MAX 512u
#define CHUNK_NLL 64u
#define FILE_BYTES_MAX (64u << 20)

#define REF_LOGIT_MAX 2e-3 /* largest difference of any logit */
#define CPU_LOGIT_RMS 0.2  /* centred: eight-bit activations */
#define CPU_MARGIN_MAX 0.4 /* a greedy id may differ only where the two best were this close */
#define REF_NLL 2.3433
#define REF_NLL_SLACK 0.0005
#define CPU_NLL_MAX 2.3480
#define INT8_NLL_SLACK 0.01    /* int8 KV against bf16 KV */
#define FAST_NLL_SLACK 0.005   /* policy fast against the truth */
#define FAST_KL_MEAN_MAX 0.006 /* nats a token, from exact */
#define FAST_KL_MOST_MAX 0.2   /* of any token */
#define RESIDENT_SHARE_MAX 1.3 /* of the file and the KV in use */

struct prompt {
    struct str id;
    int32_t ids[IDS_MAX];
    uint32_t n;
    int32_t greedy[STEPS];
    double margin[STEPS];
};

struct test {
    const char *golden; /* folder */
    const char *model_path;
    struct model *m;
    struct arena arena;
    struct prompt *prompt; /* [PROMPTS_MAX] */
    uint32_t prompts;
    bool ref;
    enum backend_kv_dtype kv;
    unsigned failures;
    bool has_logits; /* first_logits_npf32.npz is there */
};

static _Noreturn void skip(const char *what, const char *path)
{
    printf("SKIP: %s is absent: %s\n", what, path);
    exit(77);
}

static struct str read_file(struct test *t, const char *name)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", t->golden, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        skip("ground truth", path);
    }
    char *text = malloc(FILE_BYTES_MAX);
    CHECK(text != NULL);
    size_t n = fread(text, 1, FILE_BYTES_MAX, f);
    CHECK(n < FILE_BYTES_MAX);
    fclose(f);
    return str_of(text, n);
}

static struct json *parse(struct test *t, struct str text)
{
    struct err e = {0};
    struct json *v = json_parse(&t->arena, text, &json_limits_api, &e);

    if (v == NULL) {
        fprintf(stderr, "ground truth: %s\n", e.text);
        exit(1);
    }
    return v;
}

static uint32_t read_ids(const struct json *array, int32_t *out, uint32_t max)
{
    uint32_t n = 0;

    CHECK(array != NULL && array->type == JSON_ARRAY);
    for (const struct json *v = array->child; v != NULL; v = v->next) {
        int64_t id;
        CHECK(n < max && json_i64(v, &id));
        out[n++] = (int32_t)id;
    }
    return n;
}

static void read_prompts(struct test *t)
{
    struct str rest = read_file(t, "greedy.jsonl"), line;

    t->prompt = calloc(PROMPTS_MAX, sizeof(*t->prompt));
    CHECK(t->prompt != NULL);
    while (rest.n > 0) {
        if (!str_cut(rest, '\n', &line, &rest)) {
            rest = STR("");
        }
        struct json *v = parse(t, line), *truth = json_get(v, STR("np_f32"));
        struct prompt *p = &t->prompt[t->prompts++];
        CHECK(t->prompts <= PROMPTS_MAX && truth != NULL);
        p->id = json_get(v, STR("id"))->text;
        p->n = read_ids(json_get(v, STR("ids")), p->ids, IDS_MAX);
        CHECK(read_ids(json_get(truth, STR("ids")), p->greedy, STEPS) == STEPS);
        uint32_t i = 0;
        for (struct json *s = json_get(truth, STR("steps"))->child; s != NULL; s = s->next) {
            CHECK(i < STEPS && json_f64(json_get(s, STR("margin")), &p->margin[i]));
            i++;
        }
    }
}

static struct backend *open_backend(struct test *t, unsigned threads, enum backend_level level)
{
    struct err e = {0};
    struct backend_options o = {
        .threads = threads, .rows_max = ROWS_MAX, .level = level, .kv_dtype = t->kv};
    struct backend *b = t->ref ? backend_ref_open(t->m, &o, &e) : backend_cpu_open(t->m, &o, &e);

    if (b == NULL || !b->ops->kv_init(b, PROMPTS_MAX * DRIVE_BLOCKS_MAX, &e)) {
        fprintf(stderr, "backend: %s\n", e.text);
        exit(1);
    }
    return b;
}

/* A stored (not deflated) member of a zip file: its bytes after the local header. */
static struct str zip_member(struct str zip, struct str name)
{
    size_t at = 0;

    while (at + 30 <= zip.n && memcmp(zip.p + at, "PK\3\4", 4) == 0) {
        uint16_t method, name_bytes, extra_bytes;
        uint32_t bytes;
        memcpy(&method, zip.p + at + 8, 2);
        memcpy(&bytes, zip.p + at + 18, 4);
        memcpy(&name_bytes, zip.p + at + 26, 2);
        memcpy(&extra_bytes, zip.p + at + 28, 2);
        const char *data = zip.p + at + 30 + name_bytes + extra_bytes;
        CHECK(method == 0);
        if (bytes == UINT32_MAX) { /* zip64: the real size leads the extra field */
            uint64_t wide;
            memcpy(&wide, zip.p + at + 30 + name_bytes + 4, 8);
            bytes = (uint32_t)wide;
        }
        if (str_eq(str_of(zip.p + at + 30, name_bytes), name)) {
            return str_of(data, bytes);
        }
        at = (size_t)(data - zip.p) + bytes;
    }
    return STR("");
}

static void check_logits(struct test *t, struct str npz, const struct prompt *p,
                         const float *logits)
{
    char name[64];
    uint32_t vocab = t->m->vocab;
    double top = 0, sum = 0, square = 0;

    snprintf(name, sizeof(name), STR_FMT ".npy", STR_ARG(p->id));
    struct str member = zip_member(npz, str_c(name));
    CHECK(member.n > vocab * sizeof(float)); /* a header, then the floats */
    const char *truth = member.p + member.n - vocab * sizeof(float);
    for (uint32_t i = 0; i < vocab; i++) {
        float want;
        memcpy(&want, truth + i * sizeof(want), sizeof(want));
        double d = (double)logits[i] - (double)want;
        top = fmax(top, fabs(d));
        sum += d;
        square += d * d;
    }
    double mean = sum / vocab, rms = sqrt(fmax(0, square / vocab - mean * mean));
    bool ok = t->ref ? top <= REF_LOGIT_MAX : rms <= CPU_LOGIT_RMS;
    printf("%-14s %4u tokens: logits differ by at most %.5f, centred rms %.5f%s\n", name, p->n, top,
           rms, ok ? "" : "  WRONG");
    t->failures += !ok;
}

/* Reports the first id that differs; true: go on checking this prompt. */
static bool check_id(struct test *t, const struct prompt *p, uint32_t step, int32_t id)
{
    if (id == p->greedy[step]) {
        return true;
    }
    bool allowed = !t->ref && p->margin[step] <= CPU_MARGIN_MAX;
    printf(STR_FMT ": step %u gives %d for %d (margin %.3f)%s\n", STR_ARG(p->id), step, id,
           p->greedy[step], p->margin[step], allowed ? "" : "  WRONG");
    t->failures += !allowed;
    return false;
}

/* Prompts one by one, then all continuations as one batch. */
static void test_greedy(struct test *t)
{
    struct str npz = {NULL, 0};
    struct backend *b = open_backend(t, 2, BACKEND_LEVEL_BEST);
    uint32_t vocab = t->m->vocab, one[PROMPTS_MAX], equal = 0;
    struct drive_seq *seq[PROMPTS_MAX];
    int32_t next[PROMPTS_MAX];
    const int32_t *ids[PROMPTS_MAX];
    bool checking[PROMPTS_MAX];
    float *logits = calloc((size_t)PROMPTS_MAX * vocab, sizeof(*logits));

    if (t->has_logits) {
        npz = read_file(t, "first_logits_npf32.npz");
    } else {
        printf(
            "all first logits are not compared: first_logits_npf32.npz is not beside the tree\n");
    }
    for (uint32_t i = 0; i < t->prompts; i++) {
        const struct prompt *p = &t->prompt[i];
        seq[i] = calloc(1, sizeof(**seq));
        drive_seq_init(seq[i], i, PROMPTS_MAX);
        drive_prompt(b, seq[i], p->ids, p->n, ROWS_MAX, vocab, DRIVE_LAST, logits);
        if (t->has_logits) {
            check_logits(t, npz, p, logits);
        }
        next[i] = drive_argmax(logits, vocab);
        checking[i] = check_id(t, p, 0, next[i]);
        ids[i] = &next[i];
        one[i] = 1;
    }
    for (uint32_t step = 1; step < STEPS; step++) {
        drive_step(b, seq, ids, one, t->prompts, DRIVE_LAST, logits);
        for (uint32_t i = 0; i < t->prompts; i++) {
            next[i] = drive_argmax(logits + (size_t)i * vocab, vocab);
            checking[i] = checking[i] && check_id(t, &t->prompt[i], step, next[i]);
        }
    }
    for (uint32_t i = 0; i < t->prompts; i++) {
        equal += checking[i];
        free(seq[i]);
    }
    printf("%u of %u continuations of %u tokens are equal\n", equal, t->prompts, STEPS);
    free(logits);
    free((void *)(uintptr_t)npz.p);
    b->ops->close(b);
}

static double log_of_sum(const float *logits, uint32_t vocab)
{
    double top = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        top = fmax(top, (double)logits[i]);
    }
    for (uint32_t i = 0; i < vocab; i++) {
        sum += exp((double)logits[i] - top);
    }
    return top + log(sum);
}

static double negative_log(const float *logits, uint32_t vocab, int32_t id)
{
    return log_of_sum(logits, vocab) - (double)logits[id];
}

static double mean_nll(struct test *t, struct str text)
{
    struct backend *b = open_backend(t, 2, BACKEND_LEVEL_BEST);
    uint32_t vocab = t->m->vocab;
    static int32_t ids[IDS_MAX];
    uint32_t n = read_ids(json_get(parse(t, text), STR("ids")), ids, IDS_MAX);
    float *logits = calloc((size_t)CHUNK_NLL * vocab, sizeof(*logits));
    struct drive_seq seq;
    double sum = 0;

    drive_seq_init(&seq, 5, 3);
    for (uint32_t at = 0; at < n; at += CHUNK_NLL) {
        uint32_t m = n - at < CHUNK_NLL ? n - at : CHUNK_NLL;
        drive_prompt(b, &seq, ids + at, m, CHUNK_NLL, vocab, DRIVE_ALL, logits);
        for (uint32_t i = 0; i < m && at + i + 1 < n; i++) {
            sum += negative_log(logits + (size_t)i * vocab, vocab, ids[at + i + 1]);
        }
    }
    free(logits);
    b->ops->close(b);
    printf("%s: ", t->ref ? "float32 KV" : t->kv == BACKEND_KV_INT8 ? "int8 KV" : "bf16 KV");
    printf("mean negative log-likelihood of %u tokens: %.6f\n", n - 1, sum / (n - 1));
    return sum / (n - 1);
}

static void test_nll(struct test *t)
{
    struct str text = read_file(t, "perplexity.json");
    double mean = mean_nll(t, text);
    bool ok = t->ref ? fabs(mean - REF_NLL) <= REF_NLL_SLACK : mean <= CPU_NLL_MAX;
    printf("within the bound: %s\n", ok ? "yes" : "no  WRONG");
    t->failures += !ok;
    if (!t->ref) {
        t->kv = BACKEND_KV_INT8;
        double difference = mean_nll(t, text) - mean;
        ok = fabs(difference) <= INT8_NLL_SLACK;
        printf("int8 KV costs %+.6f%s\n", difference, ok ? "" : "  WRONG");
        t->failures += !ok;
    }
    free((void *)(uintptr_t)text.p);
}

#if defined(__x86_64__)
/* KL divergence of the distribution of b's logits from that of a's, in nats. */
static double divergence(const float *a, double sum_a, const float *b, double sum_b, uint32_t vocab)
{
    double kl = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        double log_a = (double)a[i] - sum_a;
        kl += exp(log_a) * (log_a - (double)b[i] + sum_b);
    }
    return kl;
}

struct beside {
    double nll[2], kl, most;
    uint32_t same_best, n;
};

/* One chunk through both; exact is the first. */
static void compare_chunk(struct test *t, struct backend *const b[2], struct drive_seq seq[2],
                          const int32_t *ids, uint32_t m, float *const logits[2], struct beside *r)
{
    uint32_t vocab = t->m->vocab;

    for (unsigned side = 0; side < 2; side++) {
        drive_prompt(b[side], &seq[side], ids, m, CHUNK_NLL, vocab, DRIVE_ALL, logits[side]);
    }
    for (uint32_t i = 0; i < m; i++) {
        const float *x = logits[0] + (size_t)i * vocab, *y = logits[1] + (size_t)i * vocab;
        double sum_x = log_of_sum(x, vocab), sum_y = log_of_sum(y, vocab);
        double kl = divergence(x, sum_x, y, sum_y, vocab);
        r->nll[0] += sum_x - (double)x[ids[i + 1]];
        r->nll[1] += sum_y - (double)y[ids[i + 1]];
        r->kl += kl;
        r->most = fmax(r->most, kl);
        r->same_best += drive_argmax(x, vocab) == drive_argmax(y, vocab);
        r->n++;
    }
}

static void judge_fast(struct test *t, const struct beside *r)
{
    double exact = r->nll[0] / r->n, fast = r->nll[1] / r->n, kl = r->kl / r->n;
    bool ok = fabs(fast - REF_NLL) <= FAST_NLL_SLACK && kl <= FAST_KL_MEAN_MAX &&
              r->most <= FAST_KL_MOST_MAX;

    printf("%u tokens in steps of %u: mean negative log-likelihood %.6f exact, %.6f fast\n", r->n,
           CHUNK_NLL, exact, fast);
    printf("KL divergence of fast from exact: mean %.6f, most %.6f; the same best token for "
           "%.2f %%\n",
           kl, r->most, 100.0 * r->same_best / r->n);
    printf("within the bounds: %s\n", ok ? "yes" : "no  WRONG");
    t->failures += !ok;
}

/* Every step but perhaps the last has many rows, so `fast` computes them in bf16. */
static void test_fast(struct test *t)
{
    struct err e = {0};
    const struct kernels *k = amx_kernels_to_test(&e);
    static int32_t ids[IDS_MAX];
    struct drive_seq seq[2];
    struct beside r = {0};

    if (k == NULL) {
        printf("SKIP: %s\n", e.text);
        exit(77);
    }
    struct str text = read_file(t, "perplexity.json");
    uint32_t n = read_ids(json_get(parse(t, text), STR("ids")), ids, IDS_MAX);
    struct backend_options o = {.threads = 2, .rows_max = ROWS_MAX, .policy = BACKEND_POLICY_FAST};
    struct backend *b[2] = {open_backend(t, 2, BACKEND_LEVEL_BEST),
                            cpu_open_with(t->m, &o, k, true, &e)};
    CHECK(b[1] != NULL && b[1]->ops->kv_init(b[1], DRIVE_BLOCKS_MAX, &e));
    printf("%s\n", b[1]->ops->describe(b[1]));
    float *logits[2] = {calloc((size_t)CHUNK_NLL * t->m->vocab, sizeof(float)),
                        calloc((size_t)CHUNK_NLL * t->m->vocab, sizeof(float))};
    CHECK(logits[0] != NULL && logits[1] != NULL);
    drive_seq_init(&seq[0], 0, 1);
    drive_seq_init(&seq[1], 0, 1);
    for (uint32_t at = 0; at + 1 < n; at += CHUNK_NLL) {
        uint32_t m = n - 1 - at < CHUNK_NLL ? n - 1 - at : CHUNK_NLL;
        compare_chunk(t, b, seq, ids + at, m, logits, &r);
    }
    judge_fast(t, &r);
    for (unsigned side = 0; side < 2; side++) {
        free(logits[side]);
        b[side]->ops->close(b[side]);
    }
    free((void *)(uintptr_t)text.p);
}
#else
static void test_fast(struct test *t)
{
    (void)t;
    printf("SKIP: policy fast has no kernels for this architecture: it equals exact\n");
    exit(77);
}
#endif

/* Of this process, in bytes; 0 where the system does not tell. */
static uint64_t resident_bytes(void)
{
    char line[128];
    unsigned long kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");

    while (f != NULL && kib == 0 && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, "Rss:", 4) == 0) {
            kib = strtoul(line + 4, NULL, 10);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return (uint64_t)kib << 10;
}

/* A fresh model and backend, one prompt computed: the packed weights must be the only copy. */
static void test_memory(struct test *t)
{
    const struct prompt *p = &t->prompt[0];
    uint64_t before = resident_bytes();
    struct backend *b = open_backend(t, 2, BACKEND_LEVEL_BEST);
    float *logits = calloc(t->m->vocab, sizeof(*logits));
    struct drive_seq seq;

    CHECK(logits != NULL);
    drive_seq_init(&seq, 0, 1);
    drive_prompt(b, &seq, p->ids, p->n, ROWS_MAX, t->m->vocab, DRIVE_LAST, logits);
    uint64_t after = resident_bytes(), blocks = (p->n + DRIVE_BLOCK - 1) / DRIVE_BLOCK;
    double file = (double)t->m->file.map_bytes, kv = (double)(blocks * b->ops->kv_block_bytes(b));
    double share = (double)after / (file + kv);
    bool ok = before == 0 || share <= RESIDENT_SHARE_MAX;
    printf("resident %.1f MB (%.1f before the backend) of a file of %.1f MB and %.1f MB of KV: "
           "%.2f of both%s\n",
           (double)after * 1e-6, (double)before * 1e-6, file * 1e-6, kv * 1e-6, share,
           ok ? "" : "  WRONG");
    t->failures += !ok;
    free(logits);
    b->ops->close(b);
}

static void same(struct test *t, const float *a, const float *b, uint32_t rows, const char *what)
{
    size_t row = t->m->vocab * sizeof(float);

    for (uint32_t i = 0; i < rows; i++) {
        if (memcmp((const char *)a + i * row, (const char *)b + i * row, row) != 0) {
            printf("%s: row %u differs  WRONG\n", what, i);
            t->failures++;
            return;
        }
    }
    printf("%s: equal\n", what);
}

static void self_chunks(struct test *t, struct backend *b, const struct prompt *p,
                        const float *want, float *got)
{
    static const uint32_t chunks[] = {1, 7, 31, 32, 33, 64};

    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        struct drive_seq seq;
        char what[64];
        drive_seq_init(&seq, 1 + (uint32_t)i, 2);
        drive_prompt(b, &seq, p->ids, p->n, chunks[i], t->m->vocab, DRIVE_ALL, got);
        snprintf(what, sizeof(what), "chunks of %u", chunks[i]);
        same(t, want, got, p->n, what);
    }
}

/* Two other prompts in the same forward, before and after. */
static void self_batched(struct test *t, struct backend *b, const struct prompt *p,
                         const float *want, float *got)
{
    struct drive_seq s[3], *seq[3] = {&s[0], &s[1], &s[2]};
    const int32_t *ids[3] = {t->prompt[0].ids, p->ids, t->prompt[2].ids};
    uint32_t n[3] = {t->prompt[0].n, p->n, t->prompt[2].n};

    for (uint32_t i = 0; i < 3; i++) {
        drive_seq_init(&s[i], 300 + i, 3);
    }
    drive_step(b, seq, ids, n, 3, DRIVE_ALL, got);
    same(t, want, got + (size_t)n[0] * t->m->vocab, p->n, "beside two others");
}

/* The first two blocks are those of another sequence that computed them. */
static void self_cached(struct test *t, struct backend *b, const struct prompt *p,
                        const float *want, float *got)
{
    struct drive_seq first, second;
    uint32_t cached = 2 * DRIVE_BLOCK, vocab = t->m->vocab;

    drive_seq_init(&first, 0, 1);
    drive_seq_init(&second, 500, 1);
    drive_prompt(b, &first, p->ids, p->n, ROWS_MAX, vocab, DRIVE_ALL, got);
    second.table[0] = first.table[0];
    b->ops->kv_copy(b, second.table[1], first.table[1]);
    second.len = cached;
    drive_prompt(b, &second, p->ids + cached, p->n - cached, ROWS_MAX, vocab, DRIVE_ALL, got);
    same(t, want + (size_t)cached * vocab, got, p->n - cached, "with a cached prefix");
}

static void test_self(struct test *t)
{
    static const enum backend_level levels[] = {BACKEND_LEVEL_PORTABLE, BACKEND_LEVEL_AVX2,
                                                BACKEND_LEVEL_AVX512, BACKEND_LEVEL_AVX512BF16,
                                                BACKEND_LEVEL_AMX};
    const struct prompt *p = NULL;
    size_t floats = (size_t)ROWS_MAX * t->m->vocab;
    float *want = calloc(floats, sizeof(*want)), *got = calloc(floats, sizeof(*got));
    struct drive_seq seq;

    for (uint32_t i = 0; i < t->prompts; i++) {
        p = str_eq(t->prompt[i].id, STR("chat_multi")) ? &t->prompt[i] : p;
    }
    CHECK(p != NULL);
    struct backend *b = open_backend(t, 2, BACKEND_LEVEL_BEST);
    drive_seq_init(&seq, 7, 5);
    drive_prompt(b, &seq, p->ids, p->n, ROWS_MAX, t->m->vocab, DRIVE_ALL, want);
    self_chunks(t, b, p, want, got);
    self_batched(t, b, p, want, got);
    self_cached(t, b, p, want, got);
    b->ops->close(b);
    for (unsigned threads = 1; threads <= 3; threads++) {
        for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
            struct err e = {0};
            struct backend_options o = {
                .threads = threads, .rows_max = ROWS_MAX, .level = levels[i], .kv_dtype = t->kv};
            char what[64];
            snprintf(what, sizeof(what), "%u threads, %s", threads, backend_level_name(levels[i]));
            b = backend_cpu_open(t->m, &o, &e);
            if (b == NULL) {
                printf("%s: not on this machine (%s)\n", what, e.text);
                continue;
            }
            CHECK(b->ops->kv_init(b, DRIVE_BLOCKS_MAX, &e));
            drive_seq_init(&seq, 0, 1);
            drive_prompt(b, &seq, p->ids, p->n, ROWS_MAX, t->m->vocab, DRIVE_ALL, got);
            same(t, want, got, p->n, what);
            b->ops->close(b);
        }
    }
    free(want);
    free(got);
}

static void find_files(struct test *t)
{
    static char golden[512], model[512];
    const char *shared = getenv("TOLLGATE_SHARED"), *file = getenv("TOLLGATE_MODEL_FILE");

    snprintf(golden, sizeof(golden), "%s/golden",
             shared != NULL ? shared : SOURCE_DIR "/../shared");
    t->has_logits = access(golden, R_OK) == 0;
    if (!t->has_logits) { /* the tree keeps all but the 2.7 MB of logits */
        snprintf(golden, sizeof(golden), "%s", SOURCE_DIR "/tests/golden");
    }
    if (file != NULL) {
        snprintf(model, sizeof(model), "%s", file);
    } else {
        const char *home = getenv("HOME");
        snprintf(model, sizeof(model), "%s/.cache/tollgate/" MODEL_NAME, home != NULL ? home : "");
    }
    FILE *f = fopen(model, "rb");
    if (f == NULL) {
        skip("model file", model);
    }
    fclose(f);
    t->golden = golden;
    t->model_path = model;
}

int main(int argc, char **argv)
{
    struct test t = {0};
    struct err e = {0};
    struct str what = str_c(argc == 3 ? argv[2] : "");

    t.ref = argc == 3 && str_eq(str_c(argv[1]), STR("ref"));
    if (argc != 3 || (!t.ref && !str_eq(str_c(argv[1]), STR("cpu")))) {
        fprintf(stderr, "usage: golden_engine ref|cpu greedy|nll|self|self8|fast|memory\n");
        return 2;
    }
    find_files(&t);
    arena_init(&t.arena, 256u << 20);
    read_prompts(&t);
    t.m = model_open(t.model_path, &e);
    if (t.m == NULL) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    if (str_eq(what, STR("greedy"))) {
        test_greedy(&t);
    } else if (str_eq(what, STR("nll"))) {
        test_nll(&t);
    } else if (str_eq(what, STR("self")) || str_eq(what, STR("self8"))) {
        t.kv = str_eq(what, STR("self8")) ? BACKEND_KV_INT8 : BACKEND_KV_BF16;
        test_self(&t);
    } else if (str_eq(what, STR("fast")) && !t.ref) {
        test_fast(&t);
    } else if (str_eq(what, STR("memory")) && !t.ref) {
        test_memory(&t);
    } else {
        fprintf(stderr, "unknown test: %s\n", argv[2]);
        return 2;
    }
    model_close(t.m);
    arena_fini(&t.arena);
    free(t.prompt);
    printf("%u failures\n", t.failures);
    return t.failures == 0 ? 0 : 1;
}
