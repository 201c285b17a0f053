#include "queue_pair_faults.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace tensorlane::conformance {
namespace {

struct Known {
  std::mutex mutex;
  std::vector<ibv_qp*> pairs;
};
Known& known() {
  static Known known;
  return known;
}

void fail(ibv_qp* pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  if (ibv_modify_qp(pair, &attributes, IBV_QP_STATE) != 0) throw std::runtime_error("ibv_modify_qp");
}

template <typename Function>
Function* in_library(const char* name) {
  auto* found = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
  if (found == nullptr) throw std::runtime_error(name);
  return found;
}

}  // namespace

std::size_t queue_pairs() {
  const std::lock_guard lock(known().mutex);
  return known().pairs.size();
}

void fail_queue_pair(std::size_t nth) {
  const std::lock_guard lock(known().mutex);
  fail(known().pairs.at(nth));
}

void fail_all_queue_pairs() {
  const std::lock_guard lock(known().mutex);
  for (ibv_qp* pair : known().pairs) fail(pair);
}

}  // namespace tensorlane::conformance

extern "C" ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  using namespace tensorlane::conformance;
  ibv_qp* pair = in_library<ibv_qp*(ibv_pd*, ibv_qp_init_attr*)>("ibv_create_qp")(domain, attributes);
  const std::lock_guard lock(known().mutex);
  if (pair != nullptr) known().pairs.push_back(pair);
  return pair;
}

extern "C" int ibv_destroy_qp(ibv_qp* pair) {
  using namespace tensorlane::conformance;
  {
    const std::lock_guard lock(known().mutex);
    std::erase(known().pairs, pair);
  }
  return in_library<int(ibv_qp*)>("ibv_destroy_qp")(pair);
}
