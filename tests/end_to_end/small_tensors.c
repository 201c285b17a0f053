/* How long many small allreduces take together: every rank runs
 *
 *   small_tensors ITERATIONS TENSORS BYTES
 *
 * registers the tensors together, and in each iteration, behind a barrier, submits all of them and waits for all.
 * Prints for each iteration "BEGIN END", in seconds of the machine's clock; checks every sum. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "program.h"

enum { MOST_TENSORS = 1000 };

static char names[MOST_TENSORS][16];
static tl_tensor_desc_t descs[MOST_TENSORS];
static tl_tensor_t* tensors[MOST_TENSORS];
static tl_request_t* requests[MOST_TENSORS];

static float part(int rank, int tensor, uint64_t element) {
  return (float)(rank + tensor % 7 + (int)(element % 5));
}

int main(int argc, char** argv) {
  tl_config_t config = TL_CONFIG_INIT;
  tl_context_t* context = NULL;
  if (argc != 4) {
    fprintf(stderr, "usage: small_tensors ITERATIONS TENSORS BYTES\n");
    return 2;
  }
  const int iterations = atoi(argv[1]), count = atoi(argv[2]);
  const uint64_t elements = strtoull(argv[3], NULL, 10) / 4;
  if (count < 1 || count > MOST_TENSORS || elements < 1) return 2;
  check(tl_init(&config, &context));
  const int size = tl_size(context), rank = tl_rank(context);
  for (int t = 0; t < count; ++t) {
    snprintf(names[t], sizeof names[t], "t%d", t);
    descs[t] = (tl_tensor_desc_t)TL_TENSOR_INIT;
    descs[t].name = names[t];
    descs[t].count = elements;
    descs[t].position = (uint32_t)t;
    descs[t].positions = (uint32_t)count;
  }
  check(tl_register(context, "small", descs, (size_t)count, tensors));
  for (int i = 0; i < iterations; ++i) {
    for (int t = 0; t < count; ++t) {
      float* data = tl_tensor_buffer(tensors[t]);
      for (uint64_t e = 0; e < elements; ++e) data[e] = part(rank, t, e);
    }
    check(tl_barrier(context, -1.0));
    const double begin = now();
    for (int t = count - 1; t >= 0; --t) check(tl_post(tensors[t], &requests[t]));
    for (int t = 0; t < count; ++t) check(tl_wait(requests[t], -1.0));
    printf("%.7f %.7f\n", begin, now());
    for (int t = 0; t < count; ++t) {
      const float* data = tl_tensor_buffer(tensors[t]);
      for (uint64_t e = 0; e < elements; ++e) {
        if (data[e] == (float)(size * (size - 1) / 2) + (float)size * part(0, t, e)) continue;
        fprintf(stderr, "wrong sum: element %llu of tensor %d is %f\n", (unsigned long long)e, t, data[e]);
        return 3;
      }
    }
  }
  check(tl_finalize(context));
  return 0;
}
