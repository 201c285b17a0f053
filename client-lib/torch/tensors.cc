#include "client-lib/torch/tensors.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <string>

namespace tensorlane::torch_backend {

at::Tensor only(const std::vector<at::Tensor>& tensors, const char* where) {
  TORCH_CHECK(tensors.size() == 1, tensors.size(), " tensors were given: ", where, ": give one");
  check_taken(tensors.front(), where);
  return tensors.front();
}

void check_taken(const at::Tensor& tensor, const char* where) {
  TORCH_CHECK(tensor.defined(), "a tensor is undefined: ", where, ": give a tensor");
  TORCH_CHECK(tensor.device().is_cpu(), "a tensor is on ", tensor.device(), ": ", where,
              ": give tensors in CPU memory, or call init_process_group(\"cpu:tensorlane,cuda:nccl\")");
  TORCH_CHECK(tensor.layout() == at::kStrided, "a tensor has layout ", tensor.layout(), ": ", where,
              ": give a dense tensor (to_dense())");
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), "a tensor is conjugated or negated only when it is read: ", where,
              ": give what resolve_conj() and resolve_neg() make of it");
}

void check_outputs(const std::vector<at::Tensor>& tensors, bool of_one_shape, const char* where) {
  std::vector<std::pair<const char*, const char*>> places;
  for (const at::Tensor& tensor : tensors) {
    check_taken(tensor, where);
    check_same_dtype(tensor, tensors.front(), where);
    TORCH_CHECK(!of_one_shape || tensor.numel() == tensors.front().numel(), "output tensors have ",
                tensors.front().numel(), " and ", tensor.numel(), " elements: ", where, ": give tensors of one size");
    TORCH_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                "elements of an output tensor share memory: ", where, ": give a tensor of its own memory (clone())");
    if (tensor.numel() > 0 && tensor.is_contiguous()) {
      const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
      places.emplace_back(begin, begin + tensor.nbytes());
    }
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    TORCH_CHECK(places[i - 1].second <= places[i].first, "output tensors overlap in memory: ", where,
                ": give tensors that share none");
  }
}

void check_same_dtype(const at::Tensor& tensor, const at::Tensor& other, const char* where) {
  TORCH_CHECK(tensor.scalar_type() == other.scalar_type(), "tensors have dtypes ", other.scalar_type(), " and ",
              tensor.scalar_type(), ": ", where, ": give tensors of one dtype");
}

Moved moved(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return {TL_FLOAT32, 1};
    case at::kDouble:
      return {TL_FLOAT64, 1};
    case at::kHalf:
      return {TL_FLOAT16, 1};
    case at::kBFloat16:
      return {TL_BFLOAT16, 1};
    case at::kChar:
      return {TL_INT8, 1};
    case at::kInt:
      return {TL_INT32, 1};
    case at::kLong:
      return {TL_INT64, 1};
    default:
      return {TL_UINT8, c10::elementSize(dtype)};
  }
}

const char* name_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "avg";
    case c10d::ReduceOp::PRODUCT:
      return "product";
    case c10d::ReduceOp::MIN:
      return "min";
    case c10d::ReduceOp::MAX:
      return "max";
    case c10d::ReduceOp::BAND:
      return "bitwise and";
    case c10d::ReduceOp::BOR:
      return "bitwise or";
    case c10d::ReduceOp::BXOR:
      return "bitwise xor";
    case c10d::ReduceOp::PREMUL_SUM:
      return "premul_sum";
    default:
      return "unused";
  }
}

namespace {

tl_op_t op_of(const c10d::ReduceOp& op, const char* where) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return TL_SUM;
    case c10d::ReduceOp::AVG:
      return TL_AVERAGE;
    case c10d::ReduceOp::PRODUCT:
      return TL_PRODUCT;
    case c10d::ReduceOp::MIN:
      return TL_MIN;
    case c10d::ReduceOp::MAX:
      return TL_MAX;
    default:
      TORCH_CHECK(false, "the reduction ", name_of(op), " does not exist here: ", where,
                  ": use sum, avg, product, min or max");
  }
}

}  // namespace

Reduced reduced(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* where) {
  const at::ScalarType dtype = tensor.scalar_type();
  Reduced how{TL_FLOAT32, op_of(op, where), 1, name_of(op)};
  if (dtype == at::kBool) {  // 0 and 1: sums are "or", products are "and"
    TORCH_CHECK(how.op != TL_AVERAGE, "booleans have no average: ", where, ": convert them to a floating-point dtype");
    const bool any = how.op == TL_SUM || how.op == TL_MAX;
    return {TL_UINT8, any ? TL_MAX : TL_MIN, 1, how.name};
  }
  if (c10::isComplexType(dtype)) {
    const bool sums = how.op == TL_SUM || how.op == TL_AVERAGE;
    TORCH_CHECK(sums && dtype != at::kComplexHalf, dtype, " has no ", how.name, " here: ", where,
                ": use sum or avg of complex64 or complex128");
    how.dtype = dtype == at::kComplexFloat ? TL_FLOAT32 : TL_FLOAT64;
    how.units = 2;
    return how;
  }
  const Moved as = moved(dtype);
  how.dtype = as.dtype;
  TORCH_CHECK(as.dtype != TL_UINT8 || dtype == at::kByte, dtype, " cannot be reduced: ", where,
              ": convert to float32, float64, float16, bfloat16, int8, uint8, int32 or int64");
  TORCH_CHECK(how.op != TL_AVERAGE || c10::isFloatingType(dtype), "integers have no average: ", where,
              ": convert them to a floating-point dtype, or divide their sum");
  return how;
}

bool is_bitwise(const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::BAND || op.op_ == c10d::ReduceOp::BOR || op.op_ == c10d::ReduceOp::BXOR;
}

at::Tensor reduce_bitwise(const at::Tensor& gathered, const c10d::ReduceOp& op) {
  at::Tensor result = gathered.select(0, 0).clone();
  for (std::int64_t rank = 1; rank < gathered.size(0); ++rank) {
    const at::Tensor other = gathered.select(0, rank);
    if (op.op_ == c10d::ReduceOp::BAND) {
      result.bitwise_and_(other);
    } else if (op.op_ == c10d::ReduceOp::BOR) {
      result.bitwise_or_(other);
    } else {
      result.bitwise_xor_(other);
    }
  }
  return result;
}

std::int64_t elements(const std::vector<at::Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor.numel();
  return sum;
}

at::Tensor scratch(const at::Tensor& like, std::int64_t elements) {
  return at::empty({elements}, at::TensorOptions().dtype(like.scalar_type()).device(at::kCPU));
}

void pack(const std::vector<at::Tensor>& tensors, const at::Tensor& flat) {
  std::int64_t from = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) flat.narrow(0, from, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    from += tensor.numel();
  }
}

void unpack(const at::Tensor& flat, const std::vector<at::Tensor>& tensors, std::int64_t from) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) tensor.copy_(flat.narrow(0, from, tensor.numel()).view(tensor.sizes()));
    from += tensor.numel();
  }
}

at::Tensor writable(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : scratch(tensor, tensor.numel()).view(tensor.sizes());
}

std::function<void()> copy_back(const at::Tensor& tensor, const at::Tensor& memory) {
  if (memory.is_same(tensor)) return nullptr;
  return [tensor, memory] { tensor.copy_(memory); };
}

bool overlap(const at::Tensor& one, const at::Tensor& other) {
  const auto begin = [](const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); };
  const bool before = begin(one) + one.nbytes() <= begin(other), behind = begin(other) + other.nbytes() <= begin(one);
  return !before && !behind;
}

bool adjoin(const std::vector<at::Tensor>& tensors) {
  const auto* next = static_cast<const char*>(tensors.front().const_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous() || static_cast<const char*>(tensor.const_data_ptr()) != next) return false;
    next += tensor.nbytes();
  }
  return true;
}

}  // namespace tensorlane::torch_backend
