// Runs a few threads in every order in which their steps on atomics can happen, with the store buffers that processors
// have: a store that is not sequentially consistent is seen by others later (x86's memory model, "A Rigorous and Usable
// Programmer's Model for x86 Multiprocessors", Sewell et al., 2010).
//
// What is tested takes the kind of atomic as a template parameter and gets Modelled. A scenario is a function that
// makes its threads anew; it is run once for each order. Threads are fibers on one thread of the process.
#pragma once

#include <ucontext.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tensorlane::testing {

class World {
 public:
  // One that runs now.
  static World& current() { return *current_; }

  struct Outcome {
    std::size_t orders = 0;  // that were tried
    std::string failure;     // of the first one that failed: a message, or "deadlock"; empty: none did
  };
  // Makes the threads of a scenario, by calls of add().
  using Scenario = std::function<void(World&)>;
  // All orders in which a thread that could go on is interrupted at most `interruptions` times ("Iterative Context
  // Bounding for Systematic Testing of Multithreaded Programs", Musuvathi and Qadeer, 2007). Waiting interrupts nobody.
  static Outcome explore(const Scenario& scenario, std::size_t interruptions) {
    Outcome outcome;
    std::vector<Choice> path;
    do {
      World world(path, interruptions);
      world.run(scenario);
      ++outcome.orders;
      outcome.failure = world.failure_;
    } while (outcome.failure.empty() && next(path));
    return outcome;
  }

  void add(std::function<void()> body) {
    auto thread = std::make_unique<Thread>();
    thread->body = std::move(body);
    threads_.push_back(std::move(thread));
  }
  // A thread says that something is wrong.
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  // ---- for Modelled, and for threads ----
  // Others may go first.
  void step() {
    if (running_ != nullptr) swapcontext(&running_->context, &scheduler_);
  }
  // Goes on once `ready` is true. It looks at memory only.
  void wait_until(std::function<bool()> ready) {
    running_->ready = std::move(ready);
    step();
    running_->ready = {};
  }
  // Goes on once memory has changed.
  void pause() {
    const std::uint64_t before = changes_;
    wait_until([this, before] { return changes_ != before; });
  }
  void changed() { ++changes_; }
  // This thread's stores in the order in which they reach memory.
  void buffer(const void* where, std::function<void()> store) {
    if (running_ == nullptr) return store();
    running_->stores.push_back({where, std::move(store)});
  }
  void drain() {
    while (running_ != nullptr && !running_->stores.empty()) running_->flush();
  }
  // Whether it has a store to this place that others do not see yet.
  bool buffers(const void* where) const {
    if (running_ == nullptr) return false;
    for (const Store& store : running_->stores) {
      if (store.where == where) return true;
    }
    return false;
  }
  std::size_t self() const { return self_; }

 private:
  static constexpr std::size_t kStack = 64 * 1024;
  static constexpr std::size_t kLongest = 2000;  // steps of one order

  struct Choice {
    std::size_t taken = 0, of = 0;
  };
  struct Store {
    const void* where = nullptr;
    std::function<void()> store;
  };
  struct Thread {
    std::function<void()> body;
    std::vector<char> stack = std::vector<char>(kStack);
    ucontext_t context{};
    std::deque<Store> stores;
    std::function<bool()> ready;
    bool begun = false, done = false;

    void flush() {
      stores.front().store();
      stores.pop_front();
    }
  };

  World(std::vector<Choice>& path, std::size_t interruptions) : path_(path), interruptions_(interruptions) {
    current_ = this;
  }

  // The next path in depth-first order. False, and empty, when there is none.
  static bool next(std::vector<Choice>& path) {
    while (!path.empty() && path.back().taken + 1 == path.back().of) path.pop_back();
    if (!path.empty()) ++path.back().taken;
    return !path.empty();
  }

  std::size_t choose(std::size_t of) {
    if (of == 1) return 0;
    if (depth_ == path_.size()) path_.push_back({0, of});
    return path_[depth_++].taken;
  }

  // A step is one of a thread, or that its oldest buffered store reaches memory.
  void run(const Scenario& scenario) {
    scenario(*this);
    std::size_t steps = 0;
    while (failure_.empty()) {
      std::vector<std::pair<std::size_t, bool>> possible;
      bool all_done = true;
      const bool goes_on = can_run(self_);
      for (std::size_t t = 0; t < threads_.size(); ++t) {
        const Thread& thread = *threads_[t];
        all_done = all_done && thread.done && thread.stores.empty();
        if (can_run(t) && (t == self_ || !goes_on || interruptions_ > 0)) possible.emplace_back(t, false);
        if (!thread.stores.empty()) possible.emplace_back(t, true);
      }
      if (all_done) return;
      if (possible.empty()) return fail("deadlock");
      if (++steps > kLongest) return fail("an order without end");
      const auto [t, flushes] = possible[choose(possible.size())];
      if (flushes) {
        threads_[t]->flush();
      } else {
        if (goes_on && t != self_) --interruptions_;
        resume(t);
      }
    }
  }
  bool can_run(std::size_t t) const {
    const Thread& thread = *threads_[t];
    return !thread.done && (!thread.ready || thread.ready());
  }

  void resume(std::size_t t) {
    Thread& thread = *threads_[t];
    running_ = &thread;
    self_ = t;
    if (!thread.begun) {
      thread.begun = true;
      getcontext(&thread.context);
      thread.context.uc_stack = {thread.stack.data(), 0, thread.stack.size()};
      thread.context.uc_link = &scheduler_;
      makecontext(&thread.context, &World::enter, 0);
    }
    swapcontext(&scheduler_, &thread.context);
    running_ = nullptr;
  }
  static void enter() {
    Thread& self = *current_->running_;
    self.body();
    self.done = true;
  }

  inline static World* current_ = nullptr;
  std::vector<Choice>& path_;
  std::size_t depth_ = 0;
  std::uint64_t changes_ = 0;  // of memory
  std::size_t interruptions_;  // that are left
  std::vector<std::unique_ptr<Thread>> threads_;
  Thread* running_ = nullptr;
  std::size_t self_ = 0;
  ucontext_t scheduler_{};
  std::string failure_;
};

// An atomic of a World. Every call is a step.
template <typename T>
class Modelled {
 public:
  Modelled(T value = {}) : memory_(value) {}  // NOLINT(google-explicit-constructor): as std::atomic

  T load(std::memory_order = std::memory_order_seq_cst) const {
    World::current().step();
    return seen();
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    World& world = World::current();
    world.step();
    if (order == std::memory_order_seq_cst) {
      world.drain();
      set(value);
      return;
    }
    newest_[world.self() % newest_.size()] = value;
    world.buffer(this, [this, value] { set(value); });
  }
  T exchange(T value, std::memory_order = std::memory_order_seq_cst) {
    World& world = World::current();
    world.step();
    world.drain();
    const T before = memory_;
    set(value);
    return before;
  }
  // Blocks while it is `old`.
  void wait(T old, std::memory_order = std::memory_order_seq_cst) const {
    World& world = World::current();
    world.step();
    if (seen() != old) return;
    const std::uint64_t before = notified_;
    world.wait_until([this, before] { return notified_ != before; });
  }
  void notify_one() {
    World::current().step();
    ++notified_;
  }

 private:
  void set(T value) {
    memory_ = value;
    World::current().changed();
  }
  // A thread sees its own stores at once.
  T seen() const {
    const World& world = World::current();
    return world.buffers(this) ? newest_[world.self() % newest_.size()] : memory_;
  }
  T memory_;
  std::array<T, 4> newest_{};  // by thread: of those that it buffers
  std::uint64_t notified_ = 0;
};

// One whose sequentially consistent stores are not: what a test must be able to notice.
template <typename T>
class Weak : public Modelled<T> {
 public:
  using Modelled<T>::Modelled;
  void store(T value, std::memory_order = std::memory_order_seq_cst) {
    Modelled<T>::store(value, std::memory_order_release);
  }
};

}  // namespace tensorlane::testing
