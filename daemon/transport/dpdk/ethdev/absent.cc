// In place of DPDK where libdpdk was not found when this was built.
#include "daemon/transport/dpdk/ethdev/eal.h"
#include "daemon/transport/dpdk/ethdev/ethdev_port.h"

namespace tensorlane::dpdk {
namespace {

Status absent() {
  return {Code::kNotFound, "this tensorlaned was built without DPDK", "packet port",
          "install libdpdk-dev and build it again, or choose another transport in daemon.yaml"};
}

}  // namespace

Status start_eal(const EalConfig&) {
  return absent();
}
void end_eal() {}
bool eal_runs() {
  return false;
}
Result<std::unique_ptr<PacketPort>> open_port(const PortConfig&) {
  return absent();
}

}  // namespace tensorlane::dpdk
