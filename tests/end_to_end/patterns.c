/* How long an allreduce takes with each pattern: every rank runs
 *
 *   patterns ROUNDS COUNT PATTERN[,PATTERN...] BYTES...
 *
 * with PATTERN a number of tl_pattern_t. In each round, for each size, the patterns take turns, each round in another
 * order; a turn is one allreduce to warm up and COUNT timed ones, each begun together behind a barrier; fewer of long
 * ones: 1 MiB in all, or a single one that nothing has warmed up. Prints for each
 * timed one "BYTES PATTERN ROUND BEGIN END", in seconds of the machine's clock, so that the times of all ranks can be
 * put together; checks every sum. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "program.h"

enum { MOST_PATTERNS = 8, MOST_SIZES = 16, TURN_BYTES = 1 << 20 };

static tl_tensor_t* add(tl_context_t* context, uint64_t bytes, int pattern) {
  char name[64];
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  tl_tensor_t* tensor = NULL;
  snprintf(name, sizeof name, "%llu bytes, pattern %d", (unsigned long long)bytes, pattern);
  desc.name = name;
  desc.count = bytes / 4;
  desc.pattern = (tl_pattern_t)pattern;
  check(tl_register(context, name, &desc, 1, &tensor));
  return tensor;
}

/* One allreduce behind a barrier; returns when this rank posted it, and when it was done in *end. */
static double once(tl_context_t* context, tl_tensor_t* tensor, uint64_t count, double* end) {
  const int size = tl_size(context), rank = tl_rank(context);
  float* data = tl_tensor_buffer(tensor);
  tl_request_t* request = NULL;
  for (uint64_t i = 0; i < count; ++i) data[i] = (float)(rank + (int)(i % 5));
  check(tl_barrier(context, -1.0));
  const double begin = now();
  check(tl_post(tensor, &request));
  check(tl_wait(request, -1.0));
  *end = now();
  for (uint64_t i = 0; i < count; ++i) {
    if (data[i] == (float)(size * (size - 1) / 2 + size * (int)(i % 5))) continue;
    fprintf(stderr, "wrong sum: element %llu is %f\n", (unsigned long long)i, data[i]);
    exit(3);
  }
  return begin;
}

int main(int argc, char** argv) {
  tl_config_t config = TL_CONFIG_INIT;
  tl_context_t* context = NULL;
  tl_tensor_t* tensors[MOST_SIZES][MOST_PATTERNS];
  uint64_t sizes[MOST_SIZES];
  int patterns[MOST_PATTERNS], pattern_count = 0;
  const int size_count = argc - 4;
  if (size_count < 1 || size_count > MOST_SIZES) {
    fprintf(stderr, "usage: patterns ROUNDS COUNT PATTERN[,PATTERN...] BYTES...\n");
    return 2;
  }
  const int rounds = atoi(argv[1]), count = atoi(argv[2]);
  for (char* at = argv[3]; *at != 0 && pattern_count < MOST_PATTERNS; at += *at == ',')
    patterns[pattern_count++] = (int)strtol(at, &at, 10);
  check(tl_init(&config, &context));
  for (int s = 0; s < size_count; ++s) {
    sizes[s] = strtoull(argv[4 + s], NULL, 10);
    for (int p = 0; p < pattern_count; ++p) tensors[s][p] = add(context, sizes[s], patterns[p]);
  }
  for (int round = 0; round < rounds; ++round) {
    for (int s = 0; s < size_count; ++s) {
      const uint64_t most = TURN_BYTES / sizes[s];
      const int timed = most < 1 ? 1 : most < (uint64_t)count ? (int)most : count;
      for (int turn = 0; turn < pattern_count; ++turn) {
        const int p = (turn + round) % pattern_count;
        for (int i = timed == 1; i <= timed; ++i) {
          double end = 0;
          const double begin = once(context, tensors[s][p], sizes[s] / 4, &end);
          if (i > 0) printf("%llu %d %d %.7f %.7f\n", (unsigned long long)sizes[s], patterns[p], round, begin, end);
        }
      }
    }
  }
  check(tl_finalize(context));
  return 0;
}
