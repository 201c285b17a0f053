// Everything that the fake driver knows, behind one lock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fake_journal.h"
#include "fake_memory.h"
#include "fake_streams.h"
#include "hidden_lock.h"

namespace tensorlane::fake_cuda {

// Lower is more urgent.
inline constexpr int kLeastPriority = 0, kGreatestPriority = -5;

struct Device {
  int references = 0;  // of the primary context
  int error = 0;       // sticky
  std::shared_ptr<Stream> null_stream;
  std::map<std::uint64_t, std::shared_ptr<Stream>> thread_streams;  // by the thread's number
};

// What a thread has for itself.
struct Thread {
  std::uint64_t number;
  std::uint64_t epoch = 0;    // of the state that the contexts are of
  std::vector<int> contexts;  // devices; the last one is current
  int capture_mode = 0;       // CUstreamCaptureMode
};

struct State {
  State();

  // All members are used with it held.
  std::mutex mutex;
  std::condition_variable changed;  // an operation has ended, or accesses memory no longer
  Memory memory;
  Journal journal;
  std::vector<Device> devices;
  std::map<void*, std::shared_ptr<Stream>> streams;  // by handle, which is also the order of creation
  std::vector<std::shared_ptr<Stream>> ending;       // destroyed ones that were not empty
  std::map<void*, std::shared_ptr<Event>> events;
  std::map<void*, std::shared_ptr<Module>> modules;      // those that are loaded
  std::map<void*, std::shared_ptr<Function>> functions;  // of these modules
  std::uint64_t max_delay_ns = 0;
  std::int64_t pushed_contexts = 0;
  int global_captures = 0;
  bool initialized = false;
  bool holds_new_streams = false;
  int shared_channels = 0;  // per device and priority; 0: streams share none

  // Waits without the lock for threads to end, and takes it afterwards.
  void reset(std::uint64_t seed, std::uint64_t max_delay, int device_count);

  // The thread's own part, without contexts from before a reset.
  Thread& thread();
  // -1: none.
  int current_device();

  std::shared_ptr<Stream> create_stream(int device, int priority, bool of_framework);
  // Null: there is none. The handles of null streams are those of `device`.
  std::shared_ptr<Stream> find_stream(void* handle, int device);
  // By value: the map holds it no longer while it is used.
  void destroy_stream(std::shared_ptr<Stream> stream);
  // Puts it on the stream, which may not be capturing.
  void put(const std::shared_ptr<Stream>& stream, std::unique_ptr<Operation> operation);
  void hold_all(bool held);

  void* create_event(int device);
  void* create_module(int device);
  // Its functions are no more, either.
  void unload(void* module);
  // The same one each time.
  void* handle_of(const Function& function);
  // "destroyed" or "unknown", of a handle that was not found.
  const char* describe(void* handle) const;

  // Ends the range once no operation accesses it. A violation of `what` while operations that use it are queued.
  void retire(const std::shared_ptr<Range>& range, const char* what, Lock& lock);

  std::int64_t threads() const { return static_cast<std::int64_t>(channels_.size()); }
  // Joins threads that have ended by themselves. Without the lock.
  void join_finished();

 private:
  // Streams of one device and priority that share channels.
  struct Sharing {
    std::uint64_t created = 0;
    std::vector<std::shared_ptr<Channel>> channels;
  };
  std::shared_ptr<Channel> new_channel();
  std::shared_ptr<Channel> channel_for(int device, int priority);
  void* new_handle() { return reinterpret_cast<void*>(next_handle_ += 16); }
  void configure(const char* settings);
  bool plan_fault(const std::string& key, const std::string& value);

  std::uint64_t seed_ = 1;
  std::uint64_t epoch_ = 1;                         // counts resets
  std::uintptr_t next_handle_ = kFirstHandle;       // never used again, even after a reset
  std::vector<std::shared_ptr<Channel>> channels_;  // all whose threads are not joined
  std::uint64_t channels_created_ = 0;
  std::map<std::pair<int, int>, Sharing> sharing_;  // by device and priority

  static constexpr std::uintptr_t kFirstHandle = 0x7e5700000000;
};

// Lives as long as the process.
State& state();

}  // namespace tensorlane::fake_cuda
