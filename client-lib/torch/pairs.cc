#include "client-lib/torch/pairs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "client-lib/torch/group.h"
#include "client-lib/torch/library.h"
#include "client-lib/torch/rendezvous.h"

namespace tensorlane::torch_backend {

// What a message is, as its sender says.
struct MessageHead {
  std::uint64_t bytes = 0;
  std::int64_t dtype = 0, elements = 0;
  std::array<std::byte, 40> data{};  // all of it, where it is no longer
};
static_assert(sizeof(MessageHead) == 64);

namespace {

constexpr std::uint64_t kLongestPiece = 4ULL << 20, kShortestPiece = 64;
constexpr std::size_t kMostLanes = 128;
// Long pieces have two names, so that one is filled while the other travels.
constexpr std::uint64_t kTurns = 2;

std::string head_text(const MessageHead& head) {
  return std::to_string(head.elements) + " " + c10::toString(static_cast<at::ScalarType>(head.dtype));
}

bool same(const MessageHead& a, const MessageHead& b) {
  return a.bytes == b.bytes && a.dtype == b.dtype && a.elements == b.elements;
}

MessageHead head_of(const at::Tensor& memory) {
  MessageHead head;
  head.bytes = memory.nbytes();
  head.dtype = static_cast<std::int64_t>(memory.scalar_type());
  head.elements = memory.numel();
  return head;
}

}  // namespace

// A message under way, which its parts own together.
struct Pair::Message {
  Pair* pair = nullptr;
  Transfer transfer;
  MessageHead mine, senders;
  std::vector<std::byte> last;  // the last piece, filled up to its length, and the part of the message that it is
  std::uint64_t last_at = 0, last_bytes = 0;
  std::atomic<int> open{1};  // parts, and the call that begins them
  std::mutex mutex;
  std::string error;

  void fail(const std::string& why) {
    std::lock_guard lock(mutex);
    if (error.empty()) error = why;
  }
};

// What the C interface has of a message.
struct Pair::Part {
  std::shared_ptr<Message> message;
  bool is_head = false;
};

Pair::Pair(Group& group, int other) : group_(group), other_(other) {
  meeting_ = std::thread([this] { meet(); });
}

Pair::~Pair() {
  leave();
}

std::string Pair::text() const {
  return "ranks " + std::to_string(std::min(group_.rank(), other_)) + " and " +
         std::to_string(std::max(group_.rank(), other_)) + " of process group '" + group_.name() + "'";
}

std::string Pair::key(const char* what) const {
  return group_.key("pair/" + std::to_string(std::min(group_.rank(), other_)) + "/" +
                    std::to_string(std::max(group_.rank(), other_)) + what);
}

void Pair::meet() {
  tl_context_t* context = nullptr;
  std::string error;
  try {
    auto store =
        c10::make_intrusive<c10d::PrefixStore>(key(""), c10::intrusive_ptr<c10d::Store>::reclaim_copy(&group_.store()));
    context = join_group(*store, group_.rank() < other_ ? 0 : 1, 2, group_.timeout(), text(), &stopping_).context;
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    error = e.what();
  }
  std::deque<Transfer> failed;
  {
    std::lock_guard lock(mutex_);
    context_ = context;
    if (failure_.empty()) failure_ = error;
    for (; failure_.empty() && !waiting_.empty(); waiting_.pop_front()) begin_locked(std::move(waiting_.front()));
    failed.swap(waiting_);
    error = failure_;
  }
  for (const Transfer& transfer : failed) transfer.work->complete(error);
}

void Pair::transfer(Transfer transfer) {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) fail(failure_);
  const Lane lane{transfer.sends, transfer.tag};
  if (!lanes_.contains(lane) && lanes_.size() >= kMostLanes)
    fail(std::to_string(kMostLanes) + " tags are in use: " + text() + ": use fewer tags, or make another group");
  lanes_.insert(lane);
  if (context_ == nullptr) {
    waiting_.push_back(std::move(transfer));
  } else {
    begin_locked(std::move(transfer));
  }
}

// Gives all parts to the C interface, which begins them or keeps them for their turn.
void Pair::begin_locked(Transfer transfer) {
  const auto message = std::make_shared<Message>();
  message->pair = this;
  message->mine = head_of(transfer.memory);
  const Lane lane{transfer.sends, transfer.tag};
  const std::uint64_t bytes = transfer.memory.nbytes();
  auto* data = static_cast<std::byte*>(transfer.memory.data_ptr());
  message->transfer = std::move(transfer);
  const bool in_head = bytes <= message->mine.data.size();
  if (in_head && bytes > 0 && lane.sends) std::memcpy(message->mine.data.data(), data, bytes);
  post_locked(message, lane, lane.sends ? &message->mine : &message->senders, 0);
  std::uint64_t at = 0;
  for (; !in_head && bytes - at >= kLongestPiece; at += kLongestPiece)
    post_locked(message, lane, data + at, kLongestPiece);
  if (!in_head && at < bytes) {
    message->last.resize(std::bit_ceil(std::max(bytes - at, kShortestPiece)));
    message->last_at = at;
    message->last_bytes = bytes - at;
    if (lane.sends) std::memcpy(message->last.data(), data + at, bytes - at);
    post_locked(message, lane, message->last.data(), message->last.size());
  }
  if (--message->open == 0) end(*message);
}

// `bytes` 0: the head.
void Pair::post_locked(const std::shared_ptr<Message>& message, const Lane& lane, void* memory, std::uint64_t bytes) {
  const int sender = lane.sends == (group_.rank() < other_) ? 0 : 1;
  std::string name = "p2p." + std::to_string(sender) + "." + std::to_string(lane.tag);
  if (bytes > 0) name += "." + std::to_string(bytes) + "." + std::to_string(pieces_[{lane, bytes}]++ % kTurns);
  tl_options_t options = TL_OPTIONS_INIT;
  options.queued = 1;
  tl_request_t* request = nullptr;
  auto part = std::make_unique<Part>(Part{message, bytes == 0});
  ++message->open;
  tl_status_t status = library().broadcast(context_, name.c_str(), memory, bytes == 0 ? sizeof(MessageHead) : bytes,
                                           TL_UINT8, sender, &options, &request);
  if (status == TL_OK) status = library().set_callback(request, on_part, part.get());
  if (status == TL_OK) {
    (void)part.release();  // on_part() has it
    return;
  }
  message->fail(message->transfer.work->description().text() + ": " + library().last_error());
  if (failure_.empty()) failure_ = message->error;  // the names have had their turn
  --message->open;
}

void Pair::on_part(tl_status_t status, void* argument) {
  const std::unique_ptr<Part> part(static_cast<Part*>(argument));
  Message& message = *part->message;
  Pair& pair = *message.pair;
  const Description& description = message.transfer.work->description();
  if (status != TL_OK) {
    // The other one may have ended it, and have written into the store why.
    std::string why = description.text() + ": " + library().last_error();
    if (const std::string differs = pair.differing(); !differs.empty()) why = differs;
    std::lock_guard lock(pair.mutex_);
    if (pair.failure_.empty()) pair.failure_ = why;
    message.fail(pair.failure_);
  } else if (part->is_head && !message.transfer.sends && !same(message.mine, message.senders)) {
    const std::string why = "ranks disagree about a message with tag " + std::to_string(message.transfer.tag) +
                            " in process group '" + pair.group_.name() + "': rank " + std::to_string(pair.other_) +
                            " sends " + head_text(message.senders) + ", and rank " +
                            std::to_string(pair.group_.rank()) + " receives " + head_text(message.mine) +
                            ": give both the same dtype and number of elements";
    message.fail(why);
    pair.differ(why);
  }
  if (--message.open == 0) pair.end(message);
}

// On a thread of the library, or in the call.
void Pair::end(Message& message) {
  const Transfer& transfer = message.transfer;
  if (message.error.empty() && !transfer.sends) {
    auto* data = static_cast<std::byte*>(transfer.memory.data_ptr());
    const std::uint64_t bytes = transfer.memory.nbytes();
    if (bytes > 0 && bytes <= message.senders.data.size()) std::memcpy(data, message.senders.data.data(), bytes);
    if (!message.last.empty()) std::memcpy(data + message.last_at, message.last.data(), message.last_bytes);
  }
  transfer.work->complete_soon(message.error);
}

// What the two have to send each other cannot be told apart any more. The other one looks into the store for why.
void Pair::differ(const std::string& why) {
  try {
    group_.store().set(key("/differs"), why);
  } catch (const std::exception&) {
    // Without a store the other one runs into its time-out.
  }
  abort(why);
}

void Pair::look() {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty() || context_ == nullptr) return;
  }
  if (const std::string differs = differing(); !differs.empty()) abort(differs);
}

std::string Pair::differing() const {
  try {
    if (group_.store().check({key("/differs")})) return group_.store().get_to_str(key("/differs"));
  } catch (const std::exception&) {
    // Without a store it is what the C interface says, or a time-out.
  }
  return "";
}

void Pair::abort(const std::string& why) {
  tl_context_t* context = nullptr;
  stopping_ = true;
  {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
    context = context_;
  }
  if (context != nullptr) (void)library().abort(context, why.c_str());
}

void Pair::leave() {
  stopping_ = true;
  if (meeting_.joinable()) meeting_.join();
  if (context_ != nullptr) (void)library().finalize(std::exchange(context_, nullptr));
}

}  // namespace tensorlane::torch_backend
