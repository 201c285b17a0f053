// Sends and receives: any memory, between two ranks. What is not shared memory is copied: a send's into a block that
// the daemon reads, a receive's out of one. A message that is under way takes the place of a tensor, with a number of
// its own in the session (protocol::MessageSlot).
#include <cstring>
#include <new>
#include <string>

#include "client-lib/src/context.h"

namespace tensorlane::client {

using State = tl_request::State;

namespace {

constexpr std::uint64_t kKeptBlock = 64 << 10;  // bytes of the block that a place keeps for its next message

std::string name_of(const MessageCall& call) {
  const std::string peer = call.peer == protocol::kAnyRank ? "any rank" : "rank " + std::to_string(call.peer);
  return (call.sends ? "the message to " : "the message from ") + peer + " with tag " + std::to_string(call.tag);
}

std::string text_of(std::uint64_t count, Dtype dtype) {
  return std::to_string(count) + " elements of " + dtype_name(dtype);
}

}  // namespace

Status Context::mismatch(const ProcessSet& set, const tl_message& m, std::uint64_t count, Dtype dtype) {
  const std::string self = "rank " + std::to_string(set.rank), peer = "rank " + std::to_string(m.peer);
  const std::string mine = text_of(m.count, m.dtype), its = text_of(count, dtype);
  const std::string &from = m.sends ? self : peer, &to = m.sends ? peer : self;
  return {Code::kMismatch,
          from + " sends " + (m.sends ? mine : its) + ", " + to + " receives " + (m.sends ? its : mine),
          (m.is_part ? "parts of an all-to-all" : "tag " + std::to_string(m.tag)) + " of " + set.text(),
          m.is_part ? "use one dtype on all ranks, and expect of each rank as many elements as it sends"
                    : "use the same count and dtype on both ranks, or another tag"};
}

Result<tl_request_t*> Context::message(const MessageCall& call) {
  TL_RETURN_IF_ERROR(usable());
  tl_request* request = nullptr;
  {
    std::lock_guard lock(mutex_);
    TL_ASSIGN_OR_RETURN(request, begin_message_locked(call));
    if (alone_ != nullptr) match_alone_locked(*request, call);
  }
  if (alone_ != nullptr) {
    rings_.wake_all();
    return request;
  }
  protocol::MessageSlot slot;
  Status placed;
  try {
    placed = place_message(*request, call, slot);
  } catch (const std::bad_alloc&) {
    placed = {Code::kResourceExhausted, "there is no memory for a message", "", "free memory in this process"};
  }
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (!placed.ok()) {
      end_message_locked(*request);
      cancel_locked(*request);
      return placed;
    }
    if (request->state == State::kPreparing) {  // else the job has failed meanwhile
      request->state = State::kPosted;
      rings_.set_message(request->tensor->message->slot, slot);
      wake = rings_.submit({request->tensor->message->slot, protocol::kSubmitMessage, 0});
    }
  }
  if (wake) rings_.wake_daemon();
  return request;
}

Status Context::check_room_for_messages(std::size_t count) {
  TL_RETURN_IF_ERROR(usable());
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (count <= free_messages_.size() + protocol::kMessageSlots - messages_.size()) return {};
  return {Code::kResourceExhausted, "too many messages of this rank are under way",
          std::to_string(count) + " more were to begin, the limit is " + std::to_string(protocol::kMessageSlots),
          count > protocol::kMessageSlots ? "share the ranks out to process sets" : "wait for some of them first"};
}

Result<tl_request*> Context::begin_message_locked(const MessageCall& call) {
  if (!failure_.ok()) return failure_;
  if (free_messages_.empty() && messages_.size() == protocol::kMessageSlots) {
    return Status(Code::kResourceExhausted, "too many messages of this rank are under way",
                  "the limit is " + std::to_string(protocol::kMessageSlots), "wait for some of them first");
  }
  if (free_messages_.empty()) {
    auto tensor = std::make_unique<tl_tensor>();
    tensor->context = this;
    tensor->message = std::make_unique<tl_message>();
    tensor->message->slot = static_cast<std::uint32_t>(messages_.size());
    free_messages_.reserve(messages_.size() + 1);
    messages_.push_back(tensor.get());
    free_messages_.push_back(tensor.get());
    tensors_.push_back(std::move(tensor));
  }
  tl_tensor& tensor = *free_messages_.back();
  tensor.name = name_of(call);
  TL_ASSIGN_OR_RETURN(tl_request * request, prepare_locked(tensor));
  free_messages_.pop_back();
  tensor.active = request;
  tensor.set = call.set;
  tl_message& m = *tensor.message;
  m.sends = call.sends;
  m.is_part = call.is_part;
  m.peer = call.peer;
  m.tag = call.tag;
  m.count = call.count;
  m.dtype = call.dtype;
  m.from = call.from;
  tensor.bytes = call.count * dtype_size(call.dtype);
  return request;
}

// Finds its memory, and copies what is sent. Nobody else uses the place meanwhile.
Status Context::place_message(tl_request& request, const MessageCall& call, protocol::MessageSlot& slot) {
  tl_tensor& tensor = *request.tensor;
  tl_message& m = *tensor.message;
  slot.peer = call.peer == protocol::kAnyRank ? call.peer : call.set->rank_in_job(call.peer);
  slot.set = call.set->number();
  slot.sends = call.sends ? 1 : 0;
  slot.dtype = call.dtype;
  slot.tag = call.tag;
  slot.count = call.count;
  slot.urgency = call.urgency;
  if (tensor.bytes == 0) return {};
  std::byte* buffer = call.buffer;
  std::optional<Place> place = arenas_->locate(buffer, tensor.bytes);
  const bool copies = !place;
  if (copies) {
    if (m.block_bytes < tensor.bytes) {
      if (m.block != nullptr) (void)arenas_->release(m.block);
      m.block = nullptr;
      m.block_bytes = 0;
      TL_ASSIGN_OR_RETURN(m.block, arenas_->allocate(tensor.bytes, false));
      m.block_bytes = arenas_->block_bytes(m.block);
    }
    buffer = m.block;
    place = arenas_->locate(buffer, tensor.bytes);
    if (call.sends) std::memcpy(buffer, call.buffer, tensor.bytes);
  }
  std::lock_guard lock(mutex_);
  tensor.buffer = buffer;
  request.copies_out = copies;
  request.out = call.buffer;
  request.out_offset = 0;
  request.out_bytes = call.sends ? 0 : tensor.bytes;  // of a send nothing
  slot.segment = place->segment;
  slot.offset = place->offset;
  return {};
}

void Context::complete_message_locked(const protocol::CompletionEntry& entry) {
  const std::uint32_t number = entry.tensor & ~protocol::kMessageBit;
  tl_tensor* tensor = number < messages_.size() ? messages_[number] : nullptr;
  tl_request* request = tensor != nullptr ? tensor->active : nullptr;
  if (request == nullptr || request->state != State::kPosted) {
    if (!failure_.ok()) return;
    return fail_locked(Status(Code::kInternal, "the daemon completed a message that was not under way",
                              "slot " + std::to_string(number), "report this with the daemon's log"),
                       true);
  }
  if (entry.status != Code::kOk && entry.status != Code::kMismatch) {
    request->given_back = true;
    // As in complete_locked(): the reason follows.
    if (give_up_.value == 0) give_up_ = now() + std::max(detection_, seconds(1));
    return;
  }
  const protocol::MessageSlot outcome = rings_.message(number);
  tl_message& m = *tensor->message;
  m.peer = tensor->set->rank_in_set(outcome.other_rank);
  finish_locked(*request, entry.status == Code::kOk
                              ? Status()
                              : mismatch(*tensor->set, m, outcome.other_count, outcome.other_dtype));
}

// Once its owner has taken what it brought: the place is for others. Memory that the daemon may still use stays.
void Context::end_message_locked(tl_request& request) {
  tl_tensor& tensor = *request.tensor;
  tl_message& m = *tensor.message;
  const bool over = request.status.ok() || request.status.code() == Code::kMismatch;
  if (request.status.ok() && m.from != nullptr) *m.from = static_cast<int>(m.peer);
  if (!over) {
    m.block = nullptr;
    m.block_bytes = 0;
  } else if (m.block_bytes > kKeptBlock) {
    (void)arenas_->release(m.block);
    m.block = nullptr;
    m.block_bytes = 0;
  }
  tensor.buffer = nullptr;  // tl_free may have it
  tensor.set = nullptr;
  tensor.bytes = 0;
  free_messages_.push_back(&tensor);
}

// Without a daemon a rank exchanges messages with itself, which are copied here. What waits for a receive is kept.
void Context::match_alone_locked(tl_request& request, const MessageCall& call) {
  tl_tensor& tensor = *request.tensor;
  request.state = State::kPosted;
  request.out = call.sends ? nullptr : call.buffer;
  const auto other = std::ranges::find_if(unmatched_, [&](const tl_request* waiting) {
    return waiting->tensor->message->sends != call.sends && waiting->tensor->message->tag == call.tag &&
           waiting->tensor->set == call.set;
  });
  if (other == unmatched_.end()) {
    if (call.sends) request.held.assign(call.buffer, call.buffer + tensor.bytes);
    unmatched_.push_back(&request);
    return;
  }
  tl_request& waiting = **other;
  unmatched_.erase(other);
  tl_message &m = *tensor.message, &w = *waiting.tensor->message;
  m.peer = w.peer = 0;
  if (m.count != w.count || m.dtype != w.dtype) {
    finish_locked(waiting, mismatch(*call.set, w, m.count, m.dtype));
    finish_locked(request, mismatch(*call.set, m, w.count, w.dtype));
    return;
  }
  if (tensor.bytes > 0) {
    std::memcpy(call.sends ? waiting.out : request.out, call.sends ? call.buffer : waiting.held.data(), tensor.bytes);
  }
  finish_locked(waiting, {});
  finish_locked(request, {});
}

}  // namespace tensorlane::client
