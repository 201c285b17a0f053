#include "daemon/lane/links.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace tensorlane::lane {

Result<std::unique_ptr<Switchboard>> Switchboard::create(std::size_t lanes) {
  std::unique_ptr<Switchboard> board(new Switchboard);
  for (std::size_t pair = 0; pair < lanes * lanes; ++pair)
    board->queues_.push_back(lanes == 1 ? nullptr
                                        : std::make_unique<Queue>(std::max(kNotesOfAll / lanes, kFewestNotes)));
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const int wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake < 0) {
      return Status(Code::kResourceExhausted, fmt::format("no descriptors for a lane: {}", std::strerror(errno)),
                    "tensorlaned", "raise LimitNOFILE");
    }
    board->links_.push_back(std::make_unique<LaneLinks>(*board, lane, lanes, wake));
  }
  return board;
}

Switchboard::~Switchboard() = default;

LaneLinks::LaneLinks(Switchboard& board, std::size_t lane, std::size_t lanes, int wake)
    : board_(board), lane_(lane), wake_(wake), held_(lanes) {}

LaneLinks::~LaneLinks() {
  ::close(wake_);
}

bool LaneLinks::push(std::size_t lane, host::Note& note) {
  if (!board_.queue(lane_, lane).push(std::move(note))) return false;
  LaneLinks& receiver = board_.of(lane);
  if (receiver.bell_.ring()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(receiver.wake_, &one, sizeof one);
  }
  return true;
}

void LaneLinks::post(std::size_t lane, host::Note note) {
  if (held_[lane].empty() && push(lane, note)) return;
  held_[lane].push_back(std::move(note));
}

bool LaneLinks::push_on() {
  bool left = false;
  for (std::size_t lane = 0; lane < held_.size(); ++lane) {
    std::deque<host::Note>& held = held_[lane];
    while (!held.empty() && push(lane, held.front())) held.pop_front();
    left = left || !held.empty();
  }
  return left;
}

bool LaneLinks::take(host::Note* note) {
  for (std::size_t i = 0; i < held_.size(); ++i) {
    const std::size_t from = (next_ + i) % held_.size();
    if (from == lane_ || !board_.queue(from, lane_).pop(note)) continue;
    next_ = from + 1;
    return true;
  }
  return false;
}

bool LaneLinks::arm() {
  bell_.arm();
  for (std::size_t from = 0; from < held_.size(); ++from) {
    if (from != lane_ && !board_.queue(from, lane_).empty()) return false;
  }
  return true;
}

}  // namespace tensorlane::lane
