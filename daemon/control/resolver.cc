#include "daemon/control/resolver.h"

#include <arpa/inet.h>

#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

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
    bool asking = false;  // or in line for it
    std::optional<std::string> numeric;
    std::string why_not;
    Clock::time_point answered{};

    bool fresh(Clock::time_point now) const {
      return answered != Clock::time_point() && now - answered < (numeric ? kFresh : kAgain);
    }
  };

  explicit Shared(Ask a) : ask(std::move(a)) {}
  // Under the lock. Null: there are too many names.
  Name* name_of(const std::string& address);
  // A thread: answers what waits, until nothing does.
  void answer();

  const Ask ask;
  std::mutex mutex;
  std::function<void()> news;         // guarded by mutex, as what follows; empty: nobody listens any more
  std::map<std::string, Name> names;  // kMaxNames at most
  std::deque<std::string> waiting;    // each of them is in `names`
  std::size_t threads = 0;
};

Resolver::Shared::Name* Resolver::Shared::name_of(const std::string& address) {
  const auto known = names.find(address);
  if (known != names.end()) return &known->second;
  if (names.size() >= kMaxNames) {
    const auto now = Clock::now();
    std::erase_if(names, [&](const auto& entry) { return !entry.second.asking && !entry.second.fresh(now); });
    if (names.size() >= kMaxNames) return nullptr;
  }
  return &names[address];
}

void Resolver::Shared::answer() {
  std::unique_lock lock(mutex);
  while (!waiting.empty() && news) {
    const std::string address = std::move(waiting.front());
    waiting.pop_front();
    lock.unlock();
    const Result<std::string> numeric = ask(address);
    lock.lock();
    Name& asked = names.at(address);
    asked.asking = false;
    asked.answered = Clock::now();
    if (numeric.ok()) asked.numeric = *numeric;
    asked.why_not = numeric.ok() ? "" : numeric.status().what();
    if (news) news();
  }
  --threads;
}

Resolver::Resolver(std::function<void()> news, Ask ask) : shared_(std::make_shared<Shared>(std::move(ask))) {
  shared_->news = std::move(news);
}

Resolver::~Resolver() {
  const std::lock_guard lock(shared_->mutex);
  shared_->news = nullptr;
}

std::optional<std::string> Resolver::find(const std::string& address) {
  if (is_numeric(address)) return address;
  const std::lock_guard lock(shared_->mutex);
  Shared::Name* name = shared_->name_of(address);
  if (name == nullptr) return std::nullopt;
  if (!name->asking && !name->fresh(Clock::now())) {
    name->asking = true;
    shared_->waiting.push_back(address);
  }
  if (shared_->waiting.empty() || shared_->threads >= kThreads) return name->numeric;
  try {
    std::thread([shared = shared_] { shared->answer(); }).detach();
    ++shared_->threads;
  } catch (const std::system_error&) {
    // No thread now: those that run take the name from the line, or the next call starts one.
  }
  return name->numeric;
}

std::string Resolver::why_not(const std::string& address) const {
  const std::lock_guard lock(shared_->mutex);
  const auto name = shared_->names.find(address);
  return name == shared_->names.end() ? "" : name->second.why_not;
}

}  // namespace tensorlane::control
