#include "daemon/transport/mixed/mixed_transport.h"
#include "harness.h"

namespace tensorlane::conformance {
namespace {

// A transport with a better one, whose ends must be as good as those of the one that is left: either the peers do not
// have it, or both are measured and one is chosen.
TransportKind second_best(const std::string& name, const Status& offered) {
  TransportKind kind = tcp_ipv4();
  kind.name = name;
  kind.cycles = 2000;
  kind.largest = mib(64);
  kind.make = [offered, tcp = tcp_ipv4()](const HostOptions& options, std::uint16_t data_port,
                                          ports::FlowOwner& owner) {
    mixed::MixedConfig config;
    for (const ClassSetup& c : options.classes) config.classes.push_back(c.tag.cls);
    const auto member = [&](const std::string& name, std::uint16_t offset, const Status& offers) {
      const auto port = static_cast<std::uint16_t>(data_port + offset);
      config.members.push_back({name, offset, [=](ports::FlowOwner& own) { return tcp.make(options, port, own); },
                                [offers](const std::string&) { return offers; }});
    };
    member("better", 8, offered);
    member("tcp", 0, {});
    return mixed::make_mixed_transport(std::move(config), owner);
  };
  return kind;
}

}  // namespace

std::vector<TransportKind> kinds_under_test() {
  return {tcp_ipv4(),
          tcp_ipv6(),
          tcp_protected(DataProtection::kAuthenticate),
          tcp_protected(DataProtection::kEncrypt),
          second_best("tcp_second_best", {Code::kNotFound, "the peer has no such device", "fabric.yaml"}),
          second_best("tcp_measured", {})};
}

}  // namespace tensorlane::conformance
