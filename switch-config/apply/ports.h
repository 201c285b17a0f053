// Ports of this machine's network namespaces and their queues, by `tc` and `ip`: without a shell, so that no name
// becomes a command. The process moves between namespaces: for processes with one thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "switch-config/render/linux/linux.h"

namespace tensorlane::switches::apply {

// The network namespace that this process is in. Children that it starts are in it, too.
class Namespaces {
 public:
  Namespaces();
  // Back to where it was made.
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  // Moves to the namespace of that name (`ip netns`), "" for the one where this object was made; the answer is its
  // inode number, which tells it from another one of that name. NotFound, PermissionDenied; InvalidArgument for what
  // is no name.
  Result<ino_t> enter(const std::string& name);

  // Moves to a new namespace without a port, which ends when this process leaves it. PermissionDenied.
  Status enter_empty();

 private:
  int home_ = -1;
};

// Whether the namespace that this process is in has the port.
bool port_exists(const std::string& port);

// What a port's queues are: what `tc` shows of its queueing disciplines, classes and filters, without counters and what
// depends on the device. "" for the kernel's own queue. Equal commands give equal texts. Errors are those of running
// `tc`: kInternal with its words, kNotFound without it.
Result<std::string> read_port(const std::string& port);

// Replaces the queues of a port by those of `lines` (as in LinuxPort), "" for the kernel's own. An error, with the line
// that the kernel refuses, leaves the port somewhere between.
Status change_port(const std::string& port, const std::string& lines);

// What read_port() says once these commands have run: tried in an empty namespace, on ports of the same names. The
// process is in another namespace afterwards: enter() one. InvalidArgument for a command that the kernel refuses.
Result<std::vector<std::string>> try_commands(Namespaces& namespaces, const std::vector<LinuxPort>& ports);

}  // namespace tensorlane::switches::apply
