/* bench.h - `tollgate-worker bench`: how fast the backend is on a model, and how far from its roof.
 *
 * Prefill, decode and batch curves, rows of one sequence checked at once (what speculation pays),
 * a 4k prompt cold and with its prefix held, load to first token. Roofs are measured in the same
 * run: reads of a buffer of the weights' size, and the matrix kernel alone. */
#ifndef WORKER_BENCH_H
#define WORKER_BENCH_H

/* argv[0] is skipped; see bench_main's own --help. Returns an exit code: 0, 1 failed, 2 usage. */
int bench_main(int argc, char **argv);

#endif
