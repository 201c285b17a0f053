// fabric.yaml -> Fabric: the file, its classes, and last the checks between its sections.
#include <arpa/inet.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "common/fabric/sections.h"

namespace tensorlane::fabric {

namespace {

constexpr std::array<std::string_view, 9> kFileKeys{"classes", "data_protection", "hosts",     "switches", "links",
                                                    "qos",     "routing",         "urgencies", "nccl"};
constexpr std::array<std::string_view, 3> kClassesKeys{"data", "control", "thresholds"};
constexpr std::array<std::string_view, 7> kDataClassKeys{"name",     "dscp", "pcp",   "service_level",
                                                         "lossless", "rank", "window"};
constexpr std::array<std::string_view, 5> kControlKeys{"name", "dscp", "pcp", "service_level", "lossless"};
constexpr std::array<std::string_view, 2> kPresets{"greenfield", "brownfield"};

// --- classes

// A class with the line that each of its numbers stands on.
struct ReadClass {
  TrafficClass cls;
  std::string where;
  int line = 0;
};

Result<ReadClass> read_class(const std::string& path, const YAML::Node& node, bool control, std::uint8_t position) {
  std::string subject = control ? "class 'control'" : "a class";
  if (!control && node.IsMap() && node["name"] && node["name"].IsScalar()) {
    subject = fmt::format("class '{}'", node["name"].Scalar());
  }
  const std::span<const std::string_view> keys =
      control ? std::span<const std::string_view>(kControlKeys) : std::span<const std::string_view>(kDataClassKeys);
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, node, subject, keys));
  TrafficClass cls;
  cls.name = "control";
  if (!control || map.has("name")) {
    TL_ASSIGN_OR_RETURN(cls.name, map.name("name"));
  }
  TL_ASSIGN_OR_RETURN(const std::uint64_t dscp, map.number("dscp", 0, 63));
  TL_ASSIGN_OR_RETURN(const std::uint64_t pcp, map.number("pcp", 0, 7));
  cls.dscp = static_cast<std::uint8_t>(dscp);
  cls.pcp = static_cast<std::uint8_t>(pcp);
  cls.service_level = cls.pcp;
  if (map.has("service_level")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t level, map.number("service_level", 0, 15));
    cls.service_level = static_cast<std::uint8_t>(level);
  }
  cls.lossless = !control;  // as in the presets
  if (map.has("lossless")) {
    TL_ASSIGN_OR_RETURN(cls.lossless, map.flag("lossless"));
  }
  cls.rank = position;
  if (map.has("rank")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t rank, map.number("rank", 0, 255));
    cls.rank = static_cast<std::uint8_t>(rank);
  }
  if (map.has("window")) {
    TL_ASSIGN_OR_RETURN(cls.window, map.bytes("window"));
  }
  return ReadClass{cls, map.place(), map.line()};
}

// Two classes that a NIC or switch could not tell apart.
Status check_distinct(const ReadClass& first, const ReadClass& second, bool both_data) {
  struct Field {
    const char* name;
    unsigned a, b;
  };
  std::vector<Field> fields{{"DSCP", first.cls.dscp, second.cls.dscp},
                            {"PCP", first.cls.pcp, second.cls.pcp},
                            {"service level", first.cls.service_level, second.cls.service_level}};
  if (both_data) fields.push_back({"rank", first.cls.rank, second.cls.rank});
  for (const Field& field : fields) {
    if (field.a != field.b) continue;
    return error(
        fmt::format("doubled {} {} in class '{}'", field.name, field.a, second.cls.name), second.where,
        fmt::format("class '{}' on line {} has it too; every class needs its own", first.cls.name, first.line));
  }
  if (first.cls.name == second.cls.name) {
    return error(fmt::format("doubled class name '{}'", second.cls.name), second.where,
                 fmt::format("the other one is on line {}; rename one of them", first.line));
  }
  return Status::ok_status();
}

Result<std::vector<double>> read_thresholds(const std::string& path, const Mapping& map, std::size_t classes) {
  if (!map.has("thresholds")) return even_thresholds(classes);
  TL_ASSIGN_OR_RETURN(const YAML::Node list, map.list("thresholds"));
  if (list.size() != classes - 1) {
    return error(fmt::format("{} thresholds for {} data classes", list.size(), classes), map.place("thresholds"),
                 fmt::format("expected {}, one fewer than classes", classes - 1));
  }
  std::vector<double> thresholds;
  for (const auto& node : list) {
    const std::string text = node.IsScalar() ? node.Scalar() : std::string();
    const std::optional<double> value = fraction_of(node);
    if (!value) return error(fmt::format("threshold '{}'", text), place(path, node), "expected a number from 0 to 1");
    if (!thresholds.empty() && !(*value < thresholds.back())) {
      return error(fmt::format("threshold {} after {}", text, thresholds.back()), place(path, node),
                   "expected descending thresholds: the first one belongs to the most urgent class");
    }
    thresholds.push_back(*value);
  }
  return thresholds;
}

Result<ClassTable> read_class_table(const std::string& path, const YAML::Node& node) {
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, node, "'classes'", kClassesKeys));
  TL_ASSIGN_OR_RETURN(const YAML::Node list, map.list("data"));
  if (list.size() < kMinFileClasses || list.size() > kMaxFileClasses) {
    return error(fmt::format("{} data classes", list.size()), map.place("data"),
                 fmt::format("expected {} to {}", kMinFileClasses, kMaxFileClasses));
  }
  std::vector<ReadClass> data;
  for (const auto& item : list) {
    TL_ASSIGN_OR_RETURN(ReadClass read, read_class(path, item, false, static_cast<std::uint8_t>(data.size())));
    data.push_back(std::move(read));
  }
  ReadClass control{preset(Preset::kGreenfield).control, map.place(), map.line()};
  if (map.has("control")) {
    TL_ASSIGN_OR_RETURN(control, read_class(path, map.get("control"), true, 0));
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) TL_RETURN_IF_ERROR(check_distinct(data[j], data[i], true));
    TL_RETURN_IF_ERROR(check_distinct(control, data[i], false));
  }
  std::sort(data.begin(), data.end(), [](const ReadClass& a, const ReadClass& b) { return a.cls.rank < b.cls.rank; });
  ClassTable table;
  for (ReadClass& read : data) table.data.push_back(std::move(read.cls));
  table.control = std::move(control.cls);
  TL_ASSIGN_OR_RETURN(table.thresholds, read_thresholds(path, map, table.data.size()));
  return table;
}

Result<ClassTable> read_classes(const std::string& path, const Mapping& file) {
  if (!file.has("classes")) return preset(Preset::kGreenfield);
  const YAML::Node node = file.get("classes");
  if (!node.IsScalar()) return read_class_table(path, node);
  if (node.Scalar() == "greenfield") return preset(Preset::kGreenfield);
  if (node.Scalar() == "brownfield") return preset(Preset::kBrownfield);
  return error(
      fmt::format("unknown classes '{}'", node.Scalar()), place(path, node),
      suggestion(node.Scalar(), kPresets) + "expected greenfield, brownfield or a mapping with " + join(kClassesKeys));
}

// --- checks between sections

// Names of hosts and switches -> the line they stand on.
using Lines = std::map<std::string, int, std::less<>>;

Result<Lines> check_names(const Fabric& fabric) {
  Lines lines;
  const auto add = [&](const char* kind, const std::string& name, int line) -> Status {
    const auto [first, inserted] = lines.emplace(name, line);
    if (inserted) return Status::ok_status();
    return error(fmt::format("doubled name '{}' of a {}", name, kind), fmt::format("{}:{}", fabric.path, line),
                 fmt::format("the other one is on line {}; rename one of them", first->second));
  };
  for (const Host& host : fabric.hosts) TL_RETURN_IF_ERROR(add("host", host.name, host.line));
  for (const Switch& sw : fabric.switches) TL_RETURN_IF_ERROR(add("switch", sw.name, sw.line));
  return lines;
}

// The same text for every way to write one address.
std::string normal_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> binary{};
  std::array<char, INET6_ADDRSTRLEN> out{};
  for (int family : {AF_INET, AF_INET6}) {
    if (inet_pton(family, text.c_str(), binary.data()) == 1) {
      return inet_ntop(family, binary.data(), out.data(), out.size());
    }
  }
  return text;
}

// An address and port that some host listens on.
struct Owner {
  const Host* host = nullptr;
  std::size_t rail = 0;
};
using Owners = std::map<std::pair<std::string, std::size_t>, Owner>;

Status take_port(const Fabric& fabric, Owners& owners, const Owner& taker, std::size_t port) {
  const Host& host = *taker.host;
  const std::string& address = host.addresses.at("tcp")[taker.rail];
  const auto [first, inserted] = owners.emplace(std::pair(normal_address(address), port), taker);
  if (inserted) return Status::ok_status();
  const std::string where = fmt::format("{}:{}", fabric.path, host.line);
  const Owner& other = first->second;
  if (other.host == &host && other.rail != taker.rail) {
    return error(fmt::format("rails {} and {} of host '{}' have the same address {}", other.rail, taker.rail, host.name,
                             address),
                 where, "expected an address of its own for each rail");
  }
  if (other.host == &host) {
    const std::size_t listeners = fabric.classes.data.size() + 1;
    return error(fmt::format("'control_port' {} of host '{}' is one of its data ports", port, host.name), where,
                 fmt::format("expected a port outside {}..{}", host.data_port, host.data_port + listeners - 1));
  }
  return error(fmt::format("host '{}' has address {} port {} of host '{}'", host.name, address, port, other.host->name),
               where,
               fmt::format("host '{}' is on line {}; change the address or the ports of one of them", other.host->name,
                           other.host->line));
}

// Every listener of the fabric has its own address and port: one for control, then one per rail and class.
Status check_ports(const Fabric& fabric) {
  const std::size_t listeners = fabric.classes.data.size() + 1;
  Owners owners;
  for (const Host& host : fabric.hosts) {
    const std::string where = fmt::format("{}:{}", fabric.path, host.line);
    if (host.data_port + listeners - 1 > 65535) {
      return error(fmt::format("'data_port' of host '{}' is {}", host.name, host.data_port), where,
                   fmt::format("expected at most {}: one port for control and one per class follow each other",
                               65536 - listeners));
    }
    TL_RETURN_IF_ERROR(take_port(fabric, owners, {&host, 0}, host.control_port));
    for (std::size_t rail = 0; rail < host.rails(); ++rail) {
      for (std::size_t i = 0; i < listeners; ++i)
        TL_RETURN_IF_ERROR(take_port(fabric, owners, {&host, rail}, host.data_port + i));
    }
  }
  return Status::ok_status();
}

// Of ports that daemons drive themselves, all of which have one UDP port.
Status check_dpdk_addresses(const Fabric& fabric) {
  std::map<std::string, const Host*> owners;
  for (const Host& host : fabric.hosts) {
    const auto found = host.addresses.find("dpdk");
    if (found == host.addresses.end()) continue;
    for (const std::string& address : found->second) {
      const auto [first, inserted] = owners.emplace(normal_address(address), &host);
      if (inserted) continue;
      return error(
          fmt::format("host '{}' has the dpdk address {} of host '{}'", host.name, address, first->second->name),
          fmt::format("{}:{}", fabric.path, host.line),
          fmt::format("the other one is on line {}; every port needs an address of its own", first->second->line));
    }
  }
  return Status::ok_status();
}

Status check_keys(const Fabric& fabric, Keys keys) {
  std::map<std::string_view, const Host*> owners;
  for (const Host& host : fabric.hosts) {
    const std::string where = fmt::format("{}:{}", fabric.path, host.line);
    if (host.public_key.empty()) {
      if (keys == Keys::kOptional || fabric.hosts.size() == 1) continue;
      return error(fmt::format("no 'public_key' in host '{}'", host.name), where,
                   "daemons of several hosts need one each; `tensorlane make-key` makes a pair");
    }
    const auto [first, inserted] = owners.emplace(host.public_key, &host);
    if (inserted) continue;
    return error(fmt::format("host '{}' has the public key of host '{}'", host.name, first->second->name), where,
                 fmt::format("the other one is on line {}; every daemon needs its own pair", first->second->line));
  }
  return Status::ok_status();
}

Status check_links(const Fabric& fabric, const Lines& names) {
  std::set<std::string_view> hosts;
  for (const Host& host : fabric.hosts) hosts.insert(host.name);
  for (const Link& link : fabric.links) {
    const std::string where = fmt::format("{}:{}", fabric.path, link.line);
    for (const auto& [end, name] : {std::pair("from", &link.from), std::pair("to", &link.to)}) {
      if (names.contains(*name)) continue;
      std::vector<std::string_view> known;
      for (const auto& [known_name, line] : names) known.push_back(known_name);
      return error(fmt::format("'{}' of a link is '{}', which is no host or switch", end, *name), where,
                   suggestion(*name, known) + "expected the name of a host or switch in this file");
    }
    if (hosts.contains(link.to)) {
      return error(fmt::format("'to' of a link is the host '{}'", link.to), where,
                   "expected a switch; hosts stand in 'from'");
    }
    if (link.from == link.to) {
      return error(fmt::format("link from '{}' to itself", link.from), where, "expected two ends");
    }
    if (link.buffer && link.buffer->value < link.mtu) {
      return error(fmt::format("'buffer' of the link from '{}' is {}", link.from, format_bytes(*link.buffer)), where,
                   fmt::format("expected at least one packet of its mtu, {} bytes", link.mtu));
    }
  }
  return Status::ok_status();
}

Result<Fabric> read_fabric(const std::string& text, const std::string& path, Keys keys) {
  const YAML::Node root = YAML::Load(text);
  if (!root || root.IsNull())
    return error("empty fabric file", path + ":1", "expected a mapping with " + join(kFileKeys));
  TL_ASSIGN_OR_RETURN(const Mapping file, Mapping::open(path, root, "the fabric file", kFileKeys));
  Fabric fabric;
  fabric.path = path;
  TL_ASSIGN_OR_RETURN(fabric.classes, read_classes(path, file));
  if (file.has("data_protection")) {
    TL_ASSIGN_OR_RETURN(const std::size_t level, file.one_of("data_protection", kDataProtectionNames));
    fabric.data_protection = static_cast<DataProtection>(level);
  }
  TL_ASSIGN_OR_RETURN(fabric.hosts, read_hosts(file));
  if (fabric.hosts.empty()) {
    return error("no hosts in the fabric file", file.has("hosts") ? file.place("hosts") : file.place(),
                 "add 'hosts: [{name: NAME, addresses: {tcp: ADDRESS}}]'");
  }
  TL_ASSIGN_OR_RETURN(fabric.switches, read_switches(file));
  TL_ASSIGN_OR_RETURN(fabric.links, read_links(file));
  TL_ASSIGN_OR_RETURN(fabric.qos, read_qos(file));
  TL_ASSIGN_OR_RETURN(fabric.routing, read_routing(file));
  TL_ASSIGN_OR_RETURN(fabric.urgencies, read_urgencies(file));
  TL_ASSIGN_OR_RETURN(fabric.nccl, read_nccl(file));
  TL_ASSIGN_OR_RETURN(const Lines names, check_names(fabric));
  TL_RETURN_IF_ERROR(check_ports(fabric));
  TL_RETURN_IF_ERROR(check_dpdk_addresses(fabric));
  TL_RETURN_IF_ERROR(check_keys(fabric, keys));
  TL_RETURN_IF_ERROR(check_links(fabric, names));
  TL_RETURN_IF_ERROR(check_link_ports(fabric));
  TL_RETURN_IF_ERROR(check_qos(fabric));
  TL_RETURN_IF_ERROR(check_routing(fabric));
  TL_RETURN_IF_ERROR(check_nccl(fabric));
  return fabric;
}

// Whether opening it would wait for a writer that may never come: a pipe with a name. One that is open already, as of
// <(command) in a shell, has its writer.
bool is_named_pipe(const std::string& path) {
  struct stat info {};
  const auto is_below = [&](const char* folder) { return path.starts_with(folder); };
  return stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode) && path != "/dev/stdin" && !is_below("/dev/fd/") &&
         !is_below("/proc/self/fd/");
}

}  // namespace

Result<Fabric> parse(const std::string& text, const std::string& path, Keys keys) {
  try {
    return read_fabric(text, path, keys);
  } catch (const YAML::Exception& bad) {
    return error("not valid YAML: " + bad.msg, fmt::format("{}:{}", path, bad.mark.line + 1),
                 "correct the syntax there, or what was left open before it");
  }
}

Result<Fabric> load(const std::string& path, Keys keys) {
  if (is_named_pipe(path))
    return error("the fabric file is a FIFO, whose writer might never come", path,
                 "give a file, or /dev/stdin, which reads what is piped into the command");
  std::ifstream file(path);
  std::string text;
  std::array<char, 65536> chunk;
  while (file && text.size() <= kMaxFileSize) {
    file.read(chunk.data(), chunk.size());
    text.append(chunk.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (text.size() > kMaxFileSize)
    return error("the fabric file is too large", path, "expected at most 16 MiB; patterns say the same in a page");
  if (!file.eof()) {
    const int reason = errno == 0 ? EIO : errno;
    return error("cannot read the fabric file", path,
                 fmt::format("{}; give the path of a fabric.yaml", std::strerror(reason)));
  }
  return parse(text, path, keys);
}

}  // namespace tensorlane::fabric
