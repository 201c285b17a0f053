#include "common/protocol/plan.h"

#include "common/base/hash.h"

namespace tensorlane::protocol {

std::uint64_t Plan::hash() const {
  Fnv1a h;
  h.add(version);
  for (const PlanTensor& t : tensors) {
    h.add(t.id.value);
    h.add(static_cast<std::uint8_t>(t.operation));
    h.add(static_cast<std::uint8_t>(t.reduce));
    h.add(static_cast<std::uint8_t>(t.dtype));
    h.add(static_cast<std::uint8_t>(t.pattern));
    h.add(t.cls.value);
    h.add(t.urgency);
    h.add(t.elements);
    h.add(t.slice_elements);
    h.add(t.root.value);
    h.add(t.root_rank.value);
    h.add(t.wide_contributions);
    h.add_text(t.name);
  }
  for (HostIndex host : rank_hosts) h.add(host.value);
  return h.value();
}

}  // namespace tensorlane::protocol
