// Element types and operations, shared by the C ABI, the protocol, the engine and the reducers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorlane {

// Numbers are stable: they are the C ABI's tl_dtype_t.
enum class Dtype : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBfloat16 = 3,
  kInt8 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kUint8 = 7
};
inline constexpr std::size_t kDtypeCount = 8;
inline constexpr const char* kDtypeNames = "float32, float64, float16, bfloat16, int8, int32, int64 or uint8";

// Numbers are stable: they are the C ABI's tl_op_t. Integers wrap around, as two's complement does. Minimum and maximum
// of floating-point numbers give NaN where any of them is NaN (as torch does), and of equal ones (-0 and 0) the first.
enum class ReduceOp : std::uint8_t { kSum = 0, kAverage = 1, kMin = 2, kMax = 3, kProduct = 4 };
inline constexpr std::size_t kReduceOpCount = 5;
inline constexpr const char* kReduceOpNames = "sum, average, min, max or product";

// Numbers are stable. Barrier has no elements. Push and pull are the two halves of an allreduce, apart: a push ends
// with the sums at their owners (what other hosts' buffers then hold means nothing), a pull brings what the owners have
// to everybody. A reduce-scatter ends like a push, its owners being the hosts of the ranks whose blocks they are; so
// does a reduce, all of which the root's host owns. In a gather, a scatter and an all-to-all parts go from one rank to
// one other, and nothing is summed (common/protocol/exchange.h).
enum class Operation : std::uint8_t {
  kAllreduce = 0,
  kBroadcast = 1,
  kAllgather = 2,
  kBarrier = 3,
  kPush = 4,
  kPull = 5,
  kReduceScatter = 6,
  kReduce = 7,
  kGather = 8,
  kScatter = 9,
  kAlltoall = 10
};
inline constexpr Operation kLastOperation = Operation::kAlltoall;

// Whether ReduceOp says what becomes of the ranks' contributions.
constexpr bool reduces(Operation operation) {
  return operation == Operation::kAllreduce || operation == Operation::kPush ||
         operation == Operation::kReduceScatter || operation == Operation::kReduce;
}

// Whether what it ends with stays where it was summed.
constexpr bool stays_with_owners(Operation operation) {
  return operation == Operation::kPush || operation == Operation::kReduceScatter || operation == Operation::kReduce;
}

// Whether parts go from one rank to one other.
constexpr bool exchanges(Operation operation) {
  return operation == Operation::kGather || operation == Operation::kScatter || operation == Operation::kAlltoall;
}

// Whether the elements can be cut between rows of this many of them: what is not scattered has rows of one.
constexpr bool is_row_of(Operation operation, std::uint64_t row, std::uint64_t elements) {
  return operation == Operation::kReduceScatter ? row != 0 && elements % row == 0 : row == 1;
}

// Whether it is one half of an allreduce, of a key's values.
constexpr bool is_keyed(Operation operation) {
  return operation == Operation::kPush || operation == Operation::kPull;
}
// Whether it has a root: where the data is or goes, or the owner of a key's first shard.
constexpr bool is_rooted(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kReduce || operation == Operation::kGather ||
         operation == Operation::kScatter || is_keyed(operation);
}
inline constexpr const char* kOperationNames =
    "allreduce, broadcast, allgather, barrier, push, pull, reducescatter, reduce, gather, scatter or alltoall";

constexpr std::size_t dtype_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
    case Dtype::kInt32:
      return 4;
    case Dtype::kFloat64:
    case Dtype::kInt64:
      return 8;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return 2;
    case Dtype::kInt8:
    case Dtype::kUint8:
      return 1;
  }
  return 0;
}

constexpr bool is_integer(Dtype dtype) {
  return dtype >= Dtype::kInt8;
}

// An average of integers is no integer: whoever wants one says how to round, by dividing a sum.
constexpr bool can_reduce(ReduceOp op, Dtype dtype) {
  return op != ReduceOp::kAverage || !is_integer(dtype);
}

// How two elements become one: an average is a sum that is divided at the end.
constexpr ReduceOp combining(ReduceOp op) {
  return op == ReduceOp::kAverage ? ReduceOp::kSum : op;
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
    case Dtype::kInt8:
      return "int8";
    case Dtype::kInt32:
      return "int32";
    case Dtype::kInt64:
      return "int64";
    case Dtype::kUint8:
      return "uint8";
  }
  return "unknown";
}

constexpr const char* reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
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
    case Operation::kReduceScatter:
      return "reducescatter";
    case Operation::kReduce:
      return "reduce";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
    case Operation::kAlltoall:
      return "alltoall";
  }
  return "unknown";
}

}  // namespace tensorlane
