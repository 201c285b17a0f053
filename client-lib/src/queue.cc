// Array calls that wait for an earlier one of their name. Whoever waits for one of them moves the queue on, else the
// dispatcher does: other ranks may wait for what nobody here waits for.
#include <algorithm>
#include <cstring>
#include <utility>

#include "client-lib/src/context.h"

namespace tensorlane::client {

using State = tl_request::State;

// Nothing where the name has become free since it was looked up.
std::optional<Result<tl_request*>> Context::enqueue(ArrayTensor& array, const ArrayCall& call) {
  tl_tensor& tensor = *array.tensor;
  tl_request* request = nullptr;
  {
    std::vector<std::byte> held(call.in != nullptr ? call.in_bytes : 0);
    if (!held.empty()) std::memcpy(held.data(), call.in, held.size());
    std::lock_guard lock(mutex_);
    if (array.gone) return std::nullopt;
    if (!failure_.ok()) return failure_;
    if (stopping_) return left();
    start_dispatcher_locked();
    const Result<tl_request*> prepared = prepare_locked(tensor);
    if (!prepared.ok()) return prepared.status();
    request = *prepared;
    request->copies_out = true;
    request->out = call.out;
    request->out_offset = call.out_offset;
    request->out_bytes = call.out_bytes;
    request->held = std::move(held);
    request->held_offset = call.in_offset;
    tensor.queue.push_back(request);
    if (std::find(queues_.begin(), queues_.end(), &tensor) == queues_.end()) queues_.push_back(&tensor);
    callbacks_changed_.notify_one();
  }
  advance(tensor);
  return request;
}

// What can be done now: the result of an operation that is done goes to the program, and the next one begins.
void Context::advance(tl_tensor& tensor) {
  std::unique_lock lock(mutex_);
  drain_locked();
  if (tensor.queue.empty()) return;
  if (tl_request* done = tensor.active; done != nullptr) {
    if (done->state != State::kDone) return;
    done->state = State::kCopying;
    lock.unlock();
    if (done->status.ok() && done->out_bytes > 0)
      std::memcpy(done->out, tensor.buffer + done->out_offset, done->out_bytes);
    lock.lock();
    done->copies_out = false;
    done->state = State::kDone;
    tensor.active = nullptr;
    if (tensor.queue.empty()) return;  // the job has failed meanwhile
  }
  tl_request* next = tensor.queue.front();
  tensor.queue.pop_front();
  tensor.active = next;
  const std::vector<std::byte> held = std::exchange(next->held, {});
  const std::uint64_t offset = next->held_offset;
  lock.unlock();
  if (!held.empty()) std::memcpy(tensor.buffer + offset, held.data(), held.size());
  lock.lock();
  bool wake = false;
  // Else the job has failed meanwhile, and the request may be the program's or free.
  if (failure_.ok() && next->state == State::kPreparing) wake = submit_locked(*next);
  lock.unlock();
  if (wake) rings_.wake_daemon();
}

void Context::advance_queues(std::unique_lock<std::mutex>& lock) {
  const std::vector<tl_tensor*> tensors = queues_;
  if (tensors.empty()) return;
  lock.unlock();
  for (tl_tensor* tensor : tensors) advance(*tensor);
  lock.lock();
  std::erase_if(queues_, [](const tl_tensor* tensor) { return tensor->queue.empty(); });
}

void Context::fail_queue_locked(tl_tensor& tensor, const Status& cause) {
  for (tl_request* request : std::exchange(tensor.queue, {})) end_locked(*request, cause);
}

}  // namespace tensorlane::client
