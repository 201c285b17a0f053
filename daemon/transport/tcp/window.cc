#include "daemon/transport/tcp/window.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "daemon/transport/tcp/flow.h"

namespace tensorlane::tcp {

void ClassWindow::taken(Flow& flow, std::uint64_t bytes) {
  queued_ -= bytes;
  unacknowledged_ += bytes;
  if (flow.outstanding) return;
  flow.outstanding = true;
  outstanding_.push_back(&flow);
}

void ClassWindow::forget(Flow& flow, std::uint64_t queued) {
  queued_ -= queued;
  if (!flow.outstanding) return;
  flow.outstanding = false;
  std::erase(outstanding_, &flow);
  asked_in_ = ~std::uint64_t{0};
}

Bytes ClassWindow::in_flight(std::uint64_t poll) {
  if (asked_in_ == poll) return Bytes(queued_ + unacknowledged_);
  asked_in_ = poll;
  unacknowledged_ = 0;
  std::erase_if(outstanding_, [this](Flow* flow) {
    int bytes = 0;
    if (::ioctl(flow->fd(), SIOCOUTQ, &bytes) != 0 || bytes <= 0) bytes = 0;
    unacknowledged_ += static_cast<std::uint64_t>(bytes);
    flow->outstanding = bytes > 0;
    return bytes == 0;
  });
  return Bytes(queued_ + unacknowledged_);
}

}  // namespace tensorlane::tcp
