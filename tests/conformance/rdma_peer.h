// The RDMA half of a peer made by hand (raw_peer.h is the other one): parameters of queue pairs that it does not have,
// and what it says by rdma_cm.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/transport/rdma/message.h"
#include "harness.h"

namespace tensorlane::conformance {

// Parameters as a good peer has them; no queue pair has its number.
rdma::Parameters good_parameters(const std::string& address);

template <typename... Parts>
std::vector<std::byte> joined(const Parts&... parts) {
  std::vector<std::byte> all((sizeof parts + ...));
  std::size_t at = 0;
  ((std::memcpy(all.data() + at, &parts, sizeof parts), at += sizeof parts), ...);
  return all;
}

// Speaks rdma_cm by hand, on this machine's RDMA device. Calls poll the host under test while they wait, 5 s at most.
class RawCm {
 public:
  struct Answer {
    rdma_cm_event_type event = RDMA_CM_EVENT_UNREACHABLE;
    int status = 0;
    std::uint32_t pair = 0;  // of the peer
  };

  RawCm(TestClock& clock, Host& host, std::string address);
  ~RawCm();
  RawCm(const RawCm&) = delete;
  RawCm& operator=(const RawCm&) = delete;

  // Asks at a port to connect queue pair `pair`, with `said` as private data, packets marked with `tos`.
  Answer request(std::uint16_t port, std::uint32_t pair, std::span<const std::byte> said, std::uint8_t tos);
  // Takes requests; at which port.
  std::uint16_t listen();
  // Waits for a request and accepts it for queue pair `pair`.
  void accept(std::uint32_t pair);

 private:
  rdma_cm_id* make_id();
  // The event's id may be null: none came.
  std::pair<Answer, rdma_cm_id*> wait();

  TestClock& clock_;
  Host& host_;
  const std::string address_;
  rdma_event_channel* channel_;
  std::vector<rdma_cm_id*> ids_;
};

}  // namespace tensorlane::conformance
