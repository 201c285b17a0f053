// Rates and sizes as people write them.
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "common/fabric/yaml_reader.h"

namespace tensorlane::fabric {

namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::array kRatePrefixes{Unit{"", 1},          Unit{"k", 1'000},         Unit{"K", 1'000},
                                   Unit{"M", 1'000'000}, Unit{"G", 1'000'000'000}, Unit{"T", 1'000'000'000'000}};
constexpr std::array<std::string_view, 4> kRateSuffixes{"bit/s", "bit", "bps", "b/s"};

// Decimal KB, MB ... are left out: half of their users mean 1024.
constexpr std::array kByteUnits{Unit{"", 1},
                                Unit{"B", 1},
                                Unit{"KiB", 1ull << 10},
                                Unit{"MiB", 1ull << 20},
                                Unit{"GiB", 1ull << 30},
                                Unit{"TiB", 1ull << 40}};

constexpr std::string_view kExpectedRate = "expected a rate such as '500 Mbit/s', '10 Gbit/s' or '100G'";
constexpr std::string_view kExpectedBytes = "expected a size such as '1500', '256 KiB' or '4 MiB'";
constexpr std::array kTimeUnits{Unit{"us", 1'000}, Unit{"ms", 1'000'000}, Unit{"s", 1'000'000'000}};

constexpr std::string_view kExpectedDuration = "expected a number and s, ms or us, e.g. 10 s";
constexpr std::string_view kExpectedLength = "expected a length such as '3 m' or '0.5 m'";

Status not_a(std::string_view kind, std::string_view text, std::string_view expected) {
  return Status(Code::kInvalidArgument, fmt::format("'{}' is not a {}", text, kind), {}, std::string(expected));
}

// Splits "1.5 Gbit/s" into 1.5 and "Gbit/s". No sign, no exponent.
bool split_number(std::string_view text, double& number, std::string_view& unit) {
  const std::size_t end = text.find_first_not_of("0123456789.");
  const std::string_view digits = text.substr(0, end);
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || stop != digits.data() + digits.size()) return false;
  unit = end == std::string_view::npos ? std::string_view() : text.substr(end);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return true;
}

// number * factor as a whole number that a double holds exactly; 0 when it is none.
std::uint64_t whole_product(double number, std::uint64_t factor) {
  const double product = number * static_cast<double>(factor);
  const double whole = std::round(product);
  const bool exact = std::abs(product - whole) <= whole * 1e-12;  // 1.1 G is a whole number, though not in binary
  if (whole < 1 || whole > 9007199254740992.0 || !exact) return 0;
  return static_cast<std::uint64_t>(whole);
}

const Unit* find_rate_unit(std::string_view unit) {
  for (std::string_view suffix : kRateSuffixes) {
    if (unit.ends_with(suffix)) {
      unit.remove_suffix(suffix.size());
      break;
    }
  }
  for (const Unit& prefix : kRatePrefixes) {
    if (prefix.name == unit) return &prefix;
  }
  return nullptr;
}

}  // namespace

Result<BitsPerSecond> parse_rate(std::string_view text) {
  double number = 0;
  std::string_view name;
  if (!split_number(text, number, name) || name.empty()) return not_a("rate", text, kExpectedRate);
  const Unit* unit = find_rate_unit(name);
  const std::uint64_t rate = unit == nullptr ? 0 : whole_product(number, unit->factor);
  if (rate == 0) return not_a("rate", text, kExpectedRate);
  return BitsPerSecond(rate);
}

Result<Bytes> parse_bytes(std::string_view text) {
  double number = 0;
  std::string_view name;
  if (!split_number(text, number, name)) return not_a("size", text, kExpectedBytes);
  for (const Unit& unit : kByteUnits) {
    if (unit.name != name) continue;
    if (const std::uint64_t bytes = whole_product(number, unit.factor)) return Bytes(bytes);
  }
  return not_a("size", text, kExpectedBytes);
}

Result<double> parse_metres(std::string_view text) {
  double metres = 0;
  std::string_view unit;
  if (!split_number(text, metres, unit) || unit != "m") return not_a("length", text, kExpectedLength);
  return metres;
}

std::string format_rate(BitsPerSecond rate) {
  for (auto unit = kRatePrefixes.rbegin(); unit != kRatePrefixes.rend(); ++unit) {
    if (unit->name != "K" && rate.value % unit->factor == 0)
      return fmt::format("{} {}bit/s", rate.value / unit->factor, unit->name);
  }
  return fmt::format("{} bit/s", rate.value);
}

std::string format_bytes(Bytes bytes) {
  for (auto unit = kByteUnits.rbegin(); unit != kByteUnits.rend(); ++unit) {
    if (bytes.value % unit->factor == 0 && !unit->name.empty())
      return fmt::format("{} {}", bytes.value / unit->factor, unit->name);
  }
  return fmt::format("{} B", bytes.value);
}

Result<Duration> parse_duration(std::string_view text) {
  double number = 0;
  std::string_view unit;
  if (split_number(text, number, unit) && number <= 1e6) {
    for (const Unit& known : kTimeUnits) {
      if (unit == known.name) return Duration(std::llround(number * static_cast<double>(known.factor)));
    }
  }
  return not_a("duration", text, kExpectedDuration);
}

}  // namespace tensorlane::fabric
