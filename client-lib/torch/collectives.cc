// Collectives whose results, or whose reductions, all ranks share.
#include "client-lib/torch/backend.h"
#include "client-lib/torch/tensors.h"

namespace tensorlane::torch_backend {

using c10d::OpType;

namespace {

std::uint64_t of(std::int64_t count) {
  return static_cast<std::uint64_t>(count);
}

// Each input has an output of its dtype.
void check_coalesced(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const char* where) {
  TORCH_CHECK(!inputs.empty() && outputs.size() == inputs.size(), outputs.size(), " outputs and ", inputs.size(),
              " inputs were given: ", where, ": give as many outputs as inputs");
  check_outputs(outputs, false, where);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_taken(inputs[i], where);
    check_same_dtype(inputs[i], outputs[i], where);
  }
}

}  // namespace

Call TensorlaneBackend::allreduce_call(const at::Tensor& memory, const Reduced& how) {
  Call call;
  call.kind = {TL_ALLREDUCE, of(memory.numel()) * how.units, how.dtype, how.op, 0, 1};
  call.in = call.out = memory.data_ptr();
  call.bytes = memory.nbytes();
  return call;
}

Call TensorlaneBackend::allgather_call(const at::Tensor& input, const at::Tensor& output) {
  const Moved as = moved(input.scalar_type());
  Call call;
  call.kind = {TL_ALLGATHER, of(input.numel()) * as.units, as.dtype, TL_SUM, 0, 1};
  call.in = input.const_data_ptr();
  call.out = output.data_ptr();
  call.bytes = output.nbytes();
  call.bytes_alone = input.nbytes();
  return call;
}

Call TensorlaneBackend::broadcast_call(const at::Tensor& memory, int64_t root) {
  const Moved as = moved(memory.scalar_type());
  Call call;
  call.kind = {TL_BROADCAST, of(memory.numel()) * as.units, as.dtype, TL_SUM, static_cast<int>(root), 1};
  call.in = call.out = memory.data_ptr();
  call.bytes = memory.nbytes();
  return call;
}

TensorlaneBackend::WorkPtr TensorlaneBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const char* const where = "broadcast";
  const at::Tensor tensor = only(tensors, where);
  check_root(options.rootRank, where);
  check_outputs(tensors, true, where);
  const at::Tensor memory = tensor.contiguous();
  Group::Order order = this->order(OpType::BROADCAST, where, tensor.numel(), tensor.scalar_type(), options.timeout);
  order.description.root = static_cast<int>(options.rootRank);
  order.inputs = tensors;
  order.kept = {memory};
  order.results = tensors;
  if (rank_ != options.rootRank) order.after = copy_back(tensor, memory);
  return group_->start(std::move(order), broadcast_call(memory, options.rootRank));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const char* const where = "all_reduce";
  if (tensors.size() == 1 && tensors.front().layout() == at::kSparse)
    return allreduce_sparse_sum(tensors.front(), options);
  const at::Tensor tensor = only(tensors, where);
  check_outputs(tensors, true, where);
  Group::Order order = this->order(OpType::ALLREDUCE, where, tensor.numel(), tensor.scalar_type(), options.timeout);
  order.description.op = name_of(options.reduceOp);
  order.inputs = tensors;
  order.results = tensors;
  const at::Tensor memory = tensor.contiguous();
  if (is_bitwise(options.reduceOp)) {
    TORCH_CHECK(c10::isIntegralType(tensor.scalar_type(), true), tensor.scalar_type(), " has no ",
                name_of(options.reduceOp), ": ", where, ": use integers or booleans");
    const at::Tensor all = scratch(tensor, tensor.numel() * size_);
    order.kept = {memory, all};
    order.after = [tensor, all, size = size_, op = options.reduceOp] {
      tensor.copy_(reduce_bitwise(all.view({size, tensor.numel()}), op).view(tensor.sizes()));
    };
    return group_->start(std::move(order), allgather_call(memory, all));
  }
  const Reduced how = reduced(tensor, options.reduceOp, where);
  order.kept = {memory};
  order.after = copy_back(tensor, memory);
  return group_->start(std::move(order), allreduce_call(memory, how));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::allreduce_coalesced(Tensors& tensors,
                                                                  const c10d::AllreduceCoalescedOptions& options) {
  const char* const where = "all_reduce_coalesced";
  TORCH_CHECK(!tensors.empty(), "no tensors were given: ", where, ": give some");
  check_outputs(tensors, false, where);
  const Reduced how = reduced(tensors.front(), options.reduceOp, where);
  const at::Tensor flat = scratch(tensors.front(), elements(tensors));
  pack(tensors, flat);
  Group::Order order =
      this->order(OpType::ALLREDUCE_COALESCED, where, flat.numel(), flat.scalar_type(), options.timeout);
  order.description.op = how.name;
  order.inputs = tensors;
  order.kept = {flat};
  order.results = tensors;
  order.after = [tensors, flat] { unpack(flat, tensors); };
  return group_->start(std::move(order), allreduce_call(flat, how));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const char* const where = "reduce";
  const at::Tensor tensor = only(tensors, where);
  check_root(options.rootRank, where);
  check_outputs(tensors, true, where);
  const Reduced how = reduced(tensor, options.reduceOp, where);
  const at::Tensor memory = tensor.contiguous();
  Group::Order order = this->order(OpType::REDUCE, where, tensor.numel(), tensor.scalar_type(), options.timeout);
  order.description.op = how.name;
  order.description.root = static_cast<int>(options.rootRank);
  order.inputs = tensors;
  order.kept = {memory};
  order.results = tensors;
  if (rank_ == options.rootRank) order.after = copy_back(tensor, memory);
  Call call = allreduce_call(memory, how);
  call.kind.operation = TL_REDUCE;
  call.kind.root = static_cast<int>(options.rootRank);
  if (rank_ != options.rootRank) call.out = nullptr;  // only the root's may change
  return group_->start(std::move(order), call);
}

// Each rank's tensor to all ranks, where sizes may differ: all ranks know them all.
TensorlaneBackend::WorkPtr TensorlaneBackend::allgather_parts(Group::Order order, const Tensors& outputs,
                                                              const at::Tensor& input) {
  std::int64_t most = 0;
  bool alike = true;
  for (const at::Tensor& output : outputs) {
    most = std::max(most, output.numel());
    alike = alike && output.numel() == outputs.front().numel();
  }
  order.inputs = {input};
  order.results = outputs;
  at::Tensor memory = input.contiguous();
  if (alike && adjoin(outputs)) {
    order.kept = {memory};
    Call call = allgather_call(memory, outputs.front());
    call.bytes *= ranks();
    return group_->start(std::move(order), call);
  }
  if (input.numel() < most) {
    memory = scratch(input, most).zero_();
    pack({input}, memory);
  }
  const at::Tensor all = scratch(input, most * size_);
  order.kept = {memory, all};
  order.after = [outputs, all, most] {
    for (std::size_t rank = 0; rank < outputs.size(); ++rank)
      unpack(all, {outputs[rank]}, static_cast<std::int64_t>(rank) * most);
  };
  return group_->start(std::move(order), allgather_call(memory, all));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  const char* const where = "all_gather";
  const at::Tensor input = only(inputs, where);
  TORCH_CHECK(outputs.size() == 1 && outputs.front().size() == ranks(), "the output list has ",
              outputs.empty() ? 0 : outputs.front().size(), " tensors: ", where, ": give one for each of ", size_,
              " ranks");
  check_outputs(outputs.front(), false, where);
  check_same_dtype(input, outputs.front().front(), where);
  const at::Tensor& mine = outputs.front()[static_cast<std::size_t>(rank_)];
  TORCH_CHECK(mine.numel() == input.numel(), "the input has ", input.numel(), " elements, this rank's output ",
              mine.numel(), ": ", where, ": give output tensors of the sizes of the ranks' inputs");
  return allgather_parts(
      order(OpType::ALLGATHER, where, elements(outputs.front()), input.scalar_type(), options.timeout), outputs.front(),
      input);
}

TensorlaneBackend::WorkPtr TensorlaneBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                              const c10d::AllgatherOptions& options) {
  const char* const where = "all_gather_into_tensor";
  check_taken(input, where);
  check_outputs({output}, true, where);
  check_same_dtype(output, input, where);
  TORCH_CHECK(output.numel() == input.numel() * size_, "the output has ", output.numel(), " elements, the input ",
              input.numel(), ": ", where, ": give an output of ", size_, " times the input's size");
  const at::Tensor from = input.contiguous(), to = writable(output);
  Group::Order order = this->order(OpType::_ALLGATHER_BASE, where, input.numel(), input.scalar_type(), options.timeout);
  order.inputs = {input};
  order.kept = {from, to};
  order.results = {output};
  order.after = copy_back(output, to);
  return group_->start(std::move(order), allgather_call(from, to));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  const char* const where = "all_gather_coalesced";
  TORCH_CHECK(!inputs.empty() && outputs.size() == ranks(), outputs.size(), " output lists were given: ", where,
              ": give one for each of ", size_, " ranks, with a tensor for each input");
  for (const at::Tensor& input : inputs) check_taken(input, where);
  Tensors all_outputs;
  for (const Tensors& list : outputs) {
    TORCH_CHECK(list.size() == inputs.size(), "an output list has ", list.size(), " tensors: ", where, ": give ",
                inputs.size(), ", as many as inputs");
    for (std::size_t i = 0; i < list.size(); ++i) {
      check_same_dtype(list[i], inputs[i], where);
      TORCH_CHECK(list[i].numel() == inputs[i].numel(), "an output has ", list[i].numel(), " elements, its input ",
                  inputs[i].numel(), ": ", where, ": give tensors of one size");
      all_outputs.push_back(list[i]);
    }
  }
  check_outputs(all_outputs, false, where);
  const at::Tensor flat = scratch(inputs.front(), elements(inputs));
  pack(inputs, flat);
  const at::Tensor all = scratch(flat, flat.numel() * size_);
  Group::Order order =
      this->order(OpType::ALLGATHER_COALESCED, where, flat.numel(), flat.scalar_type(), options.timeout);
  order.inputs = inputs;
  order.kept = {flat, all};
  order.results = all_outputs;
  order.after = [all_outputs, all] { unpack(all, all_outputs); };
  return group_->start(std::move(order), allgather_call(flat, all));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                              const c10d::AllgatherOptions& options) {
  const char* const where = "all_gather_into_tensor_coalesced";
  check_coalesced(outputs, inputs, where);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(outputs[i].numel() == inputs[i].numel() * size_, "an output has ", outputs[i].numel(),
                " elements, its input ", inputs[i].numel(), ": ", where, ": give an output of ", size_,
                " times the input's size");
  }
  const at::Tensor flat = scratch(inputs.front(), elements(inputs));
  pack(inputs, flat);
  const at::Tensor all = scratch(flat, flat.numel() * size_);
  Group::Order order = this->order(OpType::COALESCED, where, flat.numel(), flat.scalar_type(), options.timeout);
  order.inputs = inputs;
  order.kept = {flat, all};
  order.results = outputs;
  order.after = [outputs, all, size = size_] {
    std::int64_t from = 0;
    for (const at::Tensor& output : outputs) {
      const std::int64_t part = output.numel() / size;
      output.copy_(all.view({size, -1}).narrow(1, from, part).reshape(output.sizes()));
      from += part;
    }
  };
  if (flat.numel() == 0) order.after = nullptr;
  return group_->start(std::move(order), allgather_call(flat, all));
}

namespace {

// `rows` of `row` elements each are reduced; each rank gets one.
Call reducescatter_call(const at::Tensor& input, const at::Tensor& output, int rows, const Reduced& how) {
  Call call;
  call.kind = {TL_REDUCESCATTER, of(rows), how.dtype, how.op, 0, of(output.numel()) * how.units};
  call.in = input.const_data_ptr();
  call.out = output.data_ptr();
  call.bytes = input.nbytes();
  call.bytes_alone = output.nbytes();
  return call;
}

}  // namespace

TensorlaneBackend::WorkPtr TensorlaneBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  const char* const where = "reduce_scatter";
  const at::Tensor output = only(outputs, where);
  check_outputs(outputs, true, where);
  TORCH_CHECK(inputs.size() == 1 && inputs.front().size() == ranks(), "the input list has ",
              inputs.empty() ? 0 : inputs.front().size(), " tensors: ", where, ": give one for each of ", size_,
              " ranks");
  const Tensors& parts = inputs.front();
  bool alike = true;
  for (const at::Tensor& part : parts) {
    check_taken(part, where);
    check_same_dtype(part, output, where);
    alike = alike && part.numel() == parts.front().numel();
  }
  const at::Tensor& mine = parts[static_cast<std::size_t>(rank_)];
  TORCH_CHECK(mine.numel() == output.numel(), "the output has ", output.numel(), " elements, this rank's input ",
              mine.numel(), ": ", where, ": give an output of that size");
  const Reduced how = reduced(output, options.reduceOp, where);
  const at::Tensor flat = scratch(output, elements(parts));
  pack(parts, flat);
  Group::Order order = this->order(OpType::REDUCE_SCATTER, where, flat.numel(), flat.scalar_type(), options.timeout);
  order.description.op = how.name;
  order.inputs = inputs.front();
  order.results = outputs;
  if (alike) {
    const at::Tensor to = writable(output);
    order.kept = {flat, to};
    order.after = copy_back(output, to);
    return group_->start(std::move(order), reducescatter_call(flat, to, size_, how));
  }
  std::int64_t from = 0;
  for (int rank = 0; rank < rank_; ++rank) from += parts[static_cast<std::size_t>(rank)].numel();
  order.kept = {flat};
  order.after = [outputs, flat, from] { unpack(flat, outputs, from); };
  return group_->start(std::move(order), allreduce_call(flat, how));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                   const c10d::ReduceScatterOptions& options) {
  const char* const where = "reduce_scatter_tensor";
  check_taken(input, where);
  check_outputs({output}, true, where);
  check_same_dtype(output, input, where);
  TORCH_CHECK(input.numel() == output.numel() * size_, "the input has ", input.numel(), " elements, the output ",
              output.numel(), ": ", where, ": give an input of ", size_, " times the output's size");
  const Reduced how = reduced(output, options.reduceOp, where);
  const at::Tensor from = input.contiguous(), to = writable(output);
  Group::Order order =
      this->order(OpType::_REDUCE_SCATTER_BASE, where, input.numel(), input.scalar_type(), options.timeout);
  order.description.op = how.name;
  order.inputs = {input};
  order.kept = {from, to};
  order.results = {output};
  order.after = copy_back(output, to);
  return group_->start(std::move(order), reducescatter_call(from, to, size_, how));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const char* const where = "reduce_scatter_tensor_coalesced";
  check_coalesced(outputs, inputs, where);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(inputs[i].numel() == outputs[i].numel() * size_, "an input has ", inputs[i].numel(),
                " elements, its output ", outputs[i].numel(), ": ", where, ": give an input of ", size_,
                " times the output's size");
  }
  const Reduced how = reduced(outputs.front(), options.reduceOp, where);
  const at::Tensor all = scratch(inputs.front(), elements(inputs)), mine = scratch(all, elements(outputs));
  std::int64_t from = 0;
  for (const at::Tensor& input : inputs) {
    const std::int64_t part = input.numel() / size_;
    if (part > 0) all.view({size_, -1}).narrow(1, from, part).copy_(input.reshape({size_, part}));
    from += part;
  }
  Group::Order order = this->order(OpType::COALESCED, where, all.numel(), all.scalar_type(), options.timeout);
  order.description.op = how.name;
  order.inputs = inputs;
  order.kept = {all, mine};
  order.results = outputs;
  order.after = [outputs, mine] { unpack(mine, outputs); };
  return group_->start(std::move(order), reducescatter_call(all, mine, size_, how));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::barrier(const c10d::BarrierOptions& options) {
  const at::Tensor token = at::zeros({1}, at::kByte);
  Group::Order order = this->order(OpType::BARRIER, "barrier", 0, at::ScalarType::Undefined, options.timeout);
  order.kept = {token};
  return group_->start(std::move(order), allreduce_call(token, {TL_UINT8, TL_MAX, 1, "max"}));
}

}  // namespace tensorlane::torch_backend
