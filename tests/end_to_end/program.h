/* What the programs of these tests share. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tensorlane/tensorlane.h"

/* In seconds, of the machine's monotonic clock. */
static inline double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Ends the program with what the library says is wrong. */
static inline void check(tl_status_t status) {
  if (status == TL_OK) return;
  fprintf(stderr, "tensorlane: error: %s\n", tl_last_error());
  exit(1);
}

/* Registers a broadcast from rank 0, which the context owns. */
static inline tl_tensor_t* add_broadcast(tl_context_t* context, const char* name, uint64_t bytes, float urgency) {
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  tl_tensor_t* tensor = NULL;
  desc.name = name;
  desc.count = bytes / 4;
  desc.operation = TL_BROADCAST;
  desc.urgency = urgency;
  check(tl_register(context, name, &desc, 1, &tensor));
  return tensor;
}
