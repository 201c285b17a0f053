#include "daemon/wiring/reload.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace tensorlane::wiring {
namespace {

constexpr std::array<std::string_view, 7> kReloadable = {
    "arena_limit", "log_level", "max_pending", "max_sessions", "max_tensors", "users_guaranteed", "users"};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

}  // namespace

Changes compare(const config::DaemonConfig& running, const config::DaemonConfig& next) {
  std::set<std::string> keys;
  for (const config::DaemonConfig* config : {&running, &next}) {
    for (const auto& [key, text] : config->written) keys.insert(key);
  }
  const auto written = [](const config::DaemonConfig& config, const std::string& key) {
    const auto found = config.written.find(key);
    return found == config.written.end() ? std::string() : found->second;
  };
  Changes changes;
  for (const std::string& key : keys) {
    bool same = written(running, key) == written(next, key);
    if (key == "fabric") same = same && fabric::to_yaml(running.fabric) == fabric::to_yaml(next.fabric);
    if (key == "secret_key_file") same = same && running.secret_key == next.secret_key;
    if (same) continue;
    const bool reloadable = std::ranges::find(kReloadable, key) != kReloadable.end();
    (reloadable ? changes.taken : changes.restart).push_back(key);
  }
  return changes;
}

void take_over(const config::DaemonConfig& next, config::DaemonConfig* running) {
  for (const std::string& key : compare(*running, next).taken) {
    const auto found = next.written.find(key);
    if (found == next.written.end()) {
      running->written.erase(key);
    } else {
      running->written[key] = found->second;
    }
  }
  running->arena_limit = next.arena_limit;
  running->log_level = next.log_level;
  running->max_pending = next.max_pending;
  running->max_sessions = next.max_sessions;
  running->max_tensors = next.max_tensors;
  running->users = next.users;
  running->users_guaranteed = next.users_guaranteed;
}

std::string text_of(const Changes& changes) {
  std::string text = changes.taken.empty() ? "nothing changed" : joined(changes.taken) + " changed";
  if (!changes.restart.empty()) {
    text += "; " + joined(changes.restart) + (changes.restart.size() == 1 ? " takes" : " take") +
            " effect when the daemon is started again";
  }
  return text;
}

}  // namespace tensorlane::wiring
