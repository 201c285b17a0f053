#include "daemon/transport/dpdk/exchange.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <numeric>

namespace tensorlane::dpdk {

Result<std::vector<std::byte>> WayExchange::offer(std::span<const std::byte> /*peer*/) {
  TL_ASSIGN_OR_RETURN(way_, Way::open(numbers_, port_));
  const Parameters mine = way_->mine();
  const auto bytes = std::as_bytes(std::span(&mine, 1));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

// Random, and the same at both ends, so that a flow takes one path there and back where switches allow it.
void WayExchange::bind(const handshake::Mac& secret) {
  std::memcpy(&hash_, secret.data(), sizeof hash_);
}

Status WayExchange::accept(std::span<const std::byte> peer) {
  Parameters theirs;
  std::memcpy(&theirs, peer.data(), sizeof theirs);
  return way_->go(theirs, hash_);
}

Status WayExchange::delay() const {
  if (!way_ || way_->reachable()) return {};
  if (!port_.link().up)
    return {Code::kInProgress, fmt::format("this host's port {} has no link", port_.config().device), "dpdk",
            "look at its cable, or set its interface up; of shared memory (memif), start the host whose role is server "
            "first, and then this one"};
  const PortCounts& counts = port_.counts();
  const auto dropped = std::accumulate(counts.dropped.begin(), counts.dropped.end(), std::uint64_t{0});
  return {Code::kInProgress,
          fmt::format("nobody answers for the address {} on the link (of all addresses, this port has asked {} times "
                      "and answered {} times; it has dropped {} packets)",
                      to_string(way_->peer()), counts.neighbour_questions, counts.neighbour_answers, dropped),
          "dpdk", "look whether that host's daemon runs with `dpdk`, and at networks and gateways"};
}

}  // namespace tensorlane::dpdk
