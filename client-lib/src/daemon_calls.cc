// Questions to the daemon and its answers.
#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <cstring>

#include "client-lib/src/context.h"
#include "common/protocol/status_text.h"

namespace tensorlane::client {

using protocol::MessageType;

std::uint32_t Context::open_call(std::shared_ptr<ArrayTensor> array, std::shared_ptr<Group> leaves) {
  std::lock_guard lock(calls_mutex_);
  if (next_call_ == 0) next_call_ = 1;  // 0 is the daemon's, for what nobody asked
  PendingCall& call = calls_[next_call_];
  call.array = std::move(array);
  call.leaves = std::move(leaves);
  return next_call_++;
}

Status Context::send_packets(MessageType type, std::uint32_t request, std::span<const std::vector<std::byte>> packets) {
  std::lock_guard lock(send_mutex_);
  if (goodbye_sent_) return left();  // to the daemon the session is over
  goodbye_sent_ = type == MessageType::kGoodbye;
  for (const std::vector<std::byte>& packet : packets) TL_RETURN_IF_ERROR(channel_.send(type, request, packet));
  return {};
}

Result<Message> Context::call(MessageType type, std::span<const std::vector<std::byte>> packets, MessageType answer,
                              bool* answered) {
  const Time deadline = now() + settings_.timeout;
  const std::uint32_t request = open_call(nullptr);
  Status failure = send_packets(type, request, packets);
  {
    // A failure from here on finds the call in the list; one that came before is seen now.
    std::lock_guard lock(mutex_);
    if (failure.ok()) failure = type == MessageType::kGoodbye ? failed_in_leaving_ : failure_;
  }
  std::unique_lock lock(calls_mutex_);
  PendingCall& pending = calls_[request];
  if (failure.ok()) {
    const auto left = std::chrono::nanoseconds((deadline - now()).value);
    calls_changed_.wait_for(lock, left, [&] { return pending.done; });
    if (!pending.done && type == MessageType::kRegister) {
      // The daemon knows which ranks have not come.
      lock.unlock();
      failure = send_packets(MessageType::kOverdue, request, std::array{std::vector<std::byte>()});
      lock.lock();
      calls_changed_.wait_for(lock, std::chrono::nanoseconds(kLastWord.value), [&] { return pending.done; });
    }
  }
  PendingCall result = std::move(pending);
  calls_.erase(request);
  // The daemon may have closed right after its answer: that counts.
  if (!result.done && !failure.ok()) return failure;
  if (!result.done) {
    return Status(Code::kTimedOut, "the daemon has not answered",
                  std::to_string(settings_.timeout.value / 1'000'000) + " ms",
                  "see whether all ranks make the same calls, or raise TENSORLANE_TIMEOUT");
  }
  if (answered != nullptr) *answered = true;
  if (!result.error.ok()) return result.error;
  if (result.answer.header.type != answer) {
    return Status(Code::kCorrupt, "an unexpected answer of the daemon", settings_.socket,
                  "install the same release of library and daemon");
  }
  return std::move(result.answer);
}

Context::Running::Running(Context& context) : context_(context) {
  std::lock_guard lock(context_.calls_mutex_);
  ++context_.running_;
}
Context::Running::~Running() {
  std::lock_guard lock(context_.calls_mutex_);
  --context_.running_;
  context_.calls_changed_.notify_all();  // whoever waits for this deletes what it is called on, after the lock
}

void Context::end_calls() {
  const auto none_runs = [this] { return running_ == 0; };
  {
    std::lock_guard lock(calls_mutex_);
    if (none_runs()) return;
  }
  fail(left(), true);
  std::unique_lock lock(calls_mutex_);
  calls_changed_.wait(lock, none_runs);
}

void Context::on_message(Message message) {
  const Status error = message.header.type == MessageType::kError ? message.error() : Status();
  if (message.header.request == 0) {
    if (!error.ok()) fail(error, false);
    return;
  }
  std::shared_ptr<ArrayTensor> array;
  std::shared_ptr<Group> leaves;
  {
    std::lock_guard lock(calls_mutex_);
    const auto it = calls_.find(message.header.request);
    if (it == calls_.end() || it->second.done) return;  // the answer to a call that timed out or was ended
    array = std::move(it->second.array);
    leaves = std::move(it->second.leaves);
    if (array == nullptr && leaves == nullptr) {
      it->second.error = error;
      it->second.answer = std::move(message);
      it->second.done = true;
    } else {
      calls_.erase(it);
    }
  }
  if (array != nullptr) return on_array_registered(array, error, message);
  if (leaves != nullptr) return on_group_left(leaves, error);
  calls_changed_.notify_all();
}

void Context::fail_calls(const Status& cause) {
  {
    std::lock_guard lock(calls_mutex_);
    for (auto it = calls_.begin(); it != calls_.end();) {
      PendingCall& pending = it->second;
      if (pending.array != nullptr || pending.leaves != nullptr) {  // its request has failed with the others
        it = calls_.erase(it);
        continue;
      }
      if (!pending.done) {
        pending.done = true;
        pending.error = cause;
      }
      ++it;
    }
  }
  calls_changed_.notify_all();
}

Result<Segment> Context::grow_arena(std::uint64_t bytes) {
  protocol::ArenaBody body;
  body.bytes = bytes;
  std::vector<std::byte> packet(sizeof body);
  std::memcpy(packet.data(), &body, sizeof body);
  TL_ASSIGN_OR_RETURN(Message answer, call(MessageType::kArena, std::span(&packet, 1), MessageType::kArena));
  TL_ASSIGN_OR_RETURN(const auto got, answer.as<protocol::ArenaBody>());
  if (answer.fds[0].get() < 0 || got.bytes < bytes) {
    return Status(Code::kCorrupt, "an arena without memory", settings_.socket,
                  "install the same release of library and daemon");
  }
  void* base = mmap(nullptr, got.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, answer.fds[0].get(), 0);
  if (base == MAP_FAILED) {
    return Status(Code::kResourceExhausted, "cannot map " + std::to_string(got.bytes) + " bytes of shared memory",
                  std::strerror(errno), "raise the limit of address space");
  }
  // Nobody can take pages out of it from now on, or add seals. The daemon, which asks for that, waits for no client's
  // file; and a kernel that knows no such seal is not asked for it.
  (void)fcntl(answer.fds[0].get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  return Segment{got.segment, static_cast<std::byte*>(base), got.bytes, std::move(answer.fds[0])};
}

Result<const char*> Context::daemon_status() {
  std::lock_guard lock(status_mutex_);
  protocol::StatusText text;
  while (!text.complete()) {
    const protocol::StatusBody body{text.next()};
    std::vector<std::byte> packet(sizeof body);
    std::memcpy(packet.data(), &body, sizeof body);
    TL_ASSIGN_OR_RETURN(const Message answer, call(MessageType::kStatus, std::span(&packet, 1), MessageType::kStatus));
    TL_RETURN_IF_ERROR(text.add(answer.body));
  }
  status_json_ = text.take();
  return status_json_.c_str();
}

}  // namespace tensorlane::client
