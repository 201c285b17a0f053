// What a peer's queue pair may bring, and the parameters of its handshake: the parts of a message are the whole
// message, in order; parameters that are accepted are usable as they are; a request of rdma_cm is read whole.
//
// Input: this host's number of queue pairs, then the bytes.
#include <cstring>

#include "daemon/transport/rdma/message.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

void check_message(std::span<const std::byte> bytes) {
  const Result<rdma::Message> message = rdma::parse_message(bytes);
  if (!message.ok()) {
    expect_explained(message.status());
    TL_ASSERT(message.status().code() == Code::kCorrupt);
    return;
  }
  TL_ASSERT(message->head.credits <= rdma::kCredits && message->head.places <= rdma::kMaxPlaces);
  TL_ASSERT(std::memcmp(&message->head, bytes.data(), sizeof message->head) == 0);
  std::span<const std::byte> left = bytes.subspan(sizeof message->head);
  for (const auto part : {message->frame_header, message->places, message->payload}) {
    TL_ASSERT(part.size() <= left.size());
    TL_ASSERT(part.empty() || part.data() == left.data());
    left = left.subspan(part.size());
  }
  TL_ASSERT(left.empty());
  for (std::size_t i = 0; i < message->head.places; ++i) {
    const rdma::Place place = message->place(i);
    TL_ASSERT(std::memcmp(&place, message->places.data() + i * sizeof place, sizeof place) == 0);
  }
  if (message->head.kind == rdma::MessageKind::kFrame)
    TL_ASSERT(message->frame_header.size() == protocol::kFrameHeaderBytes);
  else
    TL_ASSERT(message->frame_header.empty() && message->head.places == 0 && message->head.landed_at == 0);
}

void check_request(std::span<const std::byte> bytes) {
  const Result<rdma::CmRequest> request = rdma::parse_cm_request(bytes);
  if (!request.ok()) return expect_explained(request.status());
  TL_ASSERT(bytes.size() >= sizeof *request && std::memcmp(&*request, bytes.data(), sizeof *request) == 0);
  TL_ASSERT(request->magic == rdma::kCmRequestMagic && request->pair < 1u << 24);
}

void check_parameters(std::span<const std::byte> bytes, std::uint8_t queue_pairs) {
  rdma::Parameters mine;
  mine.queue_pairs = queue_pairs;
  const Result<rdma::Parameters> p = rdma::parse_parameters(bytes, mine);
  if (!p.ok()) return expect_explained(p.status());
  TL_ASSERT(bytes.size() == sizeof *p && std::memcmp(&*p, bytes.data(), sizeof *p) == 0);
  TL_ASSERT(p->queue_pairs == queue_pairs && p->path_mtu >= 1 && p->path_mtu <= 5);
  TL_ASSERT(p->message_bytes == rdma::kMessageBytes && p->credits == rdma::kCredits);
  for (std::size_t i = 0; i < queue_pairs; ++i)
    TL_ASSERT(p->pairs[i].number < 1u << 24 && p->pairs[i].first_packet < 1u << 24);
}

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  fuzz::Input input(data, size);
  const auto queue_pairs = static_cast<std::uint8_t>(1 + input.take<std::uint8_t>() % rdma::kMaxQueuePairs);
  fuzz::check_message(input.rest());
  fuzz::check_parameters(input.rest(), queue_pairs);
  fuzz::check_request(input.rest());
  return 0;
}
