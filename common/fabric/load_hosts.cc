// The section 'hosts' of fabric.yaml.
#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "common/fabric/pattern.h"
#include "common/fabric/sections.h"

namespace tensorlane::fabric {

namespace {

constexpr std::array<std::string_view, 7> kHostKeys{"name",       "addresses",    "control_port", "data_port",
                                                    "public_key", "rdma_devices", "retry_budget"};
constexpr std::array<std::string_view, 4> kTransports{"tcp", "rdma", "dpdk", "local"};
constexpr std::string_view kZ85Extra = ".-:+=^!/*?&<>()[]{}@%$#";  // beside letters and digits
constexpr std::size_t kPublicKeyLength = 40;

// What the patterns of one transport stand for: by rail, then by host.
using Rails = std::vector<std::vector<std::string>>;

// Of numeric addresses, with an interface ("fe80::1%eth0"), and of names.
bool is_address_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || std::string_view(".:-_%").find(c) != std::string_view::npos;
}

bool is_address(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_address_character);
}

// One address, or a list of them: one for each rail.
Result<Rails> read_rails(const Mapping& addresses, std::string_view transport) {
  constexpr std::string_view kExpected = "expected an IPv4 or IPv6 address or a name that resolves to one";
  std::vector<std::string> patterns;
  const bool one = !addresses.get(transport).IsSequence();
  if (one) {
    TL_ASSIGN_OR_RETURN(std::string address, addresses.text(transport));
    patterns.push_back(std::move(address));
  } else {
    for (const auto& node : addresses.get(transport))
      patterns.push_back(node.IsScalar() ? node.Scalar() : std::string());
  }
  if (patterns.empty() || patterns.size() > kMaxRails) {
    return error(fmt::format("{} {} addresses", patterns.size(), transport), addresses.place(transport),
                 fmt::format("expected one, or a list of 1 to {}: one for each rail", kMaxRails));
  }
  Rails rails;
  for (const std::string& pattern : patterns) {
    Result<std::vector<std::string>> texts = expand(pattern, kMaxItems);
    if (!texts.ok()) return error(texts.status().what(), addresses.place(transport), texts.status().fix());
    if (!std::all_of(texts->begin(), texts->end(), is_address)) {
      if (one) return addresses.wrong(transport, std::string(kExpected));
      return error(fmt::format("{} address '{}'", transport, pattern), addresses.place(transport),
                   std::string(kExpected));
    }
    rails.push_back(std::move(*texts));
  }
  return rails;
}

// As many addresses as hosts; machines ('local') may have several hosts each.
Status check_count(const Mapping& addresses, const std::string& transport, std::size_t texts, std::size_t hosts) {
  const bool fits = transport == "local" ? hosts % texts == 0 : hosts == texts;
  if (fits) return Status::ok_status();
  return error(fmt::format("{} {} addresses for {} hosts", texts, transport, hosts), addresses.place(transport),
               "expected patterns that stand for as many addresses as names");
}

Status check_rails(const Host& host, const std::string& subject, const Mapping& addresses) {
  for (const auto& [transport, rails] : host.addresses) {
    if (rails.size() == host.rails() || (transport == "local" && rails.size() == 1)) continue;
    return error(
        fmt::format("{} tcp addresses and {} {} addresses in {}", host.rails(), rails.size(), transport, subject),
        addresses.place(transport), "expected one of each for every rail");
  }
  return Status::ok_status();
}

Result<std::string> read_public_key(const Mapping& map) {
  TL_ASSIGN_OR_RETURN(std::string key, map.text("public_key"));
  const auto z85 = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || kZ85Extra.find(c) != kZ85Extra.npos;
  };
  if (key.size() == kPublicKeyLength && std::all_of(key.begin(), key.end(), z85)) return key;
  return map.wrong("public_key", fmt::format("expected {} characters of Z85, as `tensorlane make-key` prints them",
                                             kPublicKeyLength));
}

// What is the same for all hosts of an entry.
Status read_common(const Mapping& map, Host& host) {
  if (map.has("control_port")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t port, map.number("control_port", 1, 65535));
    host.control_port = static_cast<std::uint16_t>(port);
  }
  if (map.has("data_port")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t port, map.number("data_port", 1, 65535));
    host.data_port = static_cast<std::uint16_t>(port);
  }
  if (map.has("public_key")) {
    TL_ASSIGN_OR_RETURN(host.public_key, read_public_key(map));
  }
  if (map.has("retry_budget")) {
    TL_ASSIGN_OR_RETURN(host.retry_budget, map.duration("retry_budget"));
  }
  if (!map.has("rdma_devices")) return Status::ok_status();
  TL_ASSIGN_OR_RETURN(const YAML::Node devices, map.list("rdma_devices"));
  for (const auto& node : devices) {
    if (!node.IsScalar() || !is_name(node.Scalar()))
      return map.wrong("rdma_devices", "expected a list of names such as [mlx5_0, mlx5_1]");
    host.rdma_devices.push_back(node.Scalar());
  }
  if (host.rdma_devices.size() == host.rails()) return Status::ok_status();
  return map.wrong("rdma_devices", fmt::format("expected one for each of {} rails", host.rails()));
}

Result<std::vector<Host>> read_host_entry(const std::string& path, const YAML::Node& node) {
  std::string subject = "a host";
  if (node.IsMap() && node["name"] && node["name"].IsScalar())
    subject = fmt::format("host '{}'", node["name"].Scalar());
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, node, subject, kHostKeys));
  TL_ASSIGN_OR_RETURN(const std::vector<std::string> names, map.names("name"));
  if (!map.has("addresses"))
    return error("no 'addresses' in " + subject, map.place(), "add 'addresses: {tcp: ADDRESS}'");
  TL_ASSIGN_OR_RETURN(const Mapping addresses,
                      Mapping::open(path, map.get("addresses"), "'addresses' of " + subject, kTransports));
  Host common;
  common.line = map.line();
  std::map<std::string, Rails> texts;
  for (std::string_view transport : kTransports) {
    if (!addresses.has(transport)) continue;
    TL_ASSIGN_OR_RETURN(Rails rails, read_rails(addresses, transport));
    for (const auto& rail : rails)
      TL_RETURN_IF_ERROR(check_count(addresses, std::string(transport), rail.size(), names.size()));
    common.addresses[std::string(transport)].resize(rails.size());
    texts.emplace(transport, std::move(rails));
  }
  if (!addresses.has("tcp"))
    return error("no 'tcp' in 'addresses' of " + subject, addresses.place(), "add 'tcp: ADDRESS'");
  TL_RETURN_IF_ERROR(check_rails(common, subject, addresses));
  TL_RETURN_IF_ERROR(read_common(map, common));
  std::vector<Host> hosts;
  hosts.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    Host& host = hosts.emplace_back(common);
    host.name = names[i];
    for (auto& [transport, rails] : host.addresses) {
      const Rails& from = texts.at(transport);
      for (std::size_t rail = 0; rail < rails.size(); ++rail) rails[rail] = from[rail][i % from[rail].size()];
    }
  }
  return hosts;
}

}  // namespace

Result<std::vector<Host>> read_hosts(const Mapping& file) {
  return read_list<Host>(file, "hosts", read_host_entry);
}

}  // namespace tensorlane::fabric
