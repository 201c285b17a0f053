#include "gpu_driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tensorlane::gpu_check {
namespace {

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

template <typename Function>
void need(void* library, const char* name, Function*& function) {
  find(library, name, function);
  if (function != nullptr) return;
  std::fprintf(stderr, "gpu_check: the driver has no %s: install NVIDIA's driver 525 or newer\n", name);
  std::exit(2);
}

unsigned long long address(const void* memory) {
  return reinterpret_cast<unsigned long long>(memory);
}

void sleep_for(void* argument) {
  const auto* microseconds = static_cast<std::uint64_t*>(argument);
  usleep(static_cast<useconds_t>(*microseconds));
  delete microseconds;
}

}  // namespace

Gpu::Gpu(const std::string& library) {
  // The client library asks for libcuda.so.1, too, and gets the one that is loaded.
  void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (loaded == nullptr) {
    std::fprintf(stderr, "gpu_check: %s: install NVIDIA's driver, or give --driver\n", dlerror());
    std::exit(2);
  }
  find(loaded, "fake_cuda_launch", fake_.launch);
  load_calls(loaded);
  if (is_fake()) load_fake(loaded);
  check(calls_.init(0), "cuInit");
  check(calls_.device_get(&device_, 0), "cuDeviceGet");
  void* context = nullptr;
  check(calls_.context_retain(&context, device_), "cuDevicePrimaryCtxRetain");
  check(calls_.context_push(context), "cuCtxPushCurrent");
}

void Gpu::load_calls(void* library) {
  need(library, "cuInit", calls_.init);
  need(library, "cuDriverGetVersion", calls_.driver_version);
  need(library, "cuGetErrorName", calls_.error_name);
  need(library, "cuDeviceGet", calls_.device_get);
  need(library, "cuDeviceGetName", calls_.device_name);
  need(library, "cuDevicePrimaryCtxRetain", calls_.context_retain);
  need(library, "cuCtxPushCurrent_v2", calls_.context_push);
  need(library, "cuMemHostAlloc", calls_.host_alloc);
  need(library, "cuMemFreeHost", calls_.host_free);
  need(library, "cuMemcpyDtoHAsync_v2", calls_.to_host);
  need(library, "cuMemcpyHtoDAsync_v2", calls_.to_gpu);
  need(library, "cuMemsetD8Async", calls_.fill);
  need(library, "cuMemcpyDtoDAsync_v2", calls_.copy);
  need(library, "cuModuleLoadData", calls_.module_load);
  need(library, "cuModuleGetFunction", calls_.module_function);
  need(library, "cuLaunchKernel", calls_.launch);
  if (is_fake()) return;
  need(library, "cuMemAlloc_v2", calls_.alloc);
  need(library, "cuMemFree_v2", calls_.free);
  need(library, "cuStreamCreate", calls_.stream_create);
  need(library, "cuStreamDestroy_v2", calls_.stream_destroy);
  need(library, "cuStreamSynchronize", calls_.stream_synchronize);
  need(library, "cuLaunchHostFunc", calls_.launch_host);
}

void Gpu::load_fake(void* library) {
  need(library, "fake_cuda_malloc", fake_.malloc);
  need(library, "fake_cuda_free", fake_.free);
  need(library, "fake_cuda_stream_create", fake_.stream_create);
  need(library, "fake_cuda_stream_destroy", fake_.stream_destroy);
  need(library, "fake_cuda_stream_synchronize", fake_.stream_synchronize);
  need(library, "fake_cuda_violations", fake_.violations);
  need(library, "fake_cuda_violation", fake_.violation);
}

void Gpu::check(int error, const char* call) const {
  if (error == 0) return;
  const char* name = nullptr;
  if (calls_.error_name(error, &name) != 0 || name == nullptr) name = "an error without a name";
  std::fprintf(stderr, "gpu_check: %s failed with %s (%d): look at nvidia-smi and dmesg\n", call, name, error);
  std::exit(2);
}

std::string Gpu::name() const {
  char name[128] = {};
  check(calls_.device_name(name, sizeof name - 1, device_), "cuDeviceGetName");
  return name;
}

int Gpu::driver_version() const {
  int version = 0;
  check(calls_.driver_version(&version), "cuDriverGetVersion");
  return version;
}

std::string Gpu::violations() const {
  std::string all;
  if (!is_fake()) return all;
  for (std::size_t i = 0; i < fake_.violations() && i < 5; ++i) all += std::string(fake_.violation(i)) + "\n";
  return all;
}

void* Gpu::allocate(std::size_t bytes) const {
  if (is_fake()) {
    void* memory = fake_.malloc(0, bytes);
    check(memory == nullptr ? 2 : 0, "fake_cuda_malloc");
    return memory;
  }
  Address memory = 0;
  check(calls_.alloc(&memory, bytes), "cuMemAlloc");
  return reinterpret_cast<void*>(memory);  // NOLINT(performance-no-int-to-ptr): what the driver calls an address
}

void Gpu::free(void* memory) const {
  if (is_fake()) return check(fake_.free(memory), "fake_cuda_free");
  check(calls_.free(address(memory)), "cuMemFree");
}

void* Gpu::allocate_pinned(std::size_t bytes) const {
  void* memory = nullptr;
  check(calls_.host_alloc(&memory, bytes, 0), "cuMemHostAlloc");
  return memory;
}

void Gpu::free_pinned(void* memory) const {
  check(calls_.host_free(memory), "cuMemFreeHost");
}

Gpu::Stream Gpu::new_stream() const {
  if (is_fake()) return fake_.stream_create(0);
  constexpr unsigned kNonBlocking = 1;
  Stream stream = nullptr;
  check(calls_.stream_create(&stream, kNonBlocking), "cuStreamCreate");
  return stream;
}

void Gpu::destroy(Stream stream) const {
  check(is_fake() ? fake_.stream_destroy(stream) : calls_.stream_destroy(stream), "cuStreamDestroy");
}

void Gpu::synchronize(Stream stream) const {
  check(is_fake() ? fake_.stream_synchronize(stream) : calls_.stream_synchronize(stream), "cuStreamSynchronize");
}

void Gpu::to_gpu(void* gpu, const void* pinned, std::size_t bytes, Stream stream) const {
  check(calls_.to_gpu(address(gpu), pinned, bytes, stream), "cuMemcpyHtoDAsync");
}

void Gpu::to_host(void* pinned, const void* gpu, std::size_t bytes, Stream stream) const {
  check(calls_.to_host(pinned, address(gpu), bytes, stream), "cuMemcpyDtoHAsync");
}

void Gpu::copy(void* to, const void* from, std::size_t bytes, Stream stream) const {
  check(calls_.copy(address(to), address(from), bytes, stream), "cuMemcpyDtoDAsync");
}

void Gpu::fill(void* gpu, unsigned char value, std::size_t bytes, Stream stream) const {
  check(calls_.fill(address(gpu), value, bytes, stream), "cuMemsetD8Async");
}

void Gpu::load_kernels(const std::string& image) {
  check(calls_.module_load(&kernels_, image.c_str()), "cuModuleLoadData");
}

void Gpu::launch(const char* kernel, std::uint64_t bytes, void** parameters, Stream stream) const {
  constexpr std::uint64_t kThreads = 256, kBytesOfThread = 16, kMostBlocks = 1024;
  void* function = nullptr;
  check(calls_.module_function(&function, kernels_, kernel), "cuModuleGetFunction");
  const auto blocks = static_cast<unsigned>(std::min(bytes / (kThreads * kBytesOfThread) + 1, kMostBlocks));
  check(calls_.launch(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel");
}

void Gpu::pause(Stream stream, std::uint64_t microseconds) const {
  auto* argument = new std::uint64_t(microseconds);
  if (is_fake()) return check(fake_.launch(stream, sleep_for, argument), "fake_cuda_launch");
  check(calls_.launch_host(stream, sleep_for, argument), "cuLaunchHostFunc");
}

}  // namespace tensorlane::gpu_check
