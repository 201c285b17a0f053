#include "simulator/checkers/fairness.h"

namespace tensorlane::simulator {
namespace {

// A turn is 256 KiB, of which one may be left over from before, and a piece may exceed it.
constexpr std::uint64_t kSentAtMost = 3 * kMaxOperation.value;
// A block of work reads at most four times as much, so that a job may have overdrawn its turn by four turns.
constexpr std::uint64_t kWorkedAtMost = 12 * kMaxOperation.value;

}  // namespace

void FairnessChecker::passed_over(std::size_t job, RailIndex rail, ClassId cls, std::uint64_t bytes, bool could_go) {
  if (!could_go) return sent(job, rail, cls);
  const std::uint64_t since = sends_[{job, rail, cls}] += bytes;
  if (since <= kSentAtMost) return;
  findings_.fail("neighbour", "host {}, rail {}: others send {} bytes of class {} while job {} waits for its turn",
                 host_.value, rail.value, since, cls.value, job);
}

void FairnessChecker::work_passed_over(std::size_t job, std::uint64_t cost, bool had_work) {
  if (!had_work) return worked(job);
  const std::uint64_t since = works_[job] += cost;
  if (since <= kWorkedAtMost) return;
  findings_.fail("neighbour", "host {}: {} bytes are summed for others while job {} waits for its turn", host_.value,
                 since, job);
}

}  // namespace tensorlane::simulator
