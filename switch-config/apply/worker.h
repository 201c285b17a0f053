// Changing ports so that, whoever is killed, they end up entirely old or entirely new.
//
// Two processes do it, in a session of their own: a worker, which changes ports, waits for the confirmation and goes
// back where it does not come, and a guardian, its parent, which goes back when the worker has died. A worker whose
// guardian has died goes back, too. When both are killed, whoever comes next finds the journal and goes back: the
// process that started them, or the next `tensorlane-switch apply`. All of them hold the journal's lock.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "switch-config/apply/journal.h"
#include "switch-config/apply/ports.h"

namespace tensorlane::switches::apply {

// Of CLOCK_BOOTTIME.
Time now();

// Changes and verifies the record's ports: the canary first, then the others. On success all are new and the journal
// waits; on an error all are old, unless the error says otherwise. `say` gets a line for each step. The caller holds
// the journal's lock, which is in kNone, and has one thread; what it changes later it must not do without the lock.
Status change_all(Journal& journal, Namespaces& namespaces, const Record& record,
                  const std::function<void(const std::string&)>& say);

// The ports of an apply that waits for its confirmation and no longer run what it made of them, "s0 eth1". Those that
// have gone took their queues along: they are not among them. The process is in another namespace afterwards.
Result<std::vector<std::string>> changed_since(const Journal& journal, Namespaces& namespaces);

// Brings back the old state of an apply that is under way or was cut off; nothing where none is, or where it was
// confirmed. The caller holds the journal's lock. What cannot be brought back stays in the journal for the next try.
Status go_back(Journal& journal, Namespaces& namespaces);

}  // namespace tensorlane::switches::apply
