#include "daemon/transport/mixed/mixed_transport.h"
#include "harness.h"

namespace tensorlane::conformance {
namespace {

// A transport that has a better one, which its peers do not have: it must be as good as the one that is left.
TransportKind second_best() {
  TransportKind kind = tcp_ipv4();
  kind.name = "tcp_second_best";
  kind.cycles = 2000;
  kind.largest = mib(64);
  kind.make = [tcp = tcp_ipv4()](const HostOptions& options, std::uint16_t data_port, ports::FrameSink& sink) {
    mixed::MixedConfig config;
    const auto member = [&](const std::string& name, std::uint16_t offset, Status offered) {
      const auto port = static_cast<std::uint16_t>(data_port + offset);
      config.members.push_back({name, offset, [=](ports::FrameSink& own) { return tcp.make(options, port, own); },
                                [offered](const std::string&) { return offered; }});
    };
    member("better", 8, {Code::kNotFound, "the peer has no such device", "fabric.yaml"});
    member("tcp", 0, {});
    return mixed::make_mixed_transport(std::move(config), sink);
  };
  return kind;
}

}  // namespace

std::vector<TransportKind> kinds_under_test() {
  return {tcp_ipv4(), tcp_ipv6(), second_best()};
}

}  // namespace tensorlane::conformance
