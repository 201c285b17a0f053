#include "simulator/orders/graph_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include "common/json/json.h"

namespace tensorlane::orders {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr const char* kSchema = "see graph.schema.json of the Python package";

// Where an object of the "operations" array is, for the parser's callback: the text is depth 0.
constexpr int kMemberDepth = 1;
constexpr int kOperationDepth = 2;

Status wrong(const std::string& what, const std::string& where, const std::string& fix = kSchema) {
  return Status(Code::kInvalidArgument, what, where, fix);
}

Status wrong_member(const char* key, const char* type, const std::string& where) {
  return wrong(fmt::format("'{}' is missing, or no {}", key, type), where);
}

// Reads the operations while the text is parsed, and lets the parser forget each: a million of them would take
// gigabytes as JSON values.
class Reader {
 public:
  explicit Reader(std::string where) : where_(std::move(where)) {}

  Result<Graph> read(std::string_view text) {
    const json root = json::parse(
        text.begin(), text.end(),
        [this](int depth, json::parse_event_t event, json& value) { return keep(depth, event, value); }, false);
    if (root.is_discarded()) return Status(Code::kCorrupt, "this is no JSON", where_, "write the file again");
    if (!root.is_object()) return wrong("this is no graph", where_);
    const auto version = root.find("version");
    if (version == root.end() || !version->is_number_integer()) return wrong_member("version", "integer", where_);
    if (*version != kVersion)
      return Status(Code::kVersionMismatch, fmt::format("version {} of the graph format", version->dump()), where_,
                    fmt::format("only version {} is known", kVersion));
    TL_RETURN_IF_ERROR(status_);
    for (const auto& [key, value] : root.items())
      if (key != "version" && key != "about" && key != "operations")
        return wrong(fmt::format("'{}' is no member of a graph", key), where_);
    const auto operations = root.find("operations");
    if (operations == root.end() || !operations->is_array()) return wrong_member("operations", "array", where_);
    // What the callback has not taken is no object.
    if (!operations->empty()) return wrong("an operation is no object", where_);
    Result<Graph> graph = Graph::build(std::move(operations_));
    if (graph.ok()) return graph;
    const Status& bad = graph.status();
    return Status(bad.code(), bad.what(), bad.where().empty() ? where_ : where_ + ": " + bad.where(), bad.fix());
  }

 private:
  bool keep(int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key && depth == kMemberDepth)
      in_operations_ = value.get_ref<const std::string&>() == "operations";
    if (event != json::parse_event_t::object_end || depth != kOperationDepth || !in_operations_) return true;
    if (status_.ok()) status_ = add(value);
    return false;
  }

  Status add(json& op) {
    Description description;
    const std::string where = fmt::format("{}: operations[{}]", where_, operations_.size());
    for (const char* key : {"name", "kind", "resource"})
      if (!op.contains(key) || !op[key].is_string()) return wrong_member(key, "string", where);
    description.name = std::move(op["name"].get_ref<std::string&>());
    description.resource = std::move(op["resource"].get_ref<std::string&>());
    const std::string place = fmt::format("{} '{}'", where, description.name);
    const auto kind = kind_from_name(op["kind"].get_ref<const std::string&>());
    if (!kind)
      return wrong(fmt::format("the kind {} is unknown", op["kind"].dump()), place, "say compute, recv or send");
    description.kind = *kind;
    TL_RETURN_IF_ERROR(add_numbers(op, place, description));
    const auto inputs = op.find("inputs");
    if (inputs == op.end() || !inputs->is_array()) return wrong_member("inputs", "array", place);
    for (json& input : *inputs) {
      if (!input.is_string()) return wrong("an input is no string", place);
      description.inputs.push_back(std::move(input.get_ref<std::string&>()));
    }
    TL_RETURN_IF_ERROR(check_members(op, place));
    operations_.push_back(std::move(description));
    return {};
  }

  static Status add_numbers(const json& op, const std::string& place, Description& description) {
    const auto time = op.find("seconds");
    if (time == op.end() || !time->is_number()) return wrong_member("seconds", "number", place);
    const double nanoseconds = time->get<double>() * 1e9;
    if (!(nanoseconds >= 0) || nanoseconds > static_cast<double>(Graph::kLongest.value))
      return wrong(fmt::format("{} seconds are no time", time->dump()), place, "times are between 0 and 1e9 seconds");
    description.time = Duration(std::llround(nanoseconds));
    if (const auto bytes = op.find("bytes"); bytes != op.end()) {
      if (!bytes->is_number_unsigned()) return wrong_member("bytes", "non-negative integer", place);
      description.bytes = Bytes(bytes->get<std::uint64_t>());
    }
    return {};
  }

  static Status check_members(const json& op, const std::string& place) {
    constexpr const char* kKnown[] = {"name", "kind", "resource", "seconds", "inputs", "bytes"};
    for (const auto& [key, value] : op.items())
      if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown))
        return wrong(fmt::format("'{}' is no member of an operation", key), place);
    return {};
  }

  std::string where_;
  bool in_operations_ = false;
  std::vector<Description> operations_;
  Status status_;
};

}  // namespace

Result<Graph> parse_graph(std::string_view text, const std::string& where) {
  return Reader(where).read(text);
}

Result<Graph> load_graph(const std::string& path) {
  std::ifstream file;
  std::error_code error;
  // Reading a folder throws.
  if (path != "-" && !std::filesystem::is_directory(path, error)) file.open(path, std::ios::binary);
  if (path != "-" && !file.is_open())
    return Status(Code::kNotFound, "the graph cannot be read", path, "name a file that you may read");
  std::istream& stream = path == "-" ? std::cin : file;
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad()) return Status(Code::kNotFound, "the graph cannot be read", path, "name a file that you may read");
  return parse_graph(text, path == "-" ? "standard input" : path);
}

}  // namespace tensorlane::orders
