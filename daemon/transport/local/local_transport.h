// Flows between daemons of one machine: shared memory, after the same handshake as everywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"

namespace tensorlane::local {

struct LocalClass {
  ports::ClassTag tag;    // of which only the class counts: nothing leaves the machine
  Bytes window = mib(1);  // what the lane lets be in flight in this class
};

struct LocalConfig {
  // Where the files of the Unix sockets of this machine's daemons lie, theirs and this one's.
  std::string folder;
  // This host's address and port in the fabric file: they name its Unix sockets, and no port is taken. The control
  // class listens by this name, class c by that of data_port + 1 + c.
  std::string listen_address = "127.0.0.1";
  std::uint16_t data_port = 7110;
  std::vector<LocalClass> classes;  // kControlClass and data classes from 0, each once
  bool payload_crc = false;         // send a CRC32C with every payload; one that arrives is always checked
  bool read_peer_memory = true;     // false: every payload goes through the ring, copied twice
};

// Whether the folder will do: only this process's user and root can put sockets there. Error: kPermissionDenied.
Status check_folder(const std::string& folder);

// A transport that listens, to processes of this kernel that share its folder. Every call belongs to the thread that
// owns it; `owner` outlives it. Destroying it closes everything without a call.
//
// poll() looks into the shared memory of every flow, the most urgent class first, and makes no system call of its own
// for frames while it is called often; descriptors are looked at after arm(), and every 50 microseconds. A payload of
// kStayBytes and more is read by the receiver where it lies, with one system call (on_sent() comes when it has been);
// shorter ones, and all where the receiver may not, are copied through a ring. A peer that sleeps is woken over the
// socket.
//
// A flow that is lost is not resumed: without a network between them, only the end of its peer ends it.
//
// Errors: those of check_folder, kInvalidArgument (an address, or classes that are none), kUnavailable (the name is
// taken), kResourceExhausted (descriptors).
Result<std::unique_ptr<ports::Transport>> make_local_transport(const LocalConfig& config, ports::FlowOwner& owner);

}  // namespace tensorlane::local
