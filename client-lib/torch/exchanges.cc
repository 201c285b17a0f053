// What differs from rank to rank: gather, scatter, all-to-all, point to point.
#include <algorithm>
#include <numeric>

#include "client-lib/torch/backend.h"
#include "client-lib/torch/library.h"
#include "client-lib/torch/tensors.h"

namespace tensorlane::torch_backend {

using c10d::OpType;

namespace {

std::int64_t sum(const std::vector<int64_t>& splits) {
  return std::accumulate(splits.begin(), splits.end(), int64_t{0});
}

std::vector<int64_t> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

// Split sizes along the first dimension as numbers of elements.
std::vector<int64_t> in_elements(const std::vector<int64_t>& splits, const at::Tensor& tensor, int size,
                                 const char* which, const char* where) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, "the ", which, " has ", rows, " rows: ", where,
                ": give split sizes, or a multiple of the ", size, " ranks");
    return std::vector<int64_t>(static_cast<std::size_t>(size), tensor.numel() / size);
  }
  TORCH_CHECK(splits.size() == static_cast<std::size_t>(size), splits.size(), " ", which,
              " split sizes were given: ", where, ": give one for each of ", size, " ranks");
  TORCH_CHECK(
      std::all_of(splits.begin(), splits.end(), [](int64_t split) { return split >= 0; }) && sum(splits) == rows,
      "the ", which, " split sizes add up to ", sum(splits), " of ", rows, " rows: ", where,
      ": let them add up to the tensor's first dimension");
  const std::int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::vector<int64_t> result;
  for (const int64_t split : splits) result.push_back(split * row);
  return result;
}

// Rows by rank: what it sends to each, and what it expects of each. All ranks see the same rows and fail alike.
void check_splits(const int64_t* sizes, int size, const Description& description) {
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const int64_t sent = sizes[2 * size * from + to], expected = sizes[2 * size * to + size + from];
      if (sent == expected) continue;
      fail("ranks disagree about split sizes: " + description.text() + ": rank " + std::to_string(from) + " sends " +
           std::to_string(sent) + " elements to rank " + std::to_string(to) + ", which expects " +
           std::to_string(expected) + ": let output split sizes be the others' input split sizes");
    }
  }
}

}  // namespace

TensorlaneBackend::WorkPtr TensorlaneBackend::gather(TensorLists& outputs, Tensors& inputs,
                                                     const c10d::GatherOptions& options) {
  const char* const where = "gather";
  const at::Tensor input = only(inputs, where);
  check_root(options.rootRank, where);
  Group::Order order = this->order(OpType::GATHER, where, input.numel(), input.scalar_type(), options.timeout);
  order.description.root = static_cast<int>(options.rootRank);
  const bool root = rank_ == options.rootRank;
  const at::Tensor memory = input.contiguous(), all = scratch(input, root ? input.numel() * size_ : 0);
  order.inputs = inputs;
  order.kept = {memory, all};
  if (root) {
    TORCH_CHECK(outputs.size() == 1 && outputs.front().size() == ranks(), "the root's output list has ",
                outputs.empty() ? 0 : outputs.front().size(), " tensors: ", where, ": give one for each of ", size_,
                " ranks");
    const Tensors list = outputs.front();
    check_outputs(list, true, where);
    check_same_dtype(input, list.front(), where);
    TORCH_CHECK(list.front().numel() == input.numel(), "the outputs have ", list.front().numel(),
                " elements, the input ", input.numel(), ": ", where, ": give tensors of one size");
    order.results = list;
    order.after = [list, all] { unpack(all, list); };
  } else {
    TORCH_CHECK(outputs.empty() || outputs.front().empty(), "output tensors were given: ", where, " on rank ", rank_,
                ": give them on the root, rank ", options.rootRank, ", alone");
  }
  return group_->start(std::move(order), exchange_call(TL_GATHER, memory, all, input, options.rootRank, size_));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                                      const c10d::ScatterOptions& options) {
  const char* const where = "scatter";
  const at::Tensor output = only(outputs, where);
  check_root(options.rootRank, where);
  check_outputs(outputs, true, where);
  const bool root = rank_ == options.rootRank;
  const at::Tensor all = scratch(output, root ? output.numel() * size_ : 0);
  const at::Tensor memory = writable(output);
  if (root) {
    TORCH_CHECK(inputs.size() == 1 && inputs.front().size() == ranks(), "the root's input list has ",
                inputs.empty() ? 0 : inputs.front().size(), " tensors: ", where, ": give one for each of ", size_,
                " ranks");
    for (const at::Tensor& input : inputs.front()) {
      check_taken(input, where);
      check_same_dtype(input, output, where);
      TORCH_CHECK(input.numel() == output.numel(), "an input has ", input.numel(), " elements, the output ",
                  output.numel(), ": ", where, ": give tensors of one size");
    }
    pack(inputs.front(), all);
  } else {
    TORCH_CHECK(inputs.empty() || inputs.front().empty(), "input tensors were given: ", where, " on rank ", rank_,
                ": give them on the root, rank ", options.rootRank, ", alone");
  }
  Group::Order order = this->order(OpType::SCATTER, where, output.numel(), output.scalar_type(), options.timeout);
  order.description.root = static_cast<int>(options.rootRank);
  order.inputs = inputs.empty() ? Tensors() : inputs.front();
  order.kept = {all, memory};
  order.results = outputs;
  order.after = copy_back(output, memory);
  return group_->start(std::move(order), exchange_call(TL_SCATTER, all, memory, memory, options.rootRank, size_));
}

Call TensorlaneBackend::exchange_call(tl_operation_t operation, const at::Tensor& input, const at::Tensor& output,
                                      const at::Tensor& part, int64_t root, int size) {
  const Moved as = moved(part.scalar_type());
  Call call;
  call.kind = {operation, static_cast<std::uint64_t>(part.numel()) * as.units, as.dtype, TL_SUM, static_cast<int>(root),
               1};
  call.in = input.const_data_ptr();
  call.out = output.data_ptr();
  call.bytes = part.nbytes() * static_cast<std::size_t>(size) * (operation == TL_ALLTOALL ? 2 : 1);
  call.bytes_alone = part.nbytes();
  return call;
}

// `input` and `received` are contiguous, cut into parts of so many elements, by rank. All ranks first tell each other
// these sizes; parts of different sizes then travel as messages.
TensorlaneBackend::WorkPtr TensorlaneBackend::exchange(Group::Order order, const at::Tensor& input,
                                                       std::vector<int64_t> input_splits,
                                                       std::vector<int64_t> output_splits, const at::Tensor& received) {
  order.kept = {input, received};
  const Description description = order.description;
  auto steps = [group = group_, description, input, received, sends = std::move(input_splits),
                expects = std::move(output_splits), size = size_] {
    at::NoGradGuard no_grad;
    const at::Tensor mine = at::empty({2 * size}, at::kLong), table = at::empty({size, 2 * size}, at::kLong);
    std::copy(sends.begin(), sends.end(), mine.data_ptr<int64_t>());
    std::copy(expects.begin(), expects.end(), mine.data_ptr<int64_t>() + size);
    group->call_and_wait(description, allgather_call(mine, table));
    check_splits(table.const_data_ptr<int64_t>(), size, description);
    const auto [least, most] = at::aminmax(table);
    const std::int64_t part = most.item<int64_t>();
    if (least.item<int64_t>() == part) {
      if (part > 0) {
        const at::Tensor one = input.narrow(0, 0, part);
        group->call_and_wait(description, exchange_call(TL_ALLTOALL, input, received, one, 0, size));
      }
      return;
    }
    group->exchange_and_wait(description, {input, sends}, {received, expects});
  };
  return group_->start_steps(std::move(order), std::move(steps));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                            std::vector<int64_t>& output_splits,
                                                            std::vector<int64_t>& input_splits,
                                                            const c10d::AllToAllOptions& options) {
  const char* const where = "all_to_all_single";
  check_taken(input, where);
  check_outputs({output}, true, where);
  check_same_dtype(output, input, where);
  std::vector<int64_t> sends = in_elements(input_splits, input, size_, "input", where);
  std::vector<int64_t> expects = in_elements(output_splits, output, size_, "output", where);
  const at::Tensor to = writable(output);
  // In the same memory a part could arrive before the one in its place has left.
  const bool apart = input.is_contiguous() && !overlap(input, to);
  const at::Tensor from = apart ? input : input.clone(at::MemoryFormat::Contiguous);
  Group::Order order = this->order(OpType::ALLTOALL_BASE, where, 0, input.scalar_type(), options.timeout);
  order.inputs = {input};
  order.results = {output};
  order.after = copy_back(output, to);
  return exchange(std::move(order), from.view({-1}), std::move(sends), std::move(expects), to.view({-1}));
}

TensorlaneBackend::WorkPtr TensorlaneBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllToAllOptions& options) {
  const char* const where = "all_to_all";
  TORCH_CHECK(inputs.size() == ranks() && outputs.size() == ranks(), inputs.size(), " inputs and ", outputs.size(),
              " outputs were given: ", where, ": give one of each for each of ", size_, " ranks");
  check_outputs(outputs, false, where);
  for (const at::Tensor& input : inputs) {
    check_taken(input, where);
    check_same_dtype(input, outputs.front(), where);
  }
  const at::Tensor from = scratch(inputs.front(), elements(inputs)), to = scratch(from, elements(outputs));
  pack(inputs, from);
  Group::Order order = this->order(OpType::ALLTOALL, where, 0, from.scalar_type(), options.timeout);
  order.inputs = inputs;
  order.results = outputs;
  order.after = [outputs, to] { unpack(to, outputs); };
  return exchange(std::move(order), from, sizes_of(inputs), sizes_of(outputs), to);
}

Group::Order TensorlaneBackend::message(OpType type, const char* name, const at::Tensor& tensor, int peer,
                                        int tag) const {
  const bool any = type == OpType::RECVANYSOURCE;
  TORCH_CHECK(any || (peer >= 0 && peer < size_), "rank ", peer, " is no rank of the group: ", name, ": use 0 to ",
              size_ - 1);
  TORCH_CHECK(peer != rank_, "rank ", peer, " is this rank: ", name, ": copy the tensor");
  Group::Order order = this->order(type, name, tensor.numel(), tensor.scalar_type(), milliseconds(-1));
  order.description.peer = peer;
  order.description.tag = tag;
  return order;
}

TensorlaneBackend::WorkPtr TensorlaneBackend::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor tensor = only(tensors, "send");
  const at::Tensor memory = tensor.contiguous();
  Group::Order order = message(OpType::SEND, "send", tensor, destination, tag);
  order.inputs = tensors;
  order.kept = {memory};
  order.results = tensors;
  return group_->transfer(std::move(order), memory);
}

TensorlaneBackend::WorkPtr TensorlaneBackend::recv(Tensors& tensors, int source, int tag) {
  return receive(message(OpType::RECV, "recv", only(tensors, "recv"), source, tag), tensors);
}

TensorlaneBackend::WorkPtr TensorlaneBackend::recvAnysource(Tensors& tensors, int tag) {
  TORCH_CHECK(size_ > 1, "the group has no other rank: recv: copy the tensor");
  return receive(message(OpType::RECVANYSOURCE, "recv", only(tensors, "recv"), -1, tag), tensors);
}

TensorlaneBackend::WorkPtr TensorlaneBackend::receive(Group::Order order, Tensors& tensors) {
  const at::Tensor& tensor = tensors.front();
  check_outputs(tensors, true, "recv");
  const at::Tensor memory = writable(tensor);
  order.inputs = tensors;
  order.kept = {memory};
  order.results = tensors;
  order.after = copy_back(tensor, memory);
  return group_->transfer(std::move(order), memory);
}

}  // namespace tensorlane::torch_backend
