// What the parts of gpu_check have in common: one rank of a job, which `tensorlane run` starts.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/json/json.h"
#include "gpu_driver.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::gpu_check {

using Bytes = std::vector<std::byte>;

struct Settings {
  std::string part;
  std::string driver = "libcuda.so.1";
  std::string kernels;                 // a file of them, for the part that measures kernels
  std::string out;                     // for rank 0's figures; "": stdout
  std::uint64_t largest = 1ULL << 30;  // bytes of the largest tensor
  std::uint64_t seed = 1;
  bool brief = false;  // fewer sizes and repetitions
};

// One rank. One thread.
struct Rank {
  Rank(const Settings& of, tl_context_t* joined)
      : settings(of), gpu(of.driver), context(joined), rank(tl_rank(joined)), size(tl_size(joined)) {}

  const Settings& settings;
  Gpu gpu;
  tl_context_t* context;
  int rank, size;
  nlohmann::json figures = nlohmann::json::object();
  std::uint64_t checked = 0, wrong = 0;

  // Counts a check; the first ones that fail are printed.
  void expect(bool holds, const std::string& what);
};

// Ends the process with the library's message unless the status is TL_OK.
void must(tl_status_t status, const std::string& what);

double now_seconds();

// Of measured times: {"median": ..., "p99": ..., "runs": ...}.
class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  double median() const { return at(0.5); }
  nlohmann::json json(double factor = 1) const;

 private:
  double at(double part) const;
  std::vector<double> values_;
};

// Memory that goes with the object.
class GpuMemory {
 public:
  GpuMemory(const Gpu& gpu, std::size_t bytes)
      : gpu_(gpu), data_(gpu.allocate(bytes == 0 ? 1 : bytes)), bytes_(bytes) {}
  ~GpuMemory() { gpu_.free(data_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  void* data() const { return data_; }
  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(data_) + offset; }
  std::size_t size() const { return bytes_; }

 private:
  const Gpu& gpu_;
  void* data_;
  std::size_t bytes_;
};

class Pinned {
 public:
  Pinned(const Gpu& gpu, std::size_t bytes)
      : gpu_(gpu), data_(static_cast<std::byte*>(gpu.allocate_pinned(bytes == 0 ? 1 : bytes))), bytes_(bytes) {}
  ~Pinned() { gpu_.free_pinned(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::byte* data() const { return data_; }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  std::size_t size() const { return bytes_; }

 private:
  const Gpu& gpu_;
  std::byte* data_;
  std::size_t bytes_;
};

class Stream {
 public:
  explicit Stream(const Gpu& gpu) : gpu_(gpu), handle_(gpu.new_stream()) {}
  ~Stream() { gpu_.destroy(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator void*() const { return handle_; }  // NOLINT: implicit by design

 private:
  const Gpu& gpu_;
  void* handle_;
};

inline tl_options_t on_gpu(void* stream) {
  tl_options_t options = TL_OPTIONS_INIT;
  options.memory = TL_MEMORY_CUDA;
  options.stream = stream;
  return options;
}

// What a rank gives to an operation: the same for the same arguments, on every rank that asks. Infinities, subnormal
// numbers and NaN are among floating-point values, never of two ranks in one place.
void make_values(std::span<std::byte> bytes, tl_dtype_t dtype, int rank, std::uint64_t seed);
std::size_t size_of(tl_dtype_t dtype);
const char* name_of(tl_dtype_t dtype);
const char* name_of(tl_op_t op);

// The parts.
void check_operations(Rank& rank);
void check_registered(Rank& rank);
void check_streams(Rank& rank);
void check_sharing(Rank& rank);
void measure_staging(Rank& rank);
void measure_latency(Rank& rank);
void measure_overlap(Rank& rank);
void measure_urgent(Rank& rank);
void measure_cpu(Rank& rank);
void measure_sharing(Rank& rank);
void measure_kernels(Rank& rank);

}  // namespace tensorlane::gpu_check
