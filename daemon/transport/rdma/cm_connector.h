// Queue pairs connected by rdma_cm: the kernel resolves addresses and routes, picks the service level by its table for
// the TOS, and exchanges requests and replies over the device. None of that is believed by itself. A request is taken
// only with the proof that its sender has just shaken hands for this queue pair, once, and what either end learns of
// the other one has to be what the handshake said.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "common/base/status.h"
#include "daemon/transport/rdma/device.h"
#include "daemon/transport/rdma/pair_connector.h"

namespace tensorlane::rdma {

struct DestroyChannelOfEvents {
  void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
};
struct DestroyId {
  // Tells the peer, where it was connected.
  void operator()(rdma_cm_id* id) const { rdma_destroy_id(id); }
};
using CmId = std::unique_ptr<rdma_cm_id, DestroyId>;

class CmPair;

class CmConnector final : public PairConnector {
 public:
  // Takes requests at the address of the device's GID, at a port that the kernel picks. `device` and `events` outlive
  // it. Errors: kUnavailable (no rdma_cm, or it takes another device for the address), kPermissionDenied
  // (/dev/infiniband/rdma_cm).
  static Result<std::unique_ptr<CmConnector>> open(const Device& device, PairEvents& events);

  void offer(Parameters& mine) const override;
  Result<std::unique_ptr<Connecting>> connect(const Meeting& meeting, QueuePairs pairs) override;
  int fd() const override { return channel_->fd; }
  void serve() override;

 private:
  friend class CmPair;  // is made and found here
  CmConnector(const Device& device, PairEvents& events) : device_(device), events_(events) {}
  Status listen();
  Result<CmId> make_id(void* context);
  void take_request(CmId id, std::span<const std::byte> request, std::uint32_t from);
  // The pair that the request proves to be for. Errors: kPermissionDenied, kCorrupt.
  Result<CmPair*> find(std::span<const std::byte> request, std::uint32_t from) const;

  const Device& device_;
  PairEvents& events_;
  std::unique_ptr<rdma_event_channel, DestroyChannelOfEvents> channel_;
  CmId listener_;
  std::map<std::uint32_t, CmPair*> awaited_;  // of accepting ends, by their queue pair's number
};

}  // namespace tensorlane::rdma
