/* kv_events.h - what the worker tells gateways about the chunk hashes it holds.
 *
 * Pure: lines out through a callback, no clock, no sockets. A line is one JSON object and a
 * newline:
 *   {"publisher":"...","epoch":"...","seq":n,"page":0,"pages":1,"snapshot":["<16 hex>",...]}
 *   {"seq":n,"stored":[...],"removed":[...]}
 * seq is dense; a heartbeat is an event with empty lists. A snapshot with seq n is the set after
 * event n; its pages all say n. Within one flush a hash that came and went again is not told.
 * Guarded by tests/unit/test_kv_events.c. */
#ifndef WORKER_KV_EVENTS_H
#define WORKER_KV_EVENTS_H

#include "base/buf.h"

#define KV_EVENTS_KEPT 4096 /* lines that a gateway may resume from: over an hour of heartbeats */
#define KV_EVENTS_LINE 256  /* hashes in one line, stored and removed together: about 5 KB */
#define KV_EVENTS_PAGE 4096 /* hashes in one page of a snapshot: about 80 KB */
#define KV_EVENTS_HASH_BYTES 19 /* of a hash in a line, quotes and comma with it */
#define KV_EVENTS_COALESCE_US 5000
#define KV_EVENTS_HEARTBEAT_US 1000000

struct kv_events; /* owned by the caller */

typedef void kv_line(void *ctx, struct str line);

/* publisher and epoch are copied (at most 63 bytes). */
struct kv_events *kv_events_new(struct str publisher, struct str epoch);
void kv_events_free(struct kv_events *k);
void kv_events_change(struct kv_events *k, uint64_t hash, bool held);
/* Something to tell: flush within KV_EVENTS_COALESCE_US. */
bool kv_events_is_due(const struct kv_events *k);
/* Turns the changes into events, keeps them and calls each. heartbeat: one event even if nothing
 * changed. */
void kv_events_flush(struct kv_events *k, bool heartbeat, kv_line *each, void *ctx);
void kv_events_snapshot(struct kv_events *k, kv_line *each, void *ctx);
/* from: "epoch:seq", the last event seen. Calls each with all later ones; false, with no call: a
 * gap or another epoch, so a snapshot is due. */
MUST_USE bool kv_events_resume(struct kv_events *k, struct str from, kv_line *each, void *ctx);
uint64_t kv_events_seq(const struct kv_events *k);
size_t kv_events_count(const struct kv_events *k); /* hashes told */

#endif
