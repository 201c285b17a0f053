// The boundary to NCCL: it asks here for each of its variables. What fails is said on standard error and leaves the
// environment as it is: NCCL must start whatever the policy looks like.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "client-lib/nccl-env/interface.h"
#include "common/base/text.h"
#include "common/nccl/policy.h"

namespace tensorlane::nccl_env {
namespace {

constexpr std::size_t kMostShown = 200;  // bytes of a variable's value in a message

// In one call, so that lines of other threads and processes do not come between. Nothing can be done where it fails.
void say(const std::string& text) {
  const std::string line = std::string("tensorlane: ").append(printable(text)).append("\n");
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

// NCCL does not expect that asking for a variable changes errno.
class KeepErrno {
 public:
  KeepErrno() = default;
  ~KeepErrno() { errno = before_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int before_ = errno;
};

// A policy in force. All threads may ask it.
class Policy {
 public:
  Policy(std::string path, nccl::Variables variables) : path_(std::move(path)), variables_(std::move(variables)) {
    for (const auto& each : variables_) said_[each.first];
  }

  bool same(const std::string& path, const nccl::Variables& variables) const {
    return path_ == path && variables_ == variables;
  }

  // What NCCL gets where the environment says `here`, which is null where the variable is not set.
  const char* value(const char* name, const char* here) {
    const auto found = variables_.find(std::string_view(name));
    if (found == variables_.end()) return here;
    const char* forced = found->second ? found->second->c_str() : nullptr;
    // NCCL takes an empty variable for one that is not set.
    const std::string_view given = here == nullptr ? "" : here;
    if (!given.empty() && given != (forced == nullptr ? "" : forced)) report(*found, given);
    return forced;
  }

 private:
  void report(const nccl::Variables::value_type& forced, std::string_view given) try {
    if (said_.find(forced.first)->second.test_and_set()) return;
    const std::string shown = std::string(given.substr(0, kMostShown)) + (given.size() > kMostShown ? "..." : "");
    say(forced.first + "=" + shown + " of the environment is not used: " + path_ + " says " +
        (forced.second ? forced.first + "=" + *forced.second : "that it is not to be set"));
  } catch (const std::exception&) {
    // Memory has ended: the policy holds all the same.
  }

  const std::string path_;
  const nccl::Variables variables_;
  std::map<std::string, std::atomic_flag, std::less<>> said_;
};

// Policies are never deleted: threads of NCCL may ask while others finalize, and keep what they got. The last one is
// used again where nothing has changed, so that there are no more of them than the file has changed.
constinit std::mutex g_mutex;
constinit int g_users = 0;           // inits without their finalize; guarded by g_mutex
constinit Policy* g_last = nullptr;  // guarded by g_mutex
constinit std::atomic<Policy*> g_policy = nullptr;

// The host's own policy comes first: users cannot put theirs in its place.
std::string policy_path() {
  if (access(nccl::kPolicyPath, F_OK) == 0) return nccl::kPolicyPath;
  const char* named = std::getenv(nccl::kPolicyVariable);
  return named != nullptr && *named != '\0' ? named : nccl::kPolicyPath;
}

// With g_mutex held.
void load() {
  const std::string path = policy_path();
  Result<nccl::Variables> variables = nccl::read_policy(path);
  if (!variables.ok()) {
    say("warning: NCCL's variables are left as they are: " + variables.status().to_string());
    return;
  }
  if (g_last == nullptr || !g_last->same(path, *variables)) g_last = new Policy(path, std::move(*variables));
  g_policy.store(g_last, std::memory_order_release);
}

NcclResult init() noexcept {
  const KeepErrno keep;
  try {
    const std::lock_guard lock(g_mutex);
    if (g_users++ == 0) load();
  } catch (const std::exception&) {
    constexpr std::string_view kText = "tensorlane: warning: NCCL's variables are left as they are: out of memory\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
  }
  return kNcclSuccess;
}

NcclResult init_v1(std::uint8_t /*major*/, std::uint8_t /*minor*/, std::uint8_t /*patch*/, const char* /*suffix*/) {
  return init();
}

NcclResult init_v2(std::uint8_t /*major*/, std::uint8_t /*minor*/, std::uint8_t /*patch*/, const char* /*suffix*/,
                   NcclLogger /*logger*/) {
  return init();
}

NcclResult finalize() noexcept {
  const std::lock_guard lock(g_mutex);
  if (g_users > 0 && --g_users == 0) g_policy.store(nullptr, std::memory_order_release);
  return kNcclSuccess;
}

const char* get_env(const char* name) noexcept {
  if (name == nullptr) return nullptr;
  const KeepErrno keep;
  const char* here = std::getenv(name);
  Policy* policy = g_policy.load(std::memory_order_acquire);
  if (policy == nullptr) return here;
  return policy->value(name, here);
}

}  // namespace
}  // namespace tensorlane::nccl_env

#pragma GCC visibility push(default)

const NcclEnvPluginV1 ncclEnvPlugin_v1{"tensorlane", tensorlane::nccl_env::init_v1, tensorlane::nccl_env::finalize,
                                       tensorlane::nccl_env::get_env};
const NcclEnvPluginV2 ncclEnvPlugin_v2{"tensorlane", tensorlane::nccl_env::init_v2, tensorlane::nccl_env::finalize,
                                       tensorlane::nccl_env::get_env};

#pragma GCC visibility pop
