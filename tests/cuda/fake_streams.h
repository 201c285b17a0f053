// Streams of the fake driver: queues of operations, and the threads that run them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "fake_journal.h"
#include "fake_kernels.h"
#include "fake_memory.h"

namespace tensorlane::fake_cuda {

struct State;

// One recording of an event.
struct Record {
  std::atomic<bool> done{false};  // set with release once the stream has come to it
  bool discarded = false;         // instead, after an error of the device
};

struct Event {
  int device;
  std::shared_ptr<Record> record;  // the latest; null: never recorded
  bool captured = false;           // instead, the latest was in a capture
};

class Channel;

struct Stream {
  void* handle;
  int device, priority;
  bool of_framework;
  std::shared_ptr<Channel> channel;
  bool held = false;
  std::uint64_t steps = 0;  // operations that may begin although it is held
  bool capturing = false, captures_globally = false;
  std::uint64_t queued = 0;
};

struct Operation {
  enum class Kind { kCopy, kFill, kRecord, kWaitValue, kFunction, kKernel };

  // What the thread did before this call is ordered before what the operation does. Without the lock.
  static std::unique_ptr<Operation> make(Kind kind, Call call);

  bool is_logged() const { return kind == Kind::kCopy || kind == Kind::kFill || kind == Kind::kKernel; }
  // The operation accesses the range, which may be null. With the lock.
  void use(const std::shared_ptr<Range>& range);

  Kind kind;
  Call call;
  std::atomic<bool> made{false};
  std::shared_ptr<Stream> stream;
  std::vector<std::shared_ptr<Range>> ranges;  // those that it accesses, each once
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
  unsigned char fill = 0;
  const std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
  std::shared_ptr<Record> record;
  void (*function)(void*) = nullptr;
  void* argument = nullptr;
  std::unique_ptr<Launch> launch;  // of kKernel, whose result is at `to`
  int fails_with = 0;              // 0: it does not
  bool discarded = false;          // set when it begins
  int direction = 0;               // FakeCudaDirection, of what is logged
  std::size_t place = 0;           // in the journal's copies
};

// A queue and its thread. Members are used with the state's lock held unless a comment says otherwise.
class Channel {
 public:
  Channel(State& state, std::uint64_t seed) : state_(state), random_(seed) {}

  // Starts the thread, which lives until end() or stop().
  void start();
  void put(std::unique_ptr<Operation> operation);
  // To be called when something may begin that could not before.
  void look_again() { wake_.notify_all(); }
  // The thread ends when the queue is empty.
  void end();
  // The thread ends when the operation that runs is over; the others stay undone.
  void stop();
  bool finished() const { return finished_; }
  // Without the lock, after end() or stop().
  void join() { thread_.join(); }
  // Drops what stop() has left undone; the operations refer to streams, and these to the channel. After join().
  void clear() { queue_.clear(); }

 private:
  // These are called without the lock.
  void run();
  Operation* next();
  void execute(Operation& operation);
  static void compute(const Launch& launch, void* to);
  void poll(Operation& operation);
  void finish();

  bool may_begin() const;
  void begin(Operation& operation);
  // It is not carried out. An error that is not 0 becomes the device's.
  void discard(Operation& operation, int error);

  State& state_;
  std::mt19937_64 random_;
  std::deque<std::unique_ptr<Operation>> queue_;
  std::condition_variable wake_;
  bool ending_ = false, stopping_ = false, finished_ = false;
  std::thread thread_;
};

}  // namespace tensorlane::fake_cuda
