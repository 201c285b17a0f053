// Operations on GPU memory: each works on a staging buffer of ours, which the stager (cuda/stager.h) copies its input
// to before it is submitted, and its result from when the daemon has completed it.
#include <algorithm>
#include <chrono>
#include <utility>

#include "client-lib/src/context.h"
#include "common/protocol/rank_block.h"

namespace tensorlane::client {

using State = tl_request::State;

namespace {

cuda::Stream_ stream_of(void* stream) {
  return static_cast<cuda::Stream_>(stream);
}

cuda::DevicePointer address(const void* memory) {
  return reinterpret_cast<cuda::DevicePointer>(memory);
}

}  // namespace

// ---- what the stager says ----

void Context::GpuEvents::read(cuda::Transfer& transfer, std::uint64_t parts, bool all) {
  bool wake = false;
  tl_request* boosted = nullptr;
  {
    std::lock_guard lock(context_.mutex_);
    tl_request& request = *transfer.request;
    request.staged = all;
    const bool open = request.state == State::kPreparing || request.state == State::kPosted;
    if (!open || request.awaits_registration) return;
    // One that begins in parts hears of its result in parts, too.
    if (transfer.layout.count > 1 && !(all && request.state == State::kPosted))
      wake = context_.submit_parts_locked(request, parts != 0 ? parts : 1);
    if (all) wake |= context_.submit_locked(request);
    if (transfer.boosted) boosted = &request;
  }
  if (wake) context_.rings_.wake_daemon();
  if (boosted != nullptr) context_.boost(*boosted);
}

void Context::GpuEvents::over(cuda::Transfer& transfer, const Status& status) {
  bool dispatch = false;
  {
    std::lock_guard lock(context_.mutex_);
    dispatch = transfer.request->callback != nullptr;
    context_.finish_on_gpu_locked(transfer, status);
  }
  context_.gpu_changed_.notify_all();
  if (dispatch) context_.rings_.wake_all();
}

void Context::finish_on_gpu_locked(cuda::Transfer& transfer, const Status& status) {
  tl_request& request = *transfer.request;
  tl_tensor& tensor = *request.tensor;
  request.gpu = nullptr;
  finish_locked(request, status);
  if (tensor.active == nullptr && !tensor.queue.empty()) {
    tensor.active = tensor.queue.front();
    tensor.queue.pop_front();
    gpus_->stager().add(*tensor.active->gpu);
  }
  if (request.detached) {
    if (!status.ok() && failure_.ok() && deferred_.ok()) deferred_ = for_good(status);
    free_locked(request);
  }
  transfer.device->end(transfer);
}

// This rank can do no more, and the others are told by the end of its session.
void Context::GpuEvents::failed(const Status& status) {
  {
    std::lock_guard lock(context_.mutex_);
    context_.gpu_failed_ |= context_.failure_.ok();
    context_.fail_with_gpu_locked(status);
  }
  context_.channel_.hang_up();
}

bool Context::GpuEvents::job_has_failed() {
  return context_.rings_.failed();
}

void Context::GpuEvents::pause(Duration longest) {
  const std::uint32_t seen = context_.rings_.completed();
  {
    std::lock_guard lock(context_.mutex_);
    context_.drain_locked();
  }
  if (seen == std::exchange(drained_, seen)) context_.rest(seen, longest);  // else there are notes of what has come
}

void Context::GpuEvents::wake() {
  context_.rings_.wake_all();
}

// Everything ends, what is being copied from or to a GPU, too.
void Context::fail_with_gpu_locked(const Status& status) {
  fail_locked(status, true);
  for (const auto& tensor : tensors_) {
    if (tensor->active != nullptr && tensor->active->gpu != nullptr) end_locked(*tensor->active, failure_);
  }
}

// As ClientRings::wait(), but sleeps, too, where the rings have failed and something is not over yet.
void Context::rest(std::uint32_t seen, Duration longest) {
  if (!rings_.failed()) return rings_.wait(seen, longest);
  std::this_thread::sleep_for(std::chrono::nanoseconds(longest.value));
}

// A thread of the program may hold a lock of the driver's while it waits for a stream that waits for us, and the stager
// for that lock: the driver loads a kernel at its first launch in this way. What these streams wait for needs no
// driver.
void Context::free_streams_of_stuck_gpus(Time time) {
  if (!gpus_->is_stuck(time)) return;
  std::lock_guard lock(mutex_);
  if (stuck_since_.value == 0) stuck_since_ = time;
  gpu_failed_ |= failure_.ok();
  fail_with_gpu_locked(
      Status(Code::kAborted, "the GPU's driver has not returned for 30 s from a call of the thread that copies",
             "job '" + settings_.job + "'; results that streams waited for are not filled with NaN",
             "load kernels before the first wait (CUDA_MODULE_LOADING=EAGER), or set TENSORLANE_STREAM_WAIT=0"));
  for (const tl_request& request : requests_) {
    if (request.gpu == nullptr || !request.detached) continue;
    // The host's other ranks may be reading this one's memory: see Stager::Patience::others.
    const bool known = rings_.failed() || time - stuck_since_ > cuda::Stager::Patience().others;
    if (request.tensor->shared == nullptr || known)
      std::atomic_ref(*request.gpu->word).store(request.gpu->value, std::memory_order_release);
  }
}

// Ends a request that fails; one of GPU memory when the GPU is no longer at it.
void Context::end_locked(tl_request& request, const Status& status) {
  if (request.meets) return end_meeting_locked(request, false);
  if (request.gpu == nullptr) return finish_locked(request, status);
  if (request.state == State::kStopping) return;
  request.state = State::kStopping;
  gpus_->stager().stop(*request.gpu, status, request.detached);
}

// ---- beginning ----

// Whether the transfer goes in parts. Only where a part can go to the network at once: between hosts, from the only
// rank of this one.
void Context::divide(const tl_tensor& tensor, cuda::Transfer& transfer) const {
  constexpr std::uint64_t kLarge = 2 * cuda::Stager::kSlice;
  // No part of the result may be written over input that has not been read.
  const cuda::Side &in = transfer.in, &out = transfer.out;
  const bool apart = in.on_gpu + in.bytes <= out.on_gpu || out.on_gpu + out.bytes <= in.on_gpu;
  const bool in_place = in.on_gpu - in.offset == out.on_gpu - out.offset;
  if (tensor.exchanges || hosts_ < 2 || tensor.set->local_world_size > 1 || tensor.bytes < kLarge ||
      !(apart || in_place)) {
    transfer.layout = {tensor.bytes, 1, 1};
  } else {
    transfer.layout = {protocol::part_bytes(tensor.bytes), protocol::part_count(tensor.bytes), hosts_};
  }
}

// Of a tensor that is registered with a buffer: what is copied in and out of its staging, which is pinned.
Status Context::bind_to_gpu(tl_tensor& tensor, const protocol::TensorBody& body) {
  TL_RETURN_IF_ERROR(gpus_->pin(arenas_->segment_of(tensor.buffer), *tensor.gpu));
  const auto part = [&](std::uint64_t offset, std::uint64_t bytes) {
    return cuda::Side{address(tensor.gpu_buffer) + offset, tensor.buffer + offset, bytes, offset};
  };
  tensor.gpu_in = tensor.gpu_out = part(0, tensor.bytes);
  const bool root = tensor.set->rank == body.root;
  if (body.operation == Operation::kReduce && !root) tensor.gpu_out = part(0, 0);
  if (body.operation == Operation::kGather || body.operation == Operation::kScatter) {
    // The root's own part is in its place.
    const bool gives = (body.operation == Operation::kScatter) == root;
    (gives ? tensor.gpu_out : tensor.gpu_in) = part(0, 0);
  }
  if (body.operation == Operation::kAlltoall) {
    tensor.gpu_in = part(0, tensor.bytes / 2);
    tensor.gpu_out = part(tensor.bytes / 2, tensor.bytes / 2);
  }
  if (body.operation == Operation::kBroadcast) (root ? tensor.gpu_out : tensor.gpu_in) = part(0, 0);
  if (body.operation == Operation::kAllgather) {
    const std::uint64_t mine = tensor.bytes / tensor.set->world_size;
    tensor.gpu_in = part(tensor.set->rank * mine, mine);
  }
  if (body.operation == Operation::kReduceScatter) {
    const auto block = protocol::rank_block(body.elements, body.row, tensor.set->world_size, tensor.set->rank);
    const std::uint64_t size = dtype_size(body.dtype);
    tensor.gpu_out = part(block.offset * size, block.elements * size);
  }
  return {};
}

// The GPU of an array call's buffers.
Result<cuda::Device*> Context::gpu_of(const std::string& key, const ArrayCall& call) {
  cuda::Device* in = nullptr;
  cuda::Device* out = nullptr;
  const std::string name = "the buffer of '" + key + "'";
  if (call.in != nullptr && call.in_bytes > 0) {
    TL_ASSIGN_OR_RETURN(in, gpus_->device_of(call.in, call.in_bytes, name));
  }
  if (call.out != nullptr && call.out_bytes > 0 && call.out != call.in) {
    TL_ASSIGN_OR_RETURN(out, gpus_->device_of(call.out, call.out_bytes, name));
  }
  if (in != nullptr && out != nullptr && in != out) {
    return Status(Code::kInvalidArgument, "the buffers of '" + key + "' are on two GPUs",
                  in->where() + " and " + out->where(), "copy one to the other's GPU");
  }
  return in != nullptr ? in : out;
}

// What an array call copies to and from the tensor's staging; begins when the call's stream has come so far.
Result<cuda::Transfer*> Context::begin_on_gpu(const ArrayCall& call, const tl_tensor& tensor, cuda::Device& gpu) {
  TL_ASSIGN_OR_RETURN(cuda::Transfer * transfer, gpu.begin(stream_of(call.stream), tensor.name));
  const bool broadcast = call.operation == Operation::kBroadcast, root = call.set->rank == call.root;
  if (call.in != nullptr && (!broadcast || root))
    transfer->in = {address(call.in), tensor.buffer + call.in_offset, call.in_bytes, call.in_offset};
  if (call.operation != Operation::kPush && !(broadcast && root))
    transfer->out = {address(call.out), tensor.buffer + call.out_offset, call.out_bytes, call.out_offset};
  divide(tensor, *transfer);
  return transfer;
}

// An operation may begin behind others of its tensor that streams wait for, which may yet be under way when the program
// is far ahead of the GPU.
Result<tl_request*> Context::start_on_gpu_locked(tl_tensor& tensor, cuda::Transfer& transfer, bool queued) {
  if (!failure_.ok()) return failure_;
  const auto detached = [](const tl_request* request) { return request->detached; };
  const bool busy = tensor.active != nullptr;
  const bool behind = busy && (queued || (detached(tensor.active) && std::ranges::all_of(tensor.queue, detached)));
  tl_request* request = nullptr;
  if (behind && (tensor.twin == nullptr || tensor.twin->active == nullptr)) {
    TL_ASSIGN_OR_RETURN(request, prepare_locked(tensor));
    tensor.queue.push_back(request);
  } else {
    TL_ASSIGN_OR_RETURN(request, start_locked(tensor));
  }
  request->gpu = &transfer;
  transfer.request = request;
  transfer.urgency = tensor.urgency;
  return request;
}

// Nothing where the name has become free since it was looked up.
std::optional<Result<tl_request*>> Context::later_gpu_call(const std::string& key, ArrayTensor& array,
                                                           const ArrayCall& call) {
  const Result<cuda::Device*> gpu = gpu_of(key, call);
  if (!gpu.ok()) return gpu.status();
  cuda::Device* device = *gpu != nullptr ? *gpu : array.tensor->gpu;
  const Result<cuda::Transfer*> transfer = begin_on_gpu(call, *array.tensor, *device);
  if (!transfer.ok()) return transfer.status();
  std::lock_guard lock(mutex_);
  if (array.gone) {
    device->end(**transfer);
    return std::nullopt;
  }
  const Result<tl_request*> started = start_on_gpu_locked(*array.tensor, **transfer, call.queued);
  if (!started.ok()) {
    device->end(**transfer);
    return started;
  }
  if (array.tensor->active == *started) gpus_->stager().add(**transfer);
  return started;
}

// Takes back what has been started and not submitted; where the job has failed meanwhile, the stager is at `transfer`,
// and both are freed when it is done.
void Context::undo_locked(tl_request& request, cuda::Transfer*& transfer) {
  if (request.state == State::kStopping) {
    request.detached = true;
    transfer = nullptr;
    return;
  }
  std::erase(request.tensor->queue, &request);
  cancel_locked(request);
}

Status Context::post_on_gpus(std::span<tl_tensor_t* const> tensors, void* stream, tl_request_t** requests) {
  std::vector<cuda::Transfer*> transfers(tensors.size());
  const auto give_back = [&](const Status& status) {
    for (cuda::Transfer* transfer : transfers) {
      if (transfer != nullptr) transfer->device->end(*transfer);
    }
    return status;
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->gpu == nullptr) continue;
    const Result<cuda::Transfer*> transfer = tensors[i]->gpu->begin(stream_of(stream), tensors[i]->text());
    if (!transfer.ok()) return give_back(transfer.status());
    transfers[i] = *transfer;
    transfers[i]->in = tensors[i]->gpu_in;
    transfers[i]->out = tensors[i]->gpu_out;
    if (tensors[i]->shared != nullptr) transfers[i]->shares = &tensors[i]->shared->shares;
    divide(*tensors[i], *transfers[i]);
  }
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Result<tl_request*> started =
          transfers[i] != nullptr ? start_on_gpu_locked(*tensors[i], *transfers[i], false) : start_locked(*tensors[i]);
      if (!started.ok()) {
        while (i > 0) {
          --i;
          undo_locked(*requests[i], transfers[i]);
          requests[i] = nullptr;
        }
        return give_back(started.status());
      }
      requests[i] = *started;
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (transfers[i] == nullptr) {
        wake |= submit_locked(*requests[i]);
      } else if (tensors[i]->active == requests[i]) {
        gpus_->stager().add(*transfers[i]);
      }
    }
  }
  if (wake) rings_.wake_daemon();
  return {};
}

// ---- waiting ----

Status Context::wait_for_gpu(tl_request& request, double timeout_seconds, Time deadline) {
  const bool forever = !(timeout_seconds >= 0);
  {
    std::unique_lock lock(mutex_);
    while (request.state != State::kDone) {
      const Duration left = forever ? seconds(1) : deadline - now();
      if (left.value <= 0) return not_done(request, timeout_seconds);
      if (request.gpu != nullptr && !request.gpu->boosted.exchange(true) && request.state == State::kPosted) {
        lock.unlock();
        boost(request);
        lock.lock();
        continue;
      }
      const BlockedNote blocked(rings_);
      gpu_changed_.wait_for(lock, std::chrono::nanoseconds(std::min(left, seconds(1)).value));
    }
    request.state = State::kTaken;
  }
  return consume(request);
}

Status Context::check_waitable_locked(const tl_request& request) const {
  const auto refused = [&](std::string what, std::string fix) {
    return Status(Code::kInvalidArgument, "no stream can wait for this request", std::move(what), std::move(fix));
  };
  if (request.state == State::kFree || request.callback != nullptr)
    return refused("it was freed, or has a callback", "wait for a request once");
  const tl_tensor& tensor = *request.tensor;
  const std::string name = "tensor '" + tensor.text() + "'";
  if (tensor.gpu == nullptr) return refused(name + " is in host memory", "wait for it by tl_wait");
  if (tensor.keyed) return refused(name + " is a key's", "wait for a push or a pull by tl_wait");
  return {};
}

// Where streams cannot wait, this thread does.
Status Context::wait_in_its_place(std::span<tl_request_t*> requests) {
  Status first;
  for (tl_request_t*& request : requests) {
    if (request == nullptr) continue;
    const Status status = wait(*std::exchange(request, nullptr), -1);
    if (first.ok()) first = status;
  }
  return first;
}

Status Context::stream_wait(std::span<tl_request_t*> requests, void* stream) {
  TL_RETURN_IF_ERROR(usable());
  bool streams_wait = true;
  {
    std::lock_guard lock(mutex_);
    for (const tl_request* request : requests) {
      if (request == nullptr) continue;
      TL_RETURN_IF_ERROR(check_waitable_locked(*request));
      streams_wait &= request->tensor->gpu->no_stream_wait().empty();
    }
  }
  if (!streams_wait) return wait_in_its_place(requests);
  for (const tl_request* request : requests) {
    if (request == nullptr) continue;
    if (rings_.waits_observed()) tell_of_wait(*request);
    cuda::Device* device = nullptr;
    cuda::Device::Wait wait;
    {
      std::lock_guard lock(mutex_);
      if (request->gpu == nullptr || request->state == State::kStopping) continue;
      device = request->gpu->device;
      wait = cuda::Device::wait_for(*request->gpu);
    }
    // Without the mutex: a full queue of the stream blocks, and it is we who must empty it.
    TL_RETURN_IF_ERROR(device->wait_on(stream_of(stream), wait));
    rings_.note_stream_wait();
  }
  Status first;
  for (tl_request_t*& request : requests) {
    if (request == nullptr) continue;
    {
      std::lock_guard lock(mutex_);
      if (request->gpu != nullptr && request->state != State::kStopping) {
        request->detached = true;
        request = nullptr;
        continue;
      }
    }
    const Status status = wait(*std::exchange(request, nullptr), -1);
    if (first.ok()) first = status;
  }
  return first;
}

const char* Context::gpu_status() {
  std::lock_guard lock(status_mutex_);
  std::string groups;
  {
    std::lock_guard held(mutex_);
    for (const auto& [name, group] : gpu_groups_) {
      groups += groups.empty() ? "" : ",";
      groups += R"({"name":")" + cuda::json_text(name) + R"(","shared":)" + (group.why_not.empty() ? "true" : "false") +
                R"(,"not_shared_because":")" + cuda::json_text(group.why_not) + R"("})";
    }
  }
  gpu_json_ = gpus_->status(groups);
  return gpu_json_.c_str();
}

}  // namespace tensorlane::client
