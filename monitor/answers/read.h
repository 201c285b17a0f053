// Reads the JSON of daemons, who may be of another release or lie: nothing here throws, whatever the types are. Pure.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>

#include "common/json/json.h"

namespace tensorlane::answers {

// More of anything in one answer is not looked at.
inline constexpr std::size_t kMostItems = 65536;
inline constexpr std::size_t kMostText = 512;

// A member, or null where `object` is no object or has none of this name.
inline const nlohmann::json& member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json nothing;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : nothing;
}

// A text of at most kMostText bytes; empty where there is none. It may hold any bytes: see common/base/text.h.
inline std::string text(const nlohmann::json& object, const char* key) {
  const nlohmann::json& found = member(object, key);
  return found.is_string() ? found.get_ref<const std::string&>().substr(0, kMostText) : std::string();
}

inline std::optional<double> number(const nlohmann::json& object, const char* key) {
  const nlohmann::json& found = member(object, key);
  if (!found.is_number() || !std::isfinite(found.get<double>())) return std::nullopt;
  return found.get<double>();
}

// Calls `take` for each of the first kMostItems objects of a list; for none where there is no list.
template <typename Take>
void each(const nlohmann::json& object, const char* key, const Take& take) {
  const nlohmann::json& list = member(object, key);
  if (!list.is_array()) return;
  for (std::size_t i = 0; i < list.size() && i < kMostItems; ++i) {
    if (list[i].is_object()) take(list[i]);
  }
}

}  // namespace tensorlane::answers
