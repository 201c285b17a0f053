#include "daemon/transport/rdma/verbs_connector.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <iterator>

namespace tensorlane::rdma {
namespace {

constexpr std::uint8_t kHops = 64;
// Addresses that are remembered; what is forgotten is only tried more often.
constexpr std::size_t kMaxUnresolved = 1024;

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
  const std::pair whom(meeting.flow.job, meeting.path.peer);
  const auto known = unresolved_.find(whom);
  // A try in vain keeps the lane for a second. So of a job only the first, second, fourth, eighth... who asks gets one.
  if (known != unresolved_.end() && !std::has_single_bit(++known->second.asked)) return known->second.why;
  const Status status = connect_all(meeting, pairs);
  if (status.code() == Code::kInProgress) {
    spdlog::warn("{}: it is tried again", status.to_string());
    if (unresolved_.size() >= kMaxUnresolved) unresolved_.clear();
    Unresolved& unresolved = unresolved_[whom];
    unresolved = {std::max(unresolved.asked, 1u), status};
  } else if (known != unresolved_.end()) {
    unresolved_.erase(known);
  }
  TL_RETURN_IF_ERROR(status);
  return std::unique_ptr<Connecting>(std::make_unique<ConnectedAtOnce>());
}

Status VerbsConnector::connect_all(const Meeting& meeting, std::span<const std::unique_ptr<QueuePair>> pairs) const {
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    TL_RETURN_IF_ERROR(
        pairs[i]->connect(link_of(device_, meeting.path, pairs[i]->parameters(), meeting.theirs.pairs[i])));
  }
  return {};
}

}  // namespace tensorlane::rdma
