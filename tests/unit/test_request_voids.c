/* test_request_voids.c - an attempt that never reached its worker is voided in the journal, however
 * full the ring is. */
#include "ledger_world.h"

#include "gateway/request.h"

struct bed {
    struct env *env;
    struct gateway *gw;
    struct loop *loop;
    struct world *world;
    char dir[64];
};

static void bed_init(struct bed *b)
{
    struct err e = {.code = ERR_NONE};

    b->env = world_env();
    world_folder(b->dir);
    b->gw = mem_new(sizeof(*b->gw));
    arena_init(&b->gw->arena, 1 << 20);
    assert_true(gateway_config_load(NULL, &b->gw->config, &b->gw->arena, &e));
    b->gw->n_loops = 1;
    b->gw->quota = quota_new();
    b->gw->journal = world_journal(b->env, b->dir, 20000);
    b->loop = loop_new(b->gw, 0, b->env, NULL, &e);
    assert_non_null(b->loop);
    b->world = mem_new(sizeof(*b->world));
    atomic_init(&b->world->refs, 2); /* ours stays: nothing of it is real */
}

static void bed_fini(struct bed *b)
{
    loop_free(b->loop);
    journal_close(b->gw->journal);
    quota_free(b->gw->quota);
    arena_fini(&b->gw->arena);
    mem_free(b->gw);
    mem_free(b->world);
    os_env_free(b->env);
    world_remove(b->dir);
}

/* Admitted, dispatched once in vain. */
static struct request *request_make(struct bed *b, uint64_t id, uint64_t event)
{
    struct request *r = pool_take(&b->loop->request_pool);

    r->loop = b->loop;
    r->world = b->world;
    r->state = REQ_QUEUED;
    r->opened = true;
    r->request_id = world_uuid(id);
    r->attempt.event = world_uuid(event);
    list_init(&r->node);
    list_init(&r->settle_node);
    list_push_back(&b->loop->requests, &r->node);
    b->loop->n_requests++;
    return r;
}

static void ring_fill(struct bed *b)
{
    struct record junk = world_progress(99, 1);
    int n = 0;

    while (journal_put(b->loop->port, &junk) != 0) {
        assert_true(++n <= JOURNAL_PORT_RECORDS);
    }
}

static unsigned voids_in_journal(struct bed *b, uint64_t request, uint64_t event)
{
    struct err e = {.code = ERR_NONE};
    struct journal_reader *r = journal_reader_open(b->env, b->dir, &e);
    struct record_stored rec;
    unsigned n = 0;

    assert_non_null(r);
    while (journal_read(r, &rec, &e) == JOURNAL_READ_RECORD) {
        n += rec.r.type == RECORD_VOID && uuid_eq(rec.r.voided.request, world_uuid(request)) &&
             uuid_eq(rec.r.voided.event, event == 0 ? (struct uuid){{0}} : world_uuid(event));
    }
    journal_reader_close(r);
    return n;
}

static void a_void_waits_for_room_in_a_full_ring(void **state)
{
    struct bed b;
    struct request *r;

    (void)state;
    bed_init(&b);
    r = request_make(&b, 7, 8);
    ring_fill(&b);
    request_void_attempt(r);
    request_end(r, REQ_END_CLIENT_GONE);
    while (journal_step(b.gw->journal, b.env)) {
    }
    assert_int_equal(voids_in_journal(&b, 7, 8), 0);
    for (int i = 0; i < 1000 && b.loop->n_requests > 0; i++) {
        os_turn(b.env, REQUEST_RING_FULL_US);
    }
    assert_int_equal(b.loop->n_requests, 0);
    while (journal_step(b.gw->journal, b.env)) {
    }
    assert_int_equal(voids_in_journal(&b, 7, 8), 1);
    bed_fini(&b);
}

/* Every attempt in vain, then the whole request: the most that one request can have. */
static void a_request_keeps_room_for_all_of_its_voids(void **state)
{
    struct bed b;
    struct request *r;

    (void)state;
    bed_init(&b);
    r = request_make(&b, 7, 0);
    ring_fill(&b);
    for (uint64_t i = 1; i < REQUEST_VOIDS_MAX; i++) {
        r->attempt.event = world_uuid(100 + i);
        request_void_attempt(r);
    }
    request_client_gone(r); /* voids the whole */
    assert_int_equal(b.loop->n_requests, 1);
    while (journal_step(b.gw->journal, b.env)) {
    }
    for (int i = 0; i < 1000 && b.loop->n_requests > 0; i++) {
        os_turn(b.env, REQUEST_RING_FULL_US);
    }
    while (journal_step(b.gw->journal, b.env)) {
    }
    for (uint64_t i = 1; i < REQUEST_VOIDS_MAX; i++) {
        assert_int_equal(voids_in_journal(&b, 7, 100 + i), 1);
    }
    assert_int_equal(voids_in_journal(&b, 7, 0), 1);
    bed_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_void_waits_for_room_in_a_full_ring),
        cmocka_unit_test(a_request_keeps_room_for_all_of_its_voids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
