// Pieces of a stream of right frames, cut anywhere, overlapping each other, in any order, some damaged. Without damage
// every frame lands as it was sent, once and in order, and each byte counts once; with it the stream ends with an
// explained error or the damage is in a payload.
//
// Input: how many frames, and of each a byte for its length; then pieces: where, how long, and whether damaged.
#include <array>
#include <vector>

#include "daemon/transport/datagram/receive_stream.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using namespace datagram;
using protocol::FrameHeader;

constexpr std::size_t kMostFrames = 16;
constexpr std::uint64_t kLimit = 1 << 16;

struct Sent {
  std::vector<std::byte> bytes;
  std::vector<std::vector<std::byte>> payloads;

  void add(std::size_t length) {
    FrameHeader header{.type = protocol::FrameType::kData, .payload_bytes = static_cast<std::uint32_t>(length)};
    header.sequence = Sequence(payloads.size());
    std::array<std::byte, protocol::kFrameHeaderBytes> encoded{};
    protocol::encode_frame(header, encoded);
    std::vector<std::byte> payload(length, static_cast<std::byte>(payloads.size() + 1));
    bytes.insert(bytes.end(), encoded.begin(), encoded.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    payloads.push_back(std::move(payload));
  }
};

// Compares what lands with what was sent.
class Sink final : public ports::FrameSink {
 public:
  explicit Sink(const Sent& sent) : sent_(sent) {}
  Result<std::span<std::byte>> on_header(const FrameHeader& header) override {
    TL_ASSERT(!under_way_);
    under_way_ = true;
    landing_.assign(header.payload_bytes, std::byte{0});
    return std::span(landing_);
  }
  void on_frame(const FrameHeader& header) override {
    TL_ASSERT(std::exchange(under_way_, false));
    if (!damaged) TL_ASSERT(header.sequence.value == come && landing_ == sent_.payloads[come]);
    ++come;
  }
  void on_sent(std::uint64_t) override {}

  std::size_t come = 0;
  bool damaged = false;

 private:
  const Sent& sent_;
  bool under_way_ = false;
  std::vector<std::byte> landing_;
};

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  using namespace tensorlane::fuzz;
  Input input(data, size);
  Sent sent;
  for (std::size_t frames = 1 + input.take<std::uint8_t>() % kMostFrames; frames > 0; --frames)
    sent.add(input.take<std::uint8_t>());
  Sink sink(sent);
  ReceiveStream stream;
  const auto take = [&](std::uint64_t begin, std::vector<std::byte> piece) {
    if (stream.take(begin, piece, kLimit, sink)) return true;
    TL_ASSERT(sink.damaged);
    expect_explained(stream.failure());
    return false;
  };
  while (!input.empty()) {
    const std::uint64_t begin = input.take<std::uint16_t>() % sent.bytes.size();
    const std::uint64_t length = input.take<std::uint8_t>();
    const auto damage = input.take<std::uint8_t>();
    const auto end = std::min<std::uint64_t>(sent.bytes.size(), begin + length);
    std::vector<std::byte> piece(sent.bytes.data() + begin, sent.bytes.data() + end);  // of its own memory
    if (damage >= 250 && !piece.empty()) {
      piece[damage % piece.size()] ^= std::byte{1};
      sink.damaged = true;
    }
    if (!take(begin, std::move(piece))) return 0;
  }
  if (!take(0, sent.bytes)) return 0;
  if (!sink.damaged) TL_ASSERT(sink.come == sent.payloads.size() && stream.come() == sent.bytes.size());
  return 0;
}
