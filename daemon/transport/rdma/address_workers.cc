#include "daemon/transport/rdma/address_workers.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

namespace tensorlane::rdma {
namespace {

Time steady_now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

}  // namespace

Result<std::unique_ptr<AddressWorkers>> AddressWorkers::open(const std::string& where) {
  handshake::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return Status(Code::kResourceExhausted, "cannot make a wake descriptor: " + handshake::errno_text(errno), where,
                  "raise the limit of open files");
  }
  return std::unique_ptr<AddressWorkers>(new AddressWorkers(std::move(wake)));
}

AddressWorkers::~AddressWorkers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status AddressWorkers::start_thread() {
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& error) {
    if (!threads_.empty()) return {};  // those that there are take more turns
    return {Code::kResourceExhausted, fmt::format("cannot start a thread: {}", error.code().message()),
            "rdma transport", "raise the limits of tasks of tensorlaned and of its user"};
  }
  pthread_setname_np(threads_.back().native_handle(), "tl-addresses");
  return {};
}

// ---- the owner ----

Result<AddressWorkers::Task*> AddressWorkers::add(const GidBytes& peer, std::unique_ptr<Task> task) {
  Task* const added = task.get();
  bool all_busy = false;
  {
    const std::lock_guard lock(mutex_);
    auto entry = std::make_unique<Entry>();
    entry->task = std::move(task);
    entry->peer = peer;
    const auto [of, alone] = peers_.try_emplace(peer);
    of->second.waiting.push_back(entry.get());
    if (alone) {
      of->second.silent = silent_.contains(peer);
      queue(of);
    } else {
      entry->status = of->second.waiting.front()->status;
    }
    entries_[added] = std::move(entry);
    all_busy = ready_.size() > idle_ && threads_.size() < kThreads;
  }
  changed_.notify_one();
  if (all_busy) {
    if (const Status started = start_thread(); !started.ok()) {
      give_up(added);
      return started;
    }
  }
  return added;
}

Result<bool> AddressWorkers::done(const Task* task) const {
  const std::lock_guard lock(mutex_);
  const Entry& entry = *entries_.at(task);
  if (entry.finished && !entry.status.ok()) return entry.status;
  return entry.finished;
}

Status AddressWorkers::delay(const Task* task) const {
  const std::lock_guard lock(mutex_);
  const Entry& entry = *entries_.at(task);
  return entry.finished ? Status() : entry.status;
}

std::unique_ptr<AddressWorkers::Task> AddressWorkers::take(Task* task) {
  const std::lock_guard lock(mutex_);
  Entry& entry = *entries_.at(task);
  TL_ASSERT(entry.finished);
  std::erase(finished_, &entry);
  std::unique_ptr<Task> taken = std::move(entry.task);
  entries_.erase(task);
  return taken;
}

void AddressWorkers::give_up(Task* task) {
  std::unique_ptr<Entry> dropped;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  Entry& entry = *entries_.at(task);
  if (entry.finished) {
    std::erase(finished_, &entry);
  } else if (const Peer& peer = peers_.at(entry.peer); peer.in_call && peer.waiting.front() == &entry) {
    entry.given_up = true;
    return;
  } else {
    leave(entry);
  }
  dropped = std::move(entries_.at(task));
  entries_.erase(task);
}

std::size_t AddressWorkers::tasks() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

const AddressWorkers::Task* AddressWorkers::serve() {
  eventfd_t ignored = 0;
  ::eventfd_read(wake_.get(), &ignored);
  for (;;) {
    std::unique_ptr<Entry> dropped;
    const std::lock_guard lock(mutex_);
    if (finished_.empty()) return nullptr;
    Entry& entry = *finished_.front();
    finished_.pop_front();
    if (!entry.given_up) return entry.task.get();
    dropped = std::move(entries_.at(entry.task.get()));
    entries_.erase(dropped->task.get());
  }
}

// An entry that is in no call waits no more.
void AddressWorkers::leave(const Entry& entry) {
  const PeerTurn of = peers_.find(entry.peer);
  std::erase(of->second.waiting, &entry);
  if (!of->second.waiting.empty()) return;
  std::erase(ready_, of);
  std::erase(resting_, of);
  peers_.erase(of);
}

// ---- the workers ----

void AddressWorkers::queue(PeerTurn peer) {
  (peer->second.silent ? resting_ : ready_).push_back(peer);
}

void AddressWorkers::run() {
  // The lane starts them and may have a core of its own; theirs are those of the process.
  cpu_set_t cores;
  if (sched_getaffinity(getpid(), sizeof cores, &cores) == 0)
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
  std::unique_lock lock(mutex_);
  for (PeerTurn turn; next_turn(lock, turn);) take_turn(lock, turn);
}

bool AddressWorkers::next_turn(std::unique_lock<std::mutex>& lock, PeerTurn& turn) {
  for (;;) {
    if (stopping_) return false;
    const bool may_try_again = !resting_.empty() && silent_calls_ + 1 < kThreads;
    std::deque<PeerTurn>* from = nullptr;
    if (!ready_.empty()) {
      from = &ready_;
    } else if (may_try_again && resting_.front()->second.next <= steady_now()) {
      from = &resting_;
    }
    if (from != nullptr) {
      turn = from->front();
      from->pop_front();
      return true;
    }
    ++idle_;
    if (may_try_again) {
      const Duration pause = resting_.front()->second.next - steady_now();
      changed_.wait_for(lock, std::chrono::nanoseconds(pause.value));
    } else {
      changed_.wait(lock);
    }
    --idle_;
  }
}

void AddressWorkers::take_turn(std::unique_lock<std::mutex>& lock, PeerTurn turn) {
  Peer& peer = turn->second;
  Entry& entry = *peer.waiting.front();
  const bool silent = peer.silent;
  peer.in_call = true;
  silent_calls_ += silent ? 1 : 0;
  lock.unlock();
  const Result<bool> outcome = entry.task->step();
  lock.lock();
  silent_calls_ -= silent ? 1 : 0;
  peer.in_call = false;
  end_turn(turn, outcome);
  changed_.notify_one();
}

void AddressWorkers::end_turn(PeerTurn turn, const Result<bool>& outcome) {
  Peer& peer = turn->second;
  Entry& entry = *peer.waiting.front();
  peer.silent = !outcome.ok() && outcome.status().code() == Code::kInProgress;
  if (!peer.silent) {
    silent_.erase(turn->first);
  } else if (silent_.size() < kMaxSilent) {
    silent_.insert(turn->first);
  }
  for (Entry* waiting : peer.waiting) waiting->status = peer.silent ? outcome.status() : Status();
  if (peer.silent) {
    peer.next = steady_now() + kPause;
    // Behind the others.
    peer.waiting.pop_front();
    peer.waiting.push_back(&entry);
  }
  const bool more = peer.silent || (outcome.ok() && !*outcome);
  if (!more || entry.given_up) {
    std::erase(peer.waiting, &entry);
    finish(entry, outcome.ok() ? Status() : outcome.status());
  }
  if (peer.waiting.empty()) {
    peers_.erase(turn);
  } else {
    queue(turn);
  }
}

void AddressWorkers::finish(Entry& entry, Status status) {
  entry.status = std::move(status);
  entry.finished = true;
  finished_.push_back(&entry);
  ::eventfd_write(wake_.get(), 1);
}

}  // namespace tensorlane::rdma
