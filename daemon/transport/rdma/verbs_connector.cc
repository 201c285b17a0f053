#include "daemon/transport/rdma/verbs_connector.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

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

// The pairs of one flow on their way, and what they are told; they are a worker's while it calls step().
class PairMove final : public AddressWorkers::Task {
 public:
  PairMove(const ports::FlowKey& flow, QueuePairs pairs, std::vector<Link> links)
      : flow_(flow), pairs_(std::move(pairs)), links_(std::move(links)) {}

  const ports::FlowKey& flow() const { return flow_; }
  Result<bool> step() override {
    TL_RETURN_IF_ERROR(pairs_[moved_]->connect(links_[moved_]));
    return ++moved_ == pairs_.size();
  }
  // Once done.
  QueuePairs take_pairs() {
    for (std::size_t i = 0; i < pairs_.size(); ++i) pairs_[i]->connected(links_[i]);
    return std::move(pairs_);
  }

 private:
  const ports::FlowKey flow_;
  QueuePairs pairs_;
  const std::vector<Link> links_;
  std::size_t moved_ = 0;
};

class VerbsConnecting final : public Connecting {
 public:
  VerbsConnecting(AddressWorkers& workers, AddressWorkers::Task* move) : workers_(workers), move_(move) {}
  ~VerbsConnecting() override {
    if (move_ != nullptr) workers_.give_up(move_);
  }
  VerbsConnecting(const VerbsConnecting&) = delete;
  VerbsConnecting& operator=(const VerbsConnecting&) = delete;

  // Only then are the peer's first packets taken.
  Result<bool> may_answer() override {
    const Result<bool> moved = done();
    if (moved.ok() || moved.status().code() != Code::kUnavailable) return moved;
    // Not the peer's fault: it shall ask again.
    return Status(Code::kInProgress, moved.status().what(), moved.status().where(), moved.status().fix());
  }
  Result<bool> done() override { return workers_.done(move_); }
  Status delay() const override { return workers_.delay(move_); }
  QueuePairs take_pairs() override {
    const std::unique_ptr<AddressWorkers::Task> move = workers_.take(std::exchange(move_, nullptr));
    return static_cast<PairMove&>(*move).take_pairs();
  }

 private:
  AddressWorkers& workers_;
  AddressWorkers::Task* move_;
};

}  // namespace

Result<std::unique_ptr<VerbsConnector>> VerbsConnector::open(const Device& device, PairEvents& events) {
  TL_ASSIGN_OR_RETURN(std::unique_ptr<AddressWorkers> workers, AddressWorkers::open(device.name()));
  return std::unique_ptr<VerbsConnector>(new VerbsConnector(device, events, std::move(workers)));
}

void VerbsConnector::offer(Parameters& mine) const {
  mine.connect_by = ConnectBy::kVerbs;
}

Result<std::unique_ptr<Connecting>> VerbsConnector::connect(const Meeting& meeting, QueuePairs pairs) {
  std::vector<Link> links;
  for (std::size_t i = 0; i < pairs.size(); ++i)
    links.push_back(link_of(device_, meeting.path, pairs[i]->parameters(), meeting.theirs.pairs[i]));
  TL_ASSIGN_OR_RETURN(
      AddressWorkers::Task* const move,
      workers_->add(meeting.path.peer, std::make_unique<PairMove>(meeting.flow, std::move(pairs), std::move(links))));
  return std::unique_ptr<Connecting>(std::make_unique<VerbsConnecting>(*workers_, move));
}

void VerbsConnector::serve() {
  // By value: the flow's connecting may go in the call.
  while (const AddressWorkers::Task* moved = workers_->serve())
    events_.on_moved(ports::FlowKey(static_cast<const PairMove*>(moved)->flow()));
}

}  // namespace tensorlane::rdma
