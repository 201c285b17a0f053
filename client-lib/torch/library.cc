#include "client-lib/torch/library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <mutex>

namespace tensorlane::torch_backend {
namespace {

std::mutex loading;
bool loaded = false;
Library functions;

template <typename Function>
void find(void* handle, const std::string& path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) {
    fail("the client library lacks " + std::string(name) + ": " + path +
         ": install client library and backend of one release");
  }
}

}  // namespace

void fail(const std::string& text) {
  C10_THROW_ERROR(DistBackendError, text);
}

void load_library(const std::string& path) {
  std::lock_guard lock(loading);
  if (loaded) return;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    fail("the client library cannot be loaded: " + std::string(why != nullptr ? why : path) +
         ": reinstall tensorlane, or set TENSORLANE_LIBRARY to libtensorlane.so");
  }
  Library& f = functions;
  find(handle, path, "tl_last_error", f.last_error);
  find(handle, path, "tl_status_string", f.status_string);
  find(handle, path, "tl_init", f.init);
  find(handle, path, "tl_finalize", f.finalize);
  find(handle, path, "tl_abort", f.abort);
  find(handle, path, "tl_host", f.host);
  find(handle, path, "tl_unregister", f.unregister);
  find(handle, path, "tl_test", f.test);
  find(handle, path, "tl_wait", f.wait);
  find(handle, path, "tl_wait_many", f.wait_many);
  find(handle, path, "tl_set_callback", f.set_callback);
  find(handle, path, "tl_allreduce", f.allreduce);
  find(handle, path, "tl_broadcast", f.broadcast);
  find(handle, path, "tl_allgather", f.allgather);
  find(handle, path, "tl_reducescatter", f.reducescatter);
  find(handle, path, "tl_reduce", f.reduce);
  find(handle, path, "tl_gather", f.gather);
  find(handle, path, "tl_scatter", f.scatter);
  find(handle, path, "tl_alltoall", f.alltoall);
  find(handle, path, "tl_alltoallv", f.alltoallv);
  find(handle, path, "tl_send", f.send);
  find(handle, path, "tl_recv", f.recv);
  loaded = true;
}

const Library& library() {
  return functions;
}

}  // namespace tensorlane::torch_backend
