#include "daemon/transport/rdma/verbs_connector.h"

#include <algorithm>
#include <iterator>

namespace tensorlane::rdma {
namespace {

constexpr std::uint8_t kHops = 64;

// As the kernel does it for rdma_cm: the same for both ends, different for every pair, so that queue pairs of one flow
// take different paths.
std::uint32_t flow_label(std::uint32_t a, std::uint32_t b) {
  std::uint64_t v = std::uint64_t{a} * b;
  v ^= v >> 20;
  v ^= v >> 40;
  return static_cast<std::uint32_t>(v & 0xfffff);
}

Link link_of(const Device& device, const Path& path, const Parameters::Pair& mine, const Parameters::Pair& theirs) {
  Link link;
  link.address.is_global = 1;
  std::copy(path.peer.begin(), path.peer.end(), std::begin(link.address.grh.dgid.raw));
  link.address.grh.sgid_index = static_cast<std::uint8_t>(device.gid().index);
  link.address.grh.hop_limit = kHops;
  link.address.grh.traffic_class = path.traffic_class();
  link.address.grh.flow_label = flow_label(mine.number, theirs.number);
  link.address.sl = path.tag.service_level;
  link.address.port_num = device.port();
  link.peer = theirs.number;
  link.receive_first = theirs.first_packet;
  link.send_first = mine.first_packet;
  link.mtu = path.mtu;
  link.retries = path.retries;
  return link;
}

class ConnectedAtOnce final : public Connecting {
 public:
  Result<bool> done() override { return true; }
};

}  // namespace

void VerbsConnector::offer(Parameters& mine) const {
  mine.connect_by = ConnectBy::kVerbs;
}

Result<std::unique_ptr<Connecting>> VerbsConnector::connect(const Meeting& meeting,
                                                            std::span<const std::unique_ptr<QueuePair>> pairs) {
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    TL_RETURN_IF_ERROR(
        pairs[i]->connect(link_of(device_, meeting.path, pairs[i]->parameters(), meeting.theirs.pairs[i])));
  }
  return std::unique_ptr<Connecting>(std::make_unique<ConnectedAtOnce>());
}

}  // namespace tensorlane::rdma
