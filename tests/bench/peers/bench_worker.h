/* What every worker of `tensorlane bench` has in common, whichever library it measures: the link to the coordinator,
 * filling, timing and checking. A worker supplies three functions and calls bench_serve().
 *
 * The link is a Unix stream socket on which the coordinator listens. Lines, each ended by a line feed:
 *   worker:       hello RANK
 *   coordinator:  run BYTES COUNT           all workers of a group get the same line
 *   worker:       done CPU_NS NS NS ...     CPU time of this process in COUNT + 1 allreduces (the first warms up and is
 * not timed), and the COUNT wall-clock times worker:       error TEXT                instead of `done`; the worker then
 * ends The end of the stream ends the worker. Between commands a worker blocks in read() and uses no CPU. */
#ifndef TENSORLANE_BENCH_WORKER_H
#define TENSORLANE_BENCH_WORKER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library under measurement. `self` is passed to each call. Calls come from one thread, in the same order on all
 * ranks. */
typedef struct {
  void* self;
  /* Memory for `bytes`, kept until the worker ends; collective. Null: failed, bench_operations_t.error says why. */
  float* (*buffer)(void* self, size_t bytes);
  /* Non-zero: failed. */
  int (*barrier)(void* self);
  /* Sums `count` floats of all ranks in place, and returns when the result is there. Non-zero: failed. */
  int (*allreduce)(void* self, float* buffer, size_t count);
  /* What the last failure was, in one line. */
  const char* (*error)(void* self);
} bench_operations_t;

/* Connects to the coordinator and obeys it until it hangs up. Returns the exit status of the process: 0, or 1 after an
 * error. */
int bench_serve(const char* socket_path, int rank, int ranks, const bench_operations_t* operations);

#ifdef __cplusplus
}
#endif
#endif
