#include "client-lib/torch/backend.h"

#include <algorithm>
#include <thread>

#include "client-lib/torch/library.h"

namespace tensorlane::torch_backend {
namespace {

using Clock = OperationWork::Clock;

constexpr std::chrono::milliseconds kLook{5};

// In the words of Gloo, by which programs know it.
std::string failed_to_pass(const std::vector<int>& ranks, std::chrono::milliseconds timeout, const std::string& group) {
  std::string text = ranks.size() == 1 ? "Rank " : "Ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text + " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) +
         " ms (Rank 0 timed out in monitoredBarrier): process group '" + group +
         "': look at what these ranks do, or raise the time-out";
}

// Whether the key comes before `end`. Other threads can use the store meanwhile.
bool comes(c10d::Store& store, const std::string& key, Clock::time_point end) {
  while (!store.check({key})) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

// Where this release of torch has a place for it.
template <typename Options>
void set_name(Options& options, const std::string& name) {
  if constexpr (requires { options.group_name; }) options.group_name = name;
}

}  // namespace

TensorlaneBackend::TensorlaneBackend(std::shared_ptr<Group> group)
    : Backend(group->rank(), group->size()), group_(std::move(group)) {
  init();
}

// On a thread of its own: leaving waits for threads that may wait for the interpreter's lock, which whoever drops the
// last reference may hold.
TensorlaneBackend::~TensorlaneBackend() {
  if (!group_->left() && !detach([group = group_] { group->leave(); })) group_->leave();
}

c10::intrusive_ptr<c10d::Backend::Options> TensorlaneBackend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>("tensorlane", group_->timeout());
  set_name(*options, group_->name());
  return options;
}

void TensorlaneBackend::abort() {
  group_->abort("this process has aborted its process group");
}

void TensorlaneBackend::shutdown() {
  group_->leave();
}

void TensorlaneBackend::check_root(int64_t root, const char* where) const {
  TORCH_CHECK(root >= 0 && root < size_, "root ", root, " is no rank of the group: ", where, ": use 0 to ", size_ - 1);
}

Group::Order TensorlaneBackend::order(c10d::OpType type, const char* name, std::int64_t count, at::ScalarType dtype,
                                      milliseconds timeout) {
  Group::Order order;
  order.description.type = type;
  order.description.name = name;
  order.description.count = static_cast<std::uint64_t>(count);
  order.description.dtype = dtype;
  order.timeout = timeout;
  return order;
}

void TensorlaneBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool all) {
  group_->check_process();
  const milliseconds timeout = options.timeout.count() < 0 ? group_->timeout() : options.timeout;
  const Clock::time_point end = Clock::now() + timeout;
  const std::string key = group_->key("monitored/" + std::to_string(++monitored_));
  c10d::Store& store = group_->store();
  if (rank_ != 0) {
    const std::string mine = key + "/" + std::to_string(rank_);
    store.set(mine, "here");
    const std::string here = "Rank " + std::to_string(rank_) +
                             " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                             "from rank 0: ";
    // Rank 0 says in time who is missing, so it is waited for a little longer.
    const milliseconds longer = timeout / 10 + std::chrono::seconds(1);
    bool came = comes(store, key + "/end", end + longer);
    if (!came && store.deleteKey(mine)) {
      // Rank 0 has not been here, and does not count this rank when it comes: the next call is this barrier again.
      --monitored_;
    } else if (!came) {
      came = comes(store, key + "/end", Clock::now() + timeout + longer);  // it is here, and says so within its time
    }
    TORCH_CHECK(came, here, failed_to_pass({0}, timeout, group_->name()));
    const std::string said = store.get_to_str(key + "/end");
    if (said == "all") return;
    store.deleteKey(mine);  // rank 0 has left without it
    TORCH_CHECK(false, here, said);
  }
  std::vector<int> missing;
  for (int rank = 1; rank < size_ && (all || missing.empty()); ++rank) {
    const std::string its_key = key + "/" + std::to_string(rank);
    // Taking the key decides: a rank that gives up takes it back.
    if (!comes(store, its_key, end) || !store.deleteKey(its_key)) missing.push_back(rank);
  }
  const std::string said = missing.empty() ? "all" : failed_to_pass(missing, timeout, group_->name());
  store.set(key + "/end", said);
  // Nobody can be in the barrier before the last one any more, where all have come to it; else somebody comes late, and
  // is told.
  if (!passed_.empty()) store.deleteKey(passed_);
  passed_ = missing.empty() ? key + "/end" : "";
  TORCH_CHECK(missing.empty(), said);
}

}  // namespace tensorlane::torch_backend
