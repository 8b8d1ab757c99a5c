/* log.c - a bounded ring of lines, many writers and one drainer at a time, no lock.
 *
 * Each slot has a turn. Slot i waits for the writer of position p (p mod ring = i) when turn is p,
 * for the drainer when turn is p + 1, and for the next round's writer when turn is p + ring. Who
 * finds another turn than his own leaves the slot alone (D. Vyukov's bounded MPMC queue). */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#define LOG_PROGRAM_MAX 32
#define LOG_EVENT_MAX 64
#define LOG_BATCH_LINES 64 /* lines a writev */

struct log_slot {
    _Atomic uint64_t turn;
    size_t n;
    char line[LOG_LINE_MAX];
};

struct log {
    int fd; /* borrowed */
    enum log_level least;
    char program[LOG_PROGRAM_MAX];
    _Atomic uint64_t tail;    /* next position for a writer */
    _Atomic uint64_t dropped; /* lines lost since the start */
    _Atomic uint64_t unsaid;  /* of these, not yet told in a line */
    atomic_flag draining;     /* guards the two fields below */
    uint64_t head;            /* next position to write out */
    size_t head_written;      /* bytes of that line already on the descriptor */
    struct log_slot ring[LOG_RING_LINES];
};

struct log *log_new(int fd, enum log_level least, const char *program)
{
    struct log *l = mem_new(sizeof(*l));

    l->fd = fd;
    l->least = least;
    str_copy(str_c(program), l->program, sizeof(l->program));
    atomic_flag_clear(&l->draining);
    for (uint64_t i = 0; i < LOG_RING_LINES; i++) {
        atomic_init(&l->ring[i].turn, i);
    }
    return l;
}

/* A line under construction; what does not fit is left out and sets `cut`. */
struct line {
    char *p; /* borrowed: the slot */
    size_t n, cap;
    bool cut;
};

static void line_bytes(struct line *w, const char *p, size_t n)
{
    if (w->cut || n > w->cap - w->n) {
        w->cut = true;
        return;
    }
    memcpy(w->p + w->n, p, n);
    w->n += n;
}

static void line_c(struct line *w, const char *z)
{
    line_bytes(w, z, strlen(z));
}

static void PRINTF_LIKE(2, 3) line_printf(struct line *w, const char *fmt, ...)
{
    char piece[64];
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(piece, sizeof(piece), fmt, args);
    va_end(args);
    line_bytes(w, piece, size_min((size_t)(n > 0 ? n : 0), sizeof(piece) - 1));
}

/* JSON string content: control bytes and quotes escaped, bytes that are no UTF-8 replaced. */
static void line_escaped(struct line *w, struct str s)
{
    while (s.n > 0 && !w->cut) {
        unsigned char c = (unsigned char)s.p[0];
        size_t n = 1;

        if (c == '"' || c == '\\') {
            line_bytes(w, (char[]){'\\', (char)c}, 2);
        } else if (c == '\n') {
            line_c(w, "\\n");
        } else if (c < 0x20 || c == 0x7f) {
            line_printf(w, "\\u%04x", c);
        } else if (c < 0x80) {
            line_bytes(w, s.p, 1);
        } else {
            for (n = 2; n <= 4 && n <= s.n && str_utf8_valid(str_of(s.p, n)) != n; n++) {
            }
            if (n > 4 || n > s.n) {
                n = 1;
                line_c(w, "\xef\xbf\xbd");
            } else {
                line_bytes(w, s.p, n);
            }
        }
        s = str_of(s.p + n, s.n - n);
    }
}

/* RFC 3339 in UTC. Our own arithmetic: gmtime_r takes libc's time zone lock on every call.
 * Days to a date: H. Hinnant, "chrono-compatible low-level date algorithms". */
static void line_time(struct line *w, uint64_t wall_us)
{
    uint64_t seconds = wall_us / 1000000, days = seconds / 86400, of_day = seconds % 86400;
    uint64_t z = days + 719468; /* days since 0000-03-01 */
    uint64_t era = z / 146097, doe = z % 146097;
    uint64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    uint64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    uint64_t from_march = (5 * doy + 2) / 153;
    uint64_t day = doy - (153 * from_march + 2) / 5 + 1;
    uint64_t month = from_march < 10 ? from_march + 3 : from_march - 9;
    uint64_t year = era * 400 + yoe + (month <= 2 ? 1 : 0);

    line_printf(w, "%04u-%02u-%02uT%02u:%02u:%02u.%06uZ", (unsigned)year, (unsigned)month,
                (unsigned)day, (unsigned)(of_day / 3600), (unsigned)(of_day / 60 % 60),
                (unsigned)(of_day % 60), (unsigned)(wall_us % 1000000));
}

static const char *level_name(enum log_level level)
{
    switch (level) {
    case LOG_DEBUG:
        return "debug";
    case LOG_INFO:
        return "info";
    case LOG_WARN:
        return "warn";
    case LOG_ERROR:
        break;
    }
    return "error";
}

static void line_head(struct log *l, struct line *w, enum log_level level, uint64_t wall_us,
                      const char *event)
{
    struct str name = str_c(event);
    uint64_t unsaid = 0;

    line_c(w, "{\"time\":\"");
    line_time(w, wall_us);
    line_c(w, "\",\"level\":\"");
    line_c(w, level_name(level));
    line_c(w, "\",\"program\":\"");
    line_escaped(w, str_c(l->program));
    line_c(w, "\",\"event\":\"");
    line_escaped(w, str_of(name.p, size_min(name.n, LOG_EVENT_MAX)));
    if (atomic_load_explicit(&l->unsaid, memory_order_relaxed) != 0) {
        unsaid = atomic_exchange_explicit(&l->unsaid, 0, memory_order_relaxed);
    }
    line_c(w, "\"");
    if (unsaid != 0) {
        line_printf(w, ",\"dropped\":%llu", (unsigned long long)unsaid);
    }
    line_c(w, ",\"message\":\"");
}

/* The slot of a new position, or NULL when the ring is full. */
static struct log_slot *log_claim(struct log *l, uint64_t *position)
{
    uint64_t p = atomic_load_explicit(&l->tail, memory_order_relaxed);

    for (;;) {
        struct log_slot *slot = &l->ring[p % LOG_RING_LINES];
        uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);

        if (turn < p) { /* last round's line is still there */
            return NULL;
        }
        if (turn > p) { /* another writer was faster */
            p = atomic_load_explicit(&l->tail, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak_explicit(&l->tail, &p, p + 1, memory_order_relaxed,
                                                         memory_order_relaxed)) {
            *position = p;
            return slot;
        }
    }
}

void log_event(struct log *l, enum log_level level, uint64_t wall_us, const char *event,
               const char *fmt, ...)
{
    static const char end[] = "\"}\n", end_cut[] = "\",\"cut\":true}\n";
    char message[LOG_LINE_MAX];
    struct log_slot *slot;
    struct line w;
    uint64_t position;
    va_list args;
    bool cut;
    int n;

    if (l == NULL || level < l->least) {
        return;
    }
    slot = log_claim(l, &position);
    if (slot == NULL) {
        atomic_fetch_add_explicit(&l->dropped, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&l->unsaid, 1, memory_order_relaxed);
        return;
    }
    va_start(args, fmt);
    n = vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    w = (struct line){.p = slot->line, .cap = LOG_LINE_MAX - (sizeof(end_cut) - 1)};
    line_head(l, &w, level, wall_us, event);
    line_escaped(&w, str_of(message, size_min((size_t)(n > 0 ? n : 0), sizeof(message) - 1)));
    cut = w.cut;
    w.cut = false;
    w.cap = LOG_LINE_MAX;
    line_c(&w, cut ? end_cut : end);
    slot->n = w.n;
    atomic_store_explicit(&slot->turn, position + 1, memory_order_release);
}

/* Points v at the lines that are ready; returns how many. */
static int log_gather(struct log *l, struct iovec v[LOG_BATCH_LINES])
{
    size_t skip = l->head_written;
    int count = 0;

    while (count < LOG_BATCH_LINES) {
        struct log_slot *slot = &l->ring[(l->head + (uint64_t)count) % LOG_RING_LINES];

        if (atomic_load_explicit(&slot->turn, memory_order_acquire) !=
            l->head + (uint64_t)count + 1) {
            break;
        }
        v[count++] = (struct iovec){slot->line + skip, slot->n - skip};
        skip = 0;
    }
    return count;
}

/* Gives back the slots of lines that are out whole. */
static void log_advance(struct log *l, size_t written)
{
    l->head_written += written;
    for (;;) {
        struct log_slot *slot = &l->ring[l->head % LOG_RING_LINES];

        if (atomic_load_explicit(&slot->turn, memory_order_acquire) != l->head + 1 ||
            l->head_written < slot->n) {
            return;
        }
        l->head_written -= slot->n;
        atomic_store_explicit(&slot->turn, l->head + LOG_RING_LINES, memory_order_release);
        l->head++;
    }
}

void log_drain(struct log *l)
{
    struct iovec v[LOG_BATCH_LINES];
    uint64_t last;

    if (atomic_flag_test_and_set_explicit(&l->draining, memory_order_acquire)) {
        return;
    }
    /* One ring's worth at most: busy writers cannot keep the drainer here. */
    last = l->head + LOG_RING_LINES;
    while (l->head < last) {
        int count = log_gather(l, v);
        ssize_t n = count > 0 ? writev(l->fd, v, count) : 0;

        if (n > 0) {
            log_advance(l, (size_t)n);
        } else if (n == 0 || errno != EINTR) {
            break; /* nothing ready, or the descriptor refuses: the lines wait, then drop, counted
                    */
        }
    }
    atomic_flag_clear_explicit(&l->draining, memory_order_release);
}

uint64_t log_dropped(const struct log *l)
{
    return atomic_load_explicit(&l->dropped, memory_order_relaxed);
}

void log_free(struct log *l)
{
    if (l != NULL) {
        log_drain(l);
        mem_free(l);
    }
}
