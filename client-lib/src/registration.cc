// tl_register: groups of tensors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "client-lib/src/context.h"
#include "client-lib/src/error.h"
#include "client-lib/src/registration.h"
#include "common/base/text.h"
#include "common/protocol/exchange.h"

namespace tensorlane::client {
namespace {

using protocol::MessageType;
using protocol::TensorBody;

Status invalid_tensor(const std::string& name, std::string where, std::string fix) {
  return Status(Code::kInvalidArgument, std::string("tensor '") + name + "' cannot be registered", std::move(where),
                std::move(fix));
}

}  // namespace

Status check_name(const char* kind, const std::string& name) {
  const auto wrong = [&](const std::string& where, const std::string& fix) {
    return Status(Code::kInvalidArgument, std::string(kind) + " has a name that will not do", where, fix);
  };
  if (name.empty()) return wrong("it is empty", "name it");
  if (name.size() > protocol::kMaxName) {
    std::string where = "'";
    where.append(name, 0, 32).append("...' has ").append(std::to_string(name.size())).append(" bytes");
    return wrong(where, "the limit is " + std::to_string(protocol::kMaxName));
  }
  if (!is_printable(name)) return wrong("it has a control character, or is not in UTF-8", "use printable characters");
  return {};
}

Result<std::string> name_in_job(const ProcessSet& set, const char* kind, const std::string& given) {
  TL_RETURN_IF_ERROR(check_name(kind, given));
  std::string name = set.in_job(given);
  TL_RETURN_IF_ERROR(check_name(kind, name));
  return name;
}

Status check_count(const std::string& name, std::uint64_t elements) {
  if (elements == 0) return invalid_tensor(name, "it has 0 elements", "give it at least one");
  if (elements > protocol::kMaxElements) {
    return invalid_tensor(name, "it has " + std::to_string(elements) + " elements",
                          "split it: the limit is " + std::to_string(protocol::kMaxElements));
  }
  return {};
}

std::vector<std::vector<std::byte>> registration_packets(const ProcessSet& set, const std::string& group,
                                                         std::span<const TensorBody> tensors) {
  constexpr std::size_t kRoom =
      protocol::kMaxMessage - sizeof(protocol::MessageHeader) - sizeof(protocol::RegisterBody);
  std::vector<std::vector<std::byte>> packets;
  std::span<const std::uint32_t> ranks = set.ranks();
  for (std::size_t from = 0; from < tensors.size();) {
    const std::size_t most =
        std::min(protocol::kMaxTensorsPerMessage, (kRoom - ranks.size_bytes()) / sizeof(TensorBody));
    const auto part = tensors.subspan(from, std::min(most, tensors.size() - from));
    from += part.size();
    protocol::RegisterBody head;
    std::memcpy(head.group, group.data(), group.size());
    head.count = static_cast<std::uint32_t>(part.size());
    head.more = from < tensors.size() ? 1 : 0;
    head.set_ranks = static_cast<std::uint32_t>(ranks.size());
    std::vector<std::byte>& packet = packets.emplace_back(sizeof head + ranks.size_bytes() + part.size_bytes());
    std::memcpy(packet.data(), &head, sizeof head);
    if (!ranks.empty()) std::memcpy(packet.data() + sizeof head, ranks.data(), ranks.size_bytes());
    std::memcpy(packet.data() + sizeof head + ranks.size_bytes(), part.data(), part.size_bytes());
    ranks = {};
  }
  return packets;
}

Result<std::vector<std::uint32_t>> registered_ids(const Message& answer, std::size_t count) {
  protocol::RegisteredBody head;
  if (answer.body.size() == sizeof head + count * sizeof(std::uint32_t)) {
    std::memcpy(&head, answer.body.data(), sizeof head);
    std::vector<std::uint32_t> ids(count);
    std::memcpy(ids.data(), answer.body.data() + sizeof head, count * sizeof(std::uint32_t));
    constexpr std::uint32_t kMost = 1 << 24;  // the table of ids is this long at most
    if (head.count == count && std::all_of(ids.begin(), ids.end(), [](std::uint32_t id) { return id < kMost; }))
      return ids;
  }
  return Status(Code::kCorrupt, "an unexpected answer to a registration", std::to_string(answer.body.size()) + " bytes",
                "install the same release of library and daemon");
}

// Whether ranks have parts of equal size.
Status Context::check_blocks(const ProcessSet& set, const std::string& name, Operation operation,
                             std::uint64_t elements) const {
  const std::uint32_t world_size = set.world_size;
  if (operation == Operation::kAllgather && elements % world_size != 0) {
    return invalid_tensor(name, "it has " + std::to_string(elements) + " elements",
                          "an allgather's result is a multiple of the world size " + std::to_string(world_size));
  }
  const std::uint64_t unit = protocol::Exchange::unit(operation, world_size);
  if (exchanges(operation) && elements % unit != 0) {
    return invalid_tensor(name, "it has " + std::to_string(elements) + " elements",
                          "use a multiple of " + std::to_string(unit) + " for " + operation_name(operation));
  }
  return {};
}

Result<TensorBody> Context::describe(const SharedSet& set, const tl_tensor_desc_t& desc, std::size_t group_size,
                                     tl_tensor& tensor) {
  const char* const given = desc.name != nullptr ? desc.name : "";
  TL_ASSIGN_OR_RETURN(const std::string name, name_in_job(*set, "a tensor", given));
  TensorBody body;
  std::memcpy(body.name, name.data(), name.size());
  const unsigned dtype = raw_number(desc.dtype), operation = raw_number(desc.operation), op = raw_number(desc.op);
  if (dtype >= kDtypeCount) return invalid_tensor(name, "dtype is " + std::to_string(dtype), "use a tl_dtype_t");
  if (operation > static_cast<unsigned>(kLastOperation))
    return invalid_tensor(name, "operation is " + std::to_string(operation), "use a tl_operation_t");
  if (op >= kReduceOpCount) return invalid_tensor(name, "op is " + std::to_string(op), "use a tl_op_t");
  const bool barrier = desc.operation == TL_BARRIER;
  if (!barrier) TL_RETURN_IF_ERROR(check_count(name, desc.count));
  TL_RETURN_IF_ERROR(check_blocks(*set, name, static_cast<Operation>(operation), desc.count));
  if (desc.root < 0 || static_cast<std::uint32_t>(desc.root) >= set->world_size) {
    return invalid_tensor(name, "root is " + std::to_string(desc.root),
                          "use a rank below the world size " + std::to_string(set->world_size));
  }
  if (std::isnan(desc.urgency) || desc.urgency > 1) {
    return invalid_tensor(name, "urgency is " + std::to_string(desc.urgency),
                          "use [0, 1], or a negative number for layer order");
  }
  if (raw_number(desc.memory) > TL_MEMORY_CUDA)
    return invalid_tensor(name, "memory is " + std::to_string(raw_number(desc.memory)), "use a tl_memory_t");
  const unsigned pattern = raw_number(desc.pattern);
  if (pattern > TL_PATTERN_TREE && pattern != TL_PATTERN_AUTO)
    return invalid_tensor(name, "pattern is " + std::to_string(pattern), "use a tl_pattern_t");
  if (desc.reserved != 0 || desc.reserved2 != 0)
    return invalid_tensor(name, "reserved is " + std::to_string(desc.reserved), "begin with TL_TENSOR_INIT");
  body.positions = desc.positions != 0 ? desc.positions : static_cast<std::uint32_t>(group_size);
  if (desc.position >= body.positions) {
    return invalid_tensor(name, "position is " + std::to_string(desc.position),
                          "use 0.." + std::to_string(body.positions - 1));
  }
  body.elements = barrier ? 0 : desc.count;
  body.row = desc.operation == TL_REDUCESCATTER ? desc.row : 1;
  if (!is_row_of(static_cast<Operation>(desc.operation), body.row, body.elements)) {
    return invalid_tensor(name, "row is " + std::to_string(body.row),
                          "it divides the count, " + std::to_string(body.elements));
  }
  body.dtype = static_cast<Dtype>(desc.dtype);
  body.operation = static_cast<Operation>(desc.operation);
  body.reduce = static_cast<ReduceOp>(desc.op);
  body.root = static_cast<std::uint32_t>(desc.root);
  if (reduces(body.operation) && !can_reduce(body.reduce, body.dtype)) {
    return invalid_tensor(name, std::string("it is an average of ") + dtype_name(body.dtype), "use TL_SUM, and divide");
  }
  body.position = desc.position;
  body.explicit_urgency = desc.urgency >= 0 ? 1 : 0;
  body.urgency = desc.urgency >= 0 ? desc.urgency : 0;
  body.pattern = static_cast<std::uint8_t>(pattern);
  tensor.context = this;
  tensor.set = set;
  tensor.name = name;
  tensor.bytes = protocol::buffer_bytes(body, set->world_size, set->rank);
  tensor.exchanges = exchanges(body.operation);
  tensor.to_all = body.operation == Operation::kAlltoall;
  tensor.keyed = is_keyed(body.operation);
  tensor.urgency =
      desc.urgency >= 0 ? desc.urgency : 1 - static_cast<float>(body.position) / static_cast<float>(body.positions);
  if (desc.memory == TL_MEMORY_CUDA) TL_RETURN_IF_ERROR(describe_on_gpu(desc, tensor));
  tensor.buffer = tensor.gpu == nullptr ? static_cast<std::byte*>(desc.buffer) : nullptr;
  if (barrier || tensor.buffer == nullptr) return body;
  const auto place = arenas_->locate(tensor.buffer, tensor.bytes);
  if (!place)
    return invalid_tensor(name, "its buffer is not shared memory", "use memory of tl_alloc, or a null buffer");
  if (place->offset % ArenaAllocator::kAlignment != 0)
    return invalid_tensor(name, "its buffer is not aligned to 64 bytes", "use the start of memory of tl_alloc");
  return body;
}

// Its buffer is on a GPU; it gets a staging buffer as one without a buffer does.
Status Context::describe_on_gpu(const tl_tensor_desc_t& desc, tl_tensor& tensor) {
  if (tensor.keyed || desc.operation == TL_BARRIER)
    return invalid_tensor(tensor.name,
                          std::string("a registered ") + operation_name(static_cast<Operation>(desc.operation)) +
                              " cannot be of GPU memory",
                          "use tl_push and tl_pull, or host memory");
  if (desc.buffer == nullptr)
    return invalid_tensor(tensor.name, "it is of GPU memory and has no buffer", "allocate it, and pass its address");
  TL_ASSIGN_OR_RETURN(tensor.gpu, gpus_->device_of(desc.buffer, tensor.bytes, "the buffer of '" + tensor.name + "'"));
  tensor.gpu_buffer = desc.buffer;
  return {};
}

Status Context::register_group(const SharedSet& set, const std::string& name, std::span<const tl_tensor_desc_t> descs,
                               tl_tensor_t** out) {
  TL_RETURN_IF_ERROR(usable());
  if (settings_.gpu_sums && hosts_ > 1 && set->world_size > 1 && may_be_shared(name, descs))
    return register_shared(set, name, descs, out);
  return register_plain(set, name, descs, out);
}

Status Context::register_plain(const SharedSet& set, const std::string& given_name,
                               std::span<const tl_tensor_desc_t> descs, tl_tensor_t** out) {
  TL_ASSIGN_OR_RETURN(const std::string group, name_in_job(*set, "a group", given_name));
  std::vector<TensorBody> bodies;
  std::vector<std::unique_ptr<tl_tensor>> tensors;
  for (const tl_tensor_desc_t& desc : descs) {
    tensors.push_back(std::make_unique<tl_tensor>());
    TL_ASSIGN_OR_RETURN(TensorBody body, describe(set, desc, descs.size(), *tensors.back()));
    bodies.push_back(body);
  }
  std::vector<std::byte*> allocated;
  const auto give_back = [&](Status status) {
    for (std::byte* memory : allocated) (void)arenas_->release(memory);
    return status;
  };
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    if (bodies[i].operation == Operation::kBarrier) continue;
    if (tensors[i]->buffer == nullptr) {
      Result<std::byte*> memory = arenas_->allocate(tensors[i]->bytes);
      if (!memory.ok()) return give_back(memory.status());
      allocated.push_back(*memory);
      tensors[i]->buffer = *memory;
      tensors[i]->owns_buffer = true;
    }
    if (tensors[i]->gpu != nullptr) {
      const Status bound = bind_to_gpu(*tensors[i], bodies[i]);
      if (!bound.ok()) return give_back(bound);
    }
    const Place place = *arenas_->locate(tensors[i]->buffer, tensors[i]->bytes);
    bodies[i].segment = place.segment;
    bodies[i].offset = place.offset;
  }
  Result<Message> answer =
      call(MessageType::kRegister, registration_packets(*set, group, bodies), MessageType::kRegistered);
  if (!answer.ok()) {
    // Where the daemon has not answered it may yet bind them: the memory stays.
    const bool answered = answer.status().code() != Code::kTimedOut && usable().ok();
    return answered ? give_back(answer.status()) : answer.status();
  }
  TL_ASSIGN_OR_RETURN(const auto ids, registered_ids(*answer, tensors.size()));
  std::lock_guard lock(mutex_);
  // Not into the entry of a group whose name is free already, and which another thread has yet to forget.
  const auto made = groups_[group] = std::make_shared<Group>();
  made->name = group;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    tensors[i]->id = ids[i];
    if (by_id_.size() <= ids[i]) by_id_.resize(ids[i] + 1);
    by_id_[ids[i]] = tensors[i].get();
    out[i] = tensors[i].get();
    made->tensors.push_back(out[i]);
    tensors_.push_back(std::move(tensors[i]));
  }
  return {};
}

}  // namespace tensorlane::client
