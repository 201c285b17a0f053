// Holds back log lines that others can provoke: peers, clients, strangers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/units.h"

namespace tensorlane {

// Lets one line a second pass for each cause, so that nobody hides behind somebody else's flood, and kPerSecond lines
// a second of all causes together. What is held back is counted. One thread.
class LogGate {
 public:
  static constexpr std::size_t kPerSecond = 8;

  // Nothing: hold this line back. Otherwise write it; the number says how many lines were held back since the last one
  // that passed, whoever caused them. `cause` is whom or what the line blames: an address, a user.
  std::optional<std::uint64_t> pass(Time now, std::string_view cause = {});
  // The same for lines that do not say how many were held back: the next one that does says it.
  bool open(Time now, std::string_view cause = {});

 private:
  std::map<std::string, Time, std::less<>> passed_;  // causes of the last second: kPerSecond at most
  std::uint64_t held_back_ = 0;
};

// " (3 more such since the last message)", or nothing for 0.
std::string held_back_text(std::uint64_t lines);

}  // namespace tensorlane
