#include "common/fabric/fabric.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace tensorlane::fabric {

namespace {

constexpr Bytes kMinWindow = kib(256);
constexpr Bytes kMaxWindow = mib(4);
constexpr std::uint64_t kWindowsPerSecond = 500;  // a window is what the link carries in 2 ms

}  // namespace

ClassTable preset(Preset preset) {
  // Greenfield: local code points that no standard class uses. Brownfield: bulk where RoCE usually lives today.
  const std::uint8_t bulk_dscp = preset == Preset::kGreenfield ? 27 : 26;
  ClassTable table;
  table.data = {
      {.name = "urgent", .dscp = 43, .pcp = 5, .service_level = 5, .lossless = true, .rank = 0, .window = {}},
      {.name = "bulk", .dscp = bulk_dscp, .pcp = 3, .service_level = 3, .lossless = true, .rank = 1, .window = {}},
  };
  table.control = {
      .name = "control", .dscp = 51, .pcp = 6, .service_level = 6, .lossless = false, .rank = 0, .window = {}};
  table.thresholds = even_thresholds(table.data.size());
  return table;
}

std::vector<double> even_thresholds(std::size_t classes) {
  std::vector<double> thresholds;
  for (std::size_t above = classes; above > 1; --above) {
    thresholds.push_back(static_cast<double>(above - 1) / static_cast<double>(classes));
  }
  return thresholds;
}

const Host* Fabric::find_host(std::string_view name) const {
  const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) { return host.name == name; });
  return found == hosts.end() ? nullptr : &*found;
}

const Switch* Fabric::find_switch(std::string_view name) const {
  const auto found = std::find_if(switches.begin(), switches.end(), [&](const Switch& sw) { return sw.name == name; });
  return found == switches.end() ? nullptr : &*found;
}

const Host* Fabric::find_host_by_name_or_address(std::string_view text) const {
  if (const Host* host = find_host(text)) return host;
  for (const Host& host : hosts) {
    for (const auto& [transport, rails] : host.addresses) {
      if (std::find(rails.begin(), rails.end(), text) != rails.end()) return &host;
    }
  }
  return nullptr;
}

const std::string* Host::find_address(const std::string& transport, RailIndex rail) const {
  const auto found = addresses.find(transport);
  return found == addresses.end() || rail.value >= found->second.size() ? nullptr : &found->second[rail.value];
}

std::optional<BitsPerSecond> Fabric::link_speed(const Host& host, RailIndex rail) const {
  std::vector<BitsPerSecond> own;
  for (const Link& link : links) {
    if (link.from == host.name || link.to == host.name) own.push_back(link.speed);
  }
  return own.size() == host.rails() && rail.value < own.size() ? std::optional(own[rail.value]) : link_speed(host);
}

std::optional<BitsPerSecond> Fabric::link_speed(const Host& host) const {
  std::optional<BitsPerSecond> slowest;
  for (const Link& link : links) {
    if (link.from != host.name && link.to != host.name) continue;
    slowest = slowest ? std::min(*slowest, link.speed) : link.speed;
  }
  return slowest;
}

std::optional<BitsPerSecond> Fabric::slowest_link() const {
  std::optional<BitsPerSecond> slowest;
  for (const Host& host : hosts) {
    const std::optional<BitsPerSecond> speed = link_speed(host);
    if (speed && (!slowest || *speed < *slowest)) slowest = speed;
  }
  return slowest;
}

Result<std::string> resolve_address(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::array<char, NI_MAXHOST> text{};
  int error = getaddrinfo(address.c_str(), nullptr, &hints, &found);
  if (error == 0) {
    error = getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    freeaddrinfo(found);
  }
  if (error == 0) return std::string(text.data());
  return Status(Code::kNotFound, gai_strerror(error), address,
                "expected an IPv4 or IPv6 address or a name that DNS or /etc/hosts knows");
}

Status check_addresses(const Fabric& fabric, const Host& host) {
  for (const auto& [transport, rails] : host.addresses) {
    if (transport == "local") continue;  // names a machine, not a place in a network
    for (const std::string& address : rails) {
      const Result<std::string> numeric = resolve_address(address);
      if (numeric.ok()) continue;
      return Status(Code::kInvalidArgument,
                    fmt::format("the {} address '{}' of host '{}' does not resolve ({})", transport, address, host.name,
                                numeric.status().what()),
                    fmt::format("{}:{}", fabric.path, host.line), numeric.status().fix());
    }
  }
  return Status::ok_status();
}

Bytes window(const TrafficClass& cls, std::optional<BitsPerSecond> link) {
  if (cls.window) return *cls.window;
  if (!link) return kMaxWindow;
  return std::clamp(Bytes(bytes_per_second(*link) / kWindowsPerSecond), kMinWindow, kMaxWindow);
}

}  // namespace tensorlane::fabric
