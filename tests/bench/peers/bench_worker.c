#define _GNU_SOURCE /* strict C hides clocks and sockets */
#include "tests/bench/peers/bench_worker.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { kMaxCount = 10000, kLine = 128, kError = 256 };

typedef struct {
  int rank;
  int ranks;
  const bench_operations_t* operations;
  char error[kError];
  int64_t cpu_ns;
  int64_t wall_ns[kMaxCount];
} run_t;

static int64_t now_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int failed(run_t* run, const char* what) {
  snprintf(run->error, sizeof run->error, "%s: %s", what, run->operations->error(run->operations->self));
  return 1;
}

/* Small whole numbers that differ by element and rank: their sum is exact in any order. The period is a prime, so that
 * a shard or slice that lands in the wrong place shows. */
static float contribution(int rank, size_t i) {
  return (float)(i % 251) + (float)(rank + 1);
}

static float expected_sum(int ranks, size_t i) {
  return (float)ranks * (float)(i % 251) + (float)(ranks * (ranks + 1) / 2);
}

static int allreduce_once(run_t* run, float* buffer, size_t count, int64_t* wall_ns) {
  const bench_operations_t* operations = run->operations;
  for (size_t i = 0; i < count; i++) buffer[i] = contribution(run->rank, i);
  if (operations->barrier(operations->self)) return failed(run, "barrier failed");
  int64_t cpu_start = now_ns(CLOCK_PROCESS_CPUTIME_ID);
  int64_t start = now_ns(CLOCK_MONOTONIC);
  int status = operations->allreduce(operations->self, buffer, count);
  *wall_ns = now_ns(CLOCK_MONOTONIC) - start;
  run->cpu_ns += now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;
  if (status) return failed(run, "allreduce failed");
  for (size_t i = 0; i < count; i++) {
    if (buffer[i] != expected_sum(run->ranks, i)) {
      snprintf(run->error, sizeof run->error, "wrong sum on rank %d: element %zu of %zu is %g, expected %g", run->rank,
               i, count, (double)buffer[i], (double)expected_sum(run->ranks, i));
      return 1;
    }
  }
  return 0;
}

static int measure(run_t* run, size_t bytes, int count) {
  float* buffer = run->operations->buffer(run->operations->self, bytes);
  if (buffer == NULL) return failed(run, "no memory for the tensor");
  int64_t warm_up_ns;
  run->cpu_ns = 0;
  if (allreduce_once(run, buffer, bytes / sizeof(float), &warm_up_ns)) return 1;
  for (int i = 0; i < count; i++) {
    if (allreduce_once(run, buffer, bytes / sizeof(float), &run->wall_ns[i])) return 1;
  }
  return 0;
}

static int connect_to(const char* path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) return -1;
  strcpy(address.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (const struct sockaddr*)&address, sizeof address) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

/* Carries out one line of the coordinator and answers. Non-zero: the worker has to end. */
static int obey(FILE* answers, const char* line, run_t* run) {
  size_t bytes = 0;
  int count = 0;
  int bad = sscanf(line, "run %zu %d", &bytes, &count) != 2 || bytes < sizeof(float) || bytes % sizeof(float) != 0 ||
            count < 1 || count > kMaxCount;
  if (bad) snprintf(run->error, sizeof run->error, "not a command: %.64s", line);
  if (bad || measure(run, bytes, count)) {
    fprintf(answers, "error %s\n", run->error);
    fflush(answers);
    return 1;
  }
  fprintf(answers, "done %" PRId64, run->cpu_ns);
  for (int i = 0; i < count; i++) fprintf(answers, " %" PRId64, run->wall_ns[i]);
  fprintf(answers, "\n");
  return fflush(answers) != 0;
}

static int serve(FILE* commands, FILE* answers, run_t* run) {
  fprintf(answers, "hello %d\n", run->rank);
  int status = fflush(answers) != 0;
  char line[kLine];
  while (status == 0 && fgets(line, sizeof line, commands) != NULL) status = obey(answers, line, run);
  return status;
}

int bench_serve(const char* socket_path, int rank, int ranks, const bench_operations_t* operations) {
  int fd = connect_to(socket_path);
  FILE* commands = fd < 0 ? NULL : fdopen(fd, "r");
  FILE* answers = fd < 0 ? NULL : fdopen(dup(fd), "w");
  run_t* run = calloc(1, sizeof *run);
  int status = 1;
  if (commands == NULL || answers == NULL || run == NULL) {
    fprintf(stderr, "tensorlane: error: no link to the coordinator: %s: start workers with `tensorlane bench`\n",
            socket_path);
  } else {
    run->rank = rank;
    run->ranks = ranks;
    run->operations = operations;
    status = serve(commands, answers, run);
  }
  if (answers != NULL) fclose(answers);
  if (commands != NULL) fclose(commands);
  free(run);
  return status;
}
