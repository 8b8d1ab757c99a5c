/* pack.h - repacks a weight matrix into the groups of kernels.h.
 *
 * Q4_0, Q4_1 and Q4_K keep their four bits (Q4_K's products of scales are rounded to fp16), Q5_0
 * and Q8_0 become eight bits unchanged; Q6_K, F16, BF16 and F32 are rounded to eight bits per 32
 * columns. Rows past the last are zero, up to a multiple of 16. */
#ifndef WORKER_CPU_PACK_H
#define WORKER_CPU_PACK_H

#include "base/err.h"
#include "worker/cpu/kernels.h"
#include "worker/model/model.h"

struct packed {
    const uint8_t *data; /* borrowed: the backend's one mapping */
    enum pack_form form;
    uint32_t rows, columns, groups;
    size_t group_bytes;
    size_t gap; /* bytes of another matrix behind every group: both are one stream */
};

/* Shape and form of w, data still NULL. Columns must be a multiple of 32. */
struct packed pack_plan(const struct weight *w);
static inline size_t pack_bytes(const struct packed *p)
{
    return p->groups * p->group_bytes;
}
static inline size_t packed_group(const struct packed *p, uint32_t group)
{
    return group * (p->group_bytes + p->gap);
}
/* Writes groups first .. end - 1 to where they belong in `data`. false: a scale does not fit fp16.
 */
MUST_USE bool pack_groups(const struct weight *w, const struct packed *p, uint8_t *data,
                          uint32_t first, uint32_t end);

#endif
