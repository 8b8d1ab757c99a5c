/* log.h - JSON lines on one descriptor, through a bounded ring, from any thread.
 *
 * A line is formatted by the caller into a slot of LOG_LINE_MAX bytes and published; log_drain
 * (control thread, or anyone when there is none) writes what is published. A full ring drops the
 * line and counts it; the count is said in the next line that gets through. No secret is ever an
 * argument: there is no conversion for one.
 *
 * {"time":"2026-01-02T03:04:05.000006Z","level":"info","program":"tollgate","event":"started",
 *  "message":"listening on ..."} and "dropped":n before, "cut":true after the message when so. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/str.h"

#define LOG_LINE_MAX 1024
#define LOG_RING_LINES 1024 /* 1 MiB: seconds of a bad day at 100 lines/s */

enum log_level { LOG_DEBUG = 1, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log; /* threads: log_event any; log_drain one at a time (it takes a try-lock) */

struct log *log_new(int fd, enum log_level least, const char *program);
void log_free(struct log *l); /* drains first */
/* event: a constant snake_case name; fmt: the sentence. wall_us: the caller's env time.
 * A NULL log takes nothing, for callers that have none. */
void log_event(struct log *l, enum log_level level, uint64_t wall_us, const char *event,
               const char *fmt, ...) PRINTF_LIKE(5, 6);
/* Writes what is published. A descriptor that refuses (full pipe, error) keeps the lines in the
 * ring for the next drain; a line that is half out is finished first. */
void log_drain(struct log *l);
uint64_t log_dropped(const struct log *l);

#endif
