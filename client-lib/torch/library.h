// The C interface of the library that the process has loaded, and errors of torch's.
#pragma once

#include <string>

#include "tensorlane/tensorlane.h"

namespace tensorlane::torch_backend {

// The functions that the backend calls. They have the contracts of tensorlane.h.
struct Library {
  decltype(&::tl_last_error) last_error;
  decltype(&::tl_status_string) status_string;
  decltype(&::tl_init) init;
  decltype(&::tl_finalize) finalize;
  decltype(&::tl_abort) abort;
  decltype(&::tl_host) host;
  decltype(&::tl_unregister) unregister;
  decltype(&::tl_test) test;
  decltype(&::tl_wait) wait;
  decltype(&::tl_wait_many) wait_many;
  decltype(&::tl_set_callback) set_callback;
  decltype(&::tl_allreduce) allreduce;
  decltype(&::tl_broadcast) broadcast;
  decltype(&::tl_allgather) allgather;
  decltype(&::tl_reducescatter) reducescatter;
  decltype(&::tl_reduce) reduce;
  decltype(&::tl_gather) gather;
  decltype(&::tl_scatter) scatter;
  decltype(&::tl_alltoall) alltoall;
  decltype(&::tl_alltoallv) alltoallv;
  decltype(&::tl_send) send;
  decltype(&::tl_recv) recv;
};

// Loads the functions from the shared object at `path`, which Python has loaded before; once. Throws DistBackendError
// when that is not possible. Any thread.
void load_library(const std::string& path);
// The functions. load_library() has been called before.
const Library& library();

// Throws torch's DistBackendError. `text` is "WHAT: WHERE: WHAT TO DO".
[[noreturn]] void fail(const std::string& text);

}  // namespace tensorlane::torch_backend
