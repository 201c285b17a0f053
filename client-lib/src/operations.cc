// Posting, completing, waiting.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "client-lib/src/context.h"
#include "client-lib/src/error.h"

namespace tensorlane::client {

using State = tl_request::State;

// For a caller, "timed out" means that it may ask again.
Status Context::for_good(const Status& cause) {
  if (cause.code() != Code::kTimedOut) return cause;
  return {Code::kAborted, cause.what(), cause.where(), cause.fix()};
}

void Context::drain_locked() {
  const bool failed = rings_.failed();  // first, so that every completion before it is seen
  protocol::CompletionEntry entry;
  while (rings_.next(entry)) complete_locked(entry);
  if (failed && !ring_failed_) {
    ring_failed_ = true;
    if (!gpu_failed_) failure_ = for_good(rings_.error());  // else the daemon says what came of that
    failed_.store(true, std::memory_order_release);
    fail_locked(failure_, true);
  }
}

void Context::complete_locked(const protocol::CompletionEntry& entry) {
  if (entry.tensor & protocol::kMessageBit) return complete_message_locked(entry);
  tl_tensor* tensor = entry.tensor < by_id_.size() ? by_id_[entry.tensor] : nullptr;
  tl_request* request = tensor != nullptr ? tensor->active : nullptr;
  const bool in_parts = entry.status == Code::kInProgress;
  const std::uint64_t sequence = in_parts ? protocol::sequence_in(entry.sequence) : entry.sequence;
  const bool known = request != nullptr && request->state == State::kPosted && sequence == tensor->sequence;
  if (in_parts) {
    if (known && request->gpu != nullptr)
      gpus_->stager().placed(*request->gpu, protocol::parts_in(entry.sequence).mask());
    return;
  }
  if (!known) {
    if (failure_.ok()) {
      fail_locked(Status(Code::kInternal, "the daemon completed what was not under way",
                         "tensor " + std::to_string(entry.tensor) + ", sequence " + std::to_string(entry.sequence),
                         "report this with the daemon's log"),
                  true);
    }
    return;
  }
  if (entry.status == Code::kOk && request->meets) return end_meeting_locked(*request, true);
  if (entry.status == Code::kOk && request->gpu != nullptr) {
    request->state = State::kLanding;
    return gpus_->stager().arrived(*request->gpu);
  }
  if (entry.status == Code::kOk) return finish_locked(*request, {});
  request->given_back = true;
  // The reason follows in the ring page; the helper does not wait for it for ever.
  if (give_up_.value == 0) give_up_ = now() + std::max(detection_, seconds(1));
}

void Context::finish_locked(tl_request& request, Status status) {
  request.state = State::kDone;
  request.status = std::move(status);
  --outstanding_;
  if (!request.copies_out && request.tensor->active == &request) request.tensor->active = nullptr;
  if (request.callback != nullptr) {
    callbacks_.push_back(&request);
    callbacks_changed_.notify_one();
  }
}

Result<tl_request*> Context::start_locked(tl_tensor& tensor) {
  if (!failure_.ok()) return failure_;
  const auto busy = [&] {
    return tensor.active != nullptr || !tensor.queue.empty() ||
           (tensor.twin != nullptr && tensor.twin->active != nullptr);
  };
  if (busy()) {
    drain_locked();
    if (!failure_.ok()) return failure_;
  }
  if (busy()) {
    return Status(Code::kInvalidArgument, "an operation on tensor '" + tensor.text() + "' is under way",
                  "one at a time is possible", "wait for its request first");
  }
  TL_ASSIGN_OR_RETURN(tensor.active, prepare_locked(tensor));
  return tensor.active;
}

// A request that nothing has been done for.
Result<tl_request*> Context::prepare_locked(tl_tensor& tensor) {
  if (tensor.use != tl_tensor::Use::kOpen) {
    const bool gone = tensor.use == tl_tensor::Use::kGone;
    return Status(Code::kInvalidArgument, "tensor '" + tensor.text() + "' cannot be used",
                  gone ? "it was unregistered" : "it is being unregistered",
                  gone ? "register it again" : "wait for tl_unregister, or call that again when it has timed out");
  }
  if (!deferred_.ok()) return std::exchange(deferred_, Status());
  if (outstanding_ >= protocol::kMaxOutstanding) {
    return Status(Code::kResourceExhausted, "too many operations under way",
                  "the limit is " + std::to_string(protocol::kMaxOutstanding), "wait for some of them first");
  }
  tl_request* request = nullptr;
  if (!free_requests_.empty()) {
    request = free_requests_.back();
    free_requests_.pop_back();
  } else {
    request = &requests_.emplace_back();
    free_requests_.reserve(requests_.size());  // so that giving back never allocates
    request->context = this;
  }
  request->tensor = &tensor;
  request->state = State::kPreparing;
  request->boosted = false;
  request->copies_out = false;
  request->given_back = false;
  request->out = nullptr;
  request->callback = nullptr;
  request->gpu = nullptr;
  request->staged = request->awaits_registration = request->detached = false;
  ++outstanding_;
  return request;
}

// The operation, or the rest of one that has begun in parts.
bool Context::submit_locked(tl_request& request) {
  tl_tensor& tensor = *request.tensor;
  if (request.state != State::kPosted) ++tensor.sequence;
  request.state = State::kPosted;
  return rings_.submit({tensor.id, 0, tensor.sequence});
}

// These parts of its input are in the buffer. Half of the ring is kept for operations, as in boost(): where it is full,
// the parts come with the rest.
bool Context::submit_parts_locked(tl_request& request, std::uint64_t parts) {
  tl_tensor& tensor = *request.tensor;
  bool wake = false;
  while (parts != 0 && rings_.space() > ring_entries_ / 2) {
    const protocol::PartRun run = protocol::first_run(parts);
    parts &= ~run.mask();
    if (request.state != State::kPosted) ++tensor.sequence;
    request.state = State::kPosted;
    wake |= rings_.submit({tensor.id, protocol::kFlagParts, protocol::with_parts(tensor.sequence, run)});
  }
  return wake;
}

Result<tl_request_t*> Context::post(tl_tensor& tensor) {
  TL_RETURN_IF_ERROR(usable());
  rings_.note_thread();
  bool wake = false;
  tl_request* request = nullptr;
  if (tensor.gpu != nullptr) {
    tl_tensor* only = &tensor;
    TL_RETURN_IF_ERROR(post_on_gpus(std::span(&only, 1), nullptr, &request));
    return request;
  }
  {
    std::lock_guard lock(mutex_);
    TL_ASSIGN_OR_RETURN(request, start_locked(tensor));
    wake = submit_locked(*request);
  }
  if (wake) rings_.wake_daemon();
  return request;
}

// Takes back what start_locked() has begun and nobody has submitted.
void Context::cancel_locked(tl_request& request) {
  if (request.state == State::kPreparing) --outstanding_;  // else the job has failed meanwhile
  if (request.tensor->active == &request) request.tensor->active = nullptr;
  free_locked(request);
}

void Context::free_locked(tl_request& request) {
  request.state = State::kFree;
  request.status = {};
  free_requests_.push_back(&request);
}

Status Context::post_many(std::span<tl_tensor_t* const> tensors, void* stream, tl_request_t** requests) {
  TL_RETURN_IF_ERROR(usable());
  rings_.note_thread();
  if (std::ranges::any_of(tensors, [](const tl_tensor* tensor) { return tensor->gpu != nullptr; }))
    return post_on_gpus(tensors, stream, requests);
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Result<tl_request*> started = start_locked(*tensors[i]);
      if (!started.ok()) {
        while (i > 0) cancel_locked(*requests[--i]);
        return started.status();
      }
      requests[i] = *started;
    }
    for (tl_request* request : std::span(requests, tensors.size())) wake |= submit_locked(*request);
  }
  if (wake) rings_.wake_daemon();
  return {};
}

// The result to where the program wants it, the request to the free ones. By the request's owner, who has taken it.
Status Context::consume(tl_request& request) {
  tl_tensor& tensor = *request.tensor;
  if (request.copies_out && request.status.ok() && request.out_bytes > 0)
    std::memcpy(request.out, tensor.buffer + request.out_offset, request.out_bytes);
  Status status;
  bool queue = false;
  {
    std::lock_guard lock(mutex_);
    if (tensor.active == &request) tensor.active = nullptr;
    if (tensor.message != nullptr) end_message_locked(request);
    status = std::exchange(request.status, Status());
    free_locked(request);
    queue = !tensor.queue.empty() && tensor.gpu == nullptr;
  }
  if (queue) advance(tensor);
  return for_good(status);
}

Status Context::test(tl_request& request) {
  TL_RETURN_IF_ERROR(usable());
  {
    std::lock_guard lock(mutex_);
    if (request.state == State::kFree || request.callback != nullptr) {
      return Status(Code::kInvalidArgument, "this request is not under way", "it was freed, or has a callback",
                    "test a request until it is done");
    }
    if (request.state != State::kDone) drain_locked();
    if (request.state != State::kDone) return Status(Code::kInProgress, "");
    request.state = State::kTaken;
  }
  return consume(request);
}

bool Context::spin(std::uint32_t seen) const {
  if (settings_.spin.value == 0) return false;
  const Time until = now() + settings_.spin;
  do {
    if (rings_.completed() != seen || rings_.failed()) return true;
  } while (now() < until);
  return false;
}

// Tells the daemon, once, that somebody waits for this one (law 9).
void Context::boost(tl_request& request) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    // Half of the ring is kept for operations, which may not fail for want of room.
    if (request.boosted || request.state != State::kPosted || rings_.space() <= ring_entries_ / 2) return;
    if (request.tensor->message != nullptr) return;
    request.boosted = true;
    wake = rings_.submit({request.tensor->id, protocol::kFlagBoost, request.tensor->sequence});
  }
  if (wake) rings_.wake_daemon();
}

// Blocked or not: the daemon learns in which order this program needs its tensors.
void Context::tell_of_wait(const tl_request& request) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    const bool given = request.state == State::kPosted || request.state == State::kDone;
    if (!given || request.tensor->sequence == 0 || rings_.space() <= ring_entries_ / 2) return;
    if (request.tensor->message != nullptr) return;
    wake = rings_.submit({request.tensor->id, protocol::kFlagWaited, request.tensor->sequence});
  }
  if (wake) rings_.wake_daemon();
}

Status Context::not_done(const tl_request& request, double timeout_seconds) const {
  const std::string name = request.tensor->text();
  return {Code::kTimedOut, (request.tensor->message != nullptr ? name : "tensor '" + name + "'") + " is not done",
          "within " + std::to_string(timeout_seconds) + " s", "wait again: the request stays valid"};
}

Status Context::wait(tl_request& request, double timeout_seconds) {
  TL_RETURN_IF_ERROR(usable());
  if (rings_.waits_observed()) tell_of_wait(request);
  const bool forever = !(timeout_seconds >= 0);
  const Time deadline = now() + Duration(forever ? 0 : static_cast<std::int64_t>(std::min(timeout_seconds, 1e8) * 1e9));
  for (bool spun = false;;) {
    const std::uint32_t seen = rings_.completed();
    State state;
    {
      std::unique_lock lock(mutex_);
      if (request.state == State::kFree || request.callback != nullptr) {
        return Status(Code::kInvalidArgument, "this request is not under way", "it was freed, or has a callback",
                      "wait for a request once");
      }
      if (request.tensor->gpu != nullptr) {
        lock.unlock();
        return wait_for_gpu(request, timeout_seconds, deadline);
      }
      if (request.state != State::kDone) drain_locked();
      state = request.state;
      if (state == State::kDone) request.state = State::kTaken;
    }
    if (state == State::kDone) break;
    if (state == State::kCopying) {  // for no longer than that takes
      std::this_thread::yield();
      continue;
    }
    if (state == State::kPreparing) advance(*request.tensor);
    Duration left = milliseconds(100);
    if (!forever) {
      left = std::min(left, deadline - now());
      if (left.value <= 0) return not_done(request, timeout_seconds);
    }
    const BlockedNote blocked(rings_);
    if (!std::exchange(spun, true) && spin(seen)) continue;
    boost(request);
    rings_.wait(seen, left);
  }
  return consume(request);
}

Status Context::set_callback(tl_request& request, tl_callback_t function, void* argument) {
  TL_RETURN_IF_ERROR(usable());
  {
    std::lock_guard lock(mutex_);
    if (request.state == State::kFree || request.callback != nullptr) {
      return Status(Code::kInvalidArgument, "this request is not under way", "it was freed, or has a callback",
                    "set one callback for a request");
    }
    if (stopping_) return left();
    start_dispatcher_locked();
    ++callbacks_waited_;
    if (request.tensor->gpu != nullptr) ++gpu_callbacks_;
    request.callback = function;
    request.argument = argument;
    if (request.state == State::kDone || request.state == State::kCopying) callbacks_.push_back(&request);
    callbacks_changed_.notify_one();
  }
  rings_.wake_all();  // the dispatcher may sleep for another one
  return {};
}

}  // namespace tensorlane::client
