#include "client-lib/src/cuda/driver.h"

#include <dlfcn.h>

#include <mutex>

namespace tensorlane::client::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Status unavailable(std::string where) {
  return {Code::kUnavailable, "GPU memory cannot be used here", std::move(where),
          "install NVIDIA's driver (525 or newer), or pass host memory"};
}

Status resolve(void* library, Driver& driver) {
#define TL_CUDA_RESOLVE(member, symbol, parameters) \
  driver.member = reinterpret_cast<Error_(*) parameters>(dlsym(library, #symbol));
#define TL_CUDA_REQUIRE(member, symbol, parameters) \
  TL_CUDA_RESOLVE(member, symbol, parameters)       \
  if (driver.member == nullptr) return unavailable(std::string(kLibrary) + " has no " #symbol);
  TL_CUDA_ENTRY_POINTS(TL_CUDA_REQUIRE)
  TL_CUDA_OPTIONAL_ENTRY_POINTS(TL_CUDA_RESOLVE)
#undef TL_CUDA_REQUIRE
#undef TL_CUDA_RESOLVE
  const Error_ error = driver.init(0);
  return error == kSuccess ? Status() : driver.error(error, "cuInit", kLibrary);
}

}  // namespace

Result<const Driver*> Driver::load() {
  static std::mutex mutex;
  static const Driver* loaded = nullptr;
  std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return unavailable(why != nullptr ? why : kLibrary);
  }
  Driver driver;
  if (const Status status = resolve(library, driver); !status.ok()) {
    dlclose(library);
    return status;
  }
  loaded = new Driver(driver);  // for good: streams may come to our words as long as the process lives
  return loaded;
}

Status Driver::error(Error_ code, const char* call, const std::string& where) const {
  const char* name = nullptr;
  if (error_name(code, &name) != kSuccess || name == nullptr) name = "an error without a name";
  const std::string what = std::string(call) + " failed with " + name + " (" + std::to_string(code) + ")";
  if (code == kOutOfMemory)
    return {Code::kResourceExhausted, what, where,
            "free memory of the GPU, or raise the limit of locked memory (ulimit -l)"};
  if (code == kInvalidHandle)
    return {Code::kInvalidArgument, what, where, "pass a stream of the GPU that the buffer is on"};
  if (code == kCaptureImplicit)
    return {Code::kInvalidArgument, what, where,
            "use another stream than the default one while a CUDA graph is captured"};
  return {Code::kUnavailable, what, where, "look at nvidia-smi and the kernel's log (dmesg) for what the GPU reports"};
}

}  // namespace tensorlane::client::cuda
