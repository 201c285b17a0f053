#include "daemon/transport/rdma/completion_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::rdma {
namespace {

constexpr int kFirstCapacity = 1024;

}  // namespace

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::create(Device& device, ibv_comp_channel* channel) {
  ibv_cq* cq = ibv_create_cq(device.context(), std::min(kFirstCapacity, device.limits().max_cqe), nullptr, channel, 0);
  if (cq == nullptr) {
    return Status(Code::kResourceExhausted, "cannot make a completion queue: " + handshake::errno_text(errno),
                  device.name(), "raise the limit of locked memory, or look at the kernel's log");
  }
  std::unique_ptr<CompletionQueue> made(new CompletionQueue(device, cq));
  cq->cq_context = made.get();
  return made;
}

CompletionQueue::~CompletionQueue() {
  ibv_destroy_cq(cq_);
}

Status CompletionQueue::reserve(int completions) {
  const int wanted = reserved_ + completions;
  if (wanted > capacity_) {
    const int larger = std::min(std::max(wanted, 2 * capacity_), device_.limits().max_cqe);
    const int error = larger < wanted ? ENOMEM : ibv_resize_cq(cq_, larger);
    if (error != 0) {
      return {Code::kResourceExhausted,
              fmt::format("no room for {} completions: {}", wanted, handshake::errno_text(error)), device_.name(),
              "run fewer jobs at once, or set `rdma: queue_pairs` lower"};
    }
    capacity_ = larger;
  }
  reserved_ = wanted;
  return {};
}

std::span<const ibv_wc> CompletionQueue::poll() {
  if (const std::size_t waiting = std::exchange(waiting_, 0); waiting > 0)
    return std::span(completions_).first(waiting);
  const int count = ibv_poll_cq(cq_, static_cast<int>(completions_.size()), completions_.data());
  return std::span(completions_).first(static_cast<std::size_t>(std::max(count, 0)));
}

bool CompletionQueue::arm() {
  if (waiting_ > 0) return false;
  if (!armed_) armed_ = ibv_req_notify_cq(cq_, 0) == 0;
  // What completed before makes no event.
  waiting_ = poll().size();
  return waiting_ == 0;
}

void CompletionQueue::disarm() {
  ibv_ack_cq_events(cq_, 1);
  armed_ = false;
}

}  // namespace tensorlane::rdma
