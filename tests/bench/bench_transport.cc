#include "bench_transport.h"

#include <fmt/format.h>

#include "daemon/transport/rdma/rdma_transport.h"
#include "daemon/transport/tcp/tcp_transport.h"

namespace tensorlane::bench {
namespace {

constexpr ports::ClassTag kControlTag{kControlClass, 51, 6, 6}, kDataTag{ClassId(0), 43, 5, 5};
constexpr Bytes kControlWindow = kib(256);
constexpr std::uint16_t kFirstPort = 23100, kPortsOfHost = 8, kHostsOfPair = 2;

template <typename Config>
Config config_of(const TransportOptions& options, std::uint16_t index, RailIndex rail, Bytes window) {
  Config config;
  config.listen_address = address_of(options, index, rail);
  config.data_port = port_of(options, index);
  config.classes = {{kControlTag, kControlWindow}, {kDataTag, window}};
  return config;
}

}  // namespace

std::vector<std::string> transports() {
  return {"tcp", "rdma"};
}

std::string address_of(const TransportOptions& options, std::uint16_t index, RailIndex rail) {
  return options.name == "rdma" ? options.address : fmt::format("127.0.{}.{}", 4 + rail.value, index + 1);
}

std::uint16_t port_of(const TransportOptions& options, std::uint16_t index) {
  return static_cast<std::uint16_t>(kFirstPort + (options.pair * kHostsOfPair + index) * kPortsOfHost);
}

Result<std::unique_ptr<ports::Transport>> make_transport(const TransportOptions& options, std::uint16_t index,
                                                         RailIndex rail, Bytes window, ports::FlowOwner& owner) {
  if (options.name == "tcp")
    return tcp::make_tcp_transport(config_of<tcp::TcpConfig>(options, index, rail, window), owner);
  auto config = config_of<rdma::RdmaConfig>(options, index, rail, window);
  config.address = options.address;
  return rdma::make_rdma_transport(config, owner);
}

}  // namespace tensorlane::bench
