#include "harness.h"

namespace tensorlane::conformance {

std::vector<TransportKind> kinds_under_test() {
  return {tcp_ipv4(), tcp_ipv6()};
}

}  // namespace tensorlane::conformance
