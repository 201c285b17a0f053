#include "client-lib/torch/work.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "client-lib/torch/group.h"
#include "client-lib/torch/library.h"

namespace tensorlane::torch_backend {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPiece{100};  // how often a thread that waits looks whether the operation was given up

std::exception_ptr error_of(const std::string& text) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

void mark(c10::ivalue::Future& future, const std::exception_ptr& error, const std::vector<at::Tensor>& results) {
  if (error != nullptr) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(results));
  }
}

}  // namespace

std::string Description::text() const {
  std::ostringstream out;
  out << name;
  if (count > 0) out << " of " << count;
  if (dtype != at::ScalarType::Undefined) out << ' ' << c10::toString(dtype);
  if (op != nullptr) out << " (" << op << ')';
  if (root >= 0) out << ", root " << root;
  if (type == c10d::OpType::RECVANYSOURCE) out << " from any rank, tag " << tag;
  if (peer >= 0) out << (type == c10d::OpType::SEND ? " to" : " from") << " rank " << peer << ", tag " << tag;
  return out.str();
}

OperationWork::OperationWork(std::shared_ptr<Group> group, Description description, milliseconds timeout,
                             const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> kept,
                             std::vector<at::Tensor> results, std::function<void()> after)
    : Work(group->rank(), description.type, ("tensorlane:" + std::string(description.name)).c_str(),
           inputs.empty() ? std::nullopt : std::optional<std::vector<at::Tensor>>(inputs)),
      group_(std::move(group)),
      description_(description),
      timeout_(timeout),
      kept_(std::move(kept)),
      results_(std::move(results)),
      after_(std::move(after)) {}

void OperationWork::set_request(tl_request_t* request) {
  std::unique_lock lock(owner_mutex_);
  request_ = request;
  owner_ = Owner::kNobody;
  if (wants_arming_) arm_locked(lock);
}

void OperationWork::complete(const std::string& error) {
  std::string why = error;
  {
    std::lock_guard lock(owner_mutex_);
    if (std::exchange(completing_, true)) return;
    if (!why.empty() && !given_up_.empty() && owner_ == Owner::kElsewhere) why = given_up_;
  }
  std::exception_ptr exception = why.empty() ? nullptr : error_of(why);
  if (exception == nullptr && after_ != nullptr) {
    try {
      at::NoGradGuard no_grad;
      after_();
    } catch (...) {
      exception = std::current_exception();
    }
  }
  after_ = nullptr;
  if (!keeps_) kept_.clear();
  finish(exception);
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(owner_mutex_);
    told_ = true;
    future = future_;
    owner_changed_.notify_all();
  }
  group_->forget(*this);
  if (future != nullptr) mark(*future, exception, results_);
}

void OperationWork::arm() {
  std::unique_lock lock(owner_mutex_);
  wants_arming_ = true;
  if (owner_ == Owner::kNobody) arm_locked(lock);
}

void OperationWork::arm_if_nobody_waits() {
  std::unique_lock lock(owner_mutex_);
  if (owner_ == Owner::kNobody) arm_locked(lock);
}

void OperationWork::arm_locked(std::unique_lock<std::mutex>& lock) {
  owner_ = Owner::kLibrary;
  tl_request_t* request = std::exchange(request_, nullptr);
  // The library's, until it has called on_done().
  void* self = c10::intrusive_ptr<OperationWork>::reclaim_copy(this).release();
  lock.unlock();
  const tl_status_t status = library().set_callback(request, on_done, self);
  if (status != TL_OK && status != TL_ERROR_RESOURCE_EXHAUSTED) on_done(status, self);
  lock.lock();
  if (status != TL_ERROR_RESOURCE_EXHAUSTED) return;
  // No thread can be started for it now. Whoever waits needs none, and the watch tries again.
  (void)c10::intrusive_ptr<OperationWork>::reclaim(static_cast<OperationWork*>(self));
  request_ = request;
  owner_ = Owner::kNobody;
  owner_changed_.notify_all();
}

void OperationWork::complete_soon(const std::string& error) {
  complete_by([error] { return error; });
}

void OperationWork::complete_by(std::function<std::string()> error) {
  auto self = c10::intrusive_ptr<OperationWork>::reclaim_copy(this);
  group_->finisher().post([self, error = std::move(error)] {
    self->complete(error());
    if (self->keeps_) self->kept_.clear();  // else complete() has, here or on another thread
  });
}

void OperationWork::on_done(tl_status_t status, void* work) {
  const auto self = c10::intrusive_ptr<OperationWork>::reclaim(static_cast<OperationWork*>(work));
  if (status == TL_OK) return self->complete_soon("");
  self->complete_by([self, status, said = std::string(library().last_error())] {
    return self->group_->error(self->description_, status, said);
  });
}

void OperationWork::give_up(const std::string& error) {
  {
    std::unique_lock lock(owner_mutex_);
    if (given_up_.empty()) given_up_ = error;
    if (owner_ == Owner::kWaiter) return;
    // Of several steps: the worker still writes into its memory, and hears of it when the group ends.
    if (owner_ == Owner::kElsewhere && in_steps_) return;
    if (completing_) return;
    leave_to_library_locked(lock);
  }
  complete(error);
}

void OperationWork::leave_to_library_locked(std::unique_lock<std::mutex>& lock) {
  keeps_ = owner_ != Owner::kElsewhere;
  if (request_ != nullptr) arm_locked(lock);
  // The library could not be told to say when it is done with the memory, which therefore stays for good.
  if (request_ != nullptr) (void)c10::intrusive_ptr<OperationWork>::reclaim_copy(this).release();
}

// As the owner of the request, which the caller has become.
void OperationWork::wait_in_library(std::unique_lock<std::mutex>& lock, double seconds) {
  lock.unlock();
  const tl_status_t status = library().wait(request_, seconds);
  std::string error = status == TL_OK || status == TL_ERROR_TIMED_OUT
                          ? std::string()
                          : group_->error(description_, status, library().last_error());
  lock.lock();
  if (status == TL_ERROR_TIMED_OUT && given_up_.empty()) {
    owner_ = Owner::kNobody;
    if (wants_arming_) arm_locked(lock);
    owner_changed_.notify_all();
    return;
  }
  if (status == TL_ERROR_TIMED_OUT) {
    error = given_up_;
    leave_to_library_locked(lock);
  } else {
    request_ = nullptr;
    owner_ = Owner::kElsewhere;
  }
  lock.unlock();
  complete(error);
  lock.lock();
}

bool OperationWork::wait(milliseconds timeout) {
  group_->check_process();
  const bool bounded = timeout > milliseconds(0);
  const Clock::time_point end = bounded ? Clock::now() + timeout : Clock::time_point::max();
  std::unique_lock lock(owner_mutex_);
  while (!told_) {
    const Clock::time_point now = Clock::now();
    if (now >= end) {
      fail(description_.text() + " is not done: within " + std::to_string(timeout.count()) +
           " ms: wait again, for longer: it goes on");
    }
    const Clock::duration left = std::min<Clock::duration>(kPiece, end - now);
    if (owner_ == Owner::kNobody && !completing_) {
      owner_ = Owner::kWaiter;
      wait_in_library(lock, std::chrono::duration<double>(left).count());
    } else {
      owner_changed_.wait_for(lock, left);
    }
  }
  lock.unlock();
  std::lock_guard base(mutex_);
  if (exception_ != nullptr) std::rethrow_exception(exception_);
  return true;
}

bool OperationWork::isCompleted() {
  group_->check_process();
  std::unique_lock lock(owner_mutex_);
  if (told_ || owner_ != Owner::kNobody || completing_) return told_;
  owner_ = Owner::kWaiter;
  wait_in_library(lock, 0);
  return told_;
}

bool OperationWork::isSuccess() const {
  std::lock_guard lock(mutex_);
  return completed_ && exception_ == nullptr;
}

std::exception_ptr OperationWork::exception() const {
  std::lock_guard lock(mutex_);
  return exception_;
}

int OperationWork::sourceRank() const {
  if (description_.type != c10d::OpType::RECVANYSOURCE && description_.type != c10d::OpType::RECV)
    fail(description_.text() + " has no source: sourceRank: ask a receive");
  if (source_ < 0) fail(description_.text() + " is not done: sourceRank: wait for it first");
  return source_;
}

std::vector<at::Tensor> OperationWork::result() {
  if (!isCompleted()) fail(description_.text() + " is not done: result: wait for it first");
  return results_;
}

void OperationWork::synchronize() {
  wait(milliseconds(0));
}

void OperationWork::abort() {
  fail("one operation cannot be aborted: " + description_.text() + ": abort its process group");
}

c10::intrusive_ptr<c10::ivalue::Future> OperationWork::getFuture() {
  group_->check_process();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool late = false;
  {
    std::lock_guard lock(owner_mutex_);
    if (future_ == nullptr) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      late = told_;
    }
    future = future_;
  }
  if (late) {
    mark(*future, exception(), results_);
  } else {
    arm();
  }
  return future;
}

}  // namespace tensorlane::torch_backend
