// In place of the RDMA transport where libibverbs was not found when this was built.
#include "daemon/transport/rdma/rdma_transport.h"

namespace tensorlane::rdma {
namespace {

Status absent() {
  return {Code::kNotFound, "this tensorlaned was built without RDMA", "rdma transport",
          "install libibverbs-dev and librdmacm-dev and build it again, or set `transport: tcp` in daemon.yaml"};
}

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_rdma_transport(const RdmaConfig&, ports::FlowOwner&) {
  return absent();
}

Result<std::string> explain_device(const RdmaConfig&) {
  return absent();
}

}  // namespace tensorlane::rdma
