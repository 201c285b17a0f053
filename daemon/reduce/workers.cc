#include "daemon/reduce/workers.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/base/spin_budget.h"
#include "daemon/ports/inline_executor.h"

namespace tensorlane::reduce {
namespace {

constexpr double kSpinShare = 0.25;

Time now() {
  return Time(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

Status no_worker(int error) {
  return {Code::kResourceExhausted, fmt::format("cannot start a worker thread: {}", std::strerror(error)), "workers",
          "lower workers, or raise the limits of threads (TasksMax) and open files"};
}

}  // namespace

Result<std::unique_ptr<Workers>> Workers::create(ports::Reducer& reducer, std::size_t threads, Duration spin) {
  TL_ASSERT(threads >= 1 && threads <= kMaxThreads);
  std::unique_ptr<Workers> workers(new Workers(reducer, spin));
  TL_RETURN_IF_ERROR(workers->open(threads));
  return workers;
}

Status Workers::open(std::size_t threads) {
  event_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event_ < 0) return no_worker(errno);
  for (std::size_t i = 0; i < threads; ++i) {
    workers_.push_back(std::make_unique<Worker>());
    try {
      workers_.back()->thread = std::thread([this, worker = workers_.back().get()] { run(*worker); });
    } catch (const std::system_error& error) {
      workers_.pop_back();
      return no_worker(error.code().value());
    }
    pthread_setname_np(workers_.back()->thread.native_handle(), "tl-work");
  }
  return {};
}

Workers::~Workers() {
  finish();
  for (const auto& worker : workers_) {
    while (done() != nullptr) {
    }
    worker->queue.give(nullptr);
    worker->thread.join();
  }
  if (event_ >= 0) ::close(event_);
}

Result<std::unique_ptr<ports::Executor>> make_executor(ports::Reducer& reducer, std::size_t threads, Duration spin) {
  if (threads == 0) return std::unique_ptr<ports::Executor>(std::make_unique<ports::InlineExecutor>(reducer));
  TL_ASSIGN_OR_RETURN(std::unique_ptr<Workers> workers, Workers::create(reducer, threads, spin));
  return std::unique_ptr<ports::Executor>(std::move(workers));
}

// ---- the giving thread ----

void Workers::submit(ports::Block& block) {
  Worker& idlest =
      **std::ranges::min_element(workers_, {}, [](const auto& worker) { return worker->queue.under_way(); });
  idlest.queue.give(&block);
}

ports::Block* Workers::done() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = *workers_[(next_ + i) % workers_.size()];
    if (!worker.queue.has_done()) continue;
    next_ = (next_ + i) % workers_.size();
    return worker.queue.take_back();
  }
  return nullptr;
}

// Rare: no worker tells that it is done unless the lane has armed.
void Workers::finish() {
  constexpr auto kLook = std::chrono::microseconds(50);
  for (const auto& worker : workers_) {
    while (!worker->queue.all_done()) std::this_thread::sleep_for(kLook);
  }
}

Duration Workers::cpu_time() const {
  Duration sum;
  for (const auto& worker : workers_) {
    clockid_t clock{};
    timespec time{};
    // The thread lives as long as this.
    if (::pthread_getcpuclockid(worker->thread.native_handle(), &clock) != 0 || ::clock_gettime(clock, &time) != 0)
      continue;
    sum += seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
  }
  return sum;
}

bool Workers::arm() {
  bell_.arm();
  return std::ranges::none_of(workers_, [](const auto& worker) { return worker->queue.has_done(); });
}

void Workers::disarm() {
  bell_.disarm();
}

// ---- a worker ----

void Workers::run(Worker& worker) {
  SpinBudget budget(spin_, kSpinShare);
  for (;;) {
    while (!worker.queue.has_next()) {
      if (!budget.may_poll(now())) worker.queue.sleep();
    }
    budget.worked();
    const ports::Block* block = worker.queue.next();
    if (block == nullptr) return;
    block->run(reducer_);
    worker.queue.finish();
    if (!bell_.ring()) continue;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(event_, &one, sizeof one);
  }
}

}  // namespace tensorlane::reduce
