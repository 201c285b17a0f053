/* Worker of `tensorlane bench` for tensorlane itself, through its public interface: tensorlane_worker SOCKET, with
 * torchrun's variables in the environment. Each size is a registered tensor in shared memory. */
#include <stdint.h>
#include <stdio.h>

#include "tensorlane/tensorlane.h"
#include "tests/bench/peers/bench_worker.h"

enum { kMaxSizes = 64 };

typedef struct {
  tl_context_t* context;
  tl_tensor_t* tensors[kMaxSizes];
  size_t bytes[kMaxSizes];
  int sizes;
} lane_t;

static tl_tensor_t* find(const lane_t* lane, size_t bytes) {
  for (int i = 0; i < lane->sizes; i++) {
    if (lane->bytes[i] == bytes) return lane->tensors[i];
  }
  return NULL;
}

static float* buffer(void* self, size_t bytes) {
  lane_t* lane = self;
  tl_tensor_t* tensor = find(lane, bytes);
  if (tensor != NULL) return tl_tensor_buffer(tensor);
  if (lane->sizes == kMaxSizes) return NULL;
  char name[32];
  snprintf(name, sizeof name, "bench-%zu", bytes);
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  desc.name = name;
  desc.count = bytes / sizeof(float);
  if (tl_register(lane->context, name, &desc, 1, &tensor) != TL_OK) return NULL;
  lane->bytes[lane->sizes] = bytes;
  lane->tensors[lane->sizes++] = tensor;
  return tl_tensor_buffer(tensor);
}

static int barrier(void* self) {
  return tl_barrier(((lane_t*)self)->context, -1.0) != TL_OK;
}

static int allreduce(void* self, float* memory, size_t count) {
  (void)memory; /* the tensor's own */
  tl_request_t* request = NULL;
  tl_tensor_t* tensor = find(self, count * sizeof(float));
  return tl_post(tensor, &request) != TL_OK || tl_wait(request, -1.0) != TL_OK;
}

static const char* error(void* self) {
  (void)self;
  return tl_last_error();
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "tensorlane: error: bad usage: tensorlane_worker: give SOCKET\n");
    return 2;
  }
  lane_t lane = {0};
  tl_config_t config = TL_CONFIG_INIT;
  if (tl_init(&config, &lane.context) != TL_OK) {
    fprintf(stderr, "tensorlane: error: %s\n", tl_last_error());
    return 1;
  }
  const bench_operations_t operations = {&lane, buffer, barrier, allreduce, error};
  int status = bench_serve(argv[1], tl_rank(lane.context), tl_size(lane.context), &operations);
  tl_finalize(lane.context);
  return status;
}
