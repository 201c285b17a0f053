#include "local_kinds.h"

#include <cstdlib>
#include <filesystem>

#include "common/base/assert.h"
#include "daemon/transport/local/local_transport.h"

namespace tensorlane::conformance {

const std::string& socket_folder() {
  struct Folder {
    std::string path = "/tmp/tl-local-XXXXXX";
    Folder() { TL_ASSERT(mkdtemp(path.data()) != nullptr); }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder folder;
  return folder.path;
}

TransportKind local_kind(const std::string& name, bool read_peer_memory) {
  TransportKind kind;
  kind.name = name;
  kind.address = "127.0.0.1";
  kind.tags = false;
  kind.sockets = false;
  kind.cycles = read_peer_memory ? 10000 : 2000;
  kind.largest = mib(read_peer_memory ? 1024 : 64);
  kind.make = [read_peer_memory](const HostOptions& options, std::uint16_t data_port, ports::FlowOwner& owner) {
    local::LocalConfig config;
    config.folder = socket_folder();
    config.data_port = data_port;
    config.payload_crc = options.payload_crc;
    config.read_peer_memory = read_peer_memory;
    for (const ClassSetup& c : options.classes) config.classes.push_back({c.tag, c.window});
    return local::make_local_transport(config, owner);
  };
  return kind;
}

std::vector<TransportKind> kinds_under_test() {
  return {local_kind("local", true), local_kind("local_ring", false)};
}

}  // namespace tensorlane::conformance
