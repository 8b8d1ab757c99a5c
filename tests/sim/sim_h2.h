/* sim_h2.h - one HTTP/2 connection that several clients share, each with a stream of its own. */
#ifndef TESTS_SIM_H2_H
#define TESTS_SIM_H2_H

#include "base/env.h"
#include "base/str.h"

struct client;
struct world_sim;
struct h2_link;

struct h2_link *h2_link_new(struct world_sim *w, unsigned index);
void h2_link_free(struct h2_link *l);
/* false: the connection is going away and streams still run on it; ask again later. */
bool h2_may_ask(const struct h2_link *l);
/* Opens a stream for the client's ask; connects first if need be. Its end comes by client_h2_ended
 * or client_h2_lost, later. */
void h2_ask(struct h2_link *l, struct client *c, struct str path, struct str key, struct str body);
/* The client leaves its stream: a reset, and no word about it any more. */
void h2_leave(struct h2_link *l, struct client *c);
/* The client takes what it has not read yet (it reads slowly). */
void h2_read(struct h2_link *l, struct client *c);
/* Between asks: somebody may close the whole connection. */
void h2_hang_up(struct h2_link *l, bool reset);

#endif
