#include "fake_streams.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "client-lib/src/cuda/kernels/on_host.h"
#include "fake_state.h"
#include "hidden_lock.h"

namespace tensorlane::fake_cuda {

constexpr std::chrono::microseconds kPollEvery{20};

std::unique_ptr<Operation> Operation::make(Kind kind, Call call) {
  std::unique_ptr<Operation> operation;
  {
    const Hidden hidden;
    operation = std::make_unique<Operation>();
    operation->kind = kind;
    operation->call = call;
  }
  operation->made.store(true, std::memory_order_release);
  return operation;
}

void Operation::use(const std::shared_ptr<Range>& range) {
  if (range != nullptr && std::find(ranges.begin(), ranges.end(), range) == ranges.end()) ranges.push_back(range);
}

void Channel::start() {
  thread_ = std::thread([this] { run(); });
}

void Channel::put(std::unique_ptr<Operation> operation) {
  queue_.push_back(std::move(operation));
  wake_.notify_all();
}

void Channel::end() {
  ending_ = true;
  wake_.notify_all();
}

void Channel::stop() {
  stopping_ = true;
  wake_.notify_all();
}

void Channel::run() {
  while (Operation* operation = next()) {
    execute(*operation);
    finish();
  }
}

// Waits for the next operation, then for its time, then until it may begin. Null: the thread is to end.
Operation* Channel::next() {
  std::chrono::nanoseconds delay{0};
  {
    Lock lock(state_.mutex);
    wake_.wait(lock.held(), [this] { return stopping_ || ending_ || !queue_.empty(); });
    if (stopping_ || queue_.empty()) {
      finished_ = true;
      return nullptr;
    }
    delay = std::chrono::nanoseconds(random_() % (state_.max_delay_ns + 1));
  }
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
  Lock lock(state_.mutex);
  wake_.wait(lock.held(), [this] { return stopping_ || may_begin(); });
  if (stopping_) {
    finished_ = true;
    return nullptr;
  }
  Operation* operation = queue_.front().get();
  begin(*operation);
  return operation;
}

bool Channel::may_begin() const {
  const Stream& stream = *queue_.front()->stream;
  return !stream.held || stream.steps > 0;
}

void Channel::discard(Operation& operation, int error) {
  operation.discarded = true;
  if (operation.is_logged()) state_.journal.failed(operation.place);
  int& sticky = state_.devices[operation.stream->device].error;
  if (sticky == 0) sticky = error;
}

void Channel::begin(Operation& operation) {
  Stream& stream = *operation.stream;
  if (stream.held) --stream.steps;
  if (operation.is_logged()) state_.journal.began(operation.place);
  if (state_.devices[stream.device].error != 0) return discard(operation, 0);
  if (operation.fails_with != 0) return discard(operation, operation.fails_with);
  for (const auto& range : operation.ranges) {
    if (range->alive) continue;
    state_.journal.violate(name_of(operation.call), ": the memory at ", reinterpret_cast<void*>(range->start),
                           " that it uses was freed or unregistered before it ran");
    return discard(operation, kIllegalAddress);
  }
  if (operation.launch != nullptr && !operation.launch->function->module->alive) {
    state_.journal.violate(name_of(operation.call), ": the module of ", operation.launch->function->name,
                           " was unloaded before it ran");
    return discard(operation, kIllegalAddress);
  }
  if (operation.kind == Operation::Kind::kWaitValue) return;
  for (const auto& range : operation.ranges) ++range->running;
}

// The accesses in here are those of the GPU, which the sanitizers see, but what one GPU may read of another's memory
// (see CMakeLists.txt).
void Channel::execute(Operation& operation) {
  operation.made.load(std::memory_order_acquire);
  if (operation.discarded) return;
  switch (operation.kind) {
    case Operation::Kind::kCopy:
      if (operation.direction == kFakeCudaWithin) {
        const client::cuda::KernelSources one{{reinterpret_cast<std::uintptr_t>(operation.from)}};
        client::cuda::combine_on_host("tl_sum_uint8", operation.to, one, 1, operation.bytes);
        break;
      }
      std::memmove(operation.to, operation.from, operation.bytes);
      break;
    case Operation::Kind::kFill:
      std::memset(operation.to, operation.fill, operation.bytes);
      break;
    case Operation::Kind::kRecord:
      operation.record->done.store(true, std::memory_order_release);
      break;
    case Operation::Kind::kWaitValue:
      poll(operation);
      break;
    case Operation::Kind::kFunction:
      operation.function(operation.argument);
      break;
    case Operation::Kind::kKernel:
      compute(*operation.launch, operation.to);
      break;
  }
}

void Channel::compute(const Launch& launch, void* to) {
  const Function& function = *launch.function;
  if (function.finishes) {
    const auto* from = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(launch.sources.at[0]));
    client::cuda::finish_on_host(function.name, to, from, launch.elements, launch.divisor);
  } else {
    client::cuda::combine_on_host(function.name, to, launch.sources, launch.count, launch.elements);
  }
}

void Channel::poll(Operation& operation) {
  Range& range = *operation.ranges.front();
  for (;;) {
    {
      Lock lock(state_.mutex);
      if (stopping_) return;
      if (state_.devices[operation.stream->device].error != 0) return discard(operation, 0);
      if (!range.alive) {
        state_.journal.violate(name_of(operation.call), ": the word at ", operation.word,
                               " that it waits for was freed or unregistered meanwhile");
        return discard(operation, kIllegalAddress);
      }
      ++range.running;
    }
    const std::uint32_t found = __atomic_load_n(operation.word, __ATOMIC_ACQUIRE);
    {
      Lock lock(state_.mutex);
      --range.running;
      state_.changed.notify_all();
    }
    if (static_cast<std::int32_t>(found - operation.value) >= 0) return;
    std::this_thread::sleep_for(kPollEvery);
  }
}

void Channel::finish() {
  Lock lock(state_.mutex);
  Operation& operation = *queue_.front();
  for (const auto& range : operation.ranges) {
    --range->queued;
    if (!operation.discarded && operation.kind != Operation::Kind::kWaitValue) --range->running;
  }
  if (operation.launch != nullptr) --operation.launch->function->module->queued;
  if (operation.is_logged()) state_.journal.ended(operation.place, operation.direction);
  if (operation.record != nullptr) operation.record->discarded = operation.discarded;
  --operation.stream->queued;
  queue_.pop_front();
  state_.changed.notify_all();
}

}  // namespace tensorlane::fake_cuda
