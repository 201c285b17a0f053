// From what ports are to do and what they do now to what apply changes.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "switch-config/apply/journal.h"
#include "switch-config/apply/ports.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::switches::apply {

// A device whose ports are those of a network namespace of this machine.
struct Target {
  DeviceQos device;
  std::string ns;  // as in Namespaces::enter()
};

// What it takes to bring the targets' ports to what their devices say. Their commands are tried in an empty namespace
// first. What ports do now must be the kernel's own, or what `applied` (Journal::read_applied()) or `running`, the same
// devices before, say of them, so that it can be brought back. A port that was applied and that its device no longer
// has goes back to the kernel's own. In front are the ends of one link, or the first two ports where no link has both
// ends here. Nothing is changed.
//
// NotFound: no such namespace or port. InvalidArgument: a command that the kernel refuses, or queues that somebody else
// made.
Result<Record> make_plan(Namespaces& namespaces, const Record& applied, const std::vector<Target>& targets,
                         const std::vector<Target>& running);

// The commands that change a port, without `tc` in front.
std::vector<std::string> commands_of(const PortChange& change);

}  // namespace tensorlane::switches::apply
