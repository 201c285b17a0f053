// Strict reading of the packets that clients send (common/protocol/session.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/session.h"

namespace tensorlane::session {

// A packet whose header is right.
struct Packet {
  protocol::MessageHeader header;
  std::span<const std::byte> body;
};
// Errors: Corrupt (size, magic), VersionMismatch; the session is over. The type may be any.
Result<Packet> parse_packet(std::span<const std::byte> bytes);

struct Hello {
  std::string job;
  std::string leader;
  std::uint16_t leader_port = 0;
  std::uint32_t rank = 0, world_size = 0, local_rank = 0, local_world_size = 0;
  Duration timeout{};
  Secret secret;
};
// Errors: Corrupt (sizes), InvalidArgument (a value, named).
Result<Hello> parse_hello(std::span<const std::byte> body);

// Errors: Corrupt (size), InvalidArgument (zero bytes).
Result<std::uint64_t> parse_arena(std::span<const std::byte> body);

// The offset of the page that is asked for. Errors: Corrupt (size).
Result<std::uint64_t> parse_status(std::span<const std::byte> body);

// The text of a question. Errors: Corrupt (size).
Result<std::string> parse_ask(std::span<const std::byte> body);

struct Registration {
  std::string group;
  bool more = false;
  std::vector<std::uint32_t> ranks;  // of a process set
  std::vector<protocol::TensorBody> tensors;
};
// Counts, names and the order of ranks. Errors: Corrupt, InvalidArgument (names).
Result<Registration> parse_register(std::span<const std::byte> body);

struct Unregistration {
  std::string group;
  std::uint64_t operations = 0;
  Duration timeout{};
  bool for_good = false;
};
// Errors: Corrupt (size), InvalidArgument (the name).
Result<Unregistration> parse_unregister(std::span<const std::byte> body);

// Whether the values of one tensor make sense in a job, or a set, of `world_size` ranks. Where its buffer lies is not
// checked. Errors: InvalidArgument: names the tensor, the field, the value and what it may be.
Status check_tensor(const protocol::TensorBody& tensor, std::uint32_t world_size);

}  // namespace tensorlane::session
