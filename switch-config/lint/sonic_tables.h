// Inside the SONiC parser: config_db.json as tables of rows, and rule L9 about them.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/json/json.h"
#include "switch-config/findings/findings.h"

namespace tensorlane::lint::sonic {

// A row's fields. Values that are not strings read as absent: check_tables reports them.
class Row {
 public:
  Row() = default;
  Row(std::string place, const nlohmann::json* fields) : place_(std::move(place)), fields_(fields) {}

  explicit operator bool() const { return fields_ != nullptr; }
  const std::string& place() const { return place_; }
  std::string place(std::string_view field) const { return place_ + "|" + std::string(field); }
  std::optional<std::string_view> text(std::string_view field) const;
  std::optional<std::int64_t> number(std::string_view field) const;
  // Of all fields.
  std::vector<std::string> names() const;
  // The row that a reference names, without the brackets of old releases; empty: none.
  std::string_view reference(std::string_view field) const;

 private:
  std::string place_;
  const nlohmann::json* fields_ = nullptr;
};

class Tables {
 public:
  // InvalidArgument, where = `path`.
  static Result<Tables> parse(std::string_view text, const std::string& path);

  bool has(std::string_view table) const;
  Row row(std::string_view table, std::string_view key) const;
  void for_each_row(std::string_view table, const std::function<void(const std::string& key, const Row&)>& see) const;
  const nlohmann::json& root() const { return root_; }
  const std::set<std::string>& doubled_keys() const { return doubled_; }

 private:
  nlohmann::json root_;
  std::set<std::string> doubled_;
};

// Whose keys begin with a port, or with several and commas in old files; QUEUE's and BUFFER_QUEUE's on a chassis with
// the names of its host and ASIC.
inline constexpr std::array<std::string_view, 7> kTablesOfPorts{"PORT_QOS_MAP",
                                                                "QUEUE",
                                                                "BUFFER_PG",
                                                                "BUFFER_QUEUE",
                                                                "PFC_WD",
                                                                "BUFFER_PORT_INGRESS_PROFILE_LIST",
                                                                "BUFFER_PORT_EGRESS_PROFILE_LIST"};
// "Ethernet0|3-4" and "host|Asic0|Ethernet0|3" -> "Ethernet0".
std::string_view port_of(std::string_view key);
// What stands in the place of a port: the rows of the whole switch, and its processor.
inline constexpr std::string_view kGlobal = "global";
bool is_no_port(std::string_view name);

// "[SCHEDULER|scheduler.0]" -> "scheduler.0"; anything else is itself.
std::string_view without_brackets(std::string_view reference);

// Rule L9, and the formats that L5, L6 and L8 ask for: values are strings that the device can read, references lead
// somewhere, ports exist.
void check_tables(const Tables& tables, const std::string& device, findings::Report& report);

}  // namespace tensorlane::lint::sonic
