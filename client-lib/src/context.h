// One rank of one job: the session with the daemon, and the operations under way.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client-lib/src/alone.h"
#include "client-lib/src/arena.h"
#include "client-lib/src/channel.h"
#include "client-lib/src/cuda/gpus.h"
#include "client-lib/src/cuda/shares.h"
#include "client-lib/src/process_set.h"
#include "client-lib/src/rings.h"
#include "client-lib/src/settings.h"
#include "client-lib/src/sharing.h"
#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/protocol/parts.h"
#include "common/protocol/session.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {
class Context;
struct SharedTensor;
// What the daemon gets on top of the program's time-out: it knows which ranks are missing, and says so.
inline constexpr Duration kLastWord = milliseconds(1500);
}  // namespace tensorlane::client

// A place for sends and receives, one at a time. Its number is that of the session's slot.
struct tl_message {
  std::uint32_t slot = 0;
  bool sends = false;
  bool is_part = false;    // of an all-to-all
  std::uint32_t peer = 0;  // in the set; or kAnyRank, until it is over
  std::uint64_t tag = 0, count = 0;
  tensorlane::Dtype dtype{};
  int* from = nullptr;            // where a receive's source is to be written, or null
  std::byte* block = nullptr;     // shared memory, where the program's is not
  std::uint64_t block_bytes = 0;  // of it
};

// A registered tensor. Everything that the context's mutex does not guard is fixed once it is registered.
struct tl_tensor {
  // kLeaving: its group is being unregistered. kGone: it has been.
  enum class Use : std::uint8_t { kOpen, kLeaving, kGone };
  tensorlane::client::Context* context = nullptr;
  tensorlane::client::SharedSet set;  // of a message, that of the one that is under way
  std::string name;                   // in the job
  std::uint32_t id = 0;               // the job's
  std::byte* buffer = nullptr;
  std::uint64_t bytes = 0;
  // Of one in GPU memory, for which `buffer` is the staging: its GPU, and, where it was registered with a buffer, what
  // is copied out before an operation, what is copied in after it, and that buffer.
  tensorlane::client::cuda::Device* gpu = nullptr;
  tensorlane::client::cuda::Side gpu_in, gpu_out;
  void* gpu_buffer = nullptr;
  // Not null: the host's ranks share it on their GPUs, and what the job knows of it is this rank's share.
  std::shared_ptr<tensorlane::client::SharedTensor> shared;
  bool keyed = false;      // a key's push or pull
  bool exchanges = false;  // its parts go from rank to rank
  bool to_all = false;     // ... from each to all
  float urgency = 0;       // for copies between GPU and staging
  // Not null: this is no tensor, but the buffer of a message, which changes with each.
  std::unique_ptr<tl_message> message;
  // What follows is the mutex's.
  bool owns_buffer = false;  // it was allocated for the tensor
  Use use = Use::kOpen;
  std::uint64_t sequence = 0;
  tl_request* active = nullptr;   // the operation under way, until the buffer may be used for the next
  std::deque<tl_request*> queue;  // array calls that wait for it, oldest first
  tl_tensor* twin = nullptr;      // of a key: the other one of push and pull, which have one buffer

  // Its name in messages: of a share, what the program calls the tensor.
  std::string text() const { return set != nullptr && set->is_part() ? set->in_set(name) : name; }
};

// One operation under way. The context's mutex guards it, except that its owner alone uses a request that is done.
struct tl_request {
  // kCopying: done, and another thread brings the result to the program. kTaken: done, and its owner does. Of GPU
  // memory only: kLanding, the daemon is done with it, and the result is being copied to the GPU; kStopping, it has
  // failed, and the GPU may still be at it.
  enum class State : std::uint8_t { kFree, kPreparing, kPosted, kDone, kCopying, kTaken, kLanding, kStopping };
  tensorlane::client::Context* context = nullptr;
  tl_tensor* tensor = nullptr;
  State state = State::kFree;
  bool boosted = false;
  bool copies_out = false;
  bool given_back = false;  // the daemon has said that it is done with the buffer
  void* out = nullptr;      // copies_out: where the result goes, out of this part of the tensor's buffer
  std::uint64_t out_offset = 0, out_bytes = 0;
  std::vector<std::byte> held;  // in a queue: what goes into the tensor's buffer, at held_offset
  std::uint64_t held_offset = 0;
  // Of GPU memory: the GPU's side of it, until it is done. kPreparing: what it waits for, besides its turn. A stream
  // waits for it in place of the program, so that nobody takes its result.
  tensorlane::client::cuda::Transfer* gpu = nullptr;
  bool staged = false, awaits_registration = false, detached = false;
  bool meets = false;  // it is a SharedTensor's meeting; `gpu` is the transfer that meets
  tensorlane::Status status;
  tl_callback_t callback = nullptr;
  void* argument = nullptr;
};

namespace tensorlane::client {

struct SharedTensor {
  cuda::Shares shares;
  tl_tensor* place = nullptr;  // a barrier of the host's ranks, where they meet
  tl_request meeting;          // the one that is under way there
};

// What an array call asks for; what must be the same in every call of a name comes first.
struct ArrayCall {
  SharedSet set;  // whose call it is
  Operation operation{};
  std::uint64_t elements = 0;  // of the buffer, as tl_tensor_desc_t says it
  std::uint64_t row = 1;       // for reduce-scatter
  Dtype dtype{};
  ReduceOp reduce{};
  std::uint32_t root = 0;

  // Both are parts of the buffer that the operation works on, or copied into and out of one.
  const void* in = nullptr;  // null: nothing to copy in
  void* out = nullptr;
  std::uint64_t in_offset = 0, in_bytes = 0;
  std::uint64_t out_offset = 0, out_bytes = 0;

  // Where that buffer begins, if `out` lies in it, or what a rank gathers for another, which stays as it is. Null: it
  // is neither.
  std::byte* buffer() const {
    if (out != nullptr) return static_cast<std::byte*>(out) - out_offset;
    return operation == Operation::kGather ? static_cast<std::byte*>(const_cast<void*>(in)) : nullptr;
  }
  float urgency = -1;
  bool queued = false;                  // behind an operation of the same name that is under way; else that is an error
  tl_memory_t memory = TL_MEMORY_HOST;  // the same in every call of a name
  void* stream = nullptr;               // of GPU memory
};

// A send or a receive, as a program asks for it.
struct MessageCall {
  SharedSet set;  // whose message it is
  bool sends = false;
  bool is_part = false;    // of an all-to-all
  std::uint32_t peer = 0;  // in it; or kAnyRank
  std::uint64_t tag = 0, count = 0;
  Dtype dtype{};
  std::byte* buffer = nullptr;
  float urgency = 0;
  int* from = nullptr;
};

// Threads: the program's, the helper (reads the socket, says that we live, watches that the daemon does), once there is
// a callback, the dispatcher, and once there is GPU memory, the stager. One mutex guards the data path; it is never
// held over a system call that waits, nor over a call of a GPU's driver. Lock order: mutex_, calls_mutex_.
class Context {
 public:
  explicit Context(Settings settings);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Says hello, waits for the job, starts the helper. Once, first. Errors: see tl_init.
  Status join();
  // Ok, or why nothing can be done with this context in this process: it belongs to the parent of a fork.
  Status usable() const;
  // See tl_finalize. The context is good for nothing but destruction afterwards.
  Status leave();
  // See tl_abort.
  Status abort(const std::string& why);
  // While it is there, a call runs that may last, and end_calls() waits for it.
  class Running {
   public:
    explicit Running(Context& context);
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running();

   private:
    Context& context_;
  };
  // After leave(): ends the calls of other threads that still run, with an error, and waits until they have returned.
  void end_calls();
  // All ranks of the job.
  const SharedSet& everybody() const { return everybody_; }
  Result<SharedSet> make_set(const tl_process_set_config_t& config) const {
    return ProcessSet::make(config, settings_);
  }
  // Gives back what is registered for a set of some ranks; waits for no other rank. Error, and nothing is given back:
  // see tl_finalize.
  Status leave_set(const ProcessSet& set);

  Result<std::byte*> allocate(std::uint64_t bytes);
  Status release(void* memory);
  bool is_shared(const void* memory, std::uint64_t bytes) const;
  Result<void*> allocate_on_gpu(int device, std::uint64_t bytes);
  Status release_on_gpu(void* memory);
  // Of memory that a context has left to the program.
  static Status free_later(void* memory);
  // The name of the host of this rank, after join(); null where the rank is alone, without a daemon.
  const char* host() const { return alone_ == nullptr ? host_.c_str() : nullptr; }
  Result<const char*> daemon_status();

  Status register_group(const SharedSet& set, const std::string& group, std::span<const tl_tensor_desc_t> descs,
                        tl_tensor_t** tensors);
  Status unregister_group(const ProcessSet& set, const std::string& group);
  Result<tl_request_t*> post(tl_tensor& tensor);
  // All or none. `stream`: for those in GPU memory.
  Status post_many(std::span<tl_tensor_t* const> tensors, void* stream, tl_request_t** requests);
  // See tl_stream_wait. Those that are gone become null.
  Status stream_wait(std::span<tl_request_t*> requests, void* stream);
  const char* gpu_status();
  // An array call.
  Result<tl_request_t*> array(const std::string& name, const ArrayCall& call);
  // See tl_send and tl_recv.
  Result<tl_request_t*> message(const MessageCall& call);
  // Whether so many can begin, if no other thread begins any meanwhile.
  Status check_room_for_messages(std::size_t count);
  // A negative time-out waits for ever. InvalidArgument when the request is not under way.
  Status wait(tl_request& request, double timeout_seconds);
  // The time-out of a request that is still under way.
  Status not_done(const tl_request& request, double timeout_seconds) const;
  Status test(tl_request& request);
  Status set_callback(tl_request& request, tl_callback_t function, void* argument);
  Status barrier(const SharedSet& set, double timeout_seconds);

 private:
  // An array call's name: its tensor, and what every call must agree with.
  struct ArrayTensor {
    ArrayCall first;
    tl_tensor* tensor = nullptr;  // null while the first call prepares it
    bool registered = false;
    bool gone = false;      // its registration was refused, or it was unregistered: the name is free again
    bool borrowed = false;  // the buffer is the program's: calls must be in place in it
  };
  // Tensors that were registered together; of an array call, one.
  struct Group {
    std::string name;  // in the job
    std::vector<tl_tensor*> tensors;
    bool closed = false;   // a thread unregisters it
    bool gave_up = false;  // ... or did, and has not heard how it ended
  };
  struct PendingCall {
    bool done = false;
    Status error;
    Message answer;
    // Nobody waits, and the helper goes on:
    std::shared_ptr<ArrayTensor> array;  // with a first array call
    std::shared_ptr<Group> leaves;       // with a group of a process set that this rank has left
  };

  // daemon_calls.cc
  // `answered`, unless null: the daemon has said something, be it an error.
  Result<Message> call(protocol::MessageType type, std::span<const std::vector<std::byte>> packets,
                       protocol::MessageType answer, bool* answered = nullptr);
  Status send_packets(protocol::MessageType type, std::uint32_t request,
                      std::span<const std::vector<std::byte>> packets);
  std::uint32_t open_call(std::shared_ptr<ArrayTensor> array, std::shared_ptr<Group> leaves = nullptr);
  void on_message(Message message);
  void fail_calls(const Status& cause);
  Result<Segment> grow_arena(std::uint64_t bytes);

  // context.cc
  Status say_hello(Time deadline);
  Status take_welcome(Message message);
  // Fails what is pending: with `posted_too` also what the daemon has, whose buffers it may still write to.
  void fail(const Status& cause, bool posted_too);
  void fail_locked(const Status& cause, bool posted_too);
  // The same error, but "aborted" in place of "timed out", which would invite the caller to ask again.
  static Status for_good(const Status& cause);
  void cut_off_locked();
  Status wait_for_quiet();
  Status still_under_way();
  Status left() const;

  // helper.cc
  void helper();
  void watch_daemon(Time time);
  void start_dispatcher_locked();  // throws std::system_error where no thread can be started, and has done nothing
  void dispatcher();

  // registration.cc
  Status check_blocks(const ProcessSet& set, const std::string& name, Operation operation,
                      std::uint64_t elements) const;
  Result<protocol::TensorBody> describe(const SharedSet& set, const tl_tensor_desc_t& desc, std::size_t group_size,
                                        tl_tensor& tensor);
  Status describe_on_gpu(const tl_tensor_desc_t& desc, tl_tensor& tensor);
  Status register_plain(const SharedSet& set, const std::string& group, std::span<const tl_tensor_desc_t> descs,
                        tl_tensor_t** tensors);

  // sharing.cc
  class GpuRegistration;
  Status register_shared(const SharedSet& set, const std::string& group, std::span<const tl_tensor_desc_t> descs,
                         tl_tensor_t** tensors);
  Status unregister_shared(GpuGroup& group, const std::string& name);
  Status end_sharing(GpuGroup& group, const std::string& name);
  void wait_for_all_streams(std::unique_lock<std::mutex>& lock);
  template <typename T>
  Result<std::vector<T>> tell_all(tl_tensor& tensor, std::span<const T> mine);
  void end_meeting_locked(tl_request& meeting, bool all_are_there);

  // unregistration.cc
  void wait_for_streams(const std::string& name, std::unique_lock<std::mutex>& lock);
  const tl_tensor* used_locked(const Group& group) const;
  Result<std::shared_ptr<Group>> close_group_locked(const std::string& name);
  Status send_leaving();
  std::vector<std::byte*> forget_group_locked(const std::string& name, const std::shared_ptr<Group>& group);
  void forget_group(const std::string& name, const std::shared_ptr<Group>& group);
  Status unregister_plain(const ProcessSet& set, const std::string& group);
  void on_group_left(const std::shared_ptr<Group>& group, const Status& error);

  // operations.cc; "locked": the caller holds mutex_
  void drain_locked();
  void complete_locked(const protocol::CompletionEntry& entry);
  void finish_locked(tl_request& request, Status status);
  Result<tl_request*> start_locked(tl_tensor& tensor);
  Result<tl_request*> prepare_locked(tl_tensor& tensor);
  void cancel_locked(tl_request& request);
  [[nodiscard]] bool submit_locked(tl_request& request);
  [[nodiscard]] bool submit_parts_locked(tl_request& request, std::uint64_t parts);
  Status consume(tl_request& request);
  void boost(tl_request& request);
  void tell_of_wait(const tl_request& request);
  bool spin(std::uint32_t seen) const;

  // gpu.cc
  class GpuEvents final : public cuda::Stager::Listener {
   public:
    explicit GpuEvents(Context& context) : context_(context) {}
    void read(cuda::Transfer& transfer, std::uint64_t parts, bool all) override;
    void over(cuda::Transfer& transfer, const Status& status) override;
    void meet(cuda::Transfer& transfer) override;
    void failed(const Status& status) override;
    bool job_has_failed() override;
    void pause(Duration longest) override;
    void wake() override;

   private:
    Context& context_;
    std::uint32_t drained_ = 0;  // the stager's: of completions
  };
  void fail_with_gpu_locked(const Status& status);
  void free_streams_of_stuck_gpus(Time time);
  void rest(std::uint32_t seen, Duration longest);
  void undo_locked(tl_request& request, cuda::Transfer*& transfer);
  void finish_on_gpu_locked(cuda::Transfer& transfer, const Status& status);
  void divide(const tl_tensor& tensor, cuda::Transfer& transfer) const;
  Status bind_to_gpu(tl_tensor& tensor, const protocol::TensorBody& body);
  Result<cuda::Device*> gpu_of(const std::string& key, const ArrayCall& call);
  Result<cuda::Transfer*> begin_on_gpu(const ArrayCall& call, const tl_tensor& tensor, cuda::Device& gpu);
  Result<tl_request*> start_on_gpu_locked(tl_tensor& tensor, cuda::Transfer& transfer, bool queued);
  std::optional<Result<tl_request*>> later_gpu_call(const std::string& key, ArrayTensor& array, const ArrayCall& call);
  Status post_on_gpus(std::span<tl_tensor_t* const> tensors, void* stream, tl_request_t** requests);
  void end_locked(tl_request& request, const Status& status);
  void free_locked(tl_request& request);
  Status wait_for_gpu(tl_request& request, double timeout_seconds, Time deadline);
  Status check_waitable_locked(const tl_request& request) const;
  Status wait_in_its_place(std::span<tl_request_t*> requests);

  // messages.cc
  Result<tl_request*> begin_message_locked(const MessageCall& call);
  Status place_message(tl_request& request, const MessageCall& call, protocol::MessageSlot& slot);
  void match_alone_locked(tl_request& request, const MessageCall& call);
  void complete_message_locked(const protocol::CompletionEntry& entry);
  void end_message_locked(tl_request& request);
  static Status mismatch(const ProcessSet& set, const tl_message& message, std::uint64_t count, Dtype dtype);

  // queue.cc
  std::optional<Result<tl_request*>> enqueue(ArrayTensor& array, const ArrayCall& call);
  void advance(tl_tensor& tensor);
  void fail_queue_locked(tl_tensor& tensor, const Status& cause);
  void advance_queues(std::unique_lock<std::mutex>& lock);

  // array.cc
  Result<tl_request*> first_call(const std::string& key, const std::shared_ptr<ArrayTensor>& array,
                                 const ArrayCall& call);
  std::optional<Result<tl_request*>> later_call(const std::string& key, ArrayTensor& array, const ArrayCall& call);
  Result<tl_request*> bind_and_start(const std::string& key, ArrayTensor& array, const ArrayCall& call,
                                     protocol::TensorBody& body);
  Status find_buffer(ArrayTensor& array, tl_tensor& tensor, const ArrayCall& call);
  Result<tl_request*> start_first_locked(tl_tensor& tensor, const ArrayCall& call, cuda::Transfer* transfer);
  Result<tl_tensor*> pushed_locked(const std::string& key, const ArrayCall& call);
  void on_array_registered(const std::shared_ptr<ArrayTensor>& array, const Status& error, const Message& answer);

  const Settings settings_;
  const SharedSet everybody_;
  const std::uint32_t fork_generation_;
  std::unique_ptr<Alone> alone_;  // in place of a daemon, or null
  Channel channel_;
  UniqueFd wake_fd_, stop_fd_;
  std::span<std::byte> ring_memory_;
  std::uint32_t ring_entries_ = 0;
  std::string host_;
  Duration detection_{};
  std::uint32_t hosts_ = 0;  // of the job
  std::unique_ptr<ArenaAllocator> arenas_;
  GpuEvents gpu_events_{*this};
  std::unique_ptr<cuda::Gpus> gpus_;

  mutable std::mutex mutex_;
  ClientRings rings_;
  Status failure_;                   // why nothing more can be posted
  std::atomic<bool> failed_{false};  // !failure_.ok()
  bool leaving_ = false;             // failure_ says so
  Status failed_in_leaving_;         // what has failed since
  bool ring_failed_ = false;
  bool gpu_failed_ = false;              // failure_ is of a GPU here
  Time stuck_since_{};                   // when a call of a GPU's driver was found not to return; 0: none
  Status deferred_;                      // why an operation has failed that a stream waited for; not yet said
  std::condition_variable gpu_changed_;  // a request of GPU memory is done
  Time give_up_{};                       // when what is posted fails although the daemon still has it; 0: not set
  std::uint32_t outstanding_ = 0;        // requests that are neither free nor done
  std::vector<std::unique_ptr<tl_tensor>> tensors_;
  std::deque<std::unique_ptr<tl_tensor>> gone_;  // the last ones that were unregistered
  std::vector<tl_tensor*> messages_;             // by slot
  std::vector<tl_tensor*> free_messages_;        // the last one is taken next
  std::deque<tl_request*> unmatched_;            // messages of a rank that is alone, oldest first
  std::map<std::string, std::shared_ptr<Group>> groups_;
  std::map<std::string, GpuGroup> gpu_groups_;  // by name in the job
  std::vector<tl_tensor*> by_id_;
  std::deque<tl_request> requests_;  // never shrinks, so that handles stay valid
  std::vector<tl_request*> free_requests_;
  std::map<std::string, std::shared_ptr<ArrayTensor>> arrays_;
  std::vector<tl_tensor*> queues_;  // tensors whose queue was not empty when the dispatcher looked last
  std::map<const ProcessSet*, tl_request*> barriers_;  // those that timed out
  std::deque<tl_request*> callbacks_;
  std::uint32_t callbacks_waited_ = 0;  // requests with a callback that has not returned
  std::uint32_t gpu_callbacks_ = 0;     // ... of GPU memory
  std::condition_variable callbacks_changed_;
  bool stopping_ = false;

  std::mutex calls_mutex_;
  std::condition_variable calls_changed_;
  std::map<std::uint32_t, PendingCall> calls_;
  std::uint32_t running_ = 0;  // under calls_mutex_
  std::uint32_t next_call_ = 1;
  std::deque<std::shared_ptr<Group>> leaving_groups_;  // of process sets: not told to the daemon yet
  std::size_t told_leaving_ = 0;                       // those that were, and are not answered; both under calls_mutex_
  std::mutex send_mutex_;                              // a group's packets are not interrupted
  bool goodbye_sent_ = false;                          // under send_mutex_
  std::mutex status_mutex_;
  std::string status_json_, gpu_json_;

  // The helper's.
  std::uint64_t daemon_beats_ = 0;
  Duration daemon_silent_{};
  Time last_watch_{};

  std::thread helper_;
  std::thread dispatcher_;
};

}  // namespace tensorlane::client

// A handle of the C interface.
struct tl_context {
  tensorlane::client::Context* session = nullptr;
  tensorlane::client::SharedSet set;  // whose operations its calls are
  tl_context* job = nullptr;          // of a process set: the handle that it was made with
  // Of a job's: its session, and the handles of its process sets.
  std::unique_ptr<tensorlane::client::Context> own;
  std::mutex mutex;
  std::map<const tl_context*, std::unique_ptr<tl_context>> sets;  // the mutex's
};
