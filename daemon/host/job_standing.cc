// Flows that stand still (law 21) must not hold others back: what they have in flight leaves the window of their class,
// which all jobs of a NIC share (law 8), until they move again. Nothing here is on the way of a slice.
#include "daemon/host/job_rail.h"

namespace tensorlane::host {
namespace {

// Without a change for so long a flow stands still. A lost packet takes the kernel 0.2 s to notice.
constexpr Duration kStandsAfter = milliseconds(500);

}  // namespace

Bytes JobRail::look_for_standing(ClassId cls, Time now) {
  std::vector<Look>& looks = looks_[cls.value];
  looks.resize(spec_.hosts.size());
  Bytes standing;
  for (const HostIndex peer : known_) {
    Look& look = looks[peer.value];
    const ports::FlowProgress progress = this->progress(peer, cls);
    if (progress.given != look.given || progress.outstanding_bytes != look.outstanding)
      look = {progress.given, progress.outstanding_bytes, now, false};
    look.stands = look.outstanding > 0 && now - look.since >= kStandsAfter;
    if (look.stands) standing += Bytes(look.outstanding);
  }
  any_stands_[cls.value] = standing > Bytes();
  return standing;
}

bool JobRail::stands(HostIndex peer, ClassId cls) const {
  return cls != kControlClass && any_stands_[cls.value] && looks_[cls.value][peer.value].stands;
}

}  // namespace tensorlane::host
