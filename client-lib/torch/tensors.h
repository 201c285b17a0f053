// Which tensors are taken, and how they lie in memory.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "tensorlane/tensorlane.h"

namespace tensorlane::torch_backend {

// These throw ValueError or RuntimeError (TORCH_CHECK) with "WHAT: WHERE: WHAT TO DO"; `where` is the call's name.

// The only tensor of a list.
at::Tensor only(const std::vector<at::Tensor>& tensors, const char* where);
// A dense tensor in CPU memory.
void check_taken(const at::Tensor& tensor, const char* where);
// ... whose elements are written, each once. `of_one_shape`: all tensors have the first one's shape.
void check_outputs(const std::vector<at::Tensor>& tensors, bool of_one_shape, const char* where);
void check_same_dtype(const at::Tensor& tensor, const at::Tensor& other, const char* where);

// How elements of a dtype are moved: as so many elements of the C interface's type.
struct Moved {
  tl_dtype_t dtype;
  std::uint64_t units;
};
Moved moved(at::ScalarType dtype);

// How elements of a tensor are reduced.
struct Reduced {
  tl_dtype_t dtype;
  tl_op_t op;
  std::uint64_t units;  // elements of the C interface's type for one of the tensor's: 2 where that is complex
  const char* name;     // of the reduction
};
Reduced reduced(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* where);
const char* name_of(const c10d::ReduceOp& op);
bool is_bitwise(const c10d::ReduceOp& op);
// The rows of `gathered` reduced bit by bit, by rank.
at::Tensor reduce_bitwise(const at::Tensor& gathered, const c10d::ReduceOp& op);

// Elements of all tensors of the list together.
std::int64_t elements(const std::vector<at::Tensor>& tensors);
// A new flat tensor of `elements` elements, of `like`'s dtype.
at::Tensor scratch(const at::Tensor& like, std::int64_t elements);
// The tensors' elements one after the other, in a flat tensor, and back, from element `from` of it.
void pack(const std::vector<at::Tensor>& tensors, const at::Tensor& flat);
void unpack(const at::Tensor& flat, const std::vector<at::Tensor>& tensors, std::int64_t from = 0);
// A contiguous tensor for an operation to write, which is `tensor` itself where that can be.
at::Tensor writable(const at::Tensor& tensor);
// Brings what was written there to the tensor; nothing where it is the tensor itself.
std::function<void()> copy_back(const at::Tensor& tensor, const at::Tensor& memory);
// Whether two contiguous tensors share memory, whatever torch knows of it.
bool overlap(const at::Tensor& one, const at::Tensor& other);
// Whether the tensors lie one after the other in memory, so that the first one's memory is that of a flat tensor.
bool adjoin(const std::vector<at::Tensor>& tensors);

}  // namespace tensorlane::torch_backend
