// Inside common/fabric: typed access to YAML nodes with errors that say FILE:LINE and what was expected.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/fabric/fabric.h"

namespace tensorlane::fabric {

// "FILE:LINE" of a node.
std::string place(const std::string& path, const YAML::Node& node);
int line_of(const YAML::Node& node);

// A number from 0 to 1; nothing when it is none.
std::optional<double> fraction_of(const YAML::Node& node);

// "h0, h1, s0"
std::string join(std::span<const std::string_view> words);

// At most 63 letters, digits, '.', '_' and '-', and at least one.
bool is_name(std::string_view text);

// "3 m" -> 3.0
Result<double> parse_metres(std::string_view text);

// One mapping of the file. Refuses unknown and doubled keys when opened; its getters refuse missing keys and wrong
// types. `subject` is what messages call it: "host 'h0'". Valid while the document lives.
class Mapping {
 public:
  static Result<Mapping> open(const std::string& path, const YAML::Node& node, std::string subject,
                              std::span<const std::string_view> keys);

  bool has(std::string_view key) const;
  YAML::Node get(std::string_view key) const;  // has(key) must hold
  // "FILE:LINE" of the mapping, or of one of its values.
  std::string place() const;
  std::string place(std::string_view key) const;
  int line() const { return line_of(node_); }
  const std::string& path() const { return path_; }

  // The key must be there. Text: a scalar that is not empty.
  Result<std::string> text(std::string_view key) const;
  // Text of letters, digits, '.', '_' and '-', at most 63: what hosts, switches and classes may be called.
  Result<std::string> name(std::string_view key) const;
  // A pattern (pattern.h) of such names, at least one; of ports, which may hold '/', too.
  Result<std::vector<std::string>> names(std::string_view key) const;
  Result<std::vector<std::string>> ports(std::string_view key) const;
  // One of the words, as its place in the list.
  Result<std::size_t> one_of(std::string_view key, std::span<const std::string_view> words) const;
  Result<std::uint64_t> number(std::string_view key, std::uint64_t lowest, std::uint64_t highest) const;
  Result<double> fraction(std::string_view key) const;  // a number from 0 to 1
  Result<bool> flag(std::string_view key) const;
  Result<BitsPerSecond> rate(std::string_view key) const;
  Result<Bytes> bytes(std::string_view key) const;
  Result<double> metres(std::string_view key) const;
  Result<Duration> duration(std::string_view key) const;  // longer than nothing
  // "40 %", from 1 to 100.
  Result<std::uint8_t> percent(std::string_view key) const;
  // A list, possibly empty.
  Result<YAML::Node> list(std::string_view key) const;

  // An error about one value, which may be left out: "'dscp' of class 'urgent' is '64'": FILE:LINE: expected
  Status wrong(std::string_view key, const std::string& expected) const;

 private:
  Mapping(std::string path, const YAML::Node& node, std::string subject)
      : path_(std::move(path)), node_(node), subject_(std::move(subject)) {}

  Status missing(std::string_view key) const;
  Result<std::vector<std::string>> expanded(std::string_view key, bool slashes) const;
  template <typename T>
  Result<T> parsed(std::string_view key, Result<T> (*parse)(std::string_view)) const;

  std::string path_;
  YAML::Node node_;
  std::string subject_;
};

}  // namespace tensorlane::fabric
