// A GPU of this process: its context, our streams on it, and what transfers on its memory need.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "client-lib/src/cuda/driver.h"
#include "client-lib/src/cuda/pieces.h"
#include "common/base/status.h"
#include "common/base/units.h"

struct tl_request;

namespace tensorlane::client::cuda {

class Device;
struct Shares;

// What a transfer reads or writes of a GPU's memory, and where in host memory (pinned) that lies meanwhile.
struct Side {
  DevicePointer on_gpu = 0;
  std::byte* staging = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // in the tensor's buffer
};

// The GPU's side of one transfer under way. Device::begin() makes it, and Device::end() takes it back, when nothing
// refers to it any more but streams that wait for its word.
struct Transfer {
  Device* device = nullptr;
  tl_request* request = nullptr;
  std::string tensor;  // for texts
  Side in, out;
  // Not null: `in` is what this rank sums of the buffers of its host's ranks, and `out` the same memory (shares.h).
  const Shares* shares = nullptr;
  // One part, where the operation begins only when all of its input is on the host, else those of the tensor's buffer.
  Pieces::Layout layout;
  float urgency = 0;
  std::atomic<bool> boosted{false};  // somebody waits for it

  // What it starts after: this has come to pass when `stream` has done what it was given so far.
  Event_ ready = nullptr;
  Stream_ stream = nullptr;
  // Of one stream, lower ones are ready earlier. Another one for each use; 0: it is over.
  std::atomic<std::uint64_t> number{0};
  // When it is over the word becomes `value`, which streams may wait for. Values of a word only grow, so that a stream
  // which comes to its wait much later finds it passed, whatever the word is used for then.
  std::uint32_t* word = nullptr;
  DevicePointer word_on_gpu = 0;
  std::uint32_t value = 0;

  // The stager's (stager.h).
  enum class Phase : std::uint8_t { kNew, kActive, kStopping, kFilling };
  Phase phase = Phase::kNew;
  bool is_ready = false;
  bool has_arrived = false;  // all of the result is in host memory
  Pieces reading, writing;   // of `in` and of `out`
  Pieces summing;            // of `in`: what is summed before it is read
  std::uint32_t met = 0;     // how often the host's ranks have met
  // What comes next within the host's GPUs: nothing, the result of this rank's share, or the others' shares of it.
  enum class Within : std::uint8_t { kNothing, kFinish, kGather };
  Within within = Within::kNothing;
  std::uint32_t gather_from = 0;              // whose share is copied next
  std::uint64_t gather_at = 0, gathered = 0;  // where in it; bytes of all that have come
  bool poison = false;                        // kStopping: its result becomes 0xff
  bool filled = false;                        // kFilling: that was issued
  std::uint32_t in_flight = 0;                // copies on the GPU
  int errors = 0;                             // in asking for its event
  Time stop_at{};                             // kStopping: when it ends whatever the GPU says
  Time hold_until{};                          // kStopping: until when others may be reading its memory
  bool is_lent = false;                       // it has gone to a meeting: from then on others may read its memory
  Status why;                                 // kStopping
};

// Makes the GPU's primary context this thread's, and at its end what was before. Meanwhile the thread may make calls
// that would otherwise break the capture of a CUDA graph in another thread (as asking for an event does).
class Current {
 public:
  explicit Current(const Device& device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  int capture_mode_ = kCaptureModeRelaxed;
  Status status_;
};

class Device {
 public:
  static constexpr std::size_t kInFlight = 2;  // copies of a direction

  // Opens it. Errors: what the driver says, naming its call and the GPU.
  static Result<std::unique_ptr<Device>> open(const Driver& driver, int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  // "GPU 0".
  const std::string& where() const { return where_; }
  Context_ context() const { return context_; }
  // Empty where streams can wait for words; else why they cannot.
  const std::string& no_stream_wait() const { return no_stream_wait_; }
  // A JSON object. Any thread.
  std::string status() const;

  // The kernel of this name (kernels.h). Errors: Unavailable (no kernels in this build, a driver that cannot load
  // them). Any thread.
  Result<Function_> kernel(const std::string& name);
  // The context outlives this object, and the process's use of the GPU. False where the driver refuses.
  bool keep_context();

  // A transfer that starts when `stream` has done what it was given so far. Errors: InvalidArgument (a CUDA graph is
  // being captured on the stream), what the driver says. Any thread.
  Result<Transfer*> begin(Stream_ stream, const std::string& tensor);
  // Any thread.
  void end(Transfer& transfer);
  // What a stream can wait for; stays good when the transfer has ended.
  struct Wait {
    DevicePointer word = 0;
    std::uint32_t value = 0;
    std::string tensor;
  };
  static Wait wait_for(const Transfer& transfer) { return {transfer.word_on_gpu, transfer.value, transfer.tensor}; }
  // `stream` goes on when that transfer is over. May block, while the stream's queue is full. Errors as begin(). Any
  // thread.
  Status wait_on(Stream_ stream, const Wait& wait);
  // InvalidArgument while a CUDA graph is captured on it. Needs a Current.
  Status check_not_capturing(Stream_ stream, const std::string& tensor) const;

  // What follows is the stager's alone. A copy of a slice of a side, a fill of the whole result with 0xff, a sum of a
  // slice of the host's buffers, or a copy of all other shares, is put on our stream of its direction; it is in
  // `copies` until its event has come. Where only the event could not be recorded, the transfer keeps one copy in
  // flight for good.
  enum class Way : std::uint8_t { kOut, kIn, kFill, kSum, kFinish, kGather };
  struct Copy {
    Transfer* transfer = nullptr;
    Way way{};
    Pieces::Slice slice;
    Event_ done = nullptr;
    Time since{};
    int errors = 0;  // in asking for it
  };
  struct Direction {
    Stream_ stream = nullptr;
    Event_ events[kInFlight] = {};
    std::vector<Copy> copies;  // oldest first
    std::uint64_t issued = 0;  // how many there were
  };
  Status issue(Way way, Transfer& transfer, const Pieces::Slice& slice, Time now);
  // kNotReady, kSuccess, or an error. Needs a Current.
  Error_ query(Event_ event) const { return driver_.event_query(event); }
  // Fills go the way in; sums and copies between GPUs have a direction of their own.
  Direction& direction(Way way) {
    if (way == Way::kOut) return out_;
    return way == Way::kIn || way == Way::kFill ? in_ : within_;
  }
  std::array<Direction*, 3> directions() { return {&out_, &in_, &within_}; }

 private:
  Device(const Driver& driver, int ordinal);
  Status set_up();
  Status try_out(Function_ function, const std::string& name);
  Result<Transfer*> take();
  Status make_direction(Direction& direction, int priority);
  void find_out_about_waits();

  const Driver& driver_;
  const int ordinal_;
  const std::string where_;
  Device_ handle_ = 0;
  std::mutex kernels_mutex_;
  Module_ kernels_ = nullptr;
  Context_ context_ = nullptr;
  std::string name_, uuid_, no_stream_wait_;
  Error_ put(Way way, const Transfer& transfer, const Pieces::Slice& slice, Stream_ stream, const char*& call);
  Error_ put_sum(const Transfer& transfer, const Pieces::Slice& slice, Stream_ stream) const;
  Error_ put_finish(const Transfer& transfer, Stream_ stream) const;
  Error_ launch(Function_ function, std::uint64_t bytes, void** parameters, Stream_ stream) const;
  Error_ put_gathering(const Transfer& transfer, const Pieces::Slice& slice, Stream_ stream) const;
  void count(Way way, std::uint64_t bytes);

  Direction out_, in_, within_;
  std::atomic<std::uint64_t> bytes_out_{0}, bytes_in_{0}, bytes_summed_{0}, bytes_gathered_{0};

  std::atomic<std::uint64_t> numbers_{0};
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Transfer>> all_;
  std::vector<Transfer*> free_;
};

// As part of a string in JSON.
std::string json_text(const std::string& text);

// The GPU that has [memory, memory + bytes). Errors: InvalidArgument (none has, or only a part of it; `what` names the
// buffer), Unavailable.
Result<int> device_of(const Driver& driver, DevicePointer memory, std::uint64_t bytes, const std::string& what);

}  // namespace tensorlane::client::cuda
