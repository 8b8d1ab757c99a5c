/* bench_worker.c - `tollgate-worker bench` alone, for tests/bench/worker.py: needs no server. */
#include "worker/bench.h"

int main(int argc, char **argv)
{
    return bench_main(argc, argv);
}
