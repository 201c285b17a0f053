// Writes the seeds of the fuzzer of RDMA messages: make_rdma_corpus FOLDER
#include "common/protocol/frame.h"
#include "corpus.h"
#include "daemon/transport/rdma/message.h"

namespace tensorlane::fuzz {
namespace {

using rdma::MessageHead;
using rdma::MessageKind;

Seed message(const MessageHead& head) {
  Seed seed;
  return seed.add(std::uint8_t{0}).add(head);
}

Seed frame(const MessageHead& head, protocol::FrameType type) {
  protocol::FrameHeader header;
  header.type = type;
  header.grant = 9;
  std::array<std::byte, protocol::kFrameHeaderBytes> bytes;
  protocol::encode_frame(header, bytes);
  return message(head).add_bytes(bytes);
}

Seed parameters(std::uint8_t queue_pairs, rdma::Parameters p) {
  p.queue_pairs = queue_pairs;
  for (std::size_t i = 0; i < queue_pairs && i < p.pairs.size(); ++i)
    p.pairs[i] = {static_cast<std::uint32_t>(0x11 + i), 0xfffffe};
  Seed seed;
  return seed.add(static_cast<std::uint8_t>(queue_pairs - 1)).add(p);
}

void write_all(const Corpus& corpus) {
  using protocol::FrameType;
  const rdma::Place place{0x7f0000001000, 262144, 0x1234, 0};
  corpus.write("frame", frame({}, FrameType::kRts));
  corpus.write("frame_payload", frame({.credits = 3}, FrameType::kData).fill(100, 0x41));
  corpus.write("frame_full", frame({}, FrameType::kData).fill(rdma::kMessageBytes - rdma::kFrameOverhead, 1));
  corpus.write("frame_landed", frame({.landed_at = 0x7f0000001000}, FrameType::kData));
  corpus.write("frame_landed_twice", frame({.landed_at = 0x7f0000001000}, FrameType::kData).fill(8, 1));
  corpus.write("frame_place", frame({.places = 1}, FrameType::kGrant).add(place));
  Seed places = frame({.places = rdma::kMaxPlaces}, FrameType::kReady);
  for (std::size_t i = 0; i < rdma::kMaxPlaces; ++i) places.add(place);
  corpus.write("frame_places", places);
  corpus.write("frame_places_missing", frame({.places = 3}, FrameType::kGrant).add(place));
  corpus.write("more", message({.kind = MessageKind::kMore}).fill(64, 0x42));
  corpus.write("more_empty", message({.kind = MessageKind::kMore}));
  corpus.write("credit", message({.kind = MessageKind::kCredit, .credits = rdma::kCredits}));
  corpus.write("credit_too_many", message({.kind = MessageKind::kCredit, .credits = rdma::kCredits + 1}));
  corpus.write("parameters_1", parameters(1, {}));
  corpus.write("parameters_16", parameters(16, {.path_mtu = 5}));
  corpus.write("parameters_mtu", parameters(2, {.path_mtu = 6}));
  corpus.write("parameters_version", parameters(1, {.frame_version = 2}));
}

}  // namespace
}  // namespace tensorlane::fuzz

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  tensorlane::fuzz::write_all({argv[1], "rdma_message"});
}
