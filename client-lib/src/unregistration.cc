// tl_unregister: groups of tensors go.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "client-lib/src/context.h"
#include "client-lib/src/registration.h"

namespace tensorlane::client {
namespace {

using State = tl_request::State;

Status cannot(const std::string& group, std::string why, std::string fix) {
  return Status(Code::kInvalidArgument, "group '" + group + "' cannot be unregistered", std::move(why), std::move(fix));
}

protocol::UnregisterBody unregister_body(const std::string& name) {
  protocol::UnregisterBody body;
  std::memcpy(body.group, name.data(), name.size());
  return body;
}

std::vector<std::byte> packet_of(const protocol::UnregisterBody& body) {
  const auto bytes = std::as_bytes(std::span(&body, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

// Null, or a tensor of the group that the program still uses.
const tl_tensor* Context::used_locked(const Group& group) const {
  for (const tl_tensor* tensor : group.tensors) {
    if (tensor->active != nullptr || !tensor->queue.empty()) return tensor;
  }
  // A request that is done, but not waited for, refers to its tensor.
  const auto refers = [&](const tl_request& request) {
    return request.state != State::kFree &&
           std::find(group.tensors.begin(), group.tensors.end(), request.tensor) != group.tensors.end();
  };
  const auto request = std::find_if(requests_.begin(), requests_.end(), refers);
  return request != requests_.end() ? request->tensor : nullptr;
}

// Nobody can begin an operation of the group any more.
Result<std::shared_ptr<Context::Group>> Context::close_group_locked(const std::string& name) {
  const auto found = groups_.find(name);
  if (found == groups_.end()) {
    return Status(Code::kNotFound, "there is no group '" + name + "'", "nothing of this name is registered",
                  "unregister a group of tl_register once, or an array call's name as operation.name");
  }
  Group& group = *found->second;
  if (group.closed && !group.gave_up) return cannot(name, "another thread is at it", "unregister it once");
  if (const tl_tensor* used = used_locked(group); used != nullptr) {
    return cannot(name, "an operation on tensor '" + used->name + "' is under way",
                  "wait for its request first, on every rank");
  }
  if (const auto array = arrays_.find(name); array != arrays_.end() && array->second->tensor != nullptr) {
    const bool pulled = array->second->first.operation == Operation::kPush && array->second->tensor->twin != nullptr;
    if (pulled) {
      const std::string push = array->second->first.set->in_set(name);
      return cannot(name, "a pull reads its buffer", "unregister pull" + push.substr(push.find('.')) + " first");
    }
  }
  group.closed = true;
  for (tl_tensor* tensor : group.tensors) tensor->use = tl_tensor::Use::kLeaving;
  return found->second;
}

// The daemon has let the group go: its numbers and its memory are free. So are its names, which another thread may have
// registered anew since.
std::vector<std::byte*> Context::forget_group_locked(const std::string& name, const std::shared_ptr<Group>& group) {
  constexpr std::size_t kRemembered = 4096;  // handles that are refused by name, in place of whatever would happen
  if (const auto found = groups_.find(name); found != groups_.end() && found->second == group) groups_.erase(found);
  const auto array = arrays_.find(name);
  if (array != arrays_.end() && std::ranges::find(group->tensors, array->second->tensor) != group->tensors.end()) {
    array->second->gone = true;
    arrays_.erase(array);
  }
  std::vector<std::byte*> memory;
  for (tl_tensor* tensor : group->tensors) {
    tensor->use = tl_tensor::Use::kGone;
    if (tensor->id < by_id_.size() && by_id_[tensor->id] == tensor) by_id_[tensor->id] = nullptr;
    if (tensor->twin != nullptr) std::exchange(tensor->twin, nullptr)->twin = nullptr;
    if (tensor->owns_buffer) memory.push_back(tensor->buffer);
    tensor->buffer = nullptr;
    std::erase(queues_, tensor);
  }
  const auto gone = std::stable_partition(tensors_.begin(), tensors_.end(),
                                          [](const auto& tensor) { return tensor->use != tl_tensor::Use::kGone; });
  std::move(gone, tensors_.end(), std::back_inserter(gone_));
  tensors_.erase(gone, tensors_.end());
  while (gone_.size() > kRemembered) gone_.pop_front();
  return memory;
}

// A stream goes on a moment before the operation that it waited for is over here.
void Context::wait_for_streams(const std::string& name, std::unique_lock<std::mutex>& lock) {
  const auto none_waits = [&] {
    const auto group = groups_.find(name);
    if (group == groups_.end()) return true;
    return std::ranges::none_of(group->second->tensors, [](const tl_tensor* tensor) {
      return tensor->active != nullptr && tensor->active->detached;
    });
  };
  gpu_changed_.wait_for(lock, std::chrono::seconds(1), none_waits);
}

Status Context::unregister_group(const ProcessSet& set, const std::string& name) {
  TL_RETURN_IF_ERROR(usable());
  decltype(gpu_groups_)::node_type shared;
  {
    std::lock_guard lock(mutex_);
    shared = gpu_groups_.extract(set.in_job(name));  // so that one thread is at it
  }
  if (shared.empty()) return unregister_plain(set, name);
  const Status status = unregister_shared(shared.mapped(), name);
  if (!status.ok()) {
    std::lock_guard lock(mutex_);
    gpu_groups_.insert(std::move(shared));
  }
  return status;
}

Status Context::unregister_plain(const ProcessSet& set, const std::string& given_name) {
  TL_ASSIGN_OR_RETURN(const std::string name, name_in_job(set, "a group", given_name));
  protocol::UnregisterBody body = unregister_body(name);
  body.timeout_ms = static_cast<std::uint32_t>(std::max<std::int64_t>(settings_.timeout.value / 1'000'000, 1));
  std::shared_ptr<Group> group;
  bool again = false;
  {
    std::unique_lock lock(mutex_);
    drain_locked();
    wait_for_streams(name, lock);
    if (!failure_.ok()) return failure_;
    TL_ASSIGN_OR_RETURN(group, close_group_locked(name));
    again = std::exchange(group->gave_up, false);
    for (const tl_tensor* tensor : group->tensors) body.operations += tensor->sequence;
  }
  const std::vector<std::byte> packet = packet_of(body);
  bool answered = false;
  const Result<Message> answer =
      call(protocol::MessageType::kUnregister, std::span(&packet, 1), protocol::MessageType::kUnregistered, &answered);
  std::vector<std::byte*> memory;
  {
    std::lock_guard lock(mutex_);
    // Nobody waited for the answer to the call before, and it was good.
    const bool gone = answer.ok() || (again && answer.status().code() == Code::kNotFound);
    if (!gone && !answered) {
      group->gave_up = true;
      return answer.status();
    }
    if (!gone) {
      group->closed = false;
      for (tl_tensor* tensor : group->tensors) tensor->use = tl_tensor::Use::kOpen;
      return answer.status();
    }
    memory = forget_group_locked(name, group);
  }
  for (std::byte* buffer : memory) (void)arenas_->release(buffer);
  return {};
}

// The other ranks may go on for a while, so nobody waits. The daemon is done with the memory of a group when it has
// heard of it, which the helper is told.
Status Context::leave_set(const ProcessSet& set) {
  TL_RETURN_IF_ERROR(usable());
  std::vector<std::pair<std::string, std::shared_ptr<Group>>> leaving;
  std::vector<GpuGroup> shared;  // whose memory stays lent: nobody says when the others have closed it
  {
    std::lock_guard lock(mutex_);
    drain_locked();
    const auto of_set = [&](const tl_tensor* tensor) { return tensor != nullptr && tensor->set->is_of(set); };
    const auto in_set = [&](const tl_tensor& tensor) {
      return tensor.set->is_part() ? tensor.text() : set.in_set(tensor.name);
    };
    const auto of_use = [&](const tl_request& request) {
      return request.state != State::kFree && of_set(request.tensor);
    };
    if (const auto used = std::ranges::find_if(requests_, of_use); used != requests_.end() && failure_.ok()) {
      return Status(Code::kInvalidArgument, "the process set cannot be left",
                    "an operation on '" + in_set(*used->tensor) + "' of " + set.text() + " is not over",
                    "wait for its request first");
    }
    barriers_.erase(&set);
    if (!failure_.ok()) return {};  // the job is over, and with it the set
    for (const auto& [name, group] : groups_) {
      if (of_set(group->tensors.front()) && (!group->closed || group->gave_up)) leaving.emplace_back(name, group);
    }
    for (auto entry = gpu_groups_.begin(); entry != gpu_groups_.end();) {
      const auto next = std::next(entry);
      if (entry->second.parts.front()->is_of(set)) shared.push_back(std::move(gpu_groups_.extract(entry).mapped()));
      entry = next;
    }
    for (auto& [name, group] : leaving) {
      group->closed = true;
      for (tl_tensor* tensor : group->tensors) tensor->use = tl_tensor::Use::kLeaving;
    }
  }
  for (GpuGroup& group : shared) {
    (void)group.mappings.close();
    if (group.sums != nullptr) (void)gpus_->release(group.sums->pointer());
  }
  {
    std::lock_guard lock(calls_mutex_);
    for (auto& [name, group] : leaving) leaving_groups_.push_back(std::move(group));
  }
  return send_leaving();
}

// Some at a time: each is answered, and the answers must find room in the socket.
Status Context::send_leaving() {
  constexpr std::size_t kMostTold = 32;
  while (true) {
    std::shared_ptr<Group> group;
    {
      std::lock_guard lock(calls_mutex_);
      if (leaving_groups_.empty() || told_leaving_ == kMostTold) return {};
      group = std::move(leaving_groups_.front());
      leaving_groups_.pop_front();
      ++told_leaving_;
    }
    protocol::UnregisterBody body = unregister_body(group->name);
    for (const tl_tensor* tensor : group->tensors) body.operations += tensor->sequence;
    body.for_good = 1;
    const std::vector<std::byte> packet = packet_of(body);
    const std::uint32_t call = open_call(nullptr, std::move(group));
    TL_RETURN_IF_ERROR(send_packets(protocol::MessageType::kUnregister, call, std::span(&packet, 1)));
  }
}

// The answer: the daemon knows, or the job is over, and with it all groups.
void Context::on_group_left(const std::shared_ptr<Group>& group, const Status& error) {
  {
    std::lock_guard lock(calls_mutex_);
    --told_leaving_;
  }
  if (error.ok()) forget_group(group->name, group);
  (void)send_leaving();  // where it fails, the session is over
}

void Context::forget_group(const std::string& name, const std::shared_ptr<Group>& group) {
  std::vector<std::byte*> memory;
  {
    std::lock_guard lock(mutex_);
    memory = forget_group_locked(name, group);
  }
  for (std::byte* buffer : memory) (void)arenas_->release(buffer);
}

}  // namespace tensorlane::client
