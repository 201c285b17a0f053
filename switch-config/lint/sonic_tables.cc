#include "switch-config/lint/sonic_tables.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "switch-config/lint/sonic_schema.h"

namespace tensorlane::lint::sonic {
namespace {

using findings::Report;
using findings::Severity;
using nlohmann::json;

constexpr std::size_t kMaxDepth = 32;
constexpr std::string_view kGiveOne = "give a config_db.json of SONiC";
constexpr std::size_t kShownText = 80;

// (table, field) that the YANG models call mandatory.
constexpr std::pair<const char*, const char*> kMandatory[] = {
    {"BUFFER_POOL", "type"},
    {"BUFFER_POOL", "mode"},
    {"BUFFER_PROFILE", "pool"},
    {"BUFFER_PROFILE", "size"},
    {"DEFAULT_LOSSLESS_BUFFER_PARAMETER", "default_dynamic_th"},
    {"LOSSLESS_TRAFFIC_PATTERN", "mtu"},
    {"LOSSLESS_TRAFFIC_PATTERN", "small_packet_percentage"},
};

std::string line_at(std::string_view text, std::size_t byte) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size()));
  return std::to_string(1 + std::count(text.begin(), end, '\n'));
}

std::string shortened(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kShownText) text = text.substr(0, kShownText) + "...";
  return text;
}

bool bracketed(std::string_view reference) {
  return reference.starts_with('[') && reference.ends_with(']');
}

// Sees doubled keys, which the parser itself does not, and stops at too much nesting. Not the parser's callback: with
// one, its time grows with the square of the rows.
struct Watcher : nlohmann::json_sax<json> {
  std::set<std::string> doubled;
  bool deep = false;
  std::size_t wrong_byte = 0;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) doubled.insert(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    wrong_byte = position;
    return false;
  }

 private:
  bool enter() {
    keys_.emplace_back();
    deep = keys_.size() > kMaxDepth;
    return !deep;
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;
};

// Checks every field of every table that is known.
class Checker {
 public:
  Checker(const Tables& tables, const std::string& device, Report& report)
      : tables_(tables), device_(device), report_(report) {
    tables.for_each_row("PORT", [&](const std::string&, const Row&) { has_ports_ = true; });
  }

  void run() {
    for (const auto& [table, rows] : tables_.root().items()) {
      const bool known = find_map_table(table) != nullptr || is_known_table(table);
      if (!known && is_about_qos(table) && !rows.empty()) report_.unparsed.push_back({device_, table, shortened(rows)});
      if (known) check_table(table, rows);
    }
    for (const std::string& key : tables_.doubled_keys())
      add("L9", Severity::kError, key, "this key comes twice in one object: only the last one counts", "keep one");
    report_brackets();
  }

 private:
  void add(std::string_view rule, Severity severity, const std::string& place, const std::string& message,
           const std::string& fix) {
    report_.findings.push_back({std::string(rule), severity, device_, place, message, fix});
  }

  void check_table(const std::string& table, const json& rows) {
    if (!rows.is_object()) {
      add("L9", Severity::kError, table, "it is not a table of rows", "write {\"key\": {\"field\": \"value\"}}");
      return;
    }
    for (const auto& [key, fields] : rows.items()) {
      const std::string place = table + "|" + key;
      if (!fields.is_object()) {
        add("L9", Severity::kError, place, "it is not a row of fields", "write {\"field\": \"value\"}");
        continue;
      }
      check_key(table, key, place);
      check_row(table, key, fields);
      for (const auto& [field, value] : fields.items()) check_value(table, place, field, value);
    }
  }

  void check_value(const std::string& table, const std::string& row, const std::string& field, const json& value) {
    const std::string place = row + "|" + field;
    if (value.is_number() || value.is_boolean()) {
      add("L9", Severity::kError, place, "every value of config_db.json is a string", "write it in quotes");
      return;
    }
    const std::string* text = value.get_ptr<const std::string*>();
    if (text == nullptr) {
      if (!value.is_array()) report_.unparsed.push_back({device_, place, shortened(value)});
      return;
    }
    if (const MapTable* map = find_map_table(table)) {
      check_entry(*map, place, field, *text);
      return;
    }
    const Field* known = find_field(table, field);
    if (known == nullptr) {
      report_.unparsed.push_back({device_, place, *text});
      add("L9", Severity::kWarning, place, fmt::format("{} has no such field", table),
          "remove it, or correct its name");
      return;
    }
    const std::string wrong = complaint(*known, *text);
    if (!wrong.empty())
      add(known->rule, Severity::kError, place, wrong,
          known->kind == Kind::kForbidden ? "remove it" : "write " + expectation(*known));
    if (known->kind == Kind::kReference) check_reference(*known, place, *text);
    if (known->kind == Kind::kReferences)
      for (const std::string_view part : split(*text, ',')) check_reference(*known, place, part);
  }

  void check_entry(const MapTable& map, const std::string& place, const std::string& field, const std::string& text) {
    const auto from = number(field), to = number(text);
    if (!from || *from < 0 || *from >= static_cast<std::int64_t>(map.keys))
      add("L9", Severity::kError, place, fmt::format("{} maps 0 to {}", map.table, map.keys - 1), "remove it");
    if (!to || *to < 0 || *to > static_cast<std::int64_t>(map.highest))
      add("L9", Severity::kError, place, fmt::format("'{}' is not a number from 0 to {}", text, map.highest),
          fmt::format("write a number from 0 to {}", map.highest));
  }

  void check_reference(const Field& field, const std::string& place, std::string_view text) {
    if (text.empty() || (field.table == "BUFFER_PG" && text == "NULL")) return;
    if (bracketed(text))
      brackets_.push_back(place);
    else
      ++bare_;
    const std::string_view name = without_brackets(text);
    if (tables_.row(field.words, name)) return;
    add("L9", Severity::kError, place, fmt::format("{} has no row '{}'", field.words, name),
        "name one that is there, or add it");
  }

  // "Ethernet0", of old templates "Ethernet0,Ethernet4", with "|3-4" behind it for queues and groups. On a chassis,
  // which has rows of other hosts' ports, queues have the names of host and ASIC before it.
  void check_key(const std::string& table, const std::string& key, const std::string& place) {
    if (std::find(kTablesOfPorts.begin(), kTablesOfPorts.end(), table) == kTablesOfPorts.end()) return;
    const bool of_queues = table == "QUEUE" || table == "BUFFER_QUEUE", numbered = of_queues || table == "BUFFER_PG";
    const auto parts = split(key, '|');
    if (parts.size() == 4 && of_queues) return check_index(table, parts[3], place);
    if (parts.size() != (numbered ? 2 : 1)) {
      add("L9", Severity::kError, place,
          fmt::format("a key of {} is {}", table, numbered ? "a port, | and a number" : "a port"),
          fmt::format("write such as {}", numbered ? "Ethernet0|3" : "Ethernet0"));
      return;
    }
    for (const std::string_view port : split(parts[0], ','))
      if (!is_no_port(port)) check_port(port, place);
    if (numbered) check_index(table, parts[1], place);
  }

  void check_port(std::string_view port, const std::string& place) {
    if (!has_ports_ || tables_.row("PORT", port)) return;
    add("L9", Severity::kError, place, fmt::format("PORT has no row '{}'", port), "name a port that is there");
  }

  void check_index(const std::string& table, std::string_view index, const std::string& place) {
    const std::int64_t most = table == "BUFFER_PG" ? 7 : 15;  // the YANG models of both
    const auto range = split(index, '-');
    const auto low = number(range.front()), high = number(range.back());
    if (range.size() > 2 || !low || !high || *low < 0 || *low > *high || *high > most)
      add("L9", Severity::kError, place,
          fmt::format("'{}' is not a {} from 0 to {}, such as 3 or 3-4", index,
                      table == "BUFFER_PG" ? "priority group" : "queue", most),
          "write one number, or two with a hyphen");
  }

  // What rows need beside fields that are right each for itself (the YANG models' "mandatory" and "must").
  void check_row(const std::string& table, const std::string& key, const json& fields) {
    for (const auto& [of, field] : kMandatory)
      if (of == table && !fields.contains(field))
        add("L9", Severity::kError, fmt::format("{}|{}", table, key), fmt::format("it has no {}", field),
            fmt::format("add {}", field));
    const Row row = tables_.row(table, key);
    if (table == "CABLE_LENGTH")
      for (const std::string& port : row.names()) check_port(port, row.place(port));
    if (table == "SCHEDULER") check_rates(row);
    if (table == "BUFFER_POOL") check_pool(row);
  }

  void check_rates(const Row& row) {
    const std::pair<const char*, const char*> ordered[] = {{"cir", "pir"}, {"cbs", "pbs"}};
    for (const auto& [low, high] : ordered)
      if (const auto least = row.number(low), most = row.number(high); least && most && *most < *least)
        add("L9", Severity::kError, row.place(high), fmt::format("{} {} is below {} {}", high, *most, low, *least),
            fmt::format("let {} be {} or more", high, low));
    if (row.number("pir") && row.number("cir").value_or(0) == 0)
      add("L9", Severity::kWarning, row.place("pir"), "pir without cir, which current releases refuse", "add cir");
  }

  void check_pool(const Row& row) {
    if (!row.text("percentage")) return;
    if (row.text("size"))
      add("L9", Severity::kError, row.place("percentage"), "a pool has a size or a percentage, not both",
          "remove one of them");
    if (const auto model = tables_.row("DEVICE_METADATA", "localhost").text("buffer_model");
        model && *model != "dynamic")
      add("L9", Severity::kError, row.place("percentage"), "only the dynamic buffer model takes a percentage",
          "write a size");
  }

  // Old releases want all references in brackets, newer ones none.
  void report_brackets() {
    if (brackets_.empty()) return;
    if (bare_ == 0) {
      add("L9", Severity::kNote, brackets_.front(), "references are in brackets, which releases since 202106 refuse",
          "write only the name of the row, unless the release is older");
      return;
    }
    for (const std::string& place : brackets_)
      add("L9", Severity::kError, place, "this reference is in brackets, and others are not",
          "write only the name of the row");
  }

  const Tables& tables_;
  const std::string& device_;
  Report& report_;
  bool has_ports_ = false;
  std::vector<std::string> brackets_;
  std::size_t bare_ = 0;
};

}  // namespace

std::string_view without_brackets(std::string_view reference) {
  if (!bracketed(reference)) return reference;
  reference = reference.substr(1, reference.size() - 2);
  return reference.substr(reference.find('|') + 1);
}

std::string_view port_of(std::string_view key) {
  const auto parts = split(key, '|');
  return parts.size() == 4 ? parts[2] : parts.front();
}

bool is_no_port(std::string_view name) {
  return name == kGlobal || name == "GLOBAL" || name == "CPU";
}

std::vector<std::string> Row::names() const {
  std::vector<std::string> names;
  if (fields_ == nullptr) return names;
  for (const auto& [name, value] : fields_->items()) names.push_back(name);
  return names;
}

std::optional<std::string_view> Row::text(std::string_view field) const {
  if (fields_ == nullptr) return std::nullopt;
  const auto found = fields_->find(std::string(field));
  if (found == fields_->end() || !found->is_string()) return std::nullopt;
  return std::string_view(found->get_ref<const std::string&>());
}

std::optional<std::int64_t> Row::number(std::string_view field) const {
  const auto value = text(field);
  return value ? sonic::number(*value) : std::nullopt;
}

std::string_view Row::reference(std::string_view field) const {
  const auto value = text(field);
  return value ? without_brackets(*value) : std::string_view();
}

Result<Tables> Tables::parse(std::string_view text, const std::string& path) {
  Watcher watcher;
  // Which the library takes for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    return Status(Code::kInvalidArgument, "it is not JSON", fmt::format("{}:{}", path, line_at(text, nul)),
                  std::string(kGiveOne));
  if (!json::sax_parse(text, &watcher)) {
    if (watcher.deep) return Status(Code::kInvalidArgument, "JSON nested too deeply", path, std::string(kGiveOne));
    const std::string where = fmt::format("{}:{}", path, line_at(text, watcher.wrong_byte));
    return Status(Code::kInvalidArgument, "it is not JSON", where, std::string(kGiveOne));
  }
  Tables tables;
  tables.root_ = json::parse(text, nullptr, false);
  tables.doubled_ = std::move(watcher.doubled);
  if (!tables.root_.is_object())
    return Status(Code::kInvalidArgument, "it is not a JSON object of tables", path, std::string(kGiveOne));
  return tables;
}

bool Tables::has(std::string_view table) const {
  const auto found = root_.find(std::string(table));
  return found != root_.end() && found->is_object();
}

Row Tables::row(std::string_view table, std::string_view key) const {
  const auto rows = root_.find(std::string(table));
  if (rows == root_.end() || !rows->is_object()) return {};
  const auto row = rows->find(std::string(key));
  if (row == rows->end() || !row->is_object()) return {};
  return {fmt::format("{}|{}", table, key), &*row};
}

void Tables::for_each_row(std::string_view table,
                          const std::function<void(const std::string&, const Row&)>& see) const {
  const auto rows = root_.find(std::string(table));
  if (rows == root_.end() || !rows->is_object()) return;
  for (const auto& [key, fields] : rows->items())
    if (fields.is_object()) see(key, Row(fmt::format("{}|{}", table, key), &fields));
}

void check_tables(const Tables& tables, const std::string& device, findings::Report& report) {
  Checker(tables, device, report).run();
}

}  // namespace tensorlane::lint::sonic
