// Array calls: any memory, by name.
//
// The first call of a name cannot wait for its registration, which is collective: with two names that two ranks use in
// different orders, both would wait for ever. So it sends the registration, and the helper posts the operation when the
// answer comes.
#include <cstring>
#include <utility>

#include "client-lib/src/context.h"
#include "client-lib/src/registration.h"
#include "common/protocol/exchange.h"

namespace tensorlane::client {
namespace {

using State = tl_request::State;

Status differs(const std::string& key, const char* field, const std::string& first, const std::string& now_given) {
  return Status(Code::kInvalidArgument, "array call '" + key + "' differs from the first one of this name",
                std::string(field) + " was " + first + ", is " + now_given, "use another name, or the same values");
}

Status check_same(const std::string& key, const ArrayCall& first, const ArrayCall& call) {
  if (call.elements != first.elements)
    return differs(key, "count", std::to_string(first.elements), std::to_string(call.elements));
  if (call.dtype != first.dtype) return differs(key, "dtype", dtype_name(first.dtype), dtype_name(call.dtype));
  if (call.reduce != first.reduce) return differs(key, "op", reduce_op_name(first.reduce), reduce_op_name(call.reduce));
  if (call.row != first.row) return differs(key, "row", std::to_string(first.row), std::to_string(call.row));
  if (call.root != first.root) return differs(key, "root", std::to_string(first.root), std::to_string(call.root));
  const auto memory = [](tl_memory_t kind) { return kind == TL_MEMORY_CUDA ? "a GPU's" : "host memory"; };
  if (call.memory != first.memory) return differs(key, "memory", memory(first.memory), memory(call.memory));
  return {};
}

// The buffer is the program's own: nothing to copy, neither in nor out.
bool in_place(const ArrayCall& call) {
  return call.in == nullptr || (call.buffer() != nullptr && call.in == call.buffer() + call.in_offset);
}

void set_output(tl_request& request, const ArrayCall& call, bool borrowed) {
  request.copies_out = !borrowed && call.operation != Operation::kBarrier;
  request.out = call.out;
  request.out_offset = call.out_offset;
  request.out_bytes = call.out_bytes;
}

protocol::TensorBody body_of(const std::string& key, const ArrayCall& call) {
  protocol::TensorBody body;
  std::memcpy(body.name, key.data(), key.size());
  body.elements = call.elements;
  body.row = call.row;
  body.dtype = call.dtype;
  body.operation = call.operation;
  body.reduce = call.reduce;
  body.root = call.root;
  body.positions = 1;
  body.explicit_urgency = call.urgency >= 0 ? 1 : protocol::kUnsaidUrgency;
  body.urgency = call.urgency >= 0 ? call.urgency : 0.5F;
  return body;
}

}  // namespace

Result<tl_request_t*> Context::array(const std::string& name, const ArrayCall& call) {
  TL_RETURN_IF_ERROR(usable());
  TL_RETURN_IF_ERROR(check_name("an array call", name));
  const std::string of_call = std::string(operation_name(call.operation)) + "." + name;
  TL_ASSIGN_OR_RETURN(const std::string key, name_in_job(*call.set, "an array call", of_call));
  if (call.operation != Operation::kBarrier) TL_RETURN_IF_ERROR(check_count(name, call.elements));
  while (true) {
    // Not a reference into the map: the entry of a name that becomes free goes while we are at it.
    std::shared_ptr<ArrayTensor> array;
    bool first = false;
    {
      std::lock_guard lock(mutex_);
      if (!failure_.ok()) return failure_;
      std::shared_ptr<ArrayTensor>& entry = arrays_[key];
      first = entry == nullptr;
      if (first) {
        entry = std::make_shared<ArrayTensor>();
        entry->first = call;
      } else {
        if (entry->tensor == nullptr) {
          return Status(Code::kInvalidArgument, "an operation on '" + key + "' is under way",
                        "another thread makes its first call", "wait for it");
        }
        TL_RETURN_IF_ERROR(check_same(key, entry->first, call));
      }
      array = entry;
    }
    if (first) return first_call(key, array, call);
    auto started = call.memory == TL_MEMORY_CUDA ? later_gpu_call(key, *array, call) : later_call(key, *array, call);
    if (started) return *std::move(started);
  }
}

// The tensor whose buffer a pull of the array key `key`, "pull.K", reads.
Result<tl_tensor*> Context::pushed_locked(const std::string& key, const ArrayCall& call) {
  const std::string pull = call.set->in_set(key);
  const auto push = arrays_.find(call.set->in_job("push" + pull.substr(pull.find('.'))));
  if (push == arrays_.end() || push->second->tensor == nullptr) {
    return Status(Code::kInvalidArgument, "array call '" + key + "' finds no value", "the key was never pushed",
                  "push it first");
  }
  if (push->second->tensor->use != tl_tensor::Use::kOpen) {
    return Status(Code::kInvalidArgument, "array call '" + key + "' finds no value", "the key is being unregistered",
                  "wait for tl_unregister, or call that again when it has timed out");
  }
  const ArrayCall& first = push->second->first;
  if (call.elements != first.elements)
    return differs(key, "count", std::to_string(first.elements), std::to_string(call.elements));
  if (call.dtype != first.dtype) return differs(key, "dtype", dtype_name(first.dtype), dtype_name(call.dtype));
  return push->second->tensor;
}

// Finds the memory that the daemon will work on: the program's, where that can be, else memory of our own.
Status Context::find_buffer(ArrayTensor& array, tl_tensor& tensor, const ArrayCall& call) {
  const bool in_gpu = call.memory == TL_MEMORY_CUDA;
  if (in_gpu) {
    TL_ASSIGN_OR_RETURN(tensor.gpu, gpu_of(tensor.name, call));
  }
  array.borrowed = false;
  if (call.operation == Operation::kBarrier || call.operation == Operation::kPull) return {};
  const bool could = in_place(call) && !call.queued && !in_gpu;
  const auto place = could ? arenas_->locate(call.buffer(), tensor.bytes) : std::nullopt;
  array.borrowed = place && place->offset % ArenaAllocator::kAlignment == 0;
  if (array.borrowed) {
    tensor.buffer = call.buffer();
    return {};
  }
  TL_ASSIGN_OR_RETURN(tensor.buffer, arenas_->allocate(tensor.bytes));
  tensor.owns_buffer = true;
  return in_gpu ? gpus_->pin(arenas_->segment_of(tensor.buffer), *tensor.gpu) : Status();
}

Result<tl_request*> Context::start_first_locked(tl_tensor& tensor, const ArrayCall& call, cuda::Transfer* transfer) {
  if (transfer == nullptr) return start_locked(tensor);
  TL_ASSIGN_OR_RETURN(tl_request * request, start_on_gpu_locked(tensor, *transfer, call.queued));
  request->awaits_registration = true;
  return request;
}

// Begins the first operation of a name. A value that is pulled cannot be unregistered from then on.
Result<tl_request*> Context::bind_and_start(const std::string& key, ArrayTensor& array, const ArrayCall& call,
                                            protocol::TensorBody& body) {
  auto tensor = std::make_unique<tl_tensor>();
  tensor->context = this;
  tensor->set = call.set;
  tensor->name = key;
  tensor->bytes = protocol::buffer_bytes(body, call.set->world_size, call.set->rank);
  tensor->exchanges = exchanges(call.operation);
  tensor->to_all = call.operation == Operation::kAlltoall;
  tensor->urgency = body.urgency;
  tensor->keyed = is_keyed(call.operation);
  const bool pulls = call.operation == Operation::kPull, has_buffer = call.operation != Operation::kBarrier;
  const auto give_back = [&](const Status& status) {
    if (tensor->owns_buffer) (void)arenas_->release(tensor->buffer);
    return status;
  };
  if (const Status found = find_buffer(array, *tensor, call); !found.ok()) return give_back(found);
  if (pulls) {
    std::lock_guard lock(mutex_);
    TL_ASSIGN_OR_RETURN(tensor->twin, pushed_locked(key, call));
    tensor->buffer = tensor->twin->buffer;
  }
  cuda::Transfer* transfer = nullptr;
  if (tensor->gpu != nullptr) {
    if (pulls) TL_RETURN_IF_ERROR(gpus_->pin(arenas_->segment_of(tensor->buffer), *tensor->gpu));
    Result<cuda::Transfer*> begun = begin_on_gpu(call, *tensor, *tensor->gpu);
    if (!begun.ok()) return give_back(begun.status());
    transfer = *begun;
  }
  std::unique_lock lock(mutex_);
  Result<tl_request*> started = start_first_locked(*tensor, call, transfer);
  if (!started.ok()) {
    lock.unlock();
    if (transfer != nullptr) tensor->gpu->end(*transfer);
    return give_back(started.status());
  }
  if (has_buffer) {
    const Place place = *arenas_->locate(tensor->buffer, tensor->bytes);
    body.segment = place.segment;
    body.offset = place.offset;
  }
  if (transfer == nullptr) set_output(**started, call, array.borrowed);
  array.tensor = tensor.get();
  if (pulls) tensor->twin->twin = tensor.get();
  tensors_.push_back(std::move(tensor));
  if (transfer != nullptr) gpus_->stager().add(*transfer);
  return started;
}

Result<tl_request_t*> Context::first_call(const std::string& key, const std::shared_ptr<ArrayTensor>& array,
                                          const ArrayCall& call) {
  protocol::TensorBody body = body_of(key, call);
  const Result<tl_request*> started = bind_and_start(key, *array, call, body);
  if (!started.ok()) {
    std::lock_guard lock(mutex_);
    arrays_.erase(key);
    return started.status();
  }
  tl_request* request = *started;
  const tl_tensor& tensor = *array->tensor;
  if (request->copies_out && call.in != nullptr) std::memcpy(tensor.buffer + call.in_offset, call.in, call.in_bytes);
  const std::uint32_t id = open_call(array);
  const Status sent =
      send_packets(protocol::MessageType::kRegister, id, registration_packets(*call.set, key, std::span(&body, 1)));
  // When it could not be sent, the session is over, and the request says why.
  if (!sent.ok()) fail(sent, false);
  return request;
}

void Context::on_array_registered(const std::shared_ptr<ArrayTensor>& array, const Status& error,
                                  const Message& answer) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    tl_tensor& tensor = *array->tensor;
    Status status = error;
    const Result<std::vector<std::uint32_t>> ids =
        status.ok() ? registered_ids(answer, 1) : Result<std::vector<std::uint32_t>>(error);
    if (!ids.ok()) status = ids.status();
    if (status.ok()) {
      tensor.id = ids->front();
      if (by_id_.size() <= tensor.id) by_id_.resize(tensor.id + 1);
      by_id_[tensor.id] = &tensor;
      array->registered = true;
      const auto made = groups_[tensor.name] = std::make_shared<Group>();
      made->name = tensor.name;
      made->tensors = {&tensor};
    }
    tl_request* request = tensor.active;
    if (request != nullptr && request->state == State::kPreparing) {
      request->awaits_registration = false;
      if (!status.ok()) {
        end_locked(*request, status);
      } else if (request->gpu == nullptr || request->staged) {
        wake = submit_locked(*request);
      }
    }
    // A name that was refused can be used again, with values that all ranks agree on. Its memory stays until the end:
    // the request may yet look at it.
    if (!status.ok()) {
      if (tensor.twin != nullptr) std::exchange(tensor.twin, nullptr)->twin = nullptr;
      array->gone = true;
      fail_queue_locked(tensor, status);
      arrays_.erase(tensor.name);
    }
  }
  if (wake) rings_.wake_daemon();
  rings_.wake_all();
}

// Nothing where the name has become free since it was looked up.
std::optional<Result<tl_request_t*>> Context::later_call(const std::string& key, ArrayTensor& array,
                                                         const ArrayCall& call) {
  tl_tensor& tensor = *array.tensor;
  tl_request* request = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (array.gone) return std::nullopt;
    if (array.borrowed && (!in_place(call) || call.buffer() != tensor.buffer)) {
      return Status(Code::kInvalidArgument,
                    "array call '" + key + "' works in place on the shared buffer of its first call",
                    "this call names other memory", "pass that buffer, free it with tl_free, or use another name");
    }
    if (tensor.active != nullptr) drain_locked();
    const bool busy = tensor.active != nullptr || !tensor.queue.empty();
    if (!busy || !call.queued || array.borrowed || is_keyed(call.operation)) {
      const Result<tl_request*> started = start_locked(tensor);
      if (!started.ok()) return started.status();
      request = *started;
      set_output(*request, call, array.borrowed);
    }
  }
  if (request == nullptr) return enqueue(array, call);
  if (request->copies_out && call.in != nullptr) std::memcpy(tensor.buffer + call.in_offset, call.in, call.in_bytes);
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (request->state == State::kPreparing) wake = submit_locked(*request);  // else the job has failed meanwhile
  }
  if (wake) rings_.wake_daemon();
  return request;
}

Status Context::barrier(const SharedSet& set, double timeout_seconds) {
  tl_request* request = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (const auto pending = barriers_.extract(set.get()); !pending.empty()) request = pending.mapped();
  }
  if (request == nullptr) {
    ArrayCall call{.set = set};
    call.operation = Operation::kBarrier;
    call.urgency = 1;
    TL_ASSIGN_OR_RETURN(request, array("tensorlane", call));
  }
  const Status status = wait(*request, timeout_seconds);
  if (status.code() == Code::kTimedOut) {
    std::lock_guard lock(mutex_);
    if (request->state != State::kFree) barriers_[set.get()] = request;  // the next call goes on waiting for it
  }
  return status;
}

}  // namespace tensorlane::client
