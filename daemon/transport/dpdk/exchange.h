// What a flow between ports adds to the handshake: either end says at which address and under which number it receives.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "daemon/transport/dpdk/way.h"
#include "daemon/transport/handshake/handshake.h"

namespace tensorlane::dpdk {

class WayExchange final : public handshake::Exchange {
 public:
  // `numbers` and `port` outlive it.
  WayExchange(FlowNumbers& numbers, PacketPort& port) : numbers_(numbers), port_(port) {}

  // Error: that of Way::open().
  Result<std::vector<std::byte>> offer(std::span<const std::byte> peer) override;
  void bind(const handshake::Mac& secret) override;
  // Errors: those of Way::go().
  Status accept(std::span<const std::byte> peer) override;
  // Both: once the network says who has the peer's address.
  Result<bool> may_answer() override { return way_->reachable(); }
  Result<bool> settled() override { return way_->reachable(); }
  Status delay() const override;

  // Once settled.
  std::unique_ptr<Way> take_way() { return std::move(way_); }

 private:
  FlowNumbers& numbers_;
  PacketPort& port_;
  std::uint64_t hash_ = 0;
  std::unique_ptr<Way> way_;
};

}  // namespace tensorlane::dpdk
