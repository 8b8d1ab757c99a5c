/* main.c - runs seeds: sim --seeds 1000 | sim --seed N [-v].
 *
 * A seed that fails prints what was violated and the command that shows it again. Each seed runs
 * twice when asked (--twice, and always one in 32): the traces' hashes must be equal. */
#include "sim_world.h"

#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define TWICE_EVERY 32

struct options {
    uint64_t first, count;
    bool twice;
    struct world_options world;
};

struct result {
    bool failed;
    char failure[512];
    uint64_t trace, turns, asks, attempts, rows, lives;
    struct window window;
};

/* For the handler alone: a CHECK of the product aborts, and the seed must still be told. */
static volatile uint64_t seed_at_work;

static void say_seed(int signo)
{
    char line[80];
    int n = snprintf(line, sizeof(line), "\nseed %" PRIu64 " aborted: sim --seed %" PRIu64 " -v\n",
                     seed_at_work, seed_at_work);
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)n);

    (void)ignored;
    signal(signo, SIG_DFL);
    raise(signo);
}

static void run_seed(const struct world_options *o, uint64_t seed, struct log *log,
                     struct result *out)
{
    struct world_sim *w;

    seed_at_work = seed;
    w = world_new(seed, o, log);
    world_run(w);
    *out = (struct result){w->sim->failed, "",         w->sim->trace, w->sim->turns, w->n_asks,
                           w->n_attempts,  w->store.n, w->lives,      w->window};
    memcpy(out->failure, w->sim->failure, sizeof(out->failure));
    world_free(w);
}

static bool one(const struct options *o, uint64_t seed, struct log *log, struct result *r)
{
    struct world_options quiet = o->world;
    struct result again;

    quiet.verbose = false;
    run_seed(&o->world, seed, log, r);
    if (!r->failed && (o->twice || seed % TWICE_EVERY == 0)) {
        run_seed(&quiet, seed, log, &again);
        if (again.trace != r->trace) {
            r->failed = true;
            snprintf(r->failure, sizeof(r->failure),
                     "two runs differ: trace %016" PRIx64 " and %016" PRIx64, r->trace,
                     again.trace);
        }
    }
    if (r->failed) {
        printf("seed %" PRIu64 " FAILED: %s\n  again: sim --seed %" PRIu64 "%s%s -v\n", seed,
               r->failure, seed, o->world.fsync_fails ? " --fsync-fails" : "",
               o->world.stale_snapshot ? " --stale-snapshot" : "");
        fflush(stdout);
    }
    return !r->failed;
}

static uint64_t number(const char *text)
{
    uint64_t v;

    if (!str_u64(str_c(text), &v)) {
        fprintf(stderr, "sim: \"%s\" is not a number\n", text);
        exit(2);
    }
    return v;
}

static struct options parse(int argc, char **argv)
{
    static const struct option names[] = {
        {"seed", required_argument, NULL, 's'},  {"seeds", required_argument, NULL, 'n'},
        {"from", required_argument, NULL, 'f'},  {"twice", no_argument, NULL, '2'},
        {"fsync-fails", no_argument, NULL, 'y'}, {"stale-snapshot", no_argument, NULL, 'o'},
        {"verbose", no_argument, NULL, 'v'},     {0}};
    struct options o = {.first = 1, .count = 100};
    int c;

    while ((c = getopt_long(argc, argv, "v", names, NULL)) != -1) {
        switch (c) {
        case 's':
            o.first = number(optarg);
            o.count = 1;
            break;
        case 'n':
            o.count = number(optarg);
            break;
        case 'f':
            o.first = number(optarg);
            break;
        case '2':
            o.twice = true;
            break;
        case 'y':
            o.world.fsync_fails = true;
            break;
        case 'o':
            o.world.stale_snapshot = true;
            break;
        case 'v':
            o.world.verbose = true;
            break;
        default:
            fprintf(stderr, "usage: sim [--seed N | --seeds COUNT [--from N]] [--twice] "
                            "[--fsync-fails] [--stale-snapshot] [-v]\n");
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    int fd = o.world.verbose ? STDOUT_FILENO : open("/dev/null", O_WRONLY);
    struct log *log = log_new(fd, LOG_DEBUG, "sim");
    struct result r, sum = {0};
    uint64_t failures = 0;
    time_t began = time(NULL);

    signal(SIGABRT, say_seed);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint64_t i = 0; i < o.count; i++) {
        failures += !one(&o, o.first + i, log, &r);
        sum.turns += r.turns;
        sum.asks += r.asks;
        sum.attempts += r.attempts;
        sum.rows += r.rows;
        sum.lives += r.lives;
        sum.window.attempts += r.window.attempts;
        sum.window.tokens += r.window.tokens;
    }
    log_free(log);
    printf("%" PRIu64 " seeds, %" PRIu64 " failed; %" PRIu64 " turns, %" PRIu64
           " requests, %" PRIu64 " attempts, %" PRIu64 " rows, %" PRIu64
           " lives of a gateway; %u attempts (%u tokens) lost with a kill before their DISPATCH "
           "was on the disk; trace of the last %016" PRIx64 "; %lld s\n",
           o.count, failures, sum.turns, sum.asks, sum.attempts, sum.rows, sum.lives,
           sum.window.attempts, sum.window.tokens, r.trace, (long long)(time(NULL) - began));
    return failures == 0 ? 0 : 1;
}
