/* Sums an array over all ranks of a job, in shared memory: nothing is copied.
 *
 *   tensorlane run -n 4 -- tensorlane-example-allreduce
 *
 * Exit status 0 only if the sums are right. */
#include <stdio.h>
#include <string.h>

#include "tensorlane/tensorlane.h"

enum { kCount = 1 << 16, kIterations = 10 };

static int fail(const char* what) {
  fprintf(stderr, "tensorlane: error: %s: %s\n", what, tl_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc > 1) { /* it takes no arguments */
    const int asked = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
    fprintf(asked ? stdout : stderr,
            "Sums an array over all ranks of a job. Without arguments, e.g.:\n"
            "  tensorlane run -n 4 -- tensorlane-example-allreduce\n");
    return asked ? 0 : 2;
  }
  tl_config_t config = TL_CONFIG_INIT; /* everything from torchrun's environment variables */
  tl_context_t* context = NULL;
  if (tl_init(&config, &context) != TL_OK) return fail("tl_init");

  float* x = NULL;
  if (tl_alloc(context, kCount * sizeof *x, (void**)&x) != TL_OK) return fail("tl_alloc");
  const int rank = tl_rank(context), size = tl_size(context);

  for (int iteration = 1; iteration <= kIterations; ++iteration) {
    for (int i = 0; i < kCount; ++i) x[i] = (float)(rank + iteration + i % 7);
    tl_request_t* request = NULL;
    if (tl_allreduce(context, "x", x, x, kCount, TL_FLOAT32, TL_SUM, NULL, &request) != TL_OK)
      return fail("tl_allreduce");
    if (tl_wait(request, -1.0) != TL_OK) return fail("tl_wait");
    for (int i = 0; i < kCount; ++i) {
      const float expected = (float)(size * (size - 1) / 2 + size * (iteration + i % 7));
      if (x[i] != expected) {
        fprintf(stderr, "tensorlane: error: wrong sum: element %d is %g, not %g\n", i, (double)x[i], (double)expected);
        return 1;
      }
    }
  }
  if (tl_finalize(context) != TL_OK) return fail("tl_finalize");
  printf("rank %d of %d: %d sums of %d elements are right\n", rank, size, kIterations, (int)kCount);
  return 0;
}
