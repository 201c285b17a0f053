/* gave_up BYTES: sums a buffer with the other ranks, then posts a second sum and says "posted". When that fails, writes
 * over its buffer, says "failed", waits for a line, and says how many elements are not what it has written. */
#include "program.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  tl_config_t config = TL_CONFIG_INIT;
  tl_context_t* context = NULL;
  check(tl_init(&config, &context));
  const size_t count = strtoull(argv[1], NULL, 10) / sizeof(float);
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  tl_tensor_t* tensor = NULL;
  desc.name = "x";
  desc.count = count;
  check(tl_register(context, "x", &desc, 1, &tensor));
  float* x = tl_tensor_buffer(tensor);
  for (size_t i = 0; i < count; ++i) x[i] = 1;
  tl_request_t* request = NULL;
  check(tl_post(tensor, &request));
  check(tl_wait(request, -1));
  check(tl_barrier(context, -1));
  check(tl_post(tensor, &request));
  puts("posted");
  if (tl_wait(request, -1) == TL_OK) {
    puts("done");
    return 0;
  }
  printf("failed: %s\n", tl_last_error());
  for (size_t i = 0; i < count; ++i) x[i] = -7;
  puts("written");
  (void)getchar();
  size_t overwritten = 0;
  for (size_t i = 0; i < count; ++i) overwritten += x[i] != -7;
  printf("%zu overwritten\n", overwritten);
  return 0;
}
