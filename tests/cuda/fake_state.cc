#include "fake_state.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace tensorlane::fake_cuda {

State& state() {
  static State* const only = new State;
  // Threads that have ended by themselves are joined at the end of the process; those that wait are left alone.
  static const struct AtExit {
    ~AtExit() { only->join_finished(); }
  } at_exit;
  return *only;
}

State::State() : devices(1) {
  if (const char* settings = std::getenv("TENSORLANE_FAKE_CUDA")) configure(settings);
}

void State::configure(const char* settings) {
  std::istringstream words{std::string(settings)};
  for (std::string word; std::getline(words, word, ',');) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    const std::uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
    if (key == "seed") {
      seed_ = number;
    } else if (key == "delay_us") {
      max_delay_ns = number * 1000;
    } else if (key == "devices") {
      devices.resize(number);
    } else if (key == "channels") {
      shared_channels = static_cast<int>(number);
    } else if (key == "print") {
      if (number != 0) journal.print_violations();
    } else if (key != "watch_self" && !plan_fault(key, value)) {
      std::fprintf(stderr, "TENSORLANE_FAKE_CUDA: '%s' is not a setting\n", word.c_str());
      std::abort();
    }
  }
}

// The value is "SYMBOL:N:ERROR".
bool State::plan_fault(const std::string& key, const std::string& value) {
  if (key != "fail" && key != "fail_async") return false;
  const std::size_t first = value.find(':'), second = value.find(':', first + 1);
  const auto call = call_named(value.substr(0, first));
  if (!call || first == std::string::npos || second == std::string::npos) return false;
  const std::uint64_t n = std::strtoull(value.c_str() + first + 1, nullptr, 10);
  const int error = std::atoi(value.c_str() + second + 1);
  if (key == "fail") {
    journal.fail(*call, n, error);
  } else {
    journal.fail_async(*call, n, error);
  }
  return true;
}

void State::reset(std::uint64_t seed, std::uint64_t max_delay, int device_count) {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    Lock lock(mutex);
    for (const auto& channel : channels_) channel->stop();
    channels.swap(channels_);
  }
  for (const auto& channel : channels) channel->join();
  Lock lock(mutex);
  for (const auto& channel : channels) channel->clear();
  channels.clear();
  streams.clear();
  ending.clear();
  events.clear();
  functions.clear();
  modules.clear();
  sharing_.clear();
  devices.assign(static_cast<std::size_t>(std::max(device_count, 0)), Device{});
  memory.clear();
  journal.clear();
  max_delay_ns = max_delay;
  pushed_contexts = 0;
  global_captures = 0;
  holds_new_streams = false;
  shared_channels = 0;
  seed_ = seed;
  channels_created_ = 0;
  ++epoch_;
}

Thread& State::thread() {
  static std::uint64_t threads = 0;
  thread_local Thread own{++threads, epoch_, {}, 0};
  if (own.epoch != epoch_) own = Thread{own.number, epoch_, {}, 0};
  return own;
}

int State::current_device() {
  const auto& contexts = thread().contexts;
  return contexts.empty() ? -1 : contexts.back();
}

std::shared_ptr<Channel> State::new_channel() {
  // Far from the seeds of its neighbours.
  auto channel = std::make_shared<Channel>(*this, seed_ + 0x9e3779b97f4a7c15u * ++channels_created_);
  channel->start();
  channels_.push_back(channel);
  return channel;
}

std::shared_ptr<Channel> State::channel_for(int device, int priority) {
  if (shared_channels <= 0) return new_channel();
  auto& sharing = sharing_[{device, priority}];
  const std::uint64_t turn = sharing.created++ % static_cast<std::uint64_t>(shared_channels);
  if (turn >= sharing.channels.size()) sharing.channels.push_back(new_channel());
  return sharing.channels[turn];
}

std::shared_ptr<Stream> State::create_stream(int device, int priority, bool of_framework) {
  const int clamped = std::clamp(priority, kGreatestPriority, kLeastPriority);
  auto stream = std::make_shared<Stream>(
      Stream{new_handle(), device, clamped, of_framework, channel_for(device, clamped), holds_new_streams});
  streams[stream->handle] = stream;
  return stream;
}

std::shared_ptr<Stream> State::find_stream(void* handle, int device) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number > 2) {
    const auto found = streams.find(handle);
    return found == streams.end() ? nullptr : found->second;
  }
  if (device < 0) device = std::max(current_device(), 0);
  if (device >= static_cast<int>(devices.size())) return nullptr;
  Device& its = devices[device];
  auto& stream = number == 2 ? its.thread_streams[thread().number] : its.null_stream;
  if (stream == nullptr) stream = create_stream(device, 0, true);
  return stream;
}

void State::destroy_stream(std::shared_ptr<Stream> stream) {
  if (stream->captures_globally) --global_captures;
  streams.erase(stream->handle);
  std::erase_if(ending, [](const auto& other) { return other->queued == 0; });
  if (stream->queued > 0) ending.push_back(stream);
  for (const auto& [place, sharing] : sharing_) {
    if (std::find(sharing.channels.begin(), sharing.channels.end(), stream->channel) != sharing.channels.end()) return;
  }
  stream->channel->end();
}

void State::put(const std::shared_ptr<Stream>& stream, std::unique_ptr<Operation> operation) {
  for (const auto& range : operation->ranges) ++range->queued;
  if (operation->launch != nullptr) ++operation->launch->function->module->queued;
  operation->stream = stream;
  ++stream->queued;
  stream->channel->put(std::move(operation));
}

void State::hold_all(bool held) {
  holds_new_streams = held;
  for (const auto& [handle, stream] : streams) stream->held = held;
  for (const auto& stream : ending) stream->held = held;
  for (const auto& channel : channels_) channel->look_again();
}

void* State::create_event(int device) {
  void* handle = new_handle();
  events[handle] = std::make_shared<Event>(Event{device, nullptr});
  return handle;
}

void* State::create_module(int device) {
  void* handle = new_handle();
  modules[handle] = std::make_shared<Module>(Module{device});
  return handle;
}

void State::unload(void* handle) {
  const auto module = modules.at(handle);
  module->alive = false;
  std::erase_if(functions, [&](const auto& entry) { return entry.second->module == module; });
  modules.erase(handle);
}

void* State::handle_of(const Function& wanted) {
  for (const auto& [handle, function] : functions) {
    if (function->module == wanted.module && function->name == wanted.name) return handle;
  }
  void* handle = new_handle();
  functions[handle] = std::make_shared<Function>(wanted);
  return handle;
}

const char* State::describe(void* handle) const {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  return number > kFirstHandle && number <= next_handle_ && number % 16 == 0 ? "destroyed" : "unknown";
}

void State::retire(const std::shared_ptr<Range>& range, const char* what, Lock& lock) {
  if (range->queued > 0 && devices[range->device].error == 0) {
    journal.violate(what, ": ", range->queued, " operations that use the memory at ",
                    reinterpret_cast<void*>(range->start), " have not ended");
  }
  memory.remove(range);
  changed.wait(lock.held(), [&] { return range->running == 0; });
}

void State::join_finished() {
  std::vector<std::shared_ptr<Channel>> finished;
  {
    Lock lock(mutex);
    const auto first = std::stable_partition(channels_.begin(), channels_.end(),
                                             [](const auto& channel) { return !channel->finished(); });
    finished.assign(first, channels_.end());
    channels_.erase(first, channels_.end());
  }
  for (const auto& channel : finished) channel->join();
  const Hidden hidden;
  finished.clear();
}

}  // namespace tensorlane::fake_cuda
