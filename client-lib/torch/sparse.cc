// The sum of sparse tensors: all ranks gather the others' indices and values.
#include <algorithm>

#include "client-lib/torch/backend.h"
#include "client-lib/torch/tensors.h"

namespace tensorlane::torch_backend {
namespace {

// As many entries as the rank with the most of them has, along the first dimension.
at::Tensor padded(const at::Tensor& tensor, std::int64_t rows) {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape[0] = rows;
  at::Tensor result = at::zeros(shape, tensor.options());
  result.narrow(0, 0, tensor.size(0)).copy_(tensor);
  return result;
}

}  // namespace

TensorlaneBackend::WorkPtr TensorlaneBackend::allreduce_sparse_sum(const at::Tensor& tensor,
                                                                   const c10d::AllreduceOptions& options) {
  const char* const where = "all_reduce of sparse tensors";
  TORCH_CHECK(tensor.device().is_cpu(), "a tensor is on ", tensor.device(), ": ", where,
              ": give tensors in CPU memory, or call init_process_group(\"cpu:tensorlane,cuda:nccl\")");
  TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "sparse tensors have no ", name_of(options.reduceOp),
              " here: ", where, ": use sum");
  Group::Order order =
      this->order(c10d::OpType::_ALLREDUCE_SPARSE, where, tensor.numel(), tensor.scalar_type(), options.timeout);
  order.description.op = name_of(options.reduceOp);
  order.results = {tensor};
  const Description description = order.description;
  auto steps = [group = group_, description, tensor, size = size_] {
    at::NoGradGuard no_grad;
    const at::Tensor mine = tensor.coalesce();
    const auto gather = [&](const at::Tensor& part) {
      std::vector<std::int64_t> shape = part.sizes().vec();
      shape.insert(shape.begin(), size);
      at::Tensor all = at::empty(shape, part.options());
      group->call_and_wait(description, allgather_call(part, all));
      return all;
    };
    const at::Tensor counts = gather(at::full({1}, mine._nnz(), at::kLong));
    const std::int64_t most = counts.max().item<std::int64_t>();
    if (most == 0) return;
    const at::Tensor indices = gather(padded(mine._indices().t(), most)), values = gather(padded(mine._values(), most));
    at::Tensor sum;
    for (std::int64_t rank = 0; rank < size; ++rank) {
      const std::int64_t count = counts.select(0, rank).item<std::int64_t>();
      const at::Tensor theirs =
          at::sparse_coo_tensor(indices.select(0, rank).narrow(0, 0, count).t(),
                                values.select(0, rank).narrow(0, 0, count), tensor.sizes(), tensor.options());
      sum = sum.defined() ? sum + theirs : theirs;
    }
    tensor.copy_(sum.coalesce());
  };
  return group_->start_steps(std::move(order), std::move(steps));
}

}  // namespace tensorlane::torch_backend
