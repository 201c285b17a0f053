// Whether hosts agree on what must be alike (law 22): they bring their values when they join, and whoever differs is
// named with both. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/json/json.h"

namespace tensorlane::control {

// Key, as people write it, and value.
using Settings = std::map<std::string, std::string>;

inline constexpr std::size_t kMaxSettings = 64, kMaxSetting = 256;  // settings; bytes of a key or value

// What hosts that agree on everything have in common: 16 hexadecimal digits.
std::string settings_hash(const Settings& settings);

// "daemon.yaml tags is 'true' on h0 and 'false' on h2; ...", of keys that both hosts have; empty where they agree.
std::string differences(const std::string& host, const Settings& settings, const std::string& other_host,
                        const Settings& other);

// [hash, [key, value], ...]. Nothing when malformed, or where the hash is not that of the values.
nlohmann::json settings_to_json(const Settings& settings);
std::optional<Settings> settings_from_json(const nlohmann::json& array);

}  // namespace tensorlane::control
