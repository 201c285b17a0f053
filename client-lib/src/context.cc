#include "client-lib/src/context.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace tensorlane::client {
namespace {

// Counts the forks that led to this process.
std::atomic<std::uint32_t> fork_generation{0};

std::uint32_t watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); }); });
  return fork_generation.load();
}

// After it the daemon's buffers are given up, even if it has not said that it is done with them.
constexpr Duration kLeastGrace = seconds(1);

}  // namespace

Context::Context(Settings settings)
    : settings_(std::move(settings)),
      everybody_(std::make_shared<ProcessSet>(settings_)),
      fork_generation_(watch_forks()),
      gpus_(std::make_unique<cuda::Gpus>(gpu_events_)) {}

Context::~Context() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  callbacks_changed_.notify_all();
  if (stop_fd_.get() >= 0) eventfd_write(stop_fd_.get(), 1);
  rings_.wake_all();
  if (helper_.joinable()) helper_.join();
  if (dispatcher_.joinable()) dispatcher_.join();
  {
    std::lock_guard lock(mutex_);
    fail_with_gpu_locked(left());
  }
  gpus_->stop();
  gpu_groups_.clear();
  gpus_.reset();
  arenas_.reset();
  if (!ring_memory_.empty()) munmap(ring_memory_.data(), ring_memory_.size());
}

Status Context::usable() const {
  if (fork_generation.load(std::memory_order_relaxed) == fork_generation_) return {};
  return Status(Code::kInvalidArgument, "a forked child cannot use its parent's context",
                "rank " + std::to_string(settings_.rank) + " of job '" + settings_.job + "'",
                "use it in the process that called tl_init");
}

Status Context::join() {
  const Time start = now();
  stop_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (stop_fd_.get() < 0)
    return Status(Code::kResourceExhausted, "cannot make an eventfd", std::strerror(errno),
                  "raise the limit of open files");
  const Status connected = channel_.connect(settings_.socket, start + settings_.timeout);
  if (connected.code() == Code::kUnavailable && settings_.world_size == 1) {
    TL_ASSIGN_OR_RETURN(alone_, Alone::begin(channel_, connected.where()));
  } else {
    TL_RETURN_IF_ERROR(connected);
  }
  TL_RETURN_IF_ERROR(say_hello(start + settings_.timeout));
  arenas_ = std::make_unique<ArenaAllocator>([this](std::uint64_t bytes) { return grow_arena(bytes); });
  last_watch_ = now();
  rings_.beat();
  helper_ = std::thread([this] { helper(); });
  return {};
}

Status Context::say_hello(Time deadline) {
  protocol::HelloBody hello;
  hello.rank = settings_.rank;
  hello.world_size = settings_.world_size;
  hello.local_rank = settings_.local_rank;
  hello.local_world_size = settings_.local_world_size;
  hello.timeout_ms = static_cast<std::uint32_t>(std::max<std::int64_t>(settings_.timeout.value / 1'000'000, 1));
  std::memcpy(hello.job, settings_.job.data(), settings_.job.size());
  std::memcpy(hello.leader, settings_.leader.data(), settings_.leader.size());
  hello.leader_port = settings_.leader_port;
  hello.secret_bytes = static_cast<std::uint32_t>(settings_.secret.size());
  std::memcpy(hello.secret, settings_.secret.data(), settings_.secret.size());
  // Where the daemon has closed already, what it said is more telling than that the send failed.
  const Status sent = channel_.send(protocol::MessageType::kHello, 1, std::as_bytes(std::span(&hello, 1)));
  explicit_bzero(hello.secret, sizeof hello.secret);
  // The daemon knows the time-out, and names the ranks that have not come.
  Result<std::optional<Message>> answer = channel_.receive(deadline + kLastWord);
  if (!answer.ok()) return sent.ok() ? answer.status() : sent;
  if (!answer->has_value()) {
    return Status(Code::kTimedOut, "job '" + settings_.job + "' has not come together",
                  "not all " + std::to_string(settings_.world_size) + " ranks have joined within " +
                      std::to_string(settings_.timeout.value / 1'000'000'000) + " s",
                  "look at the other ranks, or raise TENSORLANE_TIMEOUT");
  }
  return take_welcome(std::move(**answer));
}

Status Context::take_welcome(Message message) {
  if (message.header.type == protocol::MessageType::kError) return message.error();
  TL_ASSIGN_OR_RETURN(const auto welcome, message.as<protocol::WelcomeBody>());
  if (message.header.type != protocol::MessageType::kWelcome || message.fds[1].get() < 0 ||
      !std::has_single_bit(welcome.ring_entries)) {
    return Status(Code::kCorrupt, "an unexpected answer to hello", settings_.socket,
                  "install the same release of library and daemon");
  }
  const std::size_t bytes = protocol::ring_memory_bytes(welcome.ring_entries);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, message.fds[0].get(), 0);
  if (memory == MAP_FAILED) {
    return Status(Code::kResourceExhausted, "cannot map the rings", std::strerror(errno),
                  "raise the limit of address space");
  }
  ring_memory_ = std::span(static_cast<std::byte*>(memory), bytes);
  ring_entries_ = welcome.ring_entries;
  hosts_ = welcome.hosts;
  host_.assign(welcome.host, strnlen(welcome.host, protocol::kMaxName));
  wake_fd_ = std::move(message.fds[1]);
  rings_ = ClientRings(ring_memory_, welcome.ring_entries, wake_fd_.get());
  detection_ = Duration(static_cast<std::int64_t>(std::clamp(welcome.detection_seconds, 0.01, 1e5) * 1e9));
  return {};
}

void Context::fail(const Status& cause, bool posted_too) {
  std::lock_guard lock(mutex_);
  fail_locked(cause, posted_too);
}

// Before requests fail that the daemon has: their buffers become the program's again, and a daemon that was only
// stopped or cut this session off may still write to them (law 18). What we copy in and out of is nobody's but ours.
void Context::cut_off_locked() {
  std::vector<std::span<std::byte>> buffers;
  for (const auto& tensor : tensors_) {
    const tl_request* request = tensor->active;
    if (request == nullptr || request->state != tl_request::State::kPosted) continue;
    if (!request->copies_out && !request->given_back && tensor->gpu == nullptr)
      buffers.emplace_back(tensor->buffer, tensor->bytes);
  }
  if (buffers.empty()) return;
  const Status cut = arenas_->cut_off(buffers);
  if (cut.ok()) return;
  failure_ = Status(failure_.code(), failure_.what(),
                    failure_.where() + "; the daemon could not be cut off from the buffers of operations under way (" +
                        cut.what() + ": " + cut.where() + ")",
                    "do not use these buffers again, the daemon may still write to them; " + failure_.fix());
}

void Context::fail_locked(const Status& cause, bool posted_too) {
  if (failure_.ok()) {
    failure_ = for_good(cause);
    failed_.store(true, std::memory_order_release);
  }
  if (leaving_ && failed_in_leaving_.ok()) failed_in_leaving_ = for_good(cause);
  if (give_up_.value == 0) give_up_ = now() + std::max(detection_, kLeastGrace);
  if (posted_too) cut_off_locked();
  bool shared = false;
  for (const auto& tensor : tensors_) {
    fail_queue_locked(*tensor, failure_);
    tl_request* request = tensor->active;
    if (request == nullptr) continue;
    using State = tl_request::State;
    // A result that lands needs nobody, but where the host's ranks have to meet.
    const bool awaits_others = request->state == State::kLanding && tensor->shared != nullptr;
    if (request->state == State::kPreparing || (posted_too && (request->state == State::kPosted || awaits_others)))
      end_locked(*request, failure_);
    shared = shared || (posted_too && tensor->shared != nullptr);
  }
  // Others may be reading memory that is about to be the program's again: their daemon must know that it is over.
  if (shared && !rings_.failed()) channel_.hang_up();
  fail_calls(leaving_ ? failed_in_leaving_ : failure_);
  rings_.wake_all();
}

Status Context::still_under_way() {
  std::lock_guard lock(mutex_);
  std::string which = std::to_string(outstanding_) + " of them";
  const auto busy = std::ranges::find_if(tensors_, [](const auto& tensor) { return tensor->active != nullptr; });
  if (busy != tensors_.end()) which += ", on tensor '" + (*busy)->name + "' the first";
  return {Code::kTimedOut, "operations of this rank are still under way", which,
          "wait for every request before tl_finalize; other ranks may not have started theirs"};
}

// What calls of other threads hear while the context leaves.
Status Context::left() const {
  return {Code::kAborted, "another thread has called tl_finalize", "job '" + settings_.job + "'",
          "let every call return before"};
}

// Once nothing is under way, nothing begins any more, and calls that wait for the daemon end.
Status Context::wait_for_quiet() {
  const Time deadline = now() + settings_.timeout;
  while (true) {
    const std::uint32_t seen = rings_.completed();
    {
      std::lock_guard lock(mutex_);
      drain_locked();
      if (!failure_.ok() && outstanding_ == 0) return failure_;
      if (outstanding_ == 0 && callbacks_waited_ == 0) {
        fail_locked(left(), false);
        leaving_ = true;
        return {};
      }
    }
    if (now() > deadline) return still_under_way();
    rest(seen, milliseconds(20));
  }
}

Status Context::leave() {
  TL_RETURN_IF_ERROR(usable());
  if (dispatcher_.joinable() && dispatcher_.get_id() == std::this_thread::get_id()) {
    return Status(Code::kInvalidArgument, "tl_finalize inside a callback", "", "call it from a thread of the program");
  }
  TL_RETURN_IF_ERROR(wait_for_quiet());
  const std::vector<std::byte> empty;
  const Result<Message> answer =
      call(protocol::MessageType::kGoodbye, std::span(&empty, 1), protocol::MessageType::kGoodbye);
  return answer.ok() ? Status() : answer.status();
}

Status Context::abort(const std::string& why) {
  TL_RETURN_IF_ERROR(usable());
  fail(Status(Code::kAborted, why, "job '" + settings_.job + "'", "resume from a checkpoint"), true);
  return {};
}

Result<std::byte*> Context::allocate(std::uint64_t bytes) {
  return arenas_->allocate(bytes);
}

Status Context::release(void* memory) {
  auto* start = static_cast<std::byte*>(memory);
  const std::uint64_t bytes = arenas_->block_bytes(start);
  {
    std::lock_guard lock(mutex_);
    for (const auto& tensor : tensors_) {
      if (bytes == 0 || tensor->buffer < start || tensor->buffer >= start + bytes) continue;
      const auto array = std::find_if(arrays_.begin(), arrays_.end(),
                                      [&](const auto& entry) { return entry.second->tensor == tensor.get(); });
      if (array != arrays_.end() && array->second->borrowed && tensor->active == nullptr && tensor->buffer == start) {
        array->second->borrowed =
            false;  // the daemon knows the array's name with this memory: it becomes the staging buffer
        tensor->owns_buffer = true;
        return {};
      }
      if (tensor->message != nullptr) {
        return Status(Code::kInvalidArgument, "cannot free this memory", tensor->name + " is under way in it",
                      "wait for its request first");
      }
      return Status(Code::kInvalidArgument, "cannot free this memory",
                    "tensor '" + tensor->name + "' is registered in it",
                    "unregister it first, or leave it to tl_finalize");
    }
  }
  return arenas_->release(start);
}

bool Context::is_shared(const void* memory, std::uint64_t bytes) const {
  return arenas_->locate(memory, bytes).has_value();
}

}  // namespace tensorlane::client
