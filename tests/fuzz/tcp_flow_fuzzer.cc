// A stream of frames on an authenticated TCP flow, in clear and sealed in records. The same stream is read in one piece
// and in pieces that the input chooses: both must deliver the same frames with the same payloads, and end with the same
// error.
//
// Input: records. A record is a kind and
//   kFrame   flags, 64 bytes of a header that is made to belong to the flow and sealed, payload length (16 bits),
//   payload kBytes   length (16 bits), bytes kSplit   nothing: a read comes here
#include <sys/socket.h>

#include <memory>
#include <vector>

#include "common/protocol/frame.h"
#include "daemon/transport/tcp/flow.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using protocol::FrameHeader;

constexpr ports::FlowKey kFlow{JobId(0x1122334455667788), HostIndex(2), ClassId(1)};
constexpr Epoch kEpoch{7};
constexpr std::size_t kMaxStream = 64 * 1024;  // fits into the socket's buffer
constexpr std::size_t kMaxLanding = 1 << 18;   // longer payloads have nowhere to go

struct Stream {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> splits;
  void add(std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); }
};

// What seals frames, and opens them; null: nothing does.
using Seal = std::unique_ptr<protect::Records>;
Seal make_records() {
  protect::RecordSecrets secrets;  // alike for both directions, so that one end can play the other one
  secrets.level = DataProtection::kEncrypt;
  secrets.cipher = protect::Cipher::kChaCha20Poly1305;
  return std::make_unique<protect::Records>(secrets);
}

void add_sealed(Stream& stream, std::span<const std::byte> clear, const Seal& seal) {
  std::vector<std::byte> hidden(clear.size());
  protect::Tag tag;
  seal->sends.seal(clear, hidden.data(), tag);
  stream.add(hidden);
  stream.add(tag);
}

void add_frame(Input& input, Stream& stream, const Seal& seal) {
  constexpr std::uint8_t kForeign = 1, kTrueCrc = 2, kTrueLength = 4;
  const auto flags = input.take<std::uint8_t>();
  const auto raw = input.take<std::array<std::byte, protocol::kFrameHeaderBytes>>();
  const auto payload = input.bytes(input.take<std::uint16_t>());
  FrameHeader header;
  header.type = static_cast<protocol::FrameType>(raw[5]);
  header.flags = static_cast<std::uint8_t>(raw[7]);
  std::memcpy(&header.payload_bytes, raw.data() + 20, 4);
  std::memcpy(&header.grant, raw.data() + 24, 4);
  std::memcpy(&header.slice, raw.data() + 48, 4);
  std::memcpy(&header.payload_crc, raw.data() + 56, 4);
  header.cls = kFlow.cls;
  header.job = kFlow.job;
  header.epoch = (flags & kForeign) ? Epoch(kEpoch.value + 1) : kEpoch;
  if (flags & kTrueLength) header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  if (flags & kTrueCrc) header.payload_crc = protocol::crc32c(payload);
  std::array<std::byte, protocol::kFrameHeaderBytes> sealed;
  protocol::encode_frame(header, sealed);
  if (!seal) {
    stream.add(sealed);
    stream.add(payload);
    return;
  }
  add_sealed(stream, sealed, seal);
  for (std::size_t at = 0; at < payload.size(); at += protect::kRecordBytes) {
    const std::size_t bytes = std::min(protect::kRecordBytes, payload.size() - at);
    add_sealed(stream, std::span(payload).subspan(at, bytes), seal);
  }
}

Stream make_stream(Input input, const Seal& seal) {
  Stream stream;
  while (!input.empty() && stream.bytes.size() < kMaxStream) {
    switch (input.take<std::uint8_t>() % 3) {
      case 0:
        add_frame(input, stream, seal);
        break;
      case 1:
        stream.add(input.bytes(input.take<std::uint16_t>()));
        break;
      case 2:
        stream.splits.push_back(stream.bytes.size());
        break;
    }
  }
  stream.bytes.resize(std::min(stream.bytes.size(), kMaxStream));
  return stream;
}

// Decides by the header alone, so that both readings decide alike.
class Sink final : public ports::FrameSink {
 public:
  struct Frame {
    FrameHeader header;
    std::vector<std::byte> payload;
    bool operator==(const Frame&) const = default;
  };

  Result<std::span<std::byte>> on_header(const FrameHeader& header) override {
    TL_ASSERT(header.job == kFlow.job && header.epoch == kEpoch && header.cls == kFlow.cls);
    TL_ASSERT(header.payload_bytes <= kMaxOperation.value && header.type <= protocol::kLastFrameType);
    TL_ASSERT(header.type != protocol::FrameType::kDelivered && header.type != protocol::FrameType::kGoodbye);
    TL_ASSERT(!(header.flags & protocol::kFlagAck));
    TL_ASSERT(!stopped);
    if (header.slice % 16 == 14) stop();
    if (header.slice % 16 == 13) return Status(Code::kCorrupt, "the sink likes no such slice");
    landing.clear();
    if (header.grant % 4 == 3 || header.payload_bytes > kMaxLanding) return std::span<std::byte>();
    landing.resize(header.payload_bytes);
    return std::span(landing);
  }
  void on_frame(const FrameHeader& header) override {
    TL_ASSERT(!stopped && landing.size() == header.payload_bytes);
    TL_ASSERT(!(header.flags & protocol::kFlagPayloadCrc) || protocol::crc32c(landing) == header.payload_crc);
    frames.push_back({header, landing});
    if (header.slice % 16 == 15) stop();
  }
  void on_sent(std::uint64_t) override { TL_ASSERT(false); }

  tcp::Flow* flow = nullptr;
  std::vector<Frame> frames;
  std::vector<std::byte> landing;
  bool stopped = false;

 private:
  void stop() {
    flow->stop();
    stopped = true;
  }
};

struct Outcome {
  std::vector<Sink::Frame> frames;
  Status end;
  bool stopped = false;
  bool operator==(const Outcome&) const = default;
};

Outcome read_stream(const Stream& stream, std::span<const std::size_t> splits, const handshake::JobPtr& job,
                    Seal records) {
  static tcp::ReadBuffers buffers;
  int ends[2];
  TL_ASSERT(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  tcp::ClassShare share({}, mib(1), false);
  tcp::Flow flow(kFlow, job, tcp::Fd(ends[0]), share, {}, std::move(records));
  tcp::Fd peer(ends[1]);
  Sink sink;
  sink.flow = &flow;
  flow.deliver_to(sink);
  Status end;
  std::size_t sent = 0, handled = 0;
  const auto send_until = [&](std::size_t position) {
    if (position <= sent) return;
    const auto piece = std::span(stream.bytes).subspan(sent, position - sent);
    TL_ASSERT(::send(peer.get(), piece.data(), piece.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(piece.size()));
    sent = position;
  };
  const auto read_all = [&] {
    for (std::uint64_t before = ~std::uint64_t{0}; end.ok() && !sink.stopped && before != flow.bytes_received();) {
      before = flow.bytes_received();
      end = flow.read(buffers, handled);
    }
  };
  for (const std::size_t split : splits) {
    send_until(std::min(split, stream.bytes.size()));
    read_all();
    if (!end.ok() || sink.stopped) break;
  }
  if (end.ok() && !sink.stopped) {
    send_until(stream.bytes.size());
    TL_ASSERT(::shutdown(peer.get(), SHUT_WR) == 0);
    read_all();
  }
  TL_ASSERT(sink.stopped || !end.ok());
  TL_ASSERT(sink.frames.size() <= handled);
  if (!end.ok()) expect_explained(end);
  return {std::move(sink.frames), end, sink.stopped};
}

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  // A flow that ends with its connection, and one that may be resumed.
  static const ports::JobCredentials credentials{fuzz::kFlow.job, fuzz::kEpoch, HostIndex(1), ports::PairKeys(2)};
  static const auto job = std::make_shared<const handshake::Job>(credentials);
  static const auto resuming = [&] {
    ports::JobCredentials resumed = credentials;
    resumed.resume_within = seconds(1);
    return std::make_shared<const handshake::Job>(resumed);
  }();
  const auto records = [](bool seals) { return seals ? fuzz::make_records() : nullptr; };
  for (const bool seals : {false, true}) {
    const fuzz::Stream stream = fuzz::make_stream(fuzz::Input(data, size), records(seals));
    for (const auto& j : {job, resuming}) {
      TL_ASSERT(fuzz::read_stream(stream, {}, j, records(seals)) ==
                fuzz::read_stream(stream, stream.splits, j, records(seals)));
    }
  }
  return 0;
}
