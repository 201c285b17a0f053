// A GPU for programs that have nothing of CUDA but its driver: libcuda, loaded at run time. The fake driver of
// tests/cuda does as well; what it lacks (memory, kernels) is done by its controls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tensorlane::gpu_check {

// GPU 0 of this process. Errors of the driver end the process, with a message that names the call. One thread.
class Gpu {
 public:
  using Stream = void*;

  // `library`: libcuda.so.1, or a path.
  explicit Gpu(const std::string& library);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  bool is_fake() const { return fake_.launch != nullptr; }
  std::string name() const;
  int driver_version() const;  // 12040 is CUDA 12.4
  // What the fake driver holds against this process; "" on a GPU.
  std::string violations() const;

  void* allocate(std::size_t bytes) const;
  void free(void* memory) const;
  // Host memory that is pinned.
  void* allocate_pinned(std::size_t bytes) const;
  void free_pinned(void* memory) const;

  Stream new_stream() const;
  void destroy(Stream stream) const;
  void synchronize(Stream stream) const;

  // Put on the stream; they return at once.
  void to_gpu(void* gpu, const void* pinned, std::size_t bytes, Stream stream) const;
  void to_host(void* pinned, const void* gpu, std::size_t bytes, Stream stream) const;
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) const;  // within the GPU
  void fill(void* gpu, unsigned char value, std::size_t bytes, Stream stream) const;
  // Of a fat binary or PTX; once.
  void load_kernels(const std::string& image);
  // One that writes so many bytes, 16 by a thread.
  void launch(const char* kernel, std::uint64_t bytes, void** parameters, Stream stream) const;
  void pause(Stream stream, std::uint64_t microseconds) const;  // the stream does nothing for so long

 private:
  using Address = unsigned long long;
  struct Calls {
    int (*init)(unsigned) = nullptr;
    int (*driver_version)(int*) = nullptr;
    int (*error_name)(int, const char**) = nullptr;
    int (*device_get)(int*, int) = nullptr;
    int (*device_name)(char*, int, int) = nullptr;
    int (*context_retain)(void**, int) = nullptr;
    int (*context_push)(void*) = nullptr;
    int (*host_alloc)(void**, std::size_t, unsigned) = nullptr;
    int (*host_free)(void*) = nullptr;
    int (*to_host)(void*, Address, std::size_t, void*) = nullptr;
    int (*to_gpu)(Address, const void*, std::size_t, void*) = nullptr;
    int (*fill)(Address, unsigned char, std::size_t, void*) = nullptr;
    int (*copy)(Address, Address, std::size_t, void*) = nullptr;
    int (*module_load)(void**, const void*) = nullptr;
    int (*module_function)(void**, void*, const char*) = nullptr;
    int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                  void**) = nullptr;
    // Not in the fake driver.
    int (*alloc)(Address*, std::size_t) = nullptr;
    int (*free)(Address) = nullptr;
    int (*stream_create)(void**, unsigned) = nullptr;
    int (*stream_destroy)(void*) = nullptr;
    int (*stream_synchronize)(void*) = nullptr;
    int (*launch_host)(void*, void (*)(void*), void*) = nullptr;
  };
  // The fake driver's controls (tests/cuda/fake_driver.h); null on a GPU.
  struct Fake {
    void* (*malloc)(int, std::size_t) = nullptr;
    int (*free)(void*) = nullptr;
    void* (*stream_create)(int) = nullptr;
    int (*stream_destroy)(void*) = nullptr;
    int (*stream_synchronize)(void*) = nullptr;
    int (*launch)(void*, void (*)(void*), void*) = nullptr;
    std::size_t (*violations)() = nullptr;
    const char* (*violation)(std::size_t) = nullptr;
  };

  void load_calls(void* library);
  void load_fake(void* library);
  void check(int error, const char* call) const;

  Calls calls_;
  Fake fake_;
  int device_ = 0;
  void* kernels_ = nullptr;
};

}  // namespace tensorlane::gpu_check
