// The calls of c10d::Backend.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "client-lib/torch/group.h"

namespace tensorlane::torch_backend {

// One process group on CPU tensors. Calls are those of c10d::Backend, on any thread; all ranks of the group make the
// same collective calls in the same order. None waits for another rank, but monitoredBarrier(). Tensors need not be
// contiguous; those that are are given to the C interface as they are. Errors: RuntimeError for what is refused at
// once, DistBackendError from waiting.
class TensorlaneBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using milliseconds = std::chrono::milliseconds;

  explicit TensorlaneBackend(std::shared_ptr<Group> group);
  ~TensorlaneBackend() override;

  const std::string getBackendName() const override { return "tensorlane"; }
  void setSequenceNumberForGroup() override {}  // begins with 0 on all ranks
  uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  // Virtual functions of most releases of torch, but not of all, which is why they are not marked `override`.
  c10::intrusive_ptr<Options> getBackendOptions();
  void setTimeout(milliseconds timeout) { group_->set_timeout(timeout); }
  void abort();
  void shutdown();
  // Why nothing can be started any more; empty while it can.
  std::string failure() { return group_->failure(); }

  // collectives.cc
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // Through torch's store alone. Throws RuntimeError on rank 0, and then on the others: names the ranks that have not
  // come within the time-out, all of them or, unless `all`, the first.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override;

  // exchanges.cc
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  // A collective of `count` elements of `dtype`, 0 where ranks may differ.
  static Group::Order order(c10d::OpType type, const char* name, std::int64_t count, at::ScalarType dtype,
                            milliseconds timeout);
  Group::Order message(c10d::OpType type, const char* name, const at::Tensor& tensor, int peer, int tag) const;
  WorkPtr receive(Group::Order order, Tensors& tensors);
  void check_root(int64_t root, const char* where) const;
  std::size_t ranks() const { return static_cast<std::size_t>(size_); }
  // Calls of the C interface on contiguous memory.
  static Call allreduce_call(const at::Tensor& memory, const struct Reduced& how);
  static Call allgather_call(const at::Tensor& input, const at::Tensor& output);
  static Call broadcast_call(const at::Tensor& memory, int64_t root);
  // `part` is as large as what each of `size` ranks sends to, or gets from, each other.
  static Call exchange_call(tl_operation_t operation, const at::Tensor& input, const at::Tensor& output,
                            const at::Tensor& part, int64_t root, int size);
  // sparse.cc
  WorkPtr allreduce_sparse_sum(const at::Tensor& tensor, const c10d::AllreduceOptions& options);
  WorkPtr allgather_parts(Group::Order order, const Tensors& outputs, const at::Tensor& input);
  WorkPtr exchange(Group::Order order, const at::Tensor& input, std::vector<int64_t> input_splits,
                   std::vector<int64_t> output_splits, const at::Tensor& received);

  const std::shared_ptr<Group> group_;
  std::uint64_t monitored_ = 0;  // barriers
  std::string passed_;           // rank 0: the key of the last one's end, where all ranks have come to it
};

}  // namespace tensorlane::torch_backend
