// The boundary to NCCL: it asks here for each of its variables. What fails is said on standard error and leaves the
// environment as it is: NCCL must start whatever the policy looks like.
#include <cxxabi.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "client-lib/nccl-env/interface.h"
#include "client-lib/nccl-env/line.h"
#include "common/nccl/policy.h"

namespace tensorlane::nccl_env {
namespace {

constexpr std::size_t kMostShown = 200;  // bytes of a variable's value in a message

// A policy in force. All threads may ask it.
class Policy {
 public:
  Policy(std::string path, nccl::Variables variables) : path_(std::move(path)), variables_(std::move(variables)) {
    for (const auto& each : variables_) said_[each.first];
  }

  bool same(const Policy& other) const { return path_ == other.path_ && variables_ == other.variables_; }

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
  // Whatever NCCL's thread is at: without memory, too, of which an exception of this shared object would need some.
  [[gnu::noinline]] void report(const nccl::Variables::value_type& forced, std::string_view given) {
    if (said_.find(forced.first)->second.test_and_set()) return;
    const Undisturbed undisturbed;
    Line line;
    line << forced.first << "=" << given.substr(0, kMostShown) << (given.size() > kMostShown ? "..." : "")
         << " of the environment is not used: " << path_ << " says ";
    if (forced.second)
      line << forced.first << "=" << *forced.second;
    else
      line << "that it is not to be set";
    line.write();
  }

  const std::string path_;
  const nccl::Variables variables_;
  std::map<std::string, std::atomic_flag, std::less<>> said_;
};

// Policies are never deleted: threads of NCCL may ask while others finalize, and keep what they got. One that was there
// before is used again, and a process that has had so many takes no other.
constexpr std::size_t kMostPolicies = 256;
constinit std::array<std::atomic<Policy*>, kMostPolicies> g_policies{};  // the first ones are there, the rest is null

// In one word and without a mutex: a child that is forked while a thread is at work here can go on.
struct alignas(std::uint64_t) State {
  std::uint32_t users = 0;   // inits without their finalize
  std::uint32_t policy = 0;  // the place in g_policies, from 1 on, of the one in force; 0: none is
};
constinit std::atomic<State> g_state{State{}};
static_assert(std::atomic<State>::is_always_lock_free);

// The host's own policy comes first: users cannot put theirs in its place.
std::string policy_path() {
  if (access(nccl::kPolicyPath, F_OK) == 0) return nccl::kPolicyPath;
  const char* named = std::getenv(nccl::kPolicyVariable);
  return named != nullptr && *named != '\0' ? named : nccl::kPolicyPath;
}

// Its place in g_policies, from 1 on; 0: there is none left.
std::uint32_t place_of(std::unique_ptr<Policy> policy) {
  for (std::uint32_t i = 0; i < kMostPolicies; ++i) {
    Policy* there = nullptr;
    if (g_policies[i].compare_exchange_strong(there, policy.get(), std::memory_order_acq_rel)) {
      policy.release();  // NOLINT(bugprone-unused-return-value): it is in g_policies now
      return i + 1;
    }
    if (there->same(*policy)) return i + 1;
  }
  return 0;
}

// Where memory has ended, an exception that says so ends the process: the run time's data of a thread, which it needs,
// come from malloc the first time. So they are fetched while there still is some.
bool can_throw() {
  constexpr std::size_t kRoom = std::size_t{64} << 10;
  void* volatile room = std::malloc(kRoom);  // volatile, as below: compilers would leave it out
  if (room == nullptr) return false;
  std::free(room);
  [[maybe_unused]] void* volatile data = abi::__cxa_get_globals();
  return true;
}

// The place of the policy that is to be in force; 0 where there is none, and why. No words: memory has ended.
std::uint32_t load(std::string& why) try {
  if (!can_throw()) return 0;
  const std::string path = policy_path();
  Result<nccl::Variables> variables = nccl::read_policy(path);
  if (!variables.ok()) {
    why = variables.status().to_string();
    return 0;
  }
  const std::uint32_t place = place_of(std::make_unique<Policy>(path, std::move(*variables)));
  if (place == 0) why = "the NCCL policy has changed too often in this process: " + path + ": start the process anew";
  return place;
} catch (const std::exception&) {
  return 0;
}

// Not inlined, as report(): its line lies on the stack, of which NCCL's threads may have little.
[[gnu::noinline]] void warn(std::string_view why) {
  Line line;
  line << "warning: NCCL's variables are left as they are: " << (why.empty() ? "out of memory" : why);
  line.write();
}

// Joins those that run already, if any do: the policy that holds for them holds on.
bool join() {
  State now = g_state.load(std::memory_order_acquire);
  while (now.users > 0)
    if (g_state.compare_exchange_weak(now, {now.users + 1, now.policy}, std::memory_order_acq_rel)) return true;
  return false;
}

NcclResult init() noexcept {
  const Undisturbed undisturbed;
  while (!join()) {
    std::string why;
    const std::uint32_t policy = load(why);
    State nobody;
    if (!g_state.compare_exchange_strong(nobody, {1, policy}, std::memory_order_acq_rel)) continue;
    if (policy == 0) warn(why);
    break;
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
  State now = g_state.load(std::memory_order_acquire);
  while (now.users > 0) {
    const State next = now.users == 1 ? State{} : State{now.users - 1, now.policy};
    if (g_state.compare_exchange_weak(now, next, std::memory_order_acq_rel)) break;
  }
  return kNcclSuccess;
}

const char* get_env(const char* name) noexcept {
  if (name == nullptr) return nullptr;
  const char* here = std::getenv(name);
  const std::uint32_t place = g_state.load(std::memory_order_acquire).policy;
  return place == 0 ? here : g_policies[place - 1].load(std::memory_order_acquire)->value(name, here);
}

}  // namespace
}  // namespace tensorlane::nccl_env

#pragma GCC visibility push(default)

const NcclEnvPluginV1 ncclEnvPlugin_v1{"tensorlane", tensorlane::nccl_env::init_v1, tensorlane::nccl_env::finalize,
                                       tensorlane::nccl_env::get_env};
const NcclEnvPluginV2 ncclEnvPlugin_v2{"tensorlane", tensorlane::nccl_env::init_v2, tensorlane::nccl_env::finalize,
                                       tensorlane::nccl_env::get_env};

#pragma GCC visibility pop
