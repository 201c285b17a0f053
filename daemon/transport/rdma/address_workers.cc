#include "daemon/transport/rdma/address_workers.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <iterator>
#include <new>
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
  } catch (const std::exception& error) {  // no thread, or no memory
    if (!threads_.empty()) return {};      // those that there are take more turns
    return {Code::kResourceExhausted, fmt::format("cannot start a thread: {}", error.what()), "rdma transport",
            "raise the limits of tasks of tensorlaned and of its user"};
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
    if (!peers_.contains(peer) && peers_.size() >= kMaxRemembered) forget_one();
    Peer& of = peers_[peer];
    of.waiting.push_back(entry.get());
    if (of.waiting.size() == 1) {
      of.place.assign(1, &of);
      queue(of);
    }
    entries_[added] = std::move(entry);
    std::size_t in_line = 0;
    for (const std::list<Peer*>& waiting : queues_) in_line += waiting.size();
    all_busy = in_line > idle_ && threads_.size() < kThreads;
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
  if (entry.finished && !entry.failure.ok()) return entry.failure;
  return entry.finished;
}

Status AddressWorkers::delay(const Task* task) const {
  const std::lock_guard lock(mutex_);
  const Entry& entry = *entries_.at(task);
  return entry.finished ? Status() : peers_.at(entry.peer).delay;
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
void AddressWorkers::leave(Entry& entry) {
  Peer& peer = peers_.at(entry.peer);
  std::erase(peer.waiting, &entry);
  if (!peer.waiting.empty()) return;
  line(peer.standing).remove(&peer);
  if (peer.standing == Standing::kNew) peers_.erase(entry.peer);  // there is nothing to remember
}

// The one that nobody waits for and that has not been called for the longest time.
void AddressWorkers::forget_one() {
  auto oldest = peers_.end();
  for (auto one = peers_.begin(); one != peers_.end(); ++one) {
    if (one->second.waiting.empty() && (oldest == peers_.end() || one->second.next < oldest->second.next)) oldest = one;
  }
  if (oldest != peers_.end()) peers_.erase(oldest);
}

// ---- the workers ----
// Nothing here needs memory but step(): an exception would end the process.

void AddressWorkers::queue(Peer& peer) {
  std::list<Peer*>& others = line(peer.standing);
  auto before = others.end();
  if (peer.standing == Standing::kSilent) {
    while (before != others.begin() && peer.next < (*std::prev(before))->next) --before;
  }
  others.splice(before, peer.place);
}

void AddressWorkers::run() {
  // The lane starts them and may have a core of its own; theirs are those of the process.
  cpu_set_t cores;
  if (sched_getaffinity(getpid(), sizeof cores, &cores) == 0)
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
  std::unique_lock lock(mutex_);
  while (Peer* peer = next_turn(lock)) take_turn(lock, *peer);
}

bool AddressWorkers::may_call(Standing standing) const {
  const auto [answering, fresh, silent] = calls_;
  if (standing == Standing::kSilent && silent >= kThreads / 2) return false;
  return standing == Standing::kAnswers || fresh + silent + 1 < kThreads;
}

AddressWorkers::Peer* AddressWorkers::next_turn(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    if (stopping_) return nullptr;
    Duration pause;  // until a silent one may be called
    for (const Standing standing : {Standing::kAnswers, Standing::kNew, Standing::kSilent}) {
      std::list<Peer*>& waiting = line(standing);
      if (waiting.empty() || !may_call(standing)) continue;
      Peer& peer = *waiting.front();
      if (standing == Standing::kSilent) pause = peer.next - steady_now();
      if (pause > Duration()) break;
      peer.place.splice(peer.place.end(), waiting, waiting.begin());
      changed_.notify_one();  // another one may wait for this one's line
      return &peer;
    }
    ++idle_;
    if (pause > Duration()) {
      changed_.wait_for(lock, std::chrono::nanoseconds(pause.value));
    } else {
      changed_.wait(lock);
    }
    --idle_;
  }
}

void AddressWorkers::take_turn(std::unique_lock<std::mutex>& lock, Peer& peer) {
  Entry& entry = *peer.waiting.front();
  const Standing standing = peer.standing;
  peer.in_call = true;
  ++calls(standing);
  lock.unlock();
  // Texts so short need no memory.
  Status failure;
  bool more = false;
  try {
    const Result<bool> outcome = entry.task->step();
    if (outcome.ok()) more = !*outcome;
    failure = outcome.status();
  } catch (const std::bad_alloc&) {
    failure = Status(Code::kUnavailable, "out of memory");
  } catch (...) {
    failure = Status(Code::kUnavailable, "unknown failure");
  }
  lock.lock();
  --calls(standing);
  peer.in_call = false;
  end_turn(peer, std::move(failure), more);
  changed_.notify_one();
}

void AddressWorkers::end_turn(Peer& peer, Status failure, bool more) {
  Entry& entry = *peer.waiting.front();
  const bool silent = failure.code() == Code::kInProgress;
  peer.standing = silent ? Standing::kSilent : Standing::kAnswers;
  peer.next = steady_now() + kPause;
  if (silent) peer.waiting.splice(peer.waiting.end(), peer.waiting, peer.waiting.begin());  // behind the others
  if ((!silent && !more) || entry.given_up) {
    const auto ended = std::ranges::find(peer.waiting, &entry);
    finished_.splice(finished_.end(), peer.waiting, ended);
    entry.finished = true;
    if (!silent) entry.failure = std::move(failure);
    ::eventfd_write(wake_.get(), 1);
  }
  peer.delay = silent ? std::move(failure) : Status();
  if (!peer.waiting.empty()) queue(peer);
}

}  // namespace tensorlane::rdma
