/* encoding.h - request bodies with content-encoding gzip or zstd, decoded with caps (the one door
 * to zlib and zstd). Bombs end at bytes_max, or at ratio 200 past 1 MiB. */
#ifndef BASE_NET_ENCODING_H
#define BASE_NET_ENCODING_H

#include "base/buf.h"
#include "base/err.h"

enum encoding { ENCODING_IDENTITY = 1, ENCODING_GZIP, ENCODING_ZSTD, ENCODING_UNKNOWN };

enum encoding encoding_named(struct str content_encoding); /* empty and "identity": IDENTITY */

struct decoder;
struct decoder *decoder_new(enum encoding e); /* GZIP or ZSTD; NULL: no memory */
void decoder_free(struct decoder *d);
/* Appends decoded bytes to out. ERR_LIMIT: past out->max or the ratio; ERR_INPUT: not valid. */
MUST_USE bool decoder_feed(struct decoder *d, const void *p, size_t n, struct buf *out,
                           struct err *e);
MUST_USE bool decoder_end(struct decoder *d, struct err *e); /* ERR_INPUT when truncated */

#endif
