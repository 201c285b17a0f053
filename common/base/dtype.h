// Element types and operations, shared by the C ABI, the protocol, the engine and the reducers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorlane {

// Numbers are stable: they are the C ABI's tl_dtype_t.
enum class Dtype : std::uint8_t { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBfloat16 = 3 };
inline constexpr std::size_t kDtypeCount = 4;

// Numbers are stable: they are the C ABI's tl_op_t.
enum class ReduceOp : std::uint8_t { kSum = 0, kAverage = 1 };

// Numbers are stable. Barrier has no elements. Push and pull are the two halves of an allreduce, apart: a push ends
// with the sums at their owners (what other hosts' buffers then hold means nothing), a pull brings what the owners have
// to everybody.
enum class Operation : std::uint8_t {
  kAllreduce = 0,
  kBroadcast = 1,
  kAllgather = 2,
  kBarrier = 3,
  kPush = 4,
  kPull = 5
};

constexpr std::size_t dtype_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return 4;
    case Dtype::kFloat64:
      return 8;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return 2;
  }
  return 0;
}

constexpr const char* dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kFloat64:
      return "float64";
    case Dtype::kFloat16:
      return "float16";
    case Dtype::kBfloat16:
      return "bfloat16";
  }
  return "unknown";
}

constexpr const char* operation_name(Operation operation) {
  switch (operation) {
    case Operation::kAllreduce:
      return "allreduce";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kAllgather:
      return "allgather";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kPush:
      return "push";
    case Operation::kPull:
      return "pull";
  }
  return "unknown";
}

}  // namespace tensorlane
