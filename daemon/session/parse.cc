#include "daemon/session/parse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "common/base/text.h"
#include "common/protocol/exchange.h"
#include "common/protocol/plan.h"
#include "daemon/ports/reducer.h"

namespace tensorlane::session {
namespace {

using protocol::kMaxName;
using protocol::MessageHeader;
using protocol::TensorBody;

constexpr std::uint32_t kMaxWorldSize = 65536;

Status corrupt(const char* what, std::string where) {
  return Status(Code::kCorrupt, what, std::move(where), "use a client library of the daemon's version");
}

template <typename T>
T read(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// A name out of a fixed field: terminated, without control characters. May be empty.
Result<std::string> name_of(const char (&field)[kMaxName + 1], const char* what) {
  const char* end = static_cast<const char*>(std::memchr(field, '\0', sizeof field));
  if (end == nullptr) return corrupt("a name without an end", what);
  const std::string_view name(field, static_cast<std::size_t>(end - field));
  if (!is_printable(name)) {
    return Status(Code::kInvalidArgument, "a name with a control character, or not in UTF-8", what,
                  "use printable characters in names");
  }
  return std::string(name);
}

Status bad(const TensorBody& tensor, const char* field, std::string value, std::string may_be) {
  return Status(Code::kInvalidArgument, std::string("tensor '") + tensor.name + "' cannot be registered",
                std::string(field) + " is " + value, std::move(may_be));
}

Status check_elements(const TensorBody& t, std::uint32_t world_size) {
  if (t.operation == Operation::kBarrier) {
    if (t.elements != 0) return bad(t, "elements", std::to_string(t.elements), "a barrier has none");
    return {};
  }
  if (t.elements == 0) return bad(t, "elements", "0", "give a tensor at least one element");
  if (t.elements > protocol::kMaxElements) {
    return bad(t, "elements", std::to_string(t.elements),
               "split it: the limit is " + std::to_string(protocol::kMaxElements));
  }
  if (t.operation == Operation::kAllgather && t.elements % world_size != 0) {
    return bad(t, "elements", std::to_string(t.elements),
               "an allgather's result is a multiple of the world size " + std::to_string(world_size));
  }
  const std::uint64_t unit = protocol::Exchange::unit(t.operation, world_size);
  if (exchanges(t.operation) && t.elements % unit != 0) {
    return bad(t, "elements", std::to_string(t.elements),
               "use a multiple of " + std::to_string(unit) + " for " + operation_name(t.operation));
  }
  return {};
}

}  // namespace

Result<Packet> parse_packet(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(MessageHeader)) {
    return corrupt("a packet shorter than its header", std::to_string(bytes.size()) + " bytes");
  }
  const auto header = read<MessageHeader>(bytes);
  if (header.magic != protocol::kSessionMagic) return corrupt("a packet of another protocol", "wrong magic number");
  if (header.version != protocol::kSessionVersion) {
    return Status(Code::kVersionMismatch, "the client library and the daemon have different versions",
                  "the client speaks session version " + std::to_string(header.version) + ", the daemon " +
                      std::to_string(protocol::kSessionVersion),
                  "install the same release of both");
  }
  const std::span<const std::byte> body = bytes.subspan(sizeof header);
  if (header.body_bytes != body.size()) {
    return corrupt("a packet of the wrong length",
                   std::to_string(header.body_bytes) + " bytes announced, " + std::to_string(body.size()) + " sent");
  }
  return Packet{header, body};
}

Result<Hello> parse_hello(std::span<const std::byte> body) {
  if (body.size() != sizeof(protocol::HelloBody))
    return corrupt("a hello of the wrong length", std::to_string(body.size()) + " bytes");
  auto raw = read<protocol::HelloBody>(body);
  const Wipe wipe(raw);
  Hello hello;
  TL_ASSIGN_OR_RETURN(hello.job, name_of(raw.job, "the job's name"));
  TL_ASSIGN_OR_RETURN(hello.leader, name_of(raw.leader, "the leader's address"));
  if (raw.secret_bytes > protocol::kMaxSecret)
    return corrupt("a secret that is too long", std::to_string(raw.secret_bytes) + " bytes");
  const auto invalid = [](const char* field, std::uint32_t value, std::string fix) {
    return Status(Code::kInvalidArgument, "cannot join", std::string(field) + " is " + std::to_string(value),
                  std::move(fix));
  };
  if (hello.job.empty())
    return Status(Code::kInvalidArgument, "cannot join", "the job has no name", "set TENSORLANE_JOB");
  if (raw.world_size == 0 || raw.world_size > kMaxWorldSize) {
    return invalid("world size", raw.world_size, "set WORLD_SIZE to 1.." + std::to_string(kMaxWorldSize));
  }
  if (raw.rank >= raw.world_size)
    return invalid("rank", raw.rank, "set RANK below the world size " + std::to_string(raw.world_size));
  if (raw.local_world_size == 0 || raw.local_world_size > raw.world_size) {
    return invalid("local world size", raw.local_world_size,
                   "set LOCAL_WORLD_SIZE to 1.." + std::to_string(raw.world_size));
  }
  if (raw.local_world_size > ports::kMaxLocalRanks) {
    return Status(Code::kResourceExhausted, "cannot join",
                  "local world size is " + std::to_string(raw.local_world_size) + ", a host has at most " +
                      std::to_string(ports::kMaxLocalRanks) + " ranks of a job",
                  "start fewer processes on each host");
  }
  if (raw.local_rank >= raw.local_world_size) {
    return invalid("local rank", raw.local_rank,
                   "set LOCAL_RANK below the local world size " + std::to_string(raw.local_world_size));
  }
  if (raw.leader_port > 0xffff) return invalid("leader port", raw.leader_port, "set MASTER_PORT to 1..65535");
  hello.leader_port = static_cast<std::uint16_t>(raw.leader_port);
  hello.rank = raw.rank;
  hello.world_size = raw.world_size;
  hello.local_rank = raw.local_rank;
  hello.local_world_size = raw.local_world_size;
  hello.timeout = milliseconds(raw.timeout_ms);
  const auto* secret = reinterpret_cast<const std::byte*>(raw.secret);
  hello.secret.assign(secret, secret + raw.secret_bytes);
  return hello;
}

Result<std::uint64_t> parse_arena(std::span<const std::byte> body) {
  if (body.size() != sizeof(protocol::ArenaBody))
    return corrupt("an arena request of the wrong length", std::to_string(body.size()) + " bytes");
  const auto raw = read<protocol::ArenaBody>(body);
  if (raw.bytes == 0)
    return Status(Code::kInvalidArgument, "an arena segment of zero bytes", "", "ask for at least one byte");
  return raw.bytes;
}

Result<std::uint64_t> parse_status(std::span<const std::byte> body) {
  if (body.size() != sizeof(protocol::StatusBody))
    return corrupt("a question for the status of the wrong length", std::to_string(body.size()) + " bytes");
  return read<protocol::StatusBody>(body).offset;
}

Result<std::string> parse_ask(std::span<const std::byte> body) {
  if (body.empty() || body.size() > protocol::kMaxQuestion)
    return corrupt("a question of the wrong length", std::to_string(body.size()) + " bytes");
  return std::string(reinterpret_cast<const char*>(body.data()), body.size());
}

Result<Registration> parse_register(std::span<const std::byte> body) {
  if (body.size() < sizeof(protocol::RegisterBody))
    return corrupt("a registration that is too short", std::to_string(body.size()) + " bytes");
  const auto raw = read<protocol::RegisterBody>(body);
  const std::span<const std::byte> rest = body.subspan(sizeof raw);
  const std::size_t of_ranks = std::size_t{raw.set_ranks} * sizeof(std::uint32_t);
  if ((raw.count == 0 && (raw.set_ranks == 0 || raw.more == 0)) || raw.count > protocol::kMaxTensorsPerMessage ||
      raw.set_ranks > protocol::kMaxSetRanks || rest.size() != of_ranks + raw.count * sizeof(TensorBody)) {
    return corrupt("a registration of the wrong length", std::to_string(raw.count) + " tensors and " +
                                                             std::to_string(raw.set_ranks) + " ranks in " +
                                                             std::to_string(rest.size()) + " bytes");
  }
  Registration registration;
  registration.more = raw.more != 0;
  TL_ASSIGN_OR_RETURN(registration.group, name_of(raw.group, "a group's name"));
  if (registration.group.empty())
    return Status(Code::kInvalidArgument, "a group without a name", "", "name every group");
  registration.ranks.resize(raw.set_ranks);
  if (raw.set_ranks > 0) std::memcpy(registration.ranks.data(), rest.data(), of_ranks);
  if (!std::ranges::is_sorted(registration.ranks, std::less_equal()))
    return corrupt("the ranks of a process set in no order", "group '" + registration.group + "'");
  registration.tensors.resize(raw.count);
  if (raw.count > 0) std::memcpy(registration.tensors.data(), rest.data() + of_ranks, rest.size() - of_ranks);
  for (const TensorBody& tensor : registration.tensors) {
    TL_ASSIGN_OR_RETURN(const std::string name, name_of(tensor.name, "a tensor's name"));
    if (name.empty()) {
      return Status(Code::kInvalidArgument, "a tensor without a name", "group '" + registration.group + "'",
                    "name every tensor");
    }
  }
  return registration;
}

Result<Unregistration> parse_unregister(std::span<const std::byte> body) {
  if (body.size() != sizeof(protocol::UnregisterBody))
    return corrupt("an unregistration of the wrong length", std::to_string(body.size()) + " bytes");
  const auto raw = read<protocol::UnregisterBody>(body);
  Unregistration unregistration;
  TL_ASSIGN_OR_RETURN(unregistration.group, name_of(raw.group, "a group's name"));
  unregistration.operations = raw.operations;
  unregistration.timeout = milliseconds(raw.timeout_ms);
  unregistration.for_good = raw.for_good != 0;
  return unregistration;
}

Status check_tensor(const TensorBody& t, std::uint32_t world_size) {
  const auto number = [](auto value) { return std::to_string(static_cast<unsigned>(value)); };
  if (t.operation > kLastOperation)
    return bad(t, "operation", number(t.operation), std::string("use ") + kOperationNames);
  if (static_cast<std::size_t>(t.dtype) >= kDtypeCount)
    return bad(t, "dtype", number(t.dtype), std::string("use ") + kDtypeNames);
  if (static_cast<std::size_t>(t.reduce) >= kReduceOpCount)
    return bad(t, "reduction", number(t.reduce), std::string("use ") + kReduceOpNames);
  if (reduces(t.operation) && !can_reduce(t.reduce, t.dtype)) {
    return bad(t, "reduction", std::string("average of ") + dtype_name(t.dtype), "use sum, and divide");
  }
  if (t.explicit_urgency > protocol::kUnsaidUrgency)
    return bad(t, "explicit_urgency", number(t.explicit_urgency), "it is 0, 1 or 2");
  if (t.pattern != protocol::kDaemonsPattern && t.pattern != protocol::kAutomaticPattern &&
      !protocol::is_selectable(static_cast<protocol::Pattern>(t.pattern - 1)))
    return bad(t, "pattern", number(t.pattern), "use a tl_pattern_t");
  if (t.pattern != protocol::kDaemonsPattern && is_keyed(t.operation))
    return bad(t, "pattern", number(t.pattern), "a push and its pull are cut in one way: leave it to the daemon");
  if (!(t.urgency >= 0 && t.urgency <= 1)) {  // also where it counts for nothing: other hosts must be able to read it
    return bad(t, "urgency", std::to_string(t.urgency), "use a number in [0, 1]");
  }
  if (t.positions == 0 || t.position >= t.positions) {
    return bad(t, "position", std::to_string(t.position), "use 0.." + std::to_string(std::int64_t{t.positions} - 1));
  }
  if (t.root >= world_size)
    return bad(t, "root", std::to_string(t.root), "use a rank below the world size " + std::to_string(world_size));
  if (!is_row_of(t.operation, t.row, t.elements)) {
    return bad(t, "row", std::to_string(t.row),
               "a reducescatter's divides its elements, " + std::to_string(t.elements) + ", others' are 1");
  }
  if (t.offset % 64 != 0) return bad(t, "offset", std::to_string(t.offset), "align buffers to 64 bytes");
  return check_elements(t, world_size);
}

}  // namespace tensorlane::session
