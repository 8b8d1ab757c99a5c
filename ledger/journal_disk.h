/* journal_disk.h - how the journal lies on disk; shared by writer, reader and trim, nobody else.
 *
 *   folder/  lock                                          held while a process writes
 *            spare.tmp                                     preallocated, becomes the next segment
 *            0000000003-00000000000000000001.journal       epoch, first lsn
 *
 * A segment is an array of records with nothing before or between them; unused slots are zero.
 *
 *   0       4      6    8      16         24      32     36     40            376       384
 *   | magic | ver  | type | lsn | group_lsn | gw_seq | epoch | spare | body ... | checksum |
 *
 * Integers are little-endian. lsn is dense from 1 in an epoch, gw_seq likewise over CLOSEs (else
 * 0). group_lsn is the first lsn of the group that one sync covered: everything below it was on
 * disk before this record was written. So a bad record below a good one's group_lsn is damage; a
 * bad record in the last group is only a crash. */
#ifndef LEDGER_JOURNAL_DISK_H
#define LEDGER_JOURNAL_DISK_H

#include "ledger/journal.h"

#define JOURNAL_PATH_MAX 1024
#define JOURNAL_SPARE_NAME "spare.tmp"
#define JOURNAL_SEGMENTS_MAX                                                                       \
    65536 /* 1 TiB of default segments: a folder beyond that is refused                            \
           */

/* Body and type; the rest stays zero until record_seal. Producer thread. */
void record_encode_body(const struct record *r, int32_t gateway_id, uint8_t *out);
void record_seal(uint8_t *rec, uint64_t lsn, uint64_t group_lsn, int32_t epoch, int64_t gw_seq);
bool record_is_close(const uint8_t *rec);
bool record_is_zero(const uint8_t *rec);
uint64_t record_group_lsn(const uint8_t *rec); /* of one that decodes */

struct segment_name {
    int32_t epoch;
    uint64_t first_lsn;
};

struct segment_list {
    struct segment_name *v; /* owned; by epoch, then first_lsn */
    size_t n, cap;
    bool overflow;
};

MUST_USE bool segment_list_read(struct segment_list *l, struct env *env, const char *dir,
                                struct err *e);
void segment_list_free(struct segment_list *l);
/* false: the path is too long. */
MUST_USE bool segment_path(char out[JOURNAL_PATH_MAX], const char *dir, struct segment_name s);
MUST_USE bool journal_path(char out[JOURNAL_PATH_MAX], const char *dir, const char *name);
/* Reads exactly n bytes; false when the file ends before or refuses. */
MUST_USE bool segment_read(struct env *env, struct env_file *f, void *p, size_t n, uint64_t offset);

/* At start: the last segment of each epoch is synced and loses its empty rest, or goes when it
 * never held a record. *last: the highest epoch found, 0: none. */
MUST_USE bool segments_settle(struct env *env, const char *dir, int32_t *last, struct err *e);
/* Of the last record that was returned. */
struct segment_name journal_reader_segment(const struct journal_reader *r);

/* journal_shadow.c: a port's ring in a file. NULL or false: not shadowed, which costs safety only.
 */
struct env_file *shadow_open(struct env *env, const char *dir, int32_t epoch, unsigned port);
void shadow_remove(struct env *env, const char *dir, int32_t epoch, unsigned port);
MUST_USE bool shadow_write(struct env *env, struct env_file *f, const uint8_t *slots, uint64_t from,
                           uint64_t to);
/* No ring of this life or an older one is left, also after a loss of power. Their segments must not
 * go before: a ring that came back alone would be taken for attempts that no segment names. */
MUST_USE bool shadows_are_gone(struct env *env, const char *dir, int32_t epoch);
void shadow_mark(struct env *env, struct env_file *f, uint64_t written);
struct shadows; /* attempts in the rings of lives before `epoch` */
struct shadows *shadows_read(struct env *env, const char *dir, int32_t epoch, struct err *e);
void shadows_free(struct shadows *s);
void shadow_known(struct shadows *s, struct uuid event); /* a segment has it */
/* An OPEN of a segment: it may be one of a DISPATCH that only a ring has. */
void shadow_open_seen(struct shadows *s, const struct record_stored *open);
/* Each that no segment has; open NULL: neither ring nor segment has it. it from 0. */
bool shadows_next(const struct shadows *s, size_t *it, const struct record_stored **open,
                  const struct record_stored **dispatch);

struct trim;
void trim_free(struct trim *t);
/* Lowers (epoch, seq) to the snapshot file's watermark. */
void journal_trim_limit(const struct journal *j, int32_t *epoch, int64_t *seq);
struct trim *journal_trim_state(struct journal *j);
void journal_trim_state_set(struct journal *j, struct trim *t);
const char *journal_dir(const struct journal *j);
void journal_folder_segments_set(struct journal *j, size_t n);
struct log *journal_log(const struct journal *j);

#endif
