/* One message, again and again. Used by the tests that measure through real daemons.
 *
 *   message flood BYTES SECONDS URGENCY
 * rank 0 keeps two broadcasts under way for SECONDS, or until it gets SIGTERM; every rank prints how many bytes came
 * through
 *
 *   message loop BYTES SECONDS URGENCY
 * allreduces for SECONDS, or until one rank gets SIGTERM, results checked; prints "running" after the first
 *
 *   message watch BYTES SECONDS URGENCY
 * likewise, and every rank prints of each iteration when it began, on the machine's monotonic clock, and how long it
 * took
 *
 *   message time BYTES COUNT URGENCY
 * the last rank prints how long each of COUNT broadcasts took, in seconds, from its post to its arrival
 *
 *   message sum BYTES COUNT URGENCY
 * allreduces numbers whose sum depends on the order COUNT times; every rank prints the median of the seconds that one
 * took, and a hash of the bits of all results
 *
 *   message pause BYTES SECONDS URGENCY
 * allreduces, prints "pausing", does nothing for SECONDS, or until it gets SIGTERM, allreduces once more, and prints
 * how many seconds that took; a rank that is told to pause longer than the others keeps them waiting */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

static volatile sig_atomic_t had_enough;

static void have_enough(int number) {
  (void)number;
  had_enough = 1;
}

/* Two tensors in turn, so that something always waits to be sent. A rank's last element says when to stop. */
static void flood(tl_context_t* context, uint64_t bytes, double duration, float urgency) {
  tl_tensor_t* tensors[2] = {add_broadcast(context, "flood.0", bytes, urgency),
                             add_broadcast(context, "flood.1", bytes, urgency)};
  tl_request_t* requests[2] = {NULL, NULL};
  const double start = now();
  uint64_t moved = 0;
  int last = 0;
  signal(SIGTERM, have_enough);
  for (int turn = 0; !last; turn ^= 1) {
    float* data = tl_tensor_buffer(tensors[turn]);
    if (requests[turn] != NULL) {
      check(tl_wait(requests[turn], -1.0));
      requests[turn] = NULL;
      moved += bytes;
      last = data[bytes / 4 - 1] != 0;
      if (last) break;
    }
    if (tl_rank(context) == 0) data[bytes / 4 - 1] = had_enough || now() - start > duration ? 1.0f : 0.0f;
    check(tl_post(tensors[turn], &requests[turn]));
  }
  /* The other tensor has one operation under way on every rank alike. */
  for (int turn = 0; turn < 2; ++turn) {
    if (requests[turn] != NULL) check(tl_wait(requests[turn], -1.0));
  }
  printf("%.0f\n", (double)moved / (now() - start));
}

static void loop(tl_context_t* context, uint64_t bytes, double duration, float urgency, int watch) {
  const double start = now();
  signal(SIGTERM, have_enough);
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  tl_tensor_t* tensor = NULL;
  desc.name = "loop";
  desc.count = bytes / 4;
  desc.urgency = urgency;
  check(tl_register(context, "loop", &desc, 1, &tensor));
  float* data = tl_tensor_buffer(tensor);
  const int size = tl_size(context);
  for (int i = 0;; ++i) {
    tl_request_t* request = NULL;
    /* The last element says whether anybody has had enough. */
    for (uint64_t k = 0; k < desc.count; ++k) data[k] = (float)((k & 1023) + (uint64_t)(tl_rank(context) + i % 7));
    data[desc.count - 1] = had_enough || now() - start > duration ? 1.0f : 0.0f;
    const double began = now();
    check(tl_post(tensor, &request));
    check(tl_wait(request, -1.0));
    if (watch) {
      printf("%.6f %.6f\n", began, now() - began);
      fflush(stdout);
    }
    for (uint64_t k = 0; k + 1 < desc.count; ++k) {
      const float expected = (float)(size * (size - 1) / 2 + size * ((int)(k & 1023) + i % 7));
      if (data[k] == expected) continue;
      fprintf(stderr, "wrong sum: element %llu of iteration %d is %f, expected %f\n", (unsigned long long)k, i, data[k],
              expected);
      exit(3);
    }
    if (i == 0) {
      printf("running\n");
      fflush(stdout);
    }
    if (data[desc.count - 1] != 0) return;
  }
}

static int by_size(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void sum(tl_context_t* context, uint64_t bytes, int count, float urgency) {
  enum { kMost = 1000 };
  static double seconds[kMost];
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  tl_tensor_t* tensor = NULL;
  desc.name = "sum";
  desc.count = bytes / 4;
  desc.urgency = urgency;
  check(tl_register(context, "sum", &desc, 1, &tensor));
  float* data = tl_tensor_buffer(tensor);
  uint32_t random = 12345u + 977u * (uint32_t)tl_rank(context);
  uint64_t hash = 0xcbf29ce484222325u;
  if (count > kMost) count = kMost;
  for (int i = 0; i < count; ++i) {
    tl_request_t* request = NULL;
    for (uint64_t k = 0; k < desc.count; ++k) {
      random = random * 1664525u + 1013904223u;
      data[k] = (float)(int32_t)random / (float)(1u << (random >> 8 & 31));
    }
    check(tl_barrier(context, -1.0));
    const double begin = now();
    check(tl_post(tensor, &request));
    check(tl_wait(request, -1.0));
    seconds[i] = now() - begin;
    const uint32_t* bits = (const uint32_t*)data;
    for (uint64_t k = 0; k < desc.count; ++k) hash = (hash ^ bits[k]) * 0x100000001b3u;
  }
  qsort(seconds, (size_t)count, sizeof seconds[0], by_size);
  printf("%.6f %016llx\n", seconds[count / 2], (unsigned long long)hash);
}

static void once_more_after(tl_context_t* context, uint64_t bytes, double pause, float urgency) {
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  tl_tensor_t* tensor = NULL;
  signal(SIGTERM, have_enough);
  desc.name = "pause";
  desc.count = bytes / 4;
  desc.urgency = urgency;
  check(tl_register(context, "pause", &desc, 1, &tensor));
  for (int i = 0; i < 2; ++i) {
    tl_request_t* request = NULL;
    const double begin = now();
    check(tl_post(tensor, &request));
    check(tl_wait(request, -1.0));
    if (i > 0) {
      printf("%.6f\n", now() - begin);
      break;
    }
    printf("pausing\n");
    fflush(stdout);
    if (!had_enough) usleep((useconds_t)(pause * 1e6)); /* a signal ends it */
  }
}

static void time_messages(tl_context_t* context, uint64_t bytes, int count, float urgency) {
  tl_tensor_t* tensor = add_broadcast(context, "message", bytes, urgency);
  const int last = tl_rank(context) == tl_size(context) - 1;
  float* data = tl_tensor_buffer(tensor);
  for (int i = 1; i <= count; ++i) {
    tl_request_t* request = NULL;
    if (tl_rank(context) == 0) data[0] = (float)i;
    if (last) usleep(20000); /* the sender has posted by then: what is timed is the way through the network */
    const double begin = now();
    check(tl_post(tensor, &request));
    check(tl_wait(request, -1.0));
    if (last) {
      if (data[0] != (float)i) {
        fprintf(stderr, "message %d carries %f\n", i, data[0]);
        exit(1);
      }
      printf("%.6f\n", now() - begin);
      fflush(stdout);
    }
    check(tl_barrier(context, -1.0));
  }
}

int main(int argc, char** argv) {
  tl_config_t config = TL_CONFIG_INIT;
  tl_context_t* context = NULL;
  if (argc != 5) {
    fprintf(stderr, "usage: message flood|loop|pause|sum|time BYTES SECONDS|COUNT URGENCY\n");
    return 2;
  }
  check(tl_init(&config, &context));
  const uint64_t bytes = strtoull(argv[2], NULL, 10);
  if (strcmp(argv[1], "flood") == 0) {
    flood(context, bytes, atof(argv[3]), (float)atof(argv[4]));
  } else if (strcmp(argv[1], "sum") == 0) {
    sum(context, bytes, atoi(argv[3]), (float)atof(argv[4]));
  } else if (strcmp(argv[1], "loop") == 0) {
    loop(context, bytes, atof(argv[3]), (float)atof(argv[4]), 0);
  } else if (strcmp(argv[1], "watch") == 0) {
    loop(context, bytes, atof(argv[3]), (float)atof(argv[4]), 1);
  } else if (strcmp(argv[1], "pause") == 0) {
    once_more_after(context, bytes, atof(argv[3]), (float)atof(argv[4]));
  } else {
    time_messages(context, bytes, atoi(argv[3]), (float)atof(argv[4]));
  }
  check(tl_finalize(context));
  return 0;
}
