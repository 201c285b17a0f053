// JSON of daemons, of programs and from files, which may be of another release or lie. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "common/base/text.h"
#include "common/json/json.h"

namespace tensorlane::answers {

// More than anything that is meant has. Copies and texts of deeper values would take a stack as deep.
inline constexpr int kDeepest = 64;

// Discarded (`is_discarded()`) where the text is no JSON, or is deeper than kDeepest.
inline nlohmann::json parse(std::string_view text) {
  bool too_deep = false;
  const auto keep = [&too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kDeepest;
    return depth <= kDeepest;
  };
  nlohmann::json value = nlohmann::json::parse(text, keep, false);
  return too_deep ? nlohmann::json(nlohmann::json::value_t::discarded) : value;
}

// The same value for a terminal: every text and key in it is printable (common/base/text.h).
inline nlohmann::json printable_json(const nlohmann::json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  if (!value.is_structured()) return value;
  nlohmann::json shown = value.is_array() ? nlohmann::json::array() : nlohmann::json::object();
  for (const auto& [key, item] : value.items()) {
    if (value.is_array())
      shown.push_back(printable_json(item));
    else
      shown[printable(key)] = printable_json(item);
  }
  return shown;
}

}  // namespace tensorlane::answers
