// One process group: what its ranks do together.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "client-lib/torch/executor.h"
#include "client-lib/torch/names.h"
#include "client-lib/torch/notes.h"
#include "client-lib/torch/work.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::torch_backend {

// One call of the C interface. The memory lives as long as the work.
struct Call {
  Kind kind;
  const void* in = nullptr;
  void* out = nullptr;
  std::uint64_t bytes = 0;  // of the buffer that the C interface works on, the largest of any rank
  // What a group of one rank does in its place: so many bytes of `in` are `out`.
  std::uint64_t bytes_alone = 0;
};

// Threads: calls come on any thread. `finisher` runs what follows operations that no thread waits for, callbacks of
// futures included, which may wait for other operations. `worker` runs operations of several steps and gives names
// back, in the order of the calls; `watch` looks after what is late. Each begins when it is first needed. A group of
// one rank has no context and no daemon.
class Group : public std::enable_shared_from_this<Group> {
 public:
  using milliseconds = std::chrono::milliseconds;

  // Blocks until all ranks have joined. `ranks`: of the default group, in this one's order. A child that is forked
  // afterwards has none of the group's threads: there, every call but leave(), left() and abort(), which do nothing,
  // throws, and the group is never deleted.
  static std::shared_ptr<Group> make(c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout,
                                     std::string name, std::vector<int64_t> ranks);
  ~Group();
  // Whether this process is such a child; throws DistBackendError then.
  bool is_parents() const;
  void check_process() const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  milliseconds timeout() const { return milliseconds(timeout_); }
  void set_timeout(milliseconds timeout) { timeout_ = timeout.count(); }
  c10d::Store& store() { return *store_; }
  Notes& notes() { return notes_; }
  Executor& finisher() { return finisher_; }
  std::uint64_t sequence();
  // A key of the store that no other group has, nor an earlier one of this name.
  std::string key(const std::string& name) const { return "tensorlane/" + job_ + "/" + name; }

  // What an operation needs besides its call; see OperationWork.
  struct Order {
    Description description;
    milliseconds timeout{-1};  // negative: the group's
    std::vector<at::Tensor> inputs, kept, results;
    std::function<void()> after;
  };
  // Starts a collective. Never waits for other ranks. Throws DistBackendError when the group is over.
  c10::intrusive_ptr<c10d::Work> start(Order order, const Call& call);
  // A collective of several steps, which run on the worker, one such collective after the other. A step is
  // call_and_wait().
  c10::intrusive_ptr<c10d::Work> start_steps(Order order, std::function<void()> steps);
  // Sends `memory`, which is contiguous, to the description's peer, or receives it from there; a negative peer is any.
  // Never waits. Throws DistBackendError for what cannot be begun.
  c10::intrusive_ptr<c10d::Work> transfer(Order order, const at::Tensor& memory);
  // By steps. Throws what went wrong.
  void call_and_wait(const Description& description, const Call& call);
  // One part for each rank, of so many elements, one behind the other in a contiguous tensor.
  struct Parts {
    const at::Tensor& memory;
    const std::vector<int64_t>& elements;
  };
  // By steps, of a group of several ranks. Sends the parts of one to the ranks, receives those of the other from them,
  // and waits. Throws what went wrong; where the parts could not all begin, the group is over.
  void exchange_and_wait(const Description& description, const Parts& sent, const Parts& received);

  // Leaves. What is under way may still end by itself for a short while, else it fails. Later calls throw. Idempotent.
  // A callback leaves on a thread of its own, and does not wait for it.
  void leave();
  // Whether leave() has returned.
  bool left();
  // Fails what is under way, and leaves.
  void abort(const std::string& why);

  // By works: it is over.
  void forget(const OperationWork& work);
  // Why nothing can be started any more; empty while it can.
  std::string failure();
  // What has failed, as the library says it, which is `said`; the group is over where the job is. May ask the store,
  // for at most Watch::kPatience: not on a thread of the library.
  std::string error(const Description& description, tl_status_t status, std::string said);

 private:
  friend class Watch;
  Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout, std::string name,
        std::vector<int64_t> ranks);

  static constexpr std::size_t kMostCallbacks = 64;  // that wait at a time
  using Works = std::map<const OperationWork*, c10::intrusive_ptr<OperationWork>>;

  c10::intrusive_ptr<OperationWork> begin_locked(Order& order);
  template <typename Step>
  void in_library(const Description& description, const Step& step);
  // The request of a call whose name has its turn. An error ends the group: the others have made the call.
  tl_request_t* call(const Names::Turn& turn, const Description& description, const Call& call);
  void check_open_locked() const;
  void give_back(const std::vector<std::string>& names);
  void end(const std::string& why);
  void remember(const c10::intrusive_ptr<OperationWork>& work);
  std::vector<c10::intrusive_ptr<OperationWork>> under_way();
  bool wait_until_idle(milliseconds most);
  void watch();
  bool runs_caller();
  bool enter();
  void exit();

  const c10::intrusive_ptr<c10d::Store> store_;
  Notes notes_;
  const int rank_, size_;
  std::atomic<std::int64_t> timeout_;  // milliseconds
  const std::string name_;
  const std::vector<int64_t> ranks_;
  const std::uint32_t fork_generation_;
  tl_context_t* context_ = nullptr;
  std::string job_;  // of the C interface

  std::mutex order_mutex_;  // calls are named and started one after the other
  Names names_{"torch."}, step_names_{"steps."};
  std::uint64_t sequence_ = 0;

  std::mutex mutex_;                 // of what follows
  std::deque<Description> history_;  // the latest collectives
  std::condition_variable changed_;
  Works works_;
  std::string failure_;  // why nothing can be started any more
  bool closed_ = false, left_ = false;
  int inside_ = 0;  // threads in a call of the C interface that finalize() must not interrupt
  bool watching_ = false, asleep_ = false;
  std::thread watch_;

  Executor finisher_{kMostCallbacks}, worker_{1};
};

// Leaves every group of this process, as at its end; with a reason, by abort().
void leave_all(const std::string& why_abort = "");

}  // namespace tensorlane::torch_backend
