#include "daemon/control/agreement.h"

#include <fmt/format.h>

#include "common/base/hash.h"
#include "daemon/control/message.h"

namespace tensorlane::control {

using nlohmann::json;

std::string settings_hash(const Settings& settings) {
  Fnv1a hash;
  for (const auto& [key, value] : settings) {
    hash.add_text(key);
    hash.add_text(value);
  }
  return fmt::format("{:016x}", hash.value());
}

std::string differences(const std::string& host, const Settings& settings, const std::string& other_host,
                        const Settings& other) {
  std::string text;
  for (const auto& [key, value] : settings) {
    const auto theirs = other.find(key);
    if (theirs == other.end() || theirs->second == value) continue;
    text += fmt::format("{}{} is '{}' on {} and '{}' on {}", text.empty() ? "" : "; ", key, value, host, theirs->second,
                        other_host);
  }
  return text;
}

json settings_to_json(const Settings& settings) {
  json array = json::array({settings_hash(settings)});
  for (const auto& [key, value] : settings) array.push_back(json::array({key, value}));
  return array;
}

std::optional<Settings> settings_from_json(const json& array) {
  if (array.empty() || array.size() > kMaxSettings + 1) return std::nullopt;
  ItemReader in(array);
  const std::string hash = in.text(kMaxSetting);
  Settings settings;
  for (std::size_t i = 1; i < array.size(); ++i) {
    ItemReader pair(in.array());
    std::string key = pair.text(kMaxSetting), value = pair.text(kMaxSetting);
    if (!pair.done() || !settings.emplace(std::move(key), std::move(value)).second) return std::nullopt;
  }
  if (!in.done() || hash != settings_hash(settings)) return std::nullopt;
  return settings;
}

}  // namespace tensorlane::control
