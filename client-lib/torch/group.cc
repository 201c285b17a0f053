#include "client-lib/torch/group.h"

#include <pthread.h>

#include <cstring>
#include <system_error>
#include <utility>

#include "client-lib/torch/library.h"
#include "client-lib/torch/rendezvous.h"
#include "client-lib/torch/watch.h"
#include "client-lib/torch/words.h"

namespace tensorlane::torch_backend {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGrace{5000};  // for what is under way when the group is left
constexpr milliseconds kInside{50};   // for a thread to get from enter() into the call
constexpr milliseconds kTick{50};
constexpr milliseconds kSettles{500};  // for the store to have what was written last
constexpr int kIdleTicks = 20;         // without an operation, before the watch sleeps until there is one
constexpr const char* kMoreThreads = "raise ulimit -u, or TasksMax of the service, or pids.max of the container";
constexpr std::size_t kHistory = 64;  // collectives that are remembered, to find out where ranks differ

std::mutex groups_mutex;
std::set<Group*> groups;
std::atomic<std::uint32_t> fork_generation{0};  // counts the forks that led to this process

// Another thread may have the mutex when a process is forked, and the child has no such thread.
std::uint32_t watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { groups_mutex.lock(); }, [] { groups_mutex.unlock(); },
                   [] {
                     ++fork_generation;
                     groups_mutex.unlock();
                   });
  });
  return fork_generation;
}

std::string list(const std::vector<int64_t>& ranks) {
  std::string text;
  for (const int64_t rank : ranks) text += (text.empty() ? "[" : ", ") + std::to_string(rank);
  return text + "]";
}

bool is_whole(const std::vector<int64_t>& ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

tl_status_t begin_call(tl_context_t* context, const char* name, const Call& call, tl_request_t*& request) {
  const Library& lib = library();
  const auto& [operation, count, dtype, op, root, row] = call.kind;
  tl_options_t options = TL_OPTIONS_INIT;
  options.queued = 1;
  switch (operation) {
    case TL_BROADCAST:
      return lib.broadcast(context, name, call.out, count, dtype, root, &options, &request);
    case TL_ALLGATHER:
      return lib.allgather(context, name, call.in, call.out, count, dtype, &options, &request);
    case TL_REDUCESCATTER:
      return lib.reducescatter(context, name, call.in, call.out, count, row, dtype, op, &options, &request);
    case TL_REDUCE:
      return lib.reduce(context, name, call.in, call.out, count, dtype, op, root, &options, &request);
    case TL_GATHER:
      return lib.gather(context, name, call.in, call.out, count, dtype, root, &options, &request);
    case TL_SCATTER:
      return lib.scatter(context, name, call.in, call.out, count, dtype, root, &options, &request);
    case TL_ALLTOALL:
      return lib.alltoall(context, name, call.in, call.out, count, dtype, &options, &request);
    default:
      return lib.allreduce(context, name, call.in, call.out, count, dtype, op, &options, &request);
  }
}

}  // namespace

std::shared_ptr<Group> Group::make(c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout,
                                   std::string name, std::vector<int64_t> ranks) {
  return {new Group(std::move(store), rank, size, timeout, std::move(name), std::move(ranks)), [](Group* group) {
            if (!group->is_parents()) delete group;
          }};
}

bool Group::is_parents() const {
  return fork_generation != fork_generation_;
}

void Group::check_process() const {
  if (is_parents()) {
    fail("a forked child cannot use its parent's process group: '" + name_ +
         "': make a group in the child, or start workers by 'spawn' or 'forkserver'");
  }
}

Group::Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout, std::string name,
             std::vector<int64_t> ranks)
    : store_(std::move(store)),
      notes_(store_),
      rank_(rank),
      size_(size),
      timeout_(timeout.count()),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      fork_generation_(watch_forks()) {
  if (size > 1) {
    Joined joined = join_group(*store_, rank, size, timeout, name_);
    context_ = joined.context;
    job_ = std::move(joined.job);
  }
  std::lock_guard lock(groups_mutex);
  groups.insert(this);
}

Group::~Group() {
  leave();
}

std::uint64_t Group::sequence() {
  check_process();
  std::lock_guard lock(order_mutex_);
  return sequence_;
}

std::string Group::failure() {
  std::lock_guard lock(mutex_);
  return failure_.empty() && closed_ ? "process group '" + name_ + "' was destroyed" : failure_;
}

void Group::check_open_locked() const {
  if (!failure_.empty()) fail(failure_);
  if (closed_) fail("process group '" + name_ + "' was destroyed: tensorlane: make a new one");
}

c10::intrusive_ptr<OperationWork> Group::begin_locked(Order& order) {
  order.description.sequence = sequence_ + 1;
  {
    std::lock_guard lock(mutex_);
    check_open_locked();
    history_.push_back(order.description);
    if (history_.size() > kHistory) history_.pop_front();
  }
  ++sequence_;
  const milliseconds timeout = order.timeout.count() < 0 ? this->timeout() : order.timeout;
  return c10::make_intrusive<OperationWork>(shared_from_this(), order.description, timeout, order.inputs,
                                            std::move(order.kept), std::move(order.results), std::move(order.after));
}

c10::intrusive_ptr<c10d::Work> Group::start(Order order, const Call& call) {
  check_process();
  c10::intrusive_ptr<OperationWork> work;
  {
    std::lock_guard lock(order_mutex_);
    work = begin_locked(order);
    if (context_ != nullptr && call.bytes > 0) {
      if (!enter()) fail("process group '" + name_ + "' was destroyed: tensorlane: make a new one");
      remember(work);
      try {
        const Names::Turn turn = names_.next(call.kind, call.bytes);
        // All ranks give the same names back between the same calls, and wait for each other there.
        if (!turn.old.empty()) worker_.post([this, old = turn.old] { give_back(old); });
        work->set_request(this->call(turn, work->description(), call));
      } catch (...) {
        exit();
        forget(*work);
        throw;
      }
      exit();
      return work;
    }
  }
  if (call.bytes_alone > 0 && call.out != call.in) std::memmove(call.out, call.in, call.bytes_alone);
  work->complete("");
  return work;
}

c10::intrusive_ptr<c10d::Work> Group::start_steps(Order order, std::function<void()> steps) {
  check_process();
  std::lock_guard lock(order_mutex_);
  auto work = begin_locked(order);
  work->set_steps();
  remember(work);
  worker_.post([work, steps = std::move(steps)] {
    std::string error;
    try {
      steps();
    } catch (const c10::Error& e) {
      error = e.what_without_backtrace();
    } catch (const std::exception& e) {
      error = e.what();
    }
    work->complete_soon(error);
  });
  return work;
}

c10::intrusive_ptr<c10d::Work> Group::transfer(Order order, const at::Tensor& memory) {
  check_process();
  const Description description = order.description;
  const milliseconds timeout = order.timeout.count() < 0 ? this->timeout() : order.timeout;
  {
    std::lock_guard lock(mutex_);
    check_open_locked();
  }
  auto work =
      c10::make_intrusive<OperationWork>(shared_from_this(), description, timeout, order.inputs, std::move(order.kept),
                                         std::move(order.results), std::move(order.after));
  if (!enter()) fail("process group '" + name_ + "' was destroyed: tensorlane: make a new one");
  try {
    remember(work);
    const auto [dtype, units] = moved(memory.scalar_type());
    const std::uint64_t count = memory.numel() * units;
    const auto tag = static_cast<std::uint32_t>(description.tag);
    tl_request_t* request = nullptr;
    const tl_status_t status =
        description.type == c10d::OpType::SEND
            ? library().send(context_, description.peer, tag, memory.data_ptr(), count, dtype, nullptr, &request)
            : library().recv(context_, description.peer < 0 ? TL_ANY_SOURCE : description.peer, tag, memory.data_ptr(),
                             count, dtype, work->source(), nullptr, &request);
    if (status != TL_OK) fail(error(description, status, library().last_error()));
    work->set_request(request);
  } catch (...) {
    exit();
    forget(*work);
    throw;
  }
  exit();
  return work;
}

// In a call of the C interface; `step` returns its status. An error of the call is thrown.
template <typename Step>
void Group::in_library(const Description& description, const Step& step) {
  if (!enter()) fail("process group '" + name_ + "' was destroyed: tensorlane: make a new one");
  std::string wrong;
  try {
    const tl_status_t status = step();
    if (status != TL_OK) wrong = error(description, status, library().last_error());
  } catch (...) {
    exit();
    throw;
  }
  exit();
  if (!wrong.empty()) fail(wrong);
}

void Group::call_and_wait(const Description& description, const Call& call) {
  if (context_ == nullptr || call.bytes == 0) {
    if (call.bytes_alone > 0 && call.out != call.in) std::memmove(call.out, call.in, call.bytes_alone);
    return;
  }
  in_library(description, [&] {
    const Names::Turn turn = step_names_.next(call.kind, call.bytes);
    give_back(turn.old);  // on the worker already
    return library().wait(this->call(turn, description, call), -1.0);
  });
}

void Group::exchange_and_wait(const Description& description, const Parts& sent, const Parts& received) {
  constexpr std::uint64_t kTag = std::uint64_t{1} << 63;  // those of send() and recv() have 32 bits
  const auto [dtype, units] = moved(sent.memory.scalar_type());
  const auto counts = [units = units](const std::vector<int64_t>& elements) {
    std::vector<std::uint64_t> result(elements.begin(), elements.end());
    for (std::uint64_t& count : result) count *= units;
    return result;
  };
  const std::vector<std::uint64_t> sends = counts(sent.elements), receives = counts(received.elements);
  std::vector<tl_request_t*> requests(sends.size() * 2);
  in_library(description, [&, type = dtype] {
    const tl_status_t begun =
        library().alltoallv(context_, kTag, sent.memory.const_data_ptr(), sends.data(), received.memory.data_ptr(),
                            receives.data(), type, nullptr, requests.data());
    if (begun != TL_OK) {
      const std::string why = error(description, begun, library().last_error());
      end(why);  // the others wait for what has not begun
      (void)library().wait_many(requests.data(), requests.size(), -1.0);
      fail(why);
    }
    return library().wait_many(requests.data(), requests.size(), -1.0);
  });
}

tl_request_t* Group::call(const Names::Turn& turn, const Description& description, const Call& call) {
  tl_request_t* request = nullptr;
  const tl_status_t status = begin_call(context_, turn.name.c_str(), call, request);
  if (status == TL_OK) return request;
  const std::string why = error(description, status, library().last_error());
  end(why);
  fail(why);
}

// Nothing can be started any more, and what is under way on any rank fails.
void Group::end(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
  }
  if (context_ == nullptr || !enter()) return;
  (void)library().abort(context_, why.c_str());
  exit();
}

void Group::give_back(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    // A time-out, or an operation that is not waited for yet: another rank is not here, or this one's program.
    tl_status_t status = TL_ERROR_TIMED_OUT;
    while (status == TL_ERROR_TIMED_OUT || status == TL_ERROR_INVALID_ARGUMENT) {
      if (!enter()) return;
      status = library().unregister(context_, name.c_str());
      exit();
      if (status == TL_ERROR_INVALID_ARGUMENT) std::this_thread::sleep_for(milliseconds(5));
    }
  }
}

void Group::remember(const c10::intrusive_ptr<OperationWork>& work) {
  std::lock_guard lock(mutex_);
  if (!closed_ && !watching_) {  // else leave() looks after what is under way
    try {
      watch_ = std::thread([this] { watch(); });
    } catch (const std::system_error& e) {
      fail("cannot start a thread: process group '" + name_ + "', " + e.code().message() + ": " + kMoreThreads);
    }
    watching_ = true;
  }
  works_.emplace(work.get(), work);
  if (closed_ || !asleep_) return;
  asleep_ = false;
  changed_.notify_all();
}

void Group::forget(const OperationWork& work) {
  c10::intrusive_ptr<OperationWork> last;  // goes without the lock
  std::lock_guard lock(mutex_);
  const auto found = works_.find(&work);
  if (found == works_.end()) return;
  last = std::move(found->second);
  works_.erase(found);
  if (closed_) changed_.notify_all();
}

std::vector<c10::intrusive_ptr<OperationWork>> Group::under_way() {
  std::lock_guard lock(mutex_);
  std::vector<c10::intrusive_ptr<OperationWork>> all;
  all.reserve(works_.size());
  for (const auto& [_, work] : works_) all.push_back(work);
  return all;
}

std::string Group::error(const Description& description, tl_status_t status, std::string text) {
  const bool gone = text.find("without goodbye") != std::string::npos || text.find("left the job") != std::string::npos;
  const std::string ranks = is_whole(ranks_) ? std::to_string(size_) + " ranks" : "ranks " + list(ranks_);
  text = in_words_of_torch(std::move(text), description, {job_, name_, ranks});
  if (!is_whole(ranks_))
    text += " (ranks are counted in process group '" + name_ + "': 0 is the first of " + list(ranks_) + ")";
  if (description.name[0] != '\0') text = description.text() + ": " + text;
  // A rank that has found out that ranks differ ends its group, and has written into the store why. The store is asked
  // only where nobody has died: it may have died with them.
  if (description.is_message() && status == TL_ERROR_MISMATCH)
    return text;  // both ends know, and everything else goes on
  if (status == TL_ERROR_MISMATCH) Watch(*this).tell(text);
  if (gone) {
    const std::string differs = Watch(*this).differing();
    if (!differs.empty()) text = differs;
  }
  // TL_ERROR_UNAVAILABLE: a rank has died, or a daemon.
  if (status == TL_ERROR_ABORTED || status == TL_ERROR_MISMATCH || status == TL_ERROR_TIMED_OUT ||
      status == TL_ERROR_UNAVAILABLE) {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = text;
  }
  return text;
}

bool Group::enter() {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  ++inside_;
  return true;
}

void Group::exit() {
  std::lock_guard lock(mutex_);
  --inside_;
  if (closed_) changed_.notify_all();
}

void Group::watch() {
  Watch watch(*this);
  int idle = 0;
  std::unique_lock lock(mutex_);
  while (!closed_) {
    idle = works_.empty() ? idle + 1 : 0;
    if (idle > kIdleTicks) {
      asleep_ = true;
      changed_.wait(lock, [this] { return closed_ || !asleep_; });
      idle = 0;
    }
    changed_.wait_for(lock, kTick, [this] { return closed_; });
    if (closed_) break;
    lock.unlock();
    watch.look(under_way());
    lock.lock();
  }
  lock.unlock();
  watch.take_back();
  notes_.settle(kSettles);
}

bool Group::wait_until_idle(milliseconds most) {
  const auto end = OperationWork::Clock::now() + most;
  while (true) {
    for (const auto& work : under_way()) {
      work->arm();
      (void)work->isCompleted();  // where the library has no thread to say so
    }
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kTick, [this] { return works_.empty(); })) return true;
    if (OperationWork::Clock::now() >= end) return false;
  }
}

bool Group::runs_caller() {
  if (finisher_.runs_caller() || worker_.runs_caller()) return true;
  std::lock_guard lock(mutex_);
  return watch_.get_id() == std::this_thread::get_id();
}

void Group::leave() {
  if (is_parents()) return;
  if (runs_caller()) {
    auto self = weak_from_this().lock();
    if (self != nullptr && !detach([self] { self->leave(); }))
      fail("cannot start a thread: process group '" + name_ + "', which a callback leaves: " + kMoreThreads);
    return;
  }
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(closed_, true)) {  // another thread is at it, or was
      changed_.wait(lock, [this] { return left_; });
      return;
    }
    changed_.notify_all();
  }
  if (watch_.joinable()) watch_.join();
  if (context_ != nullptr) {
    bool peaceful = false;
    {
      std::lock_guard lock(mutex_);
      peaceful = failure_.empty();
    }
    if (!peaceful || !wait_until_idle(kGrace)) {
      constexpr const char* kLeft = "this process has left its process group";
      (void)library().abort(context_, kLeft);
      (void)wait_until_idle(kGrace);
    }
    {
      // What waits in tl_unregister() for other ranks is ended by tl_finalize(); it has come so far long before.
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kInside, [this] { return inside_ == 0; });
    }
    (void)library().finalize(context_);
  }
  worker_.stop();
  for (const auto& work : under_way())
    work->give_up("process group '" + name_ + "' was destroyed: " + work->description().text() +
                  ": wait for every operation before");
  finisher_.stop();
  {
    std::lock_guard lock(groups_mutex);
    groups.erase(this);  // so late that leave_all() waits for a thread that is at it
  }
  std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

bool Group::left() {
  if (is_parents()) return true;
  std::lock_guard lock(mutex_);
  return left_;
}

void Group::abort(const std::string& why) {
  if (is_parents()) return;
  {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
    if (!closed_ && context_ != nullptr) (void)library().abort(context_, why.c_str());
  }
  leave();
}

void leave_all(const std::string& why_abort) {
  std::vector<std::shared_ptr<Group>> all;
  {
    std::lock_guard lock(groups_mutex);
    for (Group* group : groups) {
      if (group->is_parents()) continue;
      if (auto held = group->weak_from_this().lock()) all.push_back(std::move(held));
    }
  }
  for (const auto& group : all) {
    if (why_abort.empty())
      group->leave();
    else
      group->abort(why_abort);
  }
}

}  // namespace tensorlane::torch_backend
