#include "daemon/control/resolver.h"

#include <arpa/inet.h>

#include <array>
#include <chrono>
#include <mutex>
#include <thread>

#include "common/fabric/fabric.h"

namespace tensorlane::control {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kFresh{10}, kAgain{1};

bool is_numeric(const std::string& address) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return inet_pton(AF_INET, address.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1;
}

}  // namespace

// Outlives the Resolver where an answer is still to come.
struct Resolver::Shared {
  struct Name {
    bool asking = false;
    std::optional<std::string> numeric;
    std::string why_not;
    Clock::time_point answered{};
  };
  std::mutex mutex;
  std::function<void()> news;         // guarded by mutex; empty: nobody listens any more
  std::map<std::string, Name> names;  // guarded by mutex
};

Resolver::Resolver(std::function<void()> news) : shared_(std::make_shared<Shared>()) {
  shared_->news = std::move(news);
}

Resolver::~Resolver() {
  const std::lock_guard lock(shared_->mutex);
  shared_->news = nullptr;
}

std::optional<std::string> Resolver::find(const std::string& address) {
  if (is_numeric(address)) return address;
  const std::lock_guard lock(shared_->mutex);
  Shared::Name& name = shared_->names[address];
  const auto age = Clock::now() - name.answered;
  if (name.asking || (name.answered != Clock::time_point() && age < (name.numeric ? kFresh : kAgain)))
    return name.numeric;
  name.asking = true;
  // One thread for a name: one that does not answer holds up nobody else.
  std::thread([shared = shared_, address] {
    const Result<std::string> numeric = fabric::resolve_address(address);
    const std::lock_guard answer(shared->mutex);
    Shared::Name& asked = shared->names[address];
    asked.asking = false;
    asked.answered = Clock::now();
    if (numeric.ok()) asked.numeric = *numeric;
    asked.why_not = numeric.ok() ? "" : numeric.status().what();
    if (shared->news) shared->news();
  }).detach();
  return name.numeric;
}

std::string Resolver::why_not(const std::string& address) const {
  const std::lock_guard lock(shared_->mutex);
  const auto name = shared_->names.find(address);
  return name == shared_->names.end() ? "" : name->second.why_not;
}

}  // namespace tensorlane::control
