// A peer that writes anything anywhere into the memory that it shares with a flow, between the flow's turns. Whatever
// it does, the flow keeps its own counts, hands over nothing but frames that are whole, and ends with an explained
// error when the peer says what cannot be.
//
// Input: records. A record is a kind and its numbers (see act()).
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "daemon/transport/local/flow.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using local::Record;
using protocol::FrameHeader;

constexpr ports::FlowKey kFlow{JobId(0x1122334455667788), HostIndex(2), ClassId(1)};
constexpr Epoch kEpoch{7};

// Decides by the header alone.
class Sink final : public ports::FrameSink {
 public:
  Result<std::span<std::byte>> on_header(const FrameHeader& header) override {
    TL_ASSERT(header.job == kFlow.job && header.epoch == kEpoch && header.cls == kFlow.cls);
    TL_ASSERT(header.payload_bytes <= kMaxOperation.value && !stopped && !in_frame);
    if (header.slice % 16 == 14) stop();
    if (header.slice % 16 == 13) return Status(Code::kCorrupt, "the sink likes no such slice");
    landing.clear();
    if (header.grant % 4 == 3 && header.payload_bytes > 0) return std::span<std::byte>();
    landing.resize(header.payload_bytes);
    in_frame = !stopped;
    return std::span(landing);
  }
  void on_frame(const FrameHeader& header) override {
    TL_ASSERT(!stopped && in_frame && landing.size() == header.payload_bytes);
    TL_ASSERT(!(header.flags & protocol::kFlagPayloadCrc) || protocol::crc32c(landing) == header.payload_crc);
    in_frame = false;
    if (header.slice % 16 == 15) stop();
  }
  void on_sent(std::uint64_t token) override { TL_ASSERT(!stopped && token == ++reported); }

  local::Flow* flow = nullptr;
  std::vector<std::byte> landing;
  std::uint64_t reported = 0;
  bool stopped = false, in_frame = false;

 private:
  void stop() {
    flow->stop();
    stopped = true;
  }
};

// The flow is the accepting end of `memory`; the input is the connecting one.
class Peer {
 public:
  Peer(const local::Segment& own, local::Segment memory, const handshake::JobPtr& job)
      : own_(own), mine_(own.page().connecting), ring_(own.ring(true)) {
    int ends[2];
    TL_ASSERT(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    socket_ = handshake::Fd(ends[1]);
    const local::PeerMemory peer({::getpid()}, local::own_probe());
    flow_.emplace(kFlow, job, local::Flow::Ends{handshake::Fd(ends[0]), std::move(memory), false, peer}, share_,
                  counters_);
    sink_.flow = &*flow_;
    flow_->deliver_to(sink_);
  }

  // False once the flow has ended.
  bool act(Input& input) {
    switch (input.take<std::uint8_t>() % 9) {
      case 0:
        put(input.bytes(input.take<std::uint16_t>()));
        break;
      case 1:
        put_frame(input);
        break;
      case 2:
        mine_.produced = input.take<std::uint64_t>();
        break;
      case 3:
        mine_.consumed += input.take<std::uint16_t>();
        break;
      case 4:
        scribble(input);
        break;
      case 5:
        mine_.reads_memory = input.take<std::uint32_t>();
        break;
      case 6:
        socket_.reset();
        flow_->look_at_socket();
        break;
      case 7:
        send(input.take<std::uint32_t>() % (kMaxOperation.value + 1));
        break;
      case 8:
        return turn();
    }
    return true;
  }
  bool turn() {
    std::uint64_t moved = 0;
    std::size_t handled = 0;
    flow_->arm();
    flow_->disarm();
    Status status = flow_->write(handled);
    if (status.ok() && !sink_.stopped) status = flow_->read(moved, handled);
    TL_ASSERT(moved <= 2 * local::kBlockBytes + local::kRecordBytes);
    if (!status.ok()) expect_explained(status);
    if (!status.ok()) flow_->stop();
    if (sink_.stopped || !status.ok()) TL_ASSERT(share_.in_flight == 0);
    return status.ok() && !sink_.stopped;
  }

 private:
  // As a good peer would, from where the last one ended.
  void put(std::span<const std::byte> bytes) {
    const std::uint64_t at = mine_.produced;
    for (std::size_t i = 0; i < bytes.size(); ++i) ring_[(at + i) % ring_.size()] = bytes[i];
    mine_.produced = at + bytes.size();
  }

  void put_frame(Input& input) {
    constexpr std::uint8_t kForeign = 1, kTrueCrc = 2, kTrueLength = 4, kStays = 8, kThere = 16;
    const auto flags = input.take<std::uint8_t>();
    Record record;
    FrameHeader& header = record.header;
    header.type = static_cast<protocol::FrameType>(input.take<std::uint8_t>() % 8);
    header.flags = input.take<std::uint8_t>() % 8;
    header.payload_bytes = input.take<std::uint32_t>() % (kMaxOperation.value + 2);
    header.grant = input.take<std::uint8_t>();
    header.slice = input.take<std::uint8_t>();
    header.payload_crc = input.take<std::uint32_t>();
    const auto payload = input.bytes(input.take<std::uint16_t>());
    header.cls = kFlow.cls;
    header.job = kFlow.job;
    header.epoch = (flags & kForeign) ? Epoch(kEpoch.value + 1) : kEpoch;
    if (flags & kTrueLength) header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    if (flags & kTrueCrc) header.payload_crc = protocol::crc32c(payload);
    if (flags & kStays) {
      static const std::vector<std::byte> memory(kMaxOperation.value + 1);
      record.payload = Record::Payload::kStays;
      record.address = (flags & kThere) ? reinterpret_cast<std::uintptr_t>(memory.data()) : input.take<std::uint64_t>();
    }
    local::RecordBytes bytes;
    local::encode_record(record, bytes);
    put(bytes);
    if (!(flags & kStays)) put(payload);
  }

  void scribble(Input& input) {
    const std::size_t at = input.take<std::uint32_t>() % local::kSegmentBytes;
    const auto bytes = input.bytes(input.take<std::uint8_t>());
    auto* base = reinterpret_cast<std::byte*>(&own_.page());
    std::memcpy(base + at, bytes.data(), std::min(bytes.size(), local::kSegmentBytes - at));
  }

  void send(std::size_t bytes) {
    static const std::vector<std::byte> payload(kMaxOperation.value);
    if (!flow_->writable()) return;
    FrameHeader header;
    flow_->send({header, std::span(payload).first(bytes), ++token_});
  }

  const local::Segment& own_;
  local::Side& mine_;
  const std::span<std::byte> ring_;
  handshake::Fd socket_;
  local::ClassShare share_{0, mib(1)};
  ports::TransportCounters counters_;
  std::optional<local::Flow> flow_;
  Sink sink_;
  std::uint64_t token_ = 0;
};

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  static const auto job = std::make_shared<const handshake::Job>(
      ports::JobCredentials{fuzz::kFlow.job, fuzz::kEpoch, HostIndex(1), ports::PairKeys(2)});
  // The two ends' mappings of one memory; the flow keeps its own. Pages that are taken away come back as zeros.
  static const local::Segment own = local::Segment::create().value();
  TL_ASSERT(::fallocate(own.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, local::kSegmentBytes) == 0);
  local::Segment flows = local::Segment::adopt(handshake::Fd(::dup(own.descriptor()))).value();
  fuzz::Input input(data, size);
  fuzz::Peer peer(own, std::move(flows), job);
  bool goes_on = true;
  while (goes_on && !input.empty()) goes_on = peer.act(input);
  if (goes_on) peer.turn();
  return 0;
}
