/* h2_scan.h - private to h2: counts the frames that cost work and move no request on.
 *
 * nghttp2 says nothing of frames of types it does not know, so we look at the frame headers (RFC
 * 9113 section 4.1) ourselves. Pure; follows the bytes in any split. */
#ifndef BASE_NET_H2_SCAN_H
#define BASE_NET_H2_SCAN_H

#include "base/base.h"

#define H2_FRAME_HEAD 9
#define H2_PREFACE_BYTES 24

struct h2_scan {
    uint8_t head[H2_FRAME_HEAD];
    uint32_t have; /* bytes of head */
    uint32_t skip; /* bytes of preface or payload still to pass */
};

void h2_scan_init(struct h2_scan *s);
/* Control frames whose header ends within p: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, PUSH_PROMISE,
 * unknown types, and DATA that is empty and ends nothing. */
uint32_t h2_scan_feed(struct h2_scan *s, const uint8_t *p, size_t n);

#endif
