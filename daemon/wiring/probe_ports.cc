#include "daemon/wiring/probe_ports.h"

#include <algorithm>

#include <fmt/format.h>

namespace tensorlane::wiring {
namespace {

using nlohmann::json;

// The ports of one host: control first, then one of each class.
bool is_of(std::uint16_t first, std::uint64_t port) {
  return port >= first && port <= first + kMaxDataClasses;
}

Status not_allowed(const json& port) {
  return {Code::kInvalidArgument,
          fmt::format("port {} is no data port of the fabric that this daemon has read", port.dump()),
          "tensorlane verify", "give it that fabric file"};
}

}  // namespace

ProbePorts::ProbePorts(const fabric::Fabric& fabric, std::string_view host) : own_(fabric.find_host(host)->data_port) {
  for (const fabric::Host& one : fabric.hosts) all_.insert(one.data_port);
}

Status ProbePorts::check(const json& command) const {
  for (const char* list : {"sockets", "flows", "bursts"}) {
    const auto found = command.is_object() ? command.find(list) : command.end();
    if (found == command.end() || !found->is_array()) continue;
    const bool listens = list == std::string_view("sockets");
    for (const json& item : *found) {
      const json port = item.is_object() ? item.value("port", json()) : json();
      if (!port.is_number_unsigned()) return not_allowed(port);
      const auto number = port.get<std::uint64_t>();
      const auto fits = [number](std::uint16_t first) { return is_of(first, number); };
      if (listens ? !fits(own_) : std::ranges::none_of(all_, fits)) return not_allowed(port);
    }
  }
  return {};
}

}  // namespace tensorlane::wiring
