// Packets of clients, as they come and with a header that fits them. What is accepted keeps the promises of parse.h; a
// group that is accepted travels to other hosts and is accepted there.
#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "common/protocol/exchange.h"
#include "daemon/control/registration.h"
#include "daemon/session/parse.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using protocol::MessageHeader;
using protocol::TensorBody;

void check_hello(std::span<const std::byte> body) {
  const Result<session::Hello> hello = session::parse_hello(body);
  if (!hello.ok()) return expect_explained(hello.status());
  TL_ASSERT(!hello->job.empty() && hello->job.size() <= protocol::kMaxName);
  TL_ASSERT(hello->leader.size() <= protocol::kMaxName && hello->secret.size() <= protocol::kMaxSecret);
  TL_ASSERT(hello->rank < hello->world_size && hello->local_rank < hello->local_world_size);
  TL_ASSERT(hello->local_world_size <= hello->world_size && hello->timeout.value >= 0);
}

void check_arena(std::span<const std::byte> body) {
  const Result<std::uint64_t> bytes = session::parse_arena(body);
  if (!bytes.ok()) return expect_explained(bytes.status());
  TL_ASSERT(*bytes > 0);
}

// Everything that other hosts learn.
bool same(const TensorBody& a, const TensorBody& b) {
  return control::name_of(a) == control::name_of(b) && a.elements == b.elements && a.position == b.position &&
         a.root == b.root && a.dtype == b.dtype && a.operation == b.operation && a.reduce == b.reduce &&
         a.explicit_urgency == b.explicit_urgency && a.urgency == b.urgency && a.positions == b.positions &&
         a.pattern == b.pattern;
}

void check_group(const session::Registration& registration, std::uint32_t world_size) {
  std::set<std::string_view> names;
  for (const TensorBody& tensor : registration.tensors) {
    const Status status = session::check_tensor(tensor, world_size);
    if (!status.ok()) return expect_explained(status);
    TL_ASSERT(protocol::buffer_bytes(tensor, world_size, 0) <= std::uint64_t{1} << 35);
    names.insert(control::name_of(tensor));
  }
  const control::RankGroup group{0, registration.tensors};
  const Status status = control::check_group("job", registration.group, group, world_size);
  TL_ASSERT(status.ok() == (names.size() == registration.tensors.size()));
  if (!status.ok()) return expect_explained(status);
  TL_ASSERT(control::compare_groups("job", registration.group, group, group).ok());
  const auto back = control::tensors_from_json(control::tensors_to_json(registration.tensors));
  TL_ASSERT(back && back->size() == registration.tensors.size());
  for (std::size_t i = 0; i < back->size(); ++i) TL_ASSERT(same((*back)[i], registration.tensors[i]));
}

void check_register(std::span<const std::byte> body) {
  const Result<session::Registration> registration = session::parse_register(body);
  if (!registration.ok()) return expect_explained(registration.status());
  const auto& tensors = registration->tensors;
  const auto& ranks = registration->ranks;
  TL_ASSERT(!registration->group.empty() && (!tensors.empty() || (!ranks.empty() && registration->more)));
  TL_ASSERT(tensors.size() <= protocol::kMaxTensorsPerMessage && ranks.size() <= protocol::kMaxSetRanks);
  TL_ASSERT(std::ranges::adjacent_find(ranks, std::greater_equal()) == ranks.end());
  const auto of_ranks = std::as_bytes(std::span(ranks)), bytes = std::as_bytes(std::span(tensors));
  TL_ASSERT(body.size() == sizeof(protocol::RegisterBody) + of_ranks.size() + bytes.size());
  TL_ASSERT(std::ranges::equal(bytes, body.last(bytes.size())));
  if (tensors.empty()) return;
  for (const std::uint32_t world_size : {1u, 3u, 65536u}) check_group(*registration, world_size);
}

void check_unregister(std::span<const std::byte> body) {
  const Result<session::Unregistration> unregistration = session::parse_unregister(body);
  if (!unregistration.ok()) return expect_explained(unregistration.status());
  TL_ASSERT(unregistration->group.size() <= protocol::kMaxName);
  TL_ASSERT(body.size() == sizeof(protocol::UnregisterBody) && unregistration->timeout.value >= 0);
}

void check_packet(std::span<const std::byte> bytes) {
  const Result<session::Packet> packet = session::parse_packet(bytes);
  if (!packet.ok()) return expect_explained(packet.status());
  TL_ASSERT(packet->header.body_bytes == packet->body.size());
  TL_ASSERT(packet->body.size() + sizeof(MessageHeader) == bytes.size());
  if (packet->header.type == protocol::MessageType::kHello) check_hello(packet->body);
  if (packet->header.type == protocol::MessageType::kArena) check_arena(packet->body);
  if (packet->header.type == protocol::MessageType::kRegister) check_register(packet->body);
  if (packet->header.type == protocol::MessageType::kUnregister) check_unregister(packet->body);
}

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  fuzz::check_packet(bytes);
  if (size < sizeof(protocol::MessageHeader)) return 0;
  std::vector<std::byte> fitting(bytes.begin(), bytes.end());
  protocol::MessageHeader header;
  std::memcpy(&header, fitting.data(), sizeof header);
  header.magic = protocol::kSessionMagic;
  header.version = protocol::kSessionVersion;
  header.body_bytes = static_cast<std::uint32_t>(size - sizeof header);
  std::memcpy(fitting.data(), &header, sizeof header);
  fuzz::check_packet(fitting);
  return 0;
}
