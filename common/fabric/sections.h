// Inside common/fabric: one reader for each section of the file, and the checks between sections.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/status.h"
#include "common/base/suggestion.h"
#include "common/fabric/fabric.h"
#include "common/fabric/yaml_reader.h"

namespace tensorlane::fabric {

inline Status error(std::string what, std::string where, std::string fix) {
  return Status(Code::kInvalidArgument, std::move(what), std::move(where), std::move(fix));
}

// "FILE:LINE"
inline std::string at_line(const Fabric& fabric, int line) {
  return fabric.path + ":" + std::to_string(line);
}

// Each is empty or has its defaults where the file has no such section. Patterns are expanded.
Result<std::vector<Host>> read_hosts(const Mapping& file);
Result<std::vector<Switch>> read_switches(const Mapping& file);
Result<std::vector<Link>> read_links(const Mapping& file);
Result<Qos> read_qos(const Mapping& file);
Result<Routing> read_routing(const Mapping& file);
Result<Urgencies> read_urgencies(const Mapping& file);
Result<NcclPolicy> read_nccl(const Mapping& file);

// No port is in two links or listed twice; a link is as fast as its ports, which are listed where its switch lists any.
Status check_link_ports(const Fabric& fabric);
// Services are of classes that exist, and CNP shares no code point by accident.
Status check_qos(const Fabric& fabric);
// Routes lead along links.
Status check_routing(const Fabric& fabric);
// Groups get classes that exist.
Status check_nccl(const Fabric& fabric);

// Whether text can be written as it is: write.cc has no escapes.
bool is_plain(const std::string& text);
// "allreduce", "broadcast", ..., by Operation.
std::vector<std::string_view> operation_names();

// Calls read(path, node) for every item of a list and returns what they stand for, at most kMaxItems.
template <typename T>
Result<std::vector<T>> read_list(const Mapping& file, std::string_view key,
                                 Result<std::vector<T>> (*read)(const std::string&, const YAML::Node&)) {
  std::vector<T> items;
  if (!file.has(key)) return items;
  TL_ASSIGN_OR_RETURN(const YAML::Node list, file.list(key));
  for (const auto& node : list) {
    TL_ASSIGN_OR_RETURN(std::vector<T> some, read(file.path(), node));
    if (items.size() + some.size() > kMaxItems)
      return error(fmt::format("more than {} {}", kMaxItems, key), place(file.path(), node),
                   "expected no more in one file");
    items.insert(items.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return items;
}

}  // namespace tensorlane::fabric
