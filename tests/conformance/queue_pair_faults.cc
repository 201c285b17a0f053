#include "queue_pair_faults.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
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

// A lane that is held stands still, and what would let it go on with it.
constexpr std::chrono::seconds kLongestHeld{10};

struct Address {
  std::mutex mutex;
  std::condition_variable changed;
  SlowAddress slow;
  std::size_t calls = 0, under_way = 0, changes = 0;
};
Address& address() {
  static Address address;
  return address;
}

// What the call says, after its time; 0: what the library says.
int look_for_address() {
  Address& a = address();
  std::unique_lock lock(a.mutex);
  const SlowAddress slow = a.slow;
  const std::size_t call = a.calls++, change = a.changes;
  if (call < slow.after) return 0;
  ++a.under_way;
  if (slow.held) {
    a.changed.wait_for(lock, kLongestHeld, [&] { return a.changes != change; });
  } else {
    lock.unlock();
    std::this_thread::sleep_for(slow.time);
    lock.lock();
  }
  --a.under_way;
  return call < slow.after + slow.times ? slow.error : 0;
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

void set_address(const SlowAddress& slow) {
  const std::lock_guard lock(address().mutex);
  address().slow = slow;
  address().calls = 0;
  ++address().changes;
  address().changed.notify_all();
}

std::size_t address_calls() {
  const std::lock_guard lock(address().mutex);
  return address().calls;
}

std::size_t address_calls_under_way() {
  const std::lock_guard lock(address().mutex);
  return address().under_way;
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

extern "C" int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  using namespace tensorlane::conformance;
  if ((mask & IBV_QP_AV) != 0) {
    if (const int error = look_for_address(); error != 0) return error;
  }
  return in_library<int(ibv_qp*, ibv_qp_attr*, int)>("ibv_modify_qp")(pair, attributes, mask);
}
