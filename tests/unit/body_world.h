/* body_world.h - servers as serve_load makes them, without sockets and threads: for what a lane
 * does with a body (submit_prepare). */
#ifndef TESTS_UNIT_BODY_WORLD_H
#define TESTS_UNIT_BODY_WORLD_H

#include "worker/job.h"

#define BODY_WORLD_SERVES_MAX 4

struct body_plan {
    enum chat_family family;
    uint32_t max_model_len;
};

struct body_world {
    struct model *model;                       /* the tiny one, with markers and long tokens */
    struct serve serve[BODY_WORLD_SERVES_MAX]; /* the models "tiny" and "other/name" */
    size_t n;
};

void body_world_open(struct body_world *w, const struct body_plan *plans, size_t n);
void body_world_close(struct body_world *w);
/* As job_new and a request without headers leave it: the body is to come. End it with job_free. */
struct job *body_world_job(struct serve *s, enum job_kind kind);

#endif
