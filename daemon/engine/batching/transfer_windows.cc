#include "daemon/engine/batching/transfer_windows.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "common/base/assert.h"

namespace tensorlane::engine {
namespace {

// What the network carries during one pass: intervals in ascending order that do not overlap.
class Occupied {
 public:
  // The earliest start, not before `from`, of an idle gap of `time`.
  Duration earliest(Duration from, Duration time) const {
    Duration start = from;
    for (const Interval& busy : busy_) {
      if (start + time <= busy.start) break;
      start = std::max(start, busy.end);
    }
    return start;
  }

  // The latest start of an idle gap of `time` that ends by `until`. May be negative.
  Duration latest(Duration until, Duration time) const {
    Duration end = until;
    for (auto busy = busy_.rbegin(); busy != busy_.rend(); ++busy) {
      if (end - time >= busy->end) break;
      end = std::min(end, busy->start);
    }
    return end - time;
  }

  void add(Duration start, Duration time) {
    const auto after =
        std::find_if(busy_.begin(), busy_.end(), [&](const Interval& busy) { return busy.start >= start + time; });
    busy_.insert(after, {start, start + time});
  }

 private:
  struct Interval {
    Duration start, end;
  };
  std::vector<Interval> busy_;
};

class Packer {
 public:
  Packer(std::span<const TransferWindow> windows, Duration backward, Duration forward)
      : windows_(windows), backward_(backward), forward_(forward) {
    result_.placements.resize(windows.size());
  }

  TransferSchedule pack() {
    std::vector<std::size_t> order(windows_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return windows_[a].size > windows_[b].size; });
    std::vector<std::size_t> unassigned;
    for (const std::size_t i : order)
      if (!hide(i)) unassigned.push_back(i);
    for (const std::size_t i : unassigned) extend(i);
    result_.iteration = backward_ + result_.tail + result_.lead + forward_;
    return std::move(result_);
  }

 private:
  // Beside computation, if there is room.
  bool hide(std::size_t i) {
    const TransferWindow& w = windows_[i];
    TL_ASSERT(w.updated <= backward_ && w.read <= forward_);
    if (const Duration start = in_backward_.earliest(w.updated, w.time); start + w.time <= backward_) {
      place(i, Pass::kBackward, start);
      return true;
    }
    if (const Duration start = in_forward_.latest(w.read, w.time); start >= Duration(0)) {
      place(i, Pass::kForward, start);
      return true;
    }
    return false;
  }

  void extend(std::size_t i) {
    const TransferWindow& w = windows_[i];
    const Duration after = in_backward_.earliest(w.updated, w.time);
    const Duration before = in_forward_.latest(w.read, w.time);
    const Duration tail = std::max(result_.tail, after + w.time - backward_);
    const Duration lead = std::max(result_.lead, Duration(0) - before);
    if (tail - result_.tail <= lead - result_.lead) {
      place(i, Pass::kBackward, after);
      result_.tail = tail;
    } else {
      place(i, Pass::kForward, before);
      result_.lead = lead;
    }
  }

  void place(std::size_t i, Pass pass, Duration start) {
    (pass == Pass::kBackward ? in_backward_ : in_forward_).add(start, windows_[i].time);
    result_.placements[i] = {pass, start};
  }

  std::span<const TransferWindow> windows_;
  Duration backward_, forward_;
  Occupied in_backward_, in_forward_;
  TransferSchedule result_;
};

}  // namespace

TransferSchedule schedule_transfers(std::span<const TransferWindow> windows, Duration backward, Duration forward) {
  return Packer(windows, backward, forward).pack();
}

}  // namespace tensorlane::engine
