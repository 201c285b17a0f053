// A peer of the datagram transport that has the keys and lies, and strangers who have none. Whatever comes, the
// association takes nothing but what its sink can have, keeps its own counts, and ends with an explained error when the
// peer says what cannot be; what a stranger says changes a counter.
//
// Input: a byte for the level of protection; then records: what it is, how long, and so many bytes. Of a packet of the
// peer the bytes are all but the association's number and the version, and its slot is an odd number where it carries
// acknowledgements.
#include <sodium.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "daemon/transport/datagram/association.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using namespace datagram;
using protocol::FrameHeader;

constexpr std::size_t kMostOfAPacket = 2048;
constexpr Slot kSlot = 2;

// Decides by the header alone.
class Sink final : public ports::FrameSink {
 public:
  Result<std::span<std::byte>> on_header(const FrameHeader& header) override {
    TL_ASSERT(header.payload_bytes <= kMaxOperation.value);
    if (header.slice % 16 == 13) return Status(Code::kCorrupt, "the sink likes no such slice");
    const bool drops = header.payload_bytes > 0 && header.slice % 4 == 3;
    landings_.emplace_back(drops ? 0 : header.payload_bytes);
    if (!drops) ++whole_;
    return std::span(landings_.back());
  }
  void on_frame(const FrameHeader&) override { TL_ASSERT(whole_-- > 0); }
  void on_sent(std::uint64_t token) override { TL_ASSERT(token > std::exchange(reported_, token)); }

 private:
  std::vector<std::vector<std::byte>> landings_;
  std::uint64_t whole_ = 0, reported_ = 0;
};

struct Holder final : CreditHolder {
  void credit_raised() override {}
};

AssociationConfig config(DataProtection level) {
  AssociationConfig config;
  config.job = JobId(7);
  config.slot = kSlot;
  config.remote = 2;
  config.frames = 8;
  config.packets = 32;
  config.level = level;
  if (level != DataProtection::kNone) config.cipher = protect::Cipher::kChaCha20Poly1305;
  config.send_secret[0] = std::byte{1};
  config.receive_secret[0] = std::byte{2};
  return config;
}

// The peer's packet, with a tag that is right.
std::vector<std::byte> sealed(std::span<const std::byte> said, Seal& seal) {
  Head head;
  std::vector<std::byte> packet(sizeof head + sizeof(Data) + said.size() + seal.tag_bytes());
  std::memcpy(reinterpret_cast<std::byte*>(&head) + 5, said.data(), std::min(said.size(), sizeof head - 5));
  head.association = 1;
  head.version = kVersion;
  head.slot = head.slot % 2 == 1 ? kAckSlot : kSlot;
  const std::span<const std::byte> rest = said.subspan(std::min(said.size(), sizeof head - 5));
  std::memcpy(packet.data(), &head, sizeof head);
  if (!rest.empty()) std::memcpy(packet.data() + sizeof head, rest.data(), rest.size());
  const std::size_t bytes = std::max(sizeof head + rest.size(), clear_bytes(head, sizeof head + rest.size()));
  packet.resize(bytes + seal.tag_bytes());
  if (head.slot != kAckSlot && rest.size() > sizeof(Data))
    std::memmove(packet.data() + sizeof head + sizeof(Data) + seal.tag_before(),
                 packet.data() + sizeof head + sizeof(Data), rest.size() - sizeof(Data));
  seal.close(head, packet.data(), packet.size());
  return packet;
}

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  using namespace tensorlane::fuzz;
  static const int ready = sodium_init();
  TL_ASSERT(ready >= 0);
  Input input(data, size);
  Credits credits({});
  Holder holder;
  Sink sink;
  const auto level = static_cast<DataProtection>(input.take<std::uint8_t>() % 3);
  const AssociationConfig of = config(level);
  Association association(of, credits, sink, holder);
  Time now(1000);
  Seal peer(of.level, of.cipher, of.receive_secret);
  const std::vector<std::byte> payload(5000);
  std::uint64_t tokens = 0;
  std::array<std::byte, kMostOfAPacket> out;
  while (!input.empty()) {
    const auto kind = input.take<std::uint8_t>();
    const auto bytes = input.bytes(input.take<std::uint16_t>() % kMostOfAPacket);
    now = now + microseconds(kind);
    if (kind % 4 == 0 && association.writable())
      association.send({.header = {}, .payload = payload, .token = ++tokens});
    std::vector<std::byte> packet(bytes.begin(), bytes.end());
    if (kind % 2 == 0) packet = sealed(bytes, peer);
    const Status& status = association.take(now, packet, kind % 8 == 3);
    if (!status.ok()) {
      expect_explained(status);
      return 0;
    }
    if (const Status silence = association.on_time(now); !silence.ok()) expect_explained(silence);
    credits.give(now);
    TL_ASSERT(association.make_ack(now, out) <= of.packet_bytes);
    TL_ASSERT(association.make(now, out) <= of.packet_bytes);
    Gathered parts;
    if (association.make(now, out, &parts)) {
      TL_ASSERT(parts.bytes <= of.packet_bytes);
      if (parts.borrows && kind % 16 > 3) association.released(parts.number);
    }
  }
  return 0;
}
